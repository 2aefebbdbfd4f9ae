"""``python -m windlass``: the command, where its folder is not on PATH."""

from .launch.cli import main

main()
