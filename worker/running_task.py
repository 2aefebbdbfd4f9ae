"""The task around its program: it joins its job, takes requests to stop meanwhile, and
leaves with an exit code.

A program that this process starts begins when its task is registered, while a thread connects to
the peers: what a program imports takes seconds, and so does waiting for a ps that comes back. The
program waits for the thread where it first needs its cluster.
"""

import contextlib
import logging
import threading
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from ..cluster.resolvers.resolved import ResolvedTask
from ..cluster.spec import EVALUATOR, ps_of
from ..core import annexes
from ..core.errors import (
    JobDoneError,
    JobStoppedError,
    RetryableError,
    RopewalkError,
    TooManyWorkersError,
)
from ..core.exit_codes import ExitCode
from ..core.process.events import event
from ..core.process.frameworks import unshared_steps_warning
from ..core.process.log_records import REPORTED_BY_LAUNCHER
from ..core.process.threads import new_thread
from ..core.settings import Settings
from ..core.task import Outcome
from .process.program import Ending
from .process.start_watch import StartWatch, thread_position
from .process.surroundings import Interrupter, handle_signals

if TYPE_CHECKING:
    from ..distribute.runtime import ClusterRuntime
    from .job_task import JobTask

log = logging.getLogger(__name__)


def task_of_role(task: ResolvedTask, settings: Settings) -> "JobTask":
    """Make the task of a chief, worker or evaluator, by its role and by whether there are ps."""
    # Each role loads what it needs.
    if task.task.type == EVALUATOR:
        from .data_plane.plane import DataPlane
        from .job_task import EvaluatorTask

        return EvaluatorTask(task, settings, DataPlane(task, settings))
    from .job_task import JobTask

    if ps_of(task.spec):
        from .data_plane.servers import ServersPlane

        return JobTask(task, settings, ServersPlane(task, settings))
    ring = annexes.the("data_plane", "ring", "training in sync, without ps,")
    # The chief of a dynamic cluster that lists only this task has no address, and leads no job.
    return JobTask(task, settings, ring.RingPlane(task, settings), leads=bool(task.chief_address))


class RunningTask:
    """The run of one task around its program: join, the program, and :meth:`leave`.

    Args:
        task: Not a ps, which runs no program.
        settings: The task's settings.
    """

    def __init__(self, task: "JobTask", settings: Settings) -> None:
        self._task = task
        self._interrupter = Interrupter(settings.drain_grace_s)
        self._program = contextlib.ExitStack()
        self._was_signalled = False
        self._may_begin = threading.Event()
        self._joined: Future[ClusterRuntime] = Future()

    def join(self) -> "ClusterRuntime":
        """Join the cluster. SIGTERM and SIGINT ask the program to end from now on.

        Raises:
            RopewalkError: The task cannot join; the chief knows it if it can be reached.
        """
        handle_signals(self._stop, self._interrupter)
        runtime = self._join()
        self._program.enter_context(self._interrupter.program())
        return runtime

    def begin_to_join(self) -> None:
        """Register; a thread goes on to connect to the peers, while the program may begin.

        SIGTERM and SIGINT ask the program to end from now on.

        Raises:
            RopewalkError: The task cannot register; the chief knows it if it can be reached.
        """
        handle_signals(self._stop, self._interrupter)
        new_thread("join", self._join_meanwhile, failed=self._has_failed_to_join).start()
        self._may_begin.wait()
        if self._joined.done() and (error := self.join_error()) is not None:
            raise error
        self._program.enter_context(self._interrupter.program())

    def joined(self) -> "ClusterRuntime":
        """Wait for the thread that joins; the program's cluster.

        Raises:
            JobStoppedError: The task cannot join, and its program ends; :meth:`join_error` is why.
        """
        if (error := self.join_error()) is None:
            return self._joined.result()
        raise self._has_not_joined(error)

    def join_error(self) -> BaseException | None:
        """Wait for the thread that joins; why it could not."""
        return self._joined.exception()

    def _join_meanwhile(self) -> None:
        watch = StartWatch(self._task.task.task, partial(thread_position, threading.get_ident()))
        watch.begin()
        try:
            self._joined.set_result(self._join())
            self._may_begin.set()
        except RopewalkError as error:
            self._has_failed_to_join(error)
        finally:
            watch.over()

    def _has_failed_to_join(self, error: BaseException) -> None:
        self._joined.set_exception(error)
        self._may_begin.set()
        self._interrupter.later(self._has_not_joined(error))  # if it never needs its cluster

    def _has_not_joined(self, error: BaseException) -> JobStoppedError:
        task = self._task.task.task
        return JobStoppedError(f"{task} could not join its cluster: {error}", task=task)

    def _join(self) -> "ClusterRuntime":
        try:
            return self._task.start(self._interrupter.later, self._may_begin.set)
        except BaseException as error:
            self._fail_to_join(error)
            raise

    def _fail_to_join(self, error: BaseException) -> None:
        # The program has not begun: no traceback is needed, but the chief must know.
        try:
            if isinstance(error, JobDoneError):
                log.info("%s", error.message)
                self._task.finish(Ending(Outcome.DONE, ExitCode.DONE))
            elif isinstance(error, RopewalkError):
                # A worker too many is no fault of the job: it ends alone.
                ends_alone = isinstance(error, RetryableError | TooManyWorkersError)
                outcome = Outcome.LEFT if ends_alone else Outcome.FAILED
                self._task.finish(Ending(outcome, error.exit_code, error.message))
        finally:
            self._task.close()

    def _stop(self, name: str) -> None:
        if not self._was_signalled:  # a launcher signals all processes of a task
            signalled = event("signal.received", signal=name)
            log.warning("%s: ending at the next step", name, extra=signalled)
        self._was_signalled = True
        task = self._task.task.task
        error = JobStoppedError(f"{task} was asked to stop by {name}", task=task)
        self._task.ask_to_end(error)
        self._interrupter.later(error)

    def leave(self, ending: Ending) -> int:
        """Report how the program ended, wait for the job if need be, and close; the exit code."""
        self._program.close()  # it is not interrupted any more
        if ending.outcome is Outcome.DONE and (unshared := unshared_steps_warning()):
            log.warning("%s", unshared)
        try:
            ended = event(
                "program.ended", outcome=ending.outcome, code=ending.code, message=ending.message
            )
            is_known = ending.shown or (self._was_signalled and ending.code == ExitCode.DRAINED)
            if ending.message and not is_known:
                level = logging.ERROR if ending.code < 128 else logging.WARNING
                log.log(level, "%s", ending.message, extra=REPORTED_BY_LAUNCHER | ended)
            return self._task.finish(ending)
        finally:
            self._task.close()
