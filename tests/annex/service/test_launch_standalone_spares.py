"""The process that is ready to become a task."""

import os
import signal
from collections.abc import Callable, Iterator

import pytest

from ropewalk.annexes.service.spares import Spares
from ropewalk.core.process.processes import is_stopped
from ropewalk.core.task import TaskId
from ropewalk.launch.processes.process import ParentDeathPipe

WaitUntil = Callable[..., None]


@pytest.fixture
def spares() -> Iterator[Spares]:
    pipe = ParentDeathPipe()
    spares = Spares(TaskId("worker", 0), pipe)
    yield spares
    spares.close()
    pipe.close()


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL], ids=["stopped", "killed"])
def test_one_that_would_never_become_a_task_is_replaced(
    spares: Spares, number: signal.Signals, wait_until: WaitUntil
) -> None:
    spares.start()
    first = spares._ready
    assert first is not None
    os.kill(first.pid, number)
    wait_until(lambda: is_stopped(first.pid) or first.poll() is not None, 10, "the signal")
    taken = spares.take()
    try:
        assert taken.pid != first.pid
        assert first.poll() is not None, "what cannot be used is ended"
    finally:
        taken.kill()
        for stream in (taken.stdin, taken.stdout, taken.stderr):
            if stream is not None:
                stream.close()
        taken.wait()
