#!/bin/sh
# Write the lock files anew: exact versions with hashes, for every platform. Needs uv.
set -eu
cd "$(dirname "$0")/../.."
lock() {
    output=deploy/docker/$1
    shift
    uv pip compile "$@" --constraints deploy/docker/constraints.txt --python-version 3.11 \
        --universal --generate-hashes --no-emit-index-url --no-annotate --no-header --quiet \
        --upgrade --output-file "$output"
}
lock requirements-build.lock deploy/docker/build.in
lock requirements-cpu.lock pyproject.toml --extra k8s --extra security
lock requirements-gpu.lock pyproject.toml --extra k8s --extra security --extra gpu
lock requirements-digits-cpu.lock pyproject.toml --extra k8s --extra security --extra examples
lock requirements-digits-gpu.lock pyproject.toml --extra k8s --extra security --extra examples --extra gpu
