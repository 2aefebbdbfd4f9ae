"""``python -m ropewalk``: the command, where its folder is not on PATH."""

from .launch.cli import main

main()
