"""Starting tasks as processes of this machine, reading their output, signalling them."""

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import IO

from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import child_environment
from ...core.task import TaskId
from ...worker.process.logs import LAUNCHER_MARK
from .output import LineSplitter

_LAST_LINES = 30
_MAX_QUEUED_LINES = 10_000  # beyond it a task that prints faster than the display has to wait


@dataclass(frozen=True, slots=True)
class Line:
    """A line that a task printed."""

    task: TaskId
    text: str
    is_error: bool
    is_ours: bool = False  # a log line of Ropewalk, not of the program


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of a task, after its last line.

    Attributes:
        task: The task.
        outcome: Exit status as ``subprocess`` reports it, or why the task could not be run.
    """

    task: TaskId
    outcome: int | Exception


@dataclass
class TaskProcess:
    """A task's process."""

    task: TaskId
    process: subprocess.Popen[bytes]
    readers: list[threading.Thread]
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))

    @property
    def code(self) -> int | None:
        """Exit status as ``subprocess`` reports it; None while it runs."""
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; SIGKILL goes to the whole process group."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.code is None:
                self.process.send_signal(number)


class ParentDeathPipe:
    """A pipe inherited by the tasks: it closes when this process dies, even by SIGKILL."""

    def __init__(self) -> None:
        self.child_fd, self._own_fd = os.pipe()

    def close(self) -> None:
        """Close both ends."""
        for fd in (self.child_fd, self._own_fd):
            with contextlib.suppress(OSError):
                os.close(fd)


def start_task(
    task: TaskId,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    death_pipe: ParentDeathPipe,
    put_line: Callable[[Line], None],
) -> TaskProcess:
    """Start ``python -m ropewalk.launch.cli ARGUMENTS`` in a process group of its own.

    Args:
        task: Task of the process.
        arguments: Arguments of the command.
        environment: Beside what every task inherits.
        death_pipe: Tells it of the end of this process.
        put_line: Called with every line it prints, from a thread; may wait.
    """
    module = ["ropewalk.launch.cli", *arguments]
    inherited = task_environment(environment, death_pipe)
    return read_output(task, start_python(module, inherited, death_pipe), put_line)


def task_environment(environment: Mapping[str, str], death_pipe: ParentDeathPipe) -> dict[str, str]:
    """Make the environment of a task's process."""
    return child_environment(**environment, ROPEWALK_PARENT_DEATH_FD=str(death_pipe.child_fd))


def start_python(
    module: Sequence[str],
    environment: Mapping[str, str],
    death_pipe: ParentDeathPipe,
    stdin: int = subprocess.DEVNULL,
    output: int | None = subprocess.PIPE,
    further: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start ``python -m MODULE`` in a process group of its own.

    Args:
        module: Name of the module and its arguments.
        environment: All variables.
        death_pipe: Tells it of the end of this process.
        stdin: Standard input, as ``subprocess.Popen`` takes it.
        output: File to which stdout and stderr go; None: where those of this process do.
        further: Open files that it inherits.
    """
    return subprocess.Popen(
        [sys.executable, "-u", "-m", *module],
        stdin=stdin,
        stdout=output,
        stderr=output,
        env=environment,
        pass_fds=(death_pipe.child_fd, *further),
        # Ctrl-C in the terminal reaches the launcher alone, which ends the tasks in order.
        start_new_session=True,
    )


def read_output(
    task: TaskId, process: subprocess.Popen[bytes], put_line: Callable[[Line], None]
) -> TaskProcess:
    """Read a task's output in threads."""
    started = TaskProcess(task, process, [])

    def put(text: str, is_error: bool) -> None:
        ours = text.startswith(LAUNCHER_MARK)
        text = text.removeprefix(LAUNCHER_MARK)
        if is_error:
            started.last_lines.append(text)
        put_line(Line(task, text, is_error, ours))

    def read(stream: IO[bytes], is_error: bool) -> None:
        splitter = LineSplitter()
        with stream:
            while data := os.read(stream.fileno(), 65536):
                for text in splitter.feed(data, now=time.monotonic()):
                    put(text, is_error)
        for text in splitter.end():
            put(text, is_error)

    for stream, is_error in ((process.stdout, False), (process.stderr, True)):
        if stream is None:
            continue
        # The end of the thread closes the pipe, which the task notices.
        thread = new_thread(
            f"{task.short}-output", partial(read, stream, is_error), failed=nobody_waits
        )
        thread.start()
        started.readers.append(thread)
    return started


def new_line_queue() -> "queue.Queue[Line | Exit]":
    """Make a bounded queue for the tasks' lines, and their ends."""
    return queue.Queue(maxsize=_MAX_QUEUED_LINES)
