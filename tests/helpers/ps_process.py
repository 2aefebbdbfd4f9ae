"""A ps, or a worker of one, as a process that a test kills or stops: what it does is said in lines.

Arguments: the role, and a JSON object of its arguments and settings.
"""

import json
import sys
from typing import Any

import numpy as np

from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.errors import RopewalkError
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Operation
from ropewalk.server.ps.server import PsServer

PS = TaskId("ps", 0)
# Four blocks of 600 kB with a lock each: a push can break off between them.
BLOCKS = [VariableDefinition(f"v{i}", (150_000,), np.dtype(np.float32)) for i in range(4)]
NAMES = [block.name for block in BLOCKS]


def say(*words: object) -> None:
    """A line for the test."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def run_ps(**settings: Any) -> None:
    """Serve until killed."""
    server = PsServer(PS, Settings(**settings))
    server.start("127.0.0.1:0")
    say("ready", server.port)
    server.wait()


def run_worker(address: str, generation: int, steps: int, **settings: Any) -> None:
    """Add one to every block in each step, and say so after each."""
    who, own = Incarnation(TaskId("worker", 0), generation), Settings(**settings)
    session = ParameterSession([RemotePs(PS, address, who, own)], who, own)
    try:
        session.connect()
        session.define(BLOCKS, {b.name: np.zeros(b.shape, np.float32) for b in BLOCKS}, create=True)
        ones = {block.name: np.ones(block.shape, np.float32) for block in BLOCKS}
        for step in range(1, steps + 1):
            session.step(Step([Write(Operation.ASSIGN_ADD, ones)], NAMES, increment=1))
            say("step", step)
        say("done")
    except RopewalkError as error:
        say("failed", type(error).__name__, error.message.replace("\n", " "))
    session.close()


def main() -> None:
    role = run_ps if sys.argv[1] == "ps" else run_worker
    role(**json.loads(sys.argv[2]))


if __name__ == "__main__":
    main()
