"""A worker without a program: its process, the one that replaces it, and what it serves."""

import base64
import contextlib
import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ..client.closure_link import SERVICE, receive_parts
from ..cluster.access import Leadership
from ..cluster.spec import CHIEF
from ..core.errors import PeerLostError, RopewalkError
from ..core.exit_codes import ExitCode
from ..core.process.events import event
from ..core.process.processes import inherit_orphans
from ..core.task import Outcome
from ..core.wire.error_table import from_detail, to_detail
from ..distribute.base.devices import compute_devices
from ..distribute.coordinator.closure_runner import ClosureRunner
from ..distribute.runtime import ClusterRuntime
from ..net.auth.guard import Guard
from ..net.connection import Connection
from ..net.dial import parse
from ..net.endpoint import Greeting
from ..net.host import TaskHost
from ..proto.v1 import errors_pb2, session_pb2
from .process.program import Ending, ending_of

log = logging.getLogger(__name__)

# -- The process that closures run in, and the process that replaces it ------------------------
# A closure may end its process: by a fault in C code, by ``os._exit``, by taking all memory, or
# because it does not end in time. So a worker without a program is two processes. The second one
# joins the job and holds every connection; the first one has loaded all that the second needs, and
# does nothing but fork it, wait for its end, and fork the next, which serves after a moment.
#
# The first one must have no channel of gRPC and no threads of ours that hold locks, since a fork
# has one thread alone.


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
                extra=event("closure.process_ended", how=_by(code)),
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


# -- A worker without a program: it runs what the coordinator schedules, until the job is over --
# The standard server of TensorFlow 2's parameter-server training. Only the task that leads the job
# is let in: what it sends are functions.

_THREADS = 4
_MAX_SESSIONS = 8
_LOOK_S = 0.2
_TURN_S = 2.0  # for a closure of a connection that broke to end


class ClosureServer:
    """Serves a coordinator at the worker's address.

    Args:
        runtime: The worker's connection to its cluster.
        job: Id of the worker's job.
        may_end_process: A closure that does not end in time ends this process.
    """

    def __init__(self, runtime: ClusterRuntime, job: str, *, may_end_process: bool = False) -> None:
        task, settings = runtime.task, runtime.settings
        self._task = task.task
        self._address = task.address
        self._settings = settings
        self._runner = ClosureRunner(task.task.index, runtime, may_end_process=may_end_process)
        self._may_end_process = may_end_process
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._connection: Connection | None = None
        self._host = TaskHost(
            task.task,
            threads=_THREADS,
            # Probes are answered since before the worker joined its job.
            settings=settings.model_copy(update={"health_port": 0}),
            calls={},
            guard=Guard(
                task.task,
                settings,
                job=lambda: job,
                leadership=lambda: Leadership(has_chief=task.chief.type == CHIEF),
            ),
            sessions={SERVICE: self._serve},
            max_sessions=_MAX_SESSIONS,
        )

    def start(self) -> None:
        """Listen.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: The settings do not say how callers authenticate.
        """
        self._host.start(self._address)
        log.info("runs closures at port %d", self._host.port)

    @property
    def port(self) -> int:
        """Port at which it listens."""
        return self._host.port

    def stop(self) -> None:
        """Leave the coordinator."""
        self._host.stop(0)

    def _serve(self, greeting: Greeting) -> bool:
        """Run the closures of one connection, in order."""
        connection = greeting.connection
        with self._only(connection):
            greeting.welcome(replicas=len(compute_devices()))
            self._runner.forget()
            while (data := connection.receive()) is not None:
                self._handle(parse(session_pb2.ClientMessage, data), connection)
        return False

    @contextmanager
    def _only(self, connection: Connection) -> Iterator[None]:
        """Serve one coordinator at a time; a new connection of it takes the place of the one
        before.
        """
        with self._lock:
            before, self._connection = self._connection, connection
        if before is not None:
            before.cancel()
        if not self._turn.acquire(timeout=_TURN_S):
            if self._may_end_process:
                log.error(
                    "%s: a closure of a connection that broke goes on; its process is ended",
                    self._task,
                )
                os._exit(ExitCode.PEER_LOST)
            raise PeerLostError(
                f"{self._task} still runs a closure of a connection that broke; it is asked again",
                task=self._task,
            )
        try:
            yield
        finally:
            self._turn.release()

    def _handle(self, message: session_pb2.ClientMessage, connection: Connection) -> None:
        part_bytes = (
            *message.run_closure.part_bytes,
            *message.define_function.part_bytes,
            *message.change_optimizer.part_bytes,
        )
        parts = receive_parts(connection, part_bytes, self._settings.max_step_bytes)

        def began(answer: session_pb2.ClosureAnswer) -> None:
            _answer(connection, answer, [])

        done = self._runner.handle(message, parts, began)
        if done is not None:
            _answer(connection, *done)


def serve_closures(runtime: ClusterRuntime, *, may_end_process: bool = False) -> Ending:
    """Run closures until the job is over, or this task should end; returns how it ended.

    Args:
        runtime: The worker's connection to its cluster.
        may_end_process: A closure that does not end in time ends this process; another process
            replaces it.
    """
    server = ClosureServer(runtime, runtime.session.who.job, may_end_process=may_end_process)
    try:
        server.start()
        while not runtime.job.wait_over(_LOOK_S):
            runtime.job.check()
    except RopewalkError as error:
        return ending_of(error)
    finally:
        server.stop()
    return Ending(Outcome.DONE, ExitCode.DONE)


def _answer(
    connection: Connection, answer: session_pb2.ClosureAnswer, results: Sequence[memoryview]
) -> None:
    message = session_pb2.ServerMessage(closure=answer)
    connection.send([message.SerializeToString()], results, sum(answer.part_bytes))
