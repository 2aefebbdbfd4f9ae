"""Tasks as processes of this machine: their environment, start, output and signals."""

import contextlib
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import FrameType, MappingProxyType
from typing import IO

from ...cluster.resolvers.tf_config import TF_CONFIG
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import DECIDED, Settings, child_environment
from ...core.task import TaskId
from ...worker.process.surroundings import LAUNCHER_MARK

# -- Starting tasks as processes of this machine, reading their output, signalling them --------


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


# -- Settings and variables of tasks that are processes of this machine ------------------------

ONE_THREAD: Mapping[str, str] = MappingProxyType(
    {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
)
"""Tasks share the machine: a thread of BLAS per core and task would be too many."""


def process_settings(settings: Settings, **changes: object) -> Settings:
    """Derive the settings of tasks that run as processes from those of a launcher or a daemon.

    Args:
        settings: Settings of the launcher or daemon.
        changes: Settings that are different for these tasks.
    """
    of_process = {name: decided.value for name, decided in DECIDED.items()}
    return settings.model_copy(update={**of_process, **changes})


def process_environment(
    settings: Settings, tf_config: str, own: Mapping[str, str], user: Mapping[str, str]
) -> dict[str, str]:
    """Collect the variables of a task that is a process here.

    Args:
        settings: Settings of the task, as :func:`process_settings` makes them.
        tf_config: The task and its cluster.
        own: Variables of this task or job, which win over the settings.
        user: The user's, over which the settings win.
    """
    return {**user, **settings.environment(), **own, TF_CONFIG: tf_config}


# -- A task's output as lines. Pure: bytes and the time in, lines out --------------------------

# Where a log line of ours begins behind a part of a line, such as a progress bar's.
_INTERRUPTED = re.compile(rb"(?<=[^\n])" + LAUNCHER_MARK.encode())
_OVERWRITTEN_S = 2.0
_MAX_LINE_BYTES = 64 * 1024


class LineSplitter:
    """Cuts what a process writes into lines.

    A progress bar such as tqdm's ends its lines with a carriage return and writes the next one over
    the last. In a log every one of them would be a line, or all of them a single one: the last is
    shown when the line ends, and meanwhile one every two seconds.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._shown = b""  # of a line that is not over
        self._shown_at = 0.0

    def feed(self, data: bytes, *, now: float) -> list[str]:
        """Return the lines to show after more output; ``now`` in seconds."""
        whole = _INTERRUPTED.sub(b"\n" + LAUNCHER_MARK.encode(), self._rest + data)
        *ended, rest = whole.split(b"\n")
        lines = []
        for raw in ended:
            text = last_version(raw)
            if text != self._shown or not text:
                lines.append(_decoded(text))
            self._shown = b""
        if b"\r" in rest:
            if not self._shown and ended:
                self._shown_at = now
            text = last_version(rest)
            text = text[:_MAX_LINE_BYTES]  # no terminal is as wide
            rest = b"\r" + text + (b"\r" if rest.endswith(b"\r") else b"")
            if text and text != self._shown and now - self._shown_at >= _OVERWRITTEN_S:
                self._shown, self._shown_at = text, now
                lines.append(_decoded(text))
        elif len(rest) > _MAX_LINE_BYTES:
            lines.append(_decoded(rest))
            rest = b""
        self._rest = rest
        return lines

    def end(self) -> list[str]:
        """Return the last line, if it has no end."""
        text, self._rest = last_version(self._rest), b""
        return [_decoded(text)] if text and text != self._shown else []


def last_version(raw: bytes) -> bytes:
    """Find what a terminal would show of a line whose parts overwrite each other."""
    return next((part for part in reversed(raw.split(b"\r")) if part.strip()), b"")


def _decoded(raw: bytes) -> str:
    return raw.decode(errors="replace").rstrip()


# -- Signals to a launcher: it ends what it has started before it ends itself ------------------


@contextlib.contextmanager
def on_interrupts(stop: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Let every Ctrl-C and SIGTERM call ``stop`` within this context. For the main thread.

    Afterwards the handlers are in place again that were there before.
    """

    def handle(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop(signal.Signals(number))

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
