"""The process that closures run in, and the process that replaces it.

A closure may end its process: by a fault in C code, by ``os._exit``, by taking all memory, or
because it does not end in time. So a worker without a program is two processes. The second one
joins the job and holds every connection; the first one has loaded all that the second needs, and
does nothing but fork it, wait for its end, and fork the next, which serves after a moment.

The first one must have no channel of gRPC and no threads of ours that hold locks, since a fork has
one thread alone.
"""

import base64
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ...core.errors import RopewalkError
from ...core.exit_codes import ExitCode
from ...core.process.orphans import inherit_orphans
from ...core.wire.error_table import from_detail, to_detail
from ...proto.v1 import errors_pb2

log = logging.getLogger(__name__)

_MAX_EARLY_ENDS = 5  # in a row, of processes that had not joined the job
_MAX_REPORT_BYTES = 64 * 1024  # the size of a pipe
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.005
_END_S = 5.0  # for what was killed to be gone
# Where memory runs out, the process of closures is to end, and not the one that replaces it.
_OOM_SCORE = "500"


@dataclass(slots=True)
class _Report:
    """The messages that a process has written to its pipe before it ended.

    Attributes:
        has_joined: The process had joined the job.
        code: Exit code of a process that ended in order.
        error: Error that the process ended with.
    """

    has_joined: bool = False
    code: int | None = None
    error: RopewalkError | None = None


class ClosureProcesses:
    """Runs something in a process of its own, and again if that process is lost.

    Args:
        serve: Called in each process, with a function to be called when it has joined the job;
            returns the exit code.
        name: The task's name, for messages.
    """

    def __init__(self, serve: Callable[[Callable[[], None]], int], name: str) -> None:
        self._serve = serve
        self._name = name
        self._child = 0
        self._asked: int | None = None  # the signal that asked to end

    def run(self) -> int:
        """Run until a process ends in order, or is lost after it was asked to end.

        Signals are passed on. Call from the main thread, in a process without other threads that
        hold locks.

        Returns:
            The exit code.

        Raises:
            RopewalkError: The error that a process ended with.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._pass_on)
        inherit_orphans()  # what a process leaves behind, to end it
        early_ends = 0
        while True:
            status, report = self._one()
            if report.error is not None:
                raise report.error
            if report.code is not None:
                return report.code
            code = os.waitstatus_to_exitcode(status)
            early_ends = 0 if report.has_joined else early_ends + 1
            if self._asked is not None and code == -self._asked:
                return int(ExitCode.DRAINED)  # before it could do so in order
            if self._asked is not None or early_ends == _MAX_EARLY_ENDS:
                log.error("%s: its process was ended %s", self._name, _by(code))
                return int(ExitCode.KILLED) if code < 0 else code or int(ExitCode.PROGRAM_FAILED)
            log.error(
                "%s: the process of its closures was ended %s; a new one takes its place",
                self._name,
                _by(code),
            )

    def _pass_on(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._asked = signum
        if self._child:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signum)

    def _one(self) -> tuple[int, _Report]:
        """Run one process from its start to its end; its status and its report."""
        reader, writer = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        here = os.getpid()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            self._child = child = os.fork()
        if not child:
            os.close(reader)
            _become(here)
            if self._asked is not None:  # between the fork and now
                os._exit(int(ExitCode.DRAINED))
            self._run_child(writer)
        os.close(writer)
        if self._asked is not None:  # before it was there
            os.kill(child, self._asked)
        try:
            status = _wait(child)
            self._child = 0
            _end_children()
            os.set_blocking(reader, False)  # a process that is left may hold the other end
            with contextlib.suppress(BlockingIOError):
                return status, _read(os.read(reader, _MAX_REPORT_BYTES))
            return status, _Report()
        finally:
            os.close(reader)

    def _run_child(self, writer: int) -> None:
        """Run closures in the child process until it ends. Does not return."""

        def say(**what: Any) -> None:
            os.write(writer, json.dumps(what).encode() + b"\n")

        code = int(ExitCode.PROGRAM_FAILED)
        try:
            code = self._serve(lambda: say(joined=True))
            say(code=code)
        except RopewalkError as error:
            code = int(error.exit_code)
            say(error=base64.b64encode(to_detail(error).SerializeToString()).decode())
        except BaseException:  # noqa: BLE001 - a defect of ours
            sys.excepthook(*sys.exc_info())
            say(code=code)
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)


def _become(parent: int) -> None:
    """Make this fork a process that ends with its parent, before it if memory runs out."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(int(ExitCode.KILLED))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(_OOM_SCORE)


def _wait(child: int) -> int:
    """Wait for a process, and for those that others left to this one; its status."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == child:
            return status


def _end_children() -> None:
    """End what a process has left behind, and what that leaves behind in turn."""
    until = time.monotonic() + _END_S
    while time.monotonic() < until:
        for pid in _children():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            time.sleep(_POLL_S)


def _children() -> list[int]:
    """List the ids of this process's children."""
    here, children = os.getpid(), []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as file:
            # Behind the name in parentheses, which may have any: the state, and the parent.
            if int(file.read().rpartition(b")")[2].split()[1]) == here:
                children.append(int(entry))
    return children


def _read(data: bytes) -> _Report:
    words: dict[str, Any] = {}
    for line in data.splitlines():
        words |= json.loads(line)
    report = _Report("joined" in words, words.get("code"))
    if "error" in words:
        detail = errors_pb2.ErrorDetail.FromString(base64.b64decode(words["error"]))
        report.error = from_detail(detail)
    return report


def _by(code: int) -> str:
    """Describe how a process ended, for messages."""
    if code >= 0:
        return f"with exit code {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"
