#!/bin/sh
# Make what the tasks of a job show each other: for each role a token, the key that tokens are
# checked with, a certificate and the CA that signed it.
#
#   credentials.sh JOB FOLDER
#
# FOLDER/chief, FOLDER/ps, FOLDER/worker and FOLDER/evaluator are there. What signs is not kept, so
# files that will do for ten days more are left as they are.
set -eu
job=$1
folder=$2
days=30
if [ -n "$(find "$folder/evaluator" -name token -mtime -20)" ]; then
    echo "the credentials of job $job are from less than 20 days ago, and stay"
    exit
fi
signing=$(mktemp -d)
trap 'rm -rf "$signing"' EXIT

ropewalk certs init "$signing/ca" --days $days
for role in chief ps worker evaluator; do
    # Tasks are dialled by their names in the network; the chief also through its published port.
    ropewalk certs issue "$signing/ca" --job "$job" --role "$role" --days $days \
        --host "$role-0" --host "$role-1" --host localhost --host 127.0.0.1 --out "$signing/$role"
    ropewalk token new --job "$job" --role "$role" --days $days \
        --key "$signing/signing.pem" --out "$signing/$role/token"
    cp "$signing/signing.pem.pub" "$signing/$role/token.pub"
    for file in tls.crt tls.key ca.crt token token.pub; do
        install -m 0600 "$signing/$role/$file" "$folder/$role/$file"
    done
done
