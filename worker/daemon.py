"""The process of one task: signals, the end of its launcher, and the role's work until exit."""

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from ..cluster.resolved import ResolvedTask
from ..cluster.roles import CHIEF, EVALUATOR, PS, ps_of
from ..cluster.spec import ClusterSpec
from ..core.errors import JobStoppedError, RetryableError, WindlassError
from ..core.exit_codes import ExitCode
from ..core.settings import Settings, take_environment
from ..core.states import Outcome
from ..core.task import TaskId
from .program import Ending, ending_of, find_script, run_script

if TYPE_CHECKING:
    from .synchronous_task import SynchronousTask
    from .task import EvaluatorTask, TrainingTask

    Member = TrainingTask | EvaluatorTask | SynchronousTask

log = logging.getLogger(__name__)


class _Interrupter:
    """Interrupts the program in the main thread once its grace period is over."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._error: WindlassError | None = None
        self._running = False
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def program(self) -> Iterator[None]:
        """The program may be interrupted inside this context."""
        self._running = True
        try:
            yield
        finally:
            self._running = False
            if self._timer is not None:
                self._timer.cancel()

    def later(self, error: WindlassError) -> None:
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
        """Handler of SIGUSR1, which only this class sends."""
        if self._running and self._error is not None:
            self._running = False
            raise self._error


def run_task(
    task: ResolvedTask, settings: Settings, script: str | None, arguments: Sequence[str]
) -> int:
    """Run a task in its role until it ends; returns the exit code. Call from the main thread.

    Args:
        task: Who this process is.
        settings: Of the task.
        script: The user's program; a ps needs none.
        arguments: Of the program.

    Raises:
        WindlassError: The task could not start.
    """
    _watch_parent_death()
    code = _run_role(task, settings, script, arguments)
    _keep_exit_code(code)
    return code


def _keep_exit_code(code: int) -> None:
    """From now on SIGTERM and SIGINT end the process at once, with this exit code."""

    def leave(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def ignore() -> None:
        # At its end the interpreter restores default actions, except for ignored signals.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, leave)
    atexit.register(ignore)


def _run_role(
    task: ResolvedTask, settings: Settings, script: str | None, arguments: Sequence[str]
) -> int:
    if task.task.type == PS:
        return _run_ps(task, settings)
    path = find_script(script or "")
    # Each role loads its own half: workers do not serve variables, ps do not train.
    from .task import EvaluatorTask, TrainingTask

    if task.task.type == EVALUATOR:
        return _run_program(EvaluatorTask(task, settings), settings, path, arguments)
    if task.is_local:
        return _run_alone(settings, path, arguments)
    if not ps_of(task.spec):
        from .synchronous_task import SynchronousTask

        return _run_program(SynchronousTask(task, settings), settings, path, arguments)
    return _run_program(TrainingTask(task, settings), settings, path, arguments)


def _run_ps(task: ResolvedTask, settings: Settings) -> int:
    from ..server.ps.server import PsServer

    server = PsServer(task.task, settings)
    server.start(task.address)
    with _signals(lambda _: server.drain()):
        code = server.wait()
    server.stop()
    return code


def _run_alone(settings: Settings, path: Path, arguments: Sequence[str]) -> int:
    """Run a ps and the chief in this process, on loopback."""
    from ..server.ps.server import PsServer
    from .task import TrainingTask

    ps = TaskId(PS, 0)
    server = PsServer(ps, settings.model_copy(update={"host": "127.0.0.1", "health_port": 0}))
    server.start("127.0.0.1:0")
    chief = TaskId(CHIEF, 0)
    spec = ClusterSpec({CHIEF: ["127.0.0.1:0"], PS: [f"127.0.0.1:{server.port}"]})
    task = ResolvedTask(chief, spec, chief, address="127.0.0.1:0")
    alone = settings.model_copy(update={"host": "127.0.0.1"})
    member = TrainingTask(task, alone)
    member.runtime.alone = True
    try:
        return _run_program(member, alone, path, arguments)
    finally:
        server.stop()


def _run_program(member: "Member", settings: Settings, path: Path, arguments: Sequence[str]) -> int:
    from .task import EvaluatorTask

    interrupter = _Interrupter(settings.drain_grace_s)
    task = member.task.task

    def stop(name: str) -> None:
        log.warning("%s: ending at the next step", name)
        error = JobStoppedError(f"{task} was asked to stop by {name}", task=task)
        member.ask_to_end(error)
        interrupter.later(error)

    if not isinstance(member, EvaluatorTask):
        member.on_interrupt = interrupter.later
    with _signals(stop, interrupter):
        try:
            ending = _join_and_run(member, interrupter, path, arguments)
            if ending.message and ending.code != ExitCode.DRAINED:  # a stop was logged before
                level = logging.ERROR if ending.code < 128 else logging.WARNING
                log.log(level, "%s", ending.message)
            return int(member.finish(ending))
        finally:
            member.close()


def _join_and_run(
    member: "Member",
    interrupter: _Interrupter,
    path: Path,
    arguments: Sequence[str],
) -> Ending:
    from ..distribute.program_cluster import in_cluster

    try:
        runtime = member.start()
    except JobStoppedError as error:
        return ending_of(error)
    except WindlassError as error:
        # The program has not started: no traceback is needed, but the chief must know.
        member.finish(_ending_of_start(error))
        raise
    with in_cluster(runtime, all_threads=True), interrupter.program():
        return run_script(path, arguments)


def _ending_of_start(error: WindlassError) -> Ending:
    """The ending for an error before the program's first line."""
    outcome = Outcome.LEFT if isinstance(error, RetryableError) else Outcome.FAILED
    return Ending(outcome, error.exit_code, error.message)


@contextlib.contextmanager
def _signals(
    stop: Callable[[str], None], interrupter: _Interrupter | None = None
) -> Iterator[None]:
    """Handle SIGTERM and SIGINT by ``stop``; SIGUSR1 by the interrupter.

    Handlers are not restored: the process is about to exit, and a late signal must not kill it.
    """

    def handle(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001
        stop(signal.Signals(signum).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    if interrupter is not None:
        signal.signal(signal.SIGUSR1, interrupter.on_signal)
    yield


def _watch_parent_death() -> None:
    """End when the launcher that started this process ends, even by SIGKILL.

    The launcher holds the other end of a pipe, which closes with it.
    """
    number = take_environment("WINDLASS_PARENT_DEATH_FD")
    if not number.isdigit():
        return

    def watch(fd: int) -> None:
        with contextlib.suppress(OSError):
            while os.read(fd, 1):
                pass
        os.kill(os.getpid(), signal.SIGTERM)
        threading.Event().wait(10)
        os._exit(137)

    threading.Thread(target=watch, args=(int(number),), name="parent-death", daemon=True).start()
