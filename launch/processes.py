"""Starting tasks as processes of this machine, reading what they say, ending them for sure."""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from ..core.errors import AddressInUseError
from ..core.settings import child_environment
from ..core.task import TaskId

_LAST_LINES = 30
_MAX_RESERVED_PORTS = 64
_MAX_QUEUED_LINES = 10_000  # beyond it a task that prints faster than we show has to wait


@dataclass(frozen=True, slots=True)
class Line:
    """One line a task printed."""

    task: TaskId
    text: str
    is_error: bool


@dataclass
class TaskProcess:
    """A task's process."""

    task: TaskId
    process: subprocess.Popen[bytes]
    readers: list[threading.Thread]
    last_lines: deque[str] = field(default_factory=lambda: deque(maxlen=_LAST_LINES))
    reported: bool = False

    @property
    def code(self) -> int | None:
        """Exit status as ``subprocess`` reports it; None while it runs."""
        return self.process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, to its whole process group if it is the last one."""
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(self.process.pid, number)
            elif self.code is None:
                self.process.send_signal(number)


class Leash:
    """A pipe whose other end the tasks hold: when this process dies, however, they notice."""

    def __init__(self) -> None:
        self.child_fd, self._own_fd = os.pipe()

    def close(self) -> None:
        """Let go."""
        for fd in (self.child_fd, self._own_fd):
            with contextlib.suppress(OSError):
                os.close(fd)


def start_task(
    task: TaskId,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    leash: Leash,
    lines: "queue.Queue[Line]",
) -> TaskProcess:
    """Start ``python -m windlass.launch.cli ARGUMENTS`` in a process group of its own."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "windlass.launch.cli", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=child_environment(**environment, WINDLASS_LEASH_FD=str(leash.child_fd)),
        pass_fds=(leash.child_fd,),
        # Ctrl-C in the terminal is for us; we end the tasks in order.
        start_new_session=True,
    )
    started = TaskProcess(task, process, [])

    def read(stream: IO[bytes], is_error: bool) -> None:
        with stream:
            for raw in stream:
                text = raw.decode(errors="replace").rstrip("\r\n")
                if is_error:
                    started.last_lines.append(text)
                lines.put(Line(task, text, is_error))

    for stream, is_error in ((process.stdout, False), (process.stderr, True)):
        if stream is None:
            continue
        thread = threading.Thread(
            target=read, args=(stream, is_error), name=f"{task.short}-output", daemon=True
        )
        thread.start()
        started.readers.append(thread)
    return started


def new_line_queue() -> "queue.Queue[Line]":
    """The queue tasks' lines go through."""
    return queue.Queue(maxsize=_MAX_QUEUED_LINES)


# A port that was handed out is free until its server binds it. So that nobody else who asks here in
# the meantime gets the same, each is held by a socket whose name has the number; the latest ones of
# a process.
_reserved: deque[socket.socket] = deque()
_reserving = threading.Lock()


def free_ports(count: int) -> list[int]:
    """Ports nobody listens at, outside the range from which the system takes client ports.

    A port from that range could be taken by an outgoing connection before its server starts. No two
    processes of this machine are given the same port, for as long as they live and ask for no more
    than 64 others. Thread-safe.

    Raises:
        AddressInUseError: None were found.
    """
    start = 20_000 + (os.getpid() * 37 + time.time_ns() // 1000) % 10_000
    ports: list[int] = []
    for offset in range(12_000):
        port = 20_000 + (start - 20_000 + offset) % 12_000
        if not _reserve(port):
            continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise AddressInUseError(f"no {count} free ports between 20000 and 32000")


def _reserve(port: int) -> bool:
    """Take a port out of the hands of others who ask for one; whether it was free."""
    reservation = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # A name without a file: it is gone with this process. Like ports, one set per network
        # namespace.
        reservation.bind(f"\0windlass-port-{port}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        reservation.close()
        return False
    with _reserving:
        _reserved.append(reservation)
        if len(_reserved) > _MAX_RESERVED_PORTS:
            _reserved.popleft().close()
    return True
