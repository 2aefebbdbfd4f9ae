#!/bin/sh
# Gives the Python files of a folder times of whole seconds:
#
#   sh whole-seconds.sh /opt/ropewalk/lib
#
# Layers of an image keep no fractions of them, and Numba compiles a kernel anew if its source has
# another time than it had then.
set -eu

find "$1" -type f -name '*.py' -exec sh -c '
    for file; do touch --no-create --date="@$(stat --format=%Y "$file")" "$file"; done' sh {} +
