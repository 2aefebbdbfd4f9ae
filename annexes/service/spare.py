"""A process that has loaded what a task needs, and waits for the task that it is to become.

Loading takes longer than all else between a submission and a program's first line. The process
reads one line from its standard input, a JSON object with ``arguments``, ``environment`` and
``folder``, and is from then on what ``ropewalk ARGUMENTS`` started there would be. At the end of
its input it ends.
"""

import json
import os
import sys

from ...core.public_face import load_public_names


def _load(role: str) -> None:
    import click
    import grpc  # noqa: F401
    import numpy as np  # noqa: F401

    from ...launch.cli import ropewalk
    from ...worker import daemon, job_task  # noqa: F401
    from ...worker.data_plane import servers  # noqa: F401

    ropewalk.get_command(click.Context(ropewalk), "run")
    load_public_names("ropewalk.distribute")
    load_public_names("ropewalk.training")
    if role == "chief":
        from ...server.chief import server  # noqa: F401
        from ...worker.lead import outside_program  # noqa: F401
    elif role == "ps":
        from ...server.ps import server as ps_server  # noqa: F401


def main() -> None:
    """Load, wait, and become a task."""
    from ...core.settings import quiet_grpc, replace_environment

    quiet_grpc()
    _load(sys.argv[1])
    line = sys.stdin.buffer.readline()
    if not line:
        return
    order = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    replace_environment(order["environment"])
    os.chdir(order["folder"])
    sys.path[0] = order["folder"]
    sys.argv = ["ropewalk", *order["arguments"]]
    from ...launch.cli import main as run

    run(order["arguments"])


if __name__ == "__main__":
    main()
