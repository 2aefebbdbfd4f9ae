"""Surroundings of a task's process: resource limits, log lines, and requests to stop."""

import contextlib
import json
import logging
import resource
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import FrameType

from ...cluster.resolvers.resolved import ResolvedTask
from ...core import annexes
from ...core.errors import ConfigurationError, RopewalkError
from ...core.process.events import EventHandler, event_of, own_task
from ...core.process.log_records import is_reported_by_launcher
from ...core.settings import Settings
from ...core.terminal import terminal_text
from ...net.this_machine import raise_limit

# -- The process of a task, for annexes: one that has a module ``task_process`` attaches there ----


def begin_task_process(task: ResolvedTask, settings: Settings) -> None:
    """Have annexes take part in this process, which is a task's from now on.

    Args:
        task: The task.
        settings: The task's settings.

    Raises:
        RopewalkError: One of them cannot do what the settings ask for.
    """
    for module in annexes.at("task_process"):
        module.begin(task, settings)


# -- Resource limits that a process needs before it begins: open files, and address space ------
# With too little it would fail later, in the middle of a library, or wait for a peer that failed.


_FILES = 256  # half are kept from connections; a task of a small job has 60 open
_FILES_PER_TASK = 4  # of a launcher: two pipes, and for a moment those of its start
_ADDRESS_SPACE = 2_000_000_000  # of NumPy, gRPC, Numba and the stacks of 60 threads, mostly unused
_MB = 1_000_000


def check_limits(tasks: int = 0) -> None:
    """Check the limits of this process, which those that it starts inherit.

    Args:
        tasks: Number of tasks that this process starts and watches.

    Raises:
        ConfigurationError: Too few open files, or too little address space.
    """
    wanted = _FILES + _FILES_PER_TASK * tasks
    files = raise_limit()
    if files < wanted:
        user = f"a launcher of {tasks} tasks" if tasks else "a task"
        raise ConfigurationError(
            f"this process may have {files} open files, and {user} needs {wanted}: raise the limit "
            "(ulimit -n, LimitNOFILE of systemd)",
            allowed=files,
            needed=wanted,
        )
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and space < _ADDRESS_SPACE:
        raise ConfigurationError(
            f"this process may have {space // _MB} MB of address space, and a task needs "
            f"{_ADDRESS_SPACE // _MB} MB, most of which it never touches: raise the limit "
            "(ulimit -v), and bound memory by a cgroup",
            allowed=space,
            needed=_ADDRESS_SPACE,
        )


# -- Log lines of a task: plain text or JSON to stderr -----------------------------------------

_FORMATS = {
    "time": "%(asctime)s %(levelname)-7s %(message)s",
    # For tasks of a launcher, which adds the task's name and takes the mark away.
    "bare": "%(levelname)s %(message)s",
}
# Begins a log line of Ropewalk for a launcher, which tells it from the program's lines by that.
LAUNCHER_MARK = "\x1e"


class _JsonFormatter(logging.Formatter):
    """Writes each line as a JSON object: for machines, and safe for terminals."""

    def format(self, record: logging.LogRecord) -> str:
        name, fields = event_of(record)
        at = datetime.fromtimestamp(record.created, UTC)
        line = {
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z",
            "level": record.levelname,
            "task": own_task(),
            "event": name or "log.line",
            "message": record.getMessage(),
            **({"fields": dict(fields)} if fields else {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _Formatter(logging.Formatter):
    """Leaves out the level INFO and control characters: a message may quote other programs."""

    def __init__(self, pattern: str, mark: str) -> None:
        super().__init__(pattern, "%H:%M:%S")
        self._mark = mark

    def format(self, record: logging.LogRecord) -> str:
        return self._mark + terminal_text(super().format(record).removeprefix("INFO "))


def set_log_level(level: str) -> str:
    """Show log lines from a level on; returns the level before."""
    logger = logging.getLogger("ropewalk")
    before = logging.getLevelName(logger.getEffectiveLevel())
    logger.setLevel(level)
    return before


def set_up_logging(settings: Settings) -> None:
    """Send Ropewalk's log lines to stderr, and keep them with the events; other libraries' logging
    stays as it is.
    """
    handler = logging.StreamHandler(sys.stderr)
    mark = LAUNCHER_MARK if settings.log_format == "bare" else ""
    if mark:
        handler.addFilter(lambda record: not is_reported_by_launcher(record))
    if settings.log_format == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_Formatter(_FORMATS[settings.log_format], mark))
    logger = logging.getLogger("ropewalk")
    logger.handlers[:] = [handler, EventHandler()]
    logger.setLevel(settings.log_level)
    logger.propagate = False


# -- Requests to stop: the signals of a task's process, and the interruption of a program that takes
# too long to notice one.


class Interrupter:
    """Interrupts the program in the main thread once its grace period is over."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._error: RopewalkError | None = None
        self._running = False
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def program(self) -> Iterator[None]:
        """Allow interruptions of the program inside this context."""
        self._running = True
        try:
            yield
        finally:
            self._running = False
            if self._timer is not None:
                self._timer.cancel()

    def later(self, error: RopewalkError) -> None:
        """Raise ``error`` in the program after the grace period, unless it has ended by then."""
        if self._error is not None:
            return
        self._error = error
        self._timer = threading.Timer(self._grace_s, self._interrupt)
        self._timer.daemon = True
        self._timer.start()

    def _interrupt(self) -> None:
        if self._running:
            # Sent to the main thread so that a blocking call there returns; the handler below
            # then runs between two bytecodes of the program.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    def on_signal(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Handle SIGUSR1, which only this class sends."""
        if self._running and self._error is not None:
            self._running = False
            raise self._error


def handle_signals(stop: Callable[[str], None], interrupter: Interrupter | None = None) -> None:
    """Have SIGTERM and SIGINT call ``stop`` with their name, and SIGUSR1 the interrupter.

    Handlers are not restored: the process ends after its task, and a late signal must not kill it.
    Outside the main thread, where Python allows no handlers, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop(signal.Signals(signum).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    if interrupter is not None:
        signal.signal(signal.SIGUSR1, interrupter.on_signal)
