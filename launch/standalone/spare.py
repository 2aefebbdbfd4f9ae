"""A process that has loaded what a task needs, and waits for the task that it is to become.

Loading takes longer than all else between a submission and a program's first line. The process
reads one line from its standard input, a JSON object with ``arguments``, ``environment`` and
``folder``, and is from then on what ``windlass ARGUMENTS`` started there would be. At the end of
its input it ends.
"""

import importlib
import json
import os
import sys

_LOADED = (
    "numpy", "grpc", "windlass.launch.cli", "windlass.launch.task_commands",
    "windlass.worker.daemon", "windlass.worker.task",
    "windlass.distribute", "windlass.training",
)  # fmt: skip
_LOADED_BY_CHIEF = ("windlass.server.chief.server", "windlass.worker.leading")
_LOADED_BY_PS = ("windlass.server.ps.server",)


def main() -> None:
    """Load, wait, and become a task."""
    from ...core.settings import quiet_grpc, replace_environment

    quiet_grpc()
    role = sys.argv[1]
    only = {"ps": _LOADED_BY_PS, "chief": _LOADED_BY_CHIEF}.get(role, ())
    for name in (*_LOADED, *only):
        importlib.import_module(name)
    line = sys.stdin.buffer.readline()
    if not line:
        return
    given = json.loads(line)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    replace_environment(given["environment"])
    os.chdir(given["folder"])
    sys.path[0] = given["folder"]
    sys.argv = ["windlass", *given["arguments"]]
    from ..cli import main as run

    run(given["arguments"])


if __name__ == "__main__":
    main()
