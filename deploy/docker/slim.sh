#!/bin/sh
# Take out of a virtual environment what nobody needs to run: a quarter of it.
set -eu
cd "$1"
# numpy.testing imports one module of numpy's own tests.
find . -depth -type d -name tests -not -path '*/ropewalk/*' -not -path '*/numpy/_core/*' \
    -exec rm -r {} +
find . -path '*/numpy/_core/tests/*' -type f -not -name '_natype.py' -not -name '__init__.py' -delete
find . -type f \( -name '*.pyi' -o -name '*.pyx' -o -name '*.pxd' -o -name '*.h' -o -name '*.a' \) \
    -delete
# The asynchronous half of the client of Kubernetes.
find . -depth -type d -path '*/kubernetes/aio' -exec rm -r {} +
# Tables of symbols; only of libraries that no tool has patched, since others do not survive it.
find . -type f \( -name libllvmlite.so -o -name '_rust.abi3.so' -o -name '_xxhash*.so' \
    -o -name '_safetensors_rust*.so' \) -exec strip --strip-unneeded {} +
