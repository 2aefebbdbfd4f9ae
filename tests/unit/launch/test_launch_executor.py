"""Tasks are carried through to their ends as processes."""

import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from ropewalk.core.task import TaskId
from ropewalk.launch.processes.executor import Executor, Work
from ropewalk.launch.processes.process import Exit, Line, TaskProcess, on_interrupts, read_output

TASK = TaskId("worker", 0)


class Ran:
    """What an executor has told, in order."""

    def __init__(self) -> None:
        self.executor = Executor[str](0.5, failed=self.news_put)
        self.news: queue.Queue[Line | Exit | BaseException] = queue.Queue()

    def news_put(self, news: Line | Exit | BaseException) -> None:
        self.news.put(news)

    def process(self, program: str) -> TaskProcess:
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        return read_output(TASK, process, self.news_put)

    def start(self, make: Callable[[], TaskProcess]) -> None:
        def ended(outcome: int | Exception) -> None:
            self.news.put(Exit(TASK, outcome))

        self.executor.start("key", Work("worker:0", "none", make, ended))

    def end(self) -> int | Exception:
        """The task's end, which is the last news."""
        while not isinstance(news := self.news.get(timeout=30), Exit):
            pass
        assert self.news.empty()
        self.executor.wait(10)
        assert not self.executor.running
        return news.outcome


@pytest.fixture
def ran() -> Ran:
    return Ran()


def test_the_end_of_a_task_comes_after_its_last_line(ran: Ran) -> None:
    ran.start(lambda: ran.process("print(1); print(2); raise SystemExit(7)"))
    texts = [ran.news.get(timeout=30) for _ in range(2)]
    assert [line.text for line in texts if isinstance(line, Line)] == ["1", "2"]
    assert ran.end() == 7


def test_a_task_that_cannot_be_started_ends_with_the_reason(ran: Ran) -> None:
    def broken() -> TaskProcess:
        raise OSError("no more processes")

    ran.start(broken)
    error = ran.end()
    assert isinstance(error, OSError)
    assert str(error) == "no more processes"


def test_a_task_that_is_signalled_while_it_is_being_started_never_begins(ran: Ran) -> None:
    going_on = threading.Event()

    def slow() -> TaskProcess:
        going_on.wait(30)
        return ran.process("import time; print('it began', flush=True); time.sleep(60)")

    ran.start(slow)
    assert ran.executor.running == {"key"}
    ran.executor.send("key", signal.SIGTERM)
    going_on.set()
    assert ran.end() == 143


def test_what_a_task_has_started_ends_with_it(ran: Ran) -> None:
    sleep = "import time; time.sleep(60)"
    process = ran.process(
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {sleep!r}]); "
        f"print(1, flush=True); {sleep}"
    )
    ran.start(lambda: process)
    ran.news.get(timeout=30)
    ran.executor.send_all(signal.SIGTERM)
    assert ran.end() == -15
    for reader in process.readers:  # of a pipe that the child has, too
        reader.join(30)
        assert not reader.is_alive()
    ran.executor.send("key", signal.SIGKILL)  # there is no such task any more


def test_every_interrupt_is_told_and_the_handlers_before_are_restored() -> None:
    heard: list[signal.Signals] = []
    before = signal.getsignal(signal.SIGTERM)
    with on_interrupts(heard.append):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGTERM, signal.SIGINT, signal.SIGINT]
    assert signal.getsignal(signal.SIGTERM) is before
