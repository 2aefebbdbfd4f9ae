#!/usr/bin/env bash
# Print a PATH with what a bare Debian has: its required and important packages, python3, git and
# make, and nothing that somebody has installed beside them. Its links are made in the folder given.
#
#     tools/bare_path.sh FOLDER
set -euo pipefail
folder=${1:?name an empty folder for the links}

if ! command -v dpkg-query >/dev/null; then
    echo "bare_path.sh: no dpkg-query here, so the PATH stays as it is" >&2
    echo "$PATH"
    exit
fi

link() { # a program and what it is linked to
    [ -z "$2" ] || ln -sf "$2" "$folder/$1"
}

mapfile -t packages < <(dpkg-query -W -f='${Package} ${Priority} ${Essential}\n' |
    awk '$2 == "required" || $2 == "important" || $3 == "yes" { print $1 }')
while read -r file; do
    [ ! -x "$file" ] || link "${file##*/}" "$file"
done < <(dpkg -L "${packages[@]}" git make 2>/dev/null | grep -E '^(/usr)?/s?bin/[^/]+$')
# What is a link to an alternative, or was not installed as a package of Debian.
for name in awk nawk which git make; do
    [ -e "$folder/$name" ] || link "$name" "$(command -v "$name" || true)"
done
# The interpreter itself: not a script that looks for one elsewhere.
link python3 "$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')"
echo "$folder"
