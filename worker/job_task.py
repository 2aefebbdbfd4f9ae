"""A task that trains, chief or worker, from joining its job to leaving it.

A task is its data plane (parameter servers, or a ring of workers in sync), its membership of a job,
and the leadership of that job if it is the chief. The daemon runs one per process;
``ropewalk.testing`` runs several in threads.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..client.chief.calls import ChiefClient, JobStatus
from ..client.chief.membership import BarrierClient, Membership
from ..client.ps.snapshot import PsSnapshot, take_snapshot
from ..cluster.access import principal_of_task
from ..cluster.resolvers.resolved import ResolvedTask
from ..core.errors import JobDoneError, JoinTimeoutError, PeerLostError, RopewalkError
from ..core.exit_codes import ExitCode
from ..core.process.threads import new_thread, nobody_waits
from ..core.process.usage import UsageReader
from ..core.process.waiting import WaitLog
from ..core.report import TaskEnd, TaskReport
from ..core.settings import Settings
from ..core.step_times import OTHERS
from ..core.task import Incarnation, Outcome, Phase, State
from ..distribute.runtime import ClusterRuntime, JobLink, TaskProgress
from ..net.host import MetricsPort
from ..proto.v1.chief_pb2 import HeartbeatResponse
from ..telemetry.catalogue import Distribution, Sample
from ..telemetry.task_metrics import report_samples, step_samples, task_samples
from .data_plane.plane import DataPlane
from .joining import FirstSteps, HeartbeatPart, JoinedTask, heartbeat_parts, join_unless_done
from .process.program import Ending

if TYPE_CHECKING:
    from .lead.leader import JobLeader
    from .lead.leading_job import IdentifiedJob

log = logging.getLogger(__name__)


_CALL_S = 5.0
_LEAVE_S = 1.0
_POLL_S = 0.05


class JobTask(JobLink):
    """A chief or worker. Use from one thread, except :meth:`interrupt`.

    Args:
        task: Task of this process, and its cluster.
        settings: The task's settings.
        plane: Carries the values of variables.
        leads: Whether a chief leads the job; False: another process does, at the chief's address.
        serves: The task has no program of its own; it runs what a coordinator schedules.
    """

    def __init__(
        self,
        task: ResolvedTask,
        settings: Settings,
        plane: DataPlane,
        *,
        leads: bool = True,
        serves: bool = False,
    ) -> None:
        self.task = task
        if plane.in_sync or plane.alone:  # the others make no step without this task
            settings = settings.model_copy(update={"chief_returns": False})
        self._settings = settings
        self._plane = plane
        self._leads = leads and task.is_chief
        self._serves = serves
        self._progress = TaskProgress()
        self._usage = UsageReader()
        self._pending: RopewalkError | None = None
        self._was_asked_to_end = False
        self._is_running = True  # what it runs has not ended
        self._chief: ChiefClient | None = None
        self._membership: Membership | None = None
        self._barrier: BarrierClient | None = None
        self._parts: list[HeartbeatPart] = []  # that annexes have in its heartbeats
        self._leader: JobLeader | None = None
        self._first_steps: FirstSteps | None = None  # that this task has yet to wait for
        self._runtime: ClusterRuntime | None = None
        self._on_registered: Callable[[], None] = lambda: None
        self._on_interrupt: Callable[[RopewalkError], None] = lambda error: log.error("%s", error)
        self._interrupts = False
        self._metrics = MetricsPort(task.task, task.known_address, settings, self._samples)

    def start(
        self,
        on_interrupt: Callable[[RopewalkError], None] | None = None,
        on_registered: Callable[[], None] = lambda: None,
    ) -> ClusterRuntime:
        """Join the job.

        Args:
            on_interrupt: Called when the program must end without waiting for its next step; None:
                the error is logged.
            on_registered: Called when the job has taken this task in; its peers may be missing yet.

        Raises:
            AddressInUseError: The task's port is taken.
            JoinTimeoutError: A peer did not answer.
            JobDoneError: The job is over; there is nothing to do.
            OtherJobError: Another job has this task's place, or its ps.
            CheckpointError: The checkpoint to resume from cannot be used.
            StorageError: The model directory cannot be written.
        """
        self._on_interrupt = on_interrupt or self._on_interrupt
        self._on_registered = on_registered
        self._interrupts = on_interrupt is not None
        self._metrics.start()
        job = self._begin_to_lead() if self._leads else None
        at = self._leader.address if self._leader is not None else self._plane.listen(self.check)
        restore_from = self._join(at, job) if at else ""
        self._runtime = ClusterRuntime(
            self.task,
            self._settings,
            self._plane.session,
            job=self,
            alone=self._plane.alone,
            restore_from=restore_from,
            snapshots=self._plane.snapshots,
            progress=self._progress,
        )
        if self._plane.in_sync:  # whose first step is one of all
            return self._runtime
        if self._leader is not None:
            self._leader.wait_for_workers(self.check)
        if self._membership is not None:
            self._first_steps = FirstSteps(self._membership, self._leader)
        return self._runtime

    def _begin_to_lead(self) -> "IdentifiedJob":
        from .lead.leader import JobLeader  # only a chief loads what serving and saving need

        leader = JobLeader(self.task, self._settings, self._plane, *self._plane.serve_chief())
        self._leader = leader
        return leader.identify(self.check)

    def _join(self, chief_address: str, job: "IdentifiedJob | None") -> str:
        """Register, and connect to the peers; the name of the checkpoint to begin with."""
        chief, membership = self._client_of(chief_address, self.task.address)
        self._membership = membership
        who = join_unless_done(membership, self.task, self._settings, self.check)
        self._on_registered()
        self._barrier = BarrierClient(chief, who, self.check)
        self._take_part(chief, who)
        leader = self._leader
        leading = leader.lead(job, who, chief) if leader is not None and job is not None else None
        self._plane.connect(who, chief, self._check_not_done)
        if leading is not None:
            return leading.resume()
        return self._ask_for_checkpoint(chief) if self.task.is_chief else ""

    def _ask_for_checkpoint(self, chief: ChiefClient) -> str:
        """Ask for the checkpoint that the leader, in another process, has chosen; returns its name.

        Raises:
            JoinTimeoutError: It has chosen none in time.
        """
        limit_s = self._settings.join_timeout_s
        waits = WaitLog(self.task.task, limit_s=limit_s, limit="join_timeout_s")
        while (name := _chosen_checkpoint(chief)) is None:
            self.check()
            waits.tick("the job's leader to choose a checkpoint")
            if waits.is_over:
                raise JoinTimeoutError(
                    f"{self.task.task} waited {limit_s:g} s (join_timeout_s) for the job's leader "
                    "to choose the checkpoint to begin with",
                    task=self.task.task,
                    missing="checkpoint",
                )
            threading.Event().wait(_POLL_S)
        return name

    def _client_of(self, chief_address: str, address: str) -> tuple[ChiefClient, Membership]:
        task, settings = self.task.task, self._settings
        principal = principal_of_task(task, settings.job_id)
        self._chief = chief = ChiefClient(chief_address, settings, principal)
        return chief, Membership(
            task, address, chief, settings, report=self._report, on_lost=self._lose,
            on_stopping=self._stop, on_answer=self._hear,
        )  # fmt: skip

    def _stop(self, error: RopewalkError) -> None:
        # The job's last checkpoint waits for the chief's program, which may make no steps. (Workers
        # are waited for briefly, and those in sync agree on their last step.)
        if self._leader is not None and self._interrupts and not self._plane.in_sync:
            self._on_interrupt(error)

    def _take_part(self, chief: ChiefClient, who: Incarnation) -> None:
        session = lambda: self._plane.session  # noqa: E731
        joined = JoinedTask(who, chief, session, self._settings, self._progress.clock)
        self._parts = heartbeat_parts(joined)

    def _hear(self, answer: HeartbeatResponse) -> None:
        for part in self._parts:
            part.hear(answer)

    def _report(self) -> TaskReport:
        report = self._progress.report(self._plane.session, serves=self._serves)
        return replace(report, usage=self._usage.read())

    def _samples(self) -> Iterator[Sample | Distribution]:
        snapshots, membership = self._plane.snapshots, self._membership
        stops = self._pending is not None or (snapshots is not None and snapshots.stop is not None)
        job = membership.who.job if membership is not None else ""
        yield from task_samples(self.task.task, job or self._settings.job_id, draining=stops)
        report = self._report()
        yield from report_samples(report)
        yield from step_samples(report)
        for collect in list(self._runtime.measures) if self._runtime is not None else ():
            yield from collect()
        if self._leader is not None:
            yield from self._leader.samples()
        yield from self._plane.samples()

    # -- what the program asks ---------------------------------------------------------------

    def check(self) -> None:
        """Raise if the program should end. Called between steps and during waits."""
        if self._pending is not None:
            raise self._pending
        if self._plane.in_sync and self._plane.snapshots is not None:
            self._plane.snapshots.check()  # the workers agree on the step after which they end
        elif self._membership is not None:
            self._membership.check()
        if self._first_steps is not None and self._progress.steps:
            first_steps, self._first_steps = self._first_steps, None
            began = self._progress.clock.begin()
            first_steps.wait(self.check)
            self._progress.clock.end(OTHERS, began)

    def _check_not_done(self) -> None:
        """Check while joining that the job is not done: the ps may have left already.

        Raises:
            JobDoneError: The job has ended meanwhile.
        """
        self.check()
        if self._membership is not None and self._membership.phase is Phase.DONE:
            raise JobDoneError(
                f"{self.task.task}: the job was done before this task had joined it; nothing is "
                "left to do",
                task=self.task.task,
            )

    def chief_has_ended(self) -> bool:
        """Return whether the chief's program is over; False as long as it cannot be asked."""
        if self._chief is None:
            return False
        try:
            tasks = self._chief.status(timeout_s=1).tasks
        except RopewalkError:
            return False
        return any(item.task == self.task.chief and item.state is State.DONE for item in tasks)

    def barrier(self, timeout_s: float) -> None:
        """Wait until the other tasks that run the program are here, too."""
        if self._barrier is not None:
            began = self._progress.clock.begin()
            self._barrier.wait(timeout_s)
            self._progress.clock.end(OTHERS, began)

    def snapshot(self, timeout_s: float) -> PsSnapshot | None:
        """Take the values of all ps at one moment."""
        session = self._plane.session
        if session is None or self._chief is None:
            return None
        return take_snapshot(self._chief, session.who, session.peers, timeout_s, self.check)

    @property
    def chief(self) -> tuple[ChiefClient, Incarnation] | None:
        """Client of the chief, and this task as the chief knows it."""
        if self._chief is None or self._membership is None:
            return None
        return self._chief, self._membership.who

    def wait_over(self, timeout_s: float) -> bool:
        """Wait for the end of the job; returns whether it has come."""
        return self._membership is not None and self._membership.wait_over(timeout_s)

    # -- the end -----------------------------------------------------------------------------

    def ask_to_end(self, error: RopewalkError) -> None:
        """Have the program end at its next step; on a chief that does not return, the whole job.

        Where workers are in sync, the step is done and can be saved.
        """
        self._was_asked_to_end = True
        self._plane.drain()
        snapshots = self._plane.snapshots
        ends_by_itself = snapshots is not None and snapshots.ask_to_stop(error)
        if not (ends_by_itself and self._plane.in_sync):
            self._pending = self._pending or error
        if self._leader is not None and not (self._settings.chief_returns and self._is_running):
            self._leader.stop(error.message)

    def interrupt(self, error: RopewalkError) -> None:
        """End the program now: its calls to the servers fail with ``error``. Thread-safe."""
        self._pending = self._pending or error
        self._plane.abort(error)
        self._on_interrupt(error)

    _lose = interrupt  # of the job, or of its chief

    def finish(self, ending: Ending) -> int:
        """Report how the program ended and wait for the end of the job; returns the exit code."""
        for leave in self._runtime.at_end if self._runtime is not None else ():
            leave()
        if self.task.is_chief and self._leader is None and ending.outcome is Outcome.DONE:
            self._change_last()  # the leader, in another process, saves without this task
        ending = self._plane.finish(ending)
        membership, is_done = self._membership, ending.outcome is Outcome.DONE
        if membership is None or membership.who.generation == 0:
            return ending.code
        if self._leaves_job(ending):
            return ExitCode.DRAINED
        # A worker that leaves a ring ends it for all. It may be the chief that is lost, which is
        # started again meanwhile and waits for this worker.
        is_over = self._plane.in_sync and ending.outcome is Outcome.LEFT
        end = TaskEnd(ending.outcome, ending.message, ending.code)
        membership.finish(end, **({"within_s": _LEAVE_S} if is_over else {}))
        phase = None
        if self._leader is not None:
            step = self._progress.step_of(self._plane.session)
            save_first = self._plane.in_sync and not is_done
            change_last = self._change_last if is_done else lambda: None
            phase = self._leader.end(step, change_last=change_last, save_first=save_first)
            if phase is Phase.FAILED and self._leader.failure is not None:
                return self._leader.failure.exit_code
        if not is_done:
            return ending.code
        return phase.exit_code if phase is not None else self._wait_for_end(membership)

    def _change_last(self) -> None:
        """Have the servers get what the program wants its last checkpoint to have."""
        for change in list(self._runtime.before_last_save) if self._runtime is not None else ():
            change()

    def _leaves_job(self, ending: Ending) -> bool:
        """Return whether this chief, which was asked to end, has left its job to the next one."""
        leader, asked = self._leader, self._was_asked_to_end
        self._is_running = False  # asked to end from now on, it does not wait for the others
        has_failed = ending.outcome is Outcome.FAILED
        if leader is None or not (asked and self._settings.chief_returns) or has_failed:
            return False
        if leader.hand_over(self._progress.step_of(self._plane.session)):
            return True
        leader.stop(ending.message)  # unless it stops already
        return False

    def _wait_for_end(self, membership: Membership) -> int:
        """Wait until the chief ends the job; the exit code."""
        waits = WaitLog(self.task.task, limit="it ends with the job, or if the chief is lost")
        while not membership.wait_over(0.1):
            waits.tick("the chief to end the job: the program here is done")
            if self._pending is not None:
                return self._pending.exit_code
        return membership.phase.exit_code

    @property
    def reason(self) -> str:
        """Why the job failed or is stopping; empty otherwise."""
        part = self._leader or self._membership
        return part.reason if part is not None else ""

    @property
    def leads_what_failed_for_good(self) -> bool:
        """Whether this task leads a job that failed by a task that would fail again."""
        return self._leader is not None and self._leader.has_failed_for_good

    def status(self) -> JobStatus | None:
        """Ask for the job, as the chief sees it; None before joining."""
        return self._chief.status(timeout_s=5) if self._chief is not None else None

    def close(self) -> None:
        """Close every connection at once. Idempotent."""
        for part in (*self._parts, self._membership, self._leader, self._plane, self._chief):
            if part is not None:
                part.close()
        self._metrics.stop()


class EvaluatorTask(JobTask):
    """An evaluator, which no task waits for.

    If TF_CONFIG names the chief it registers there: the status shows it, and it learns of a failed
    job.
    """

    def _join(self, chief_address: str, job: "IdentifiedJob | None" = None) -> str:  # noqa: ARG002
        """Register in the background, without waiting."""
        join = partial(self._register, chief_address)
        new_thread("evaluator-join", join, failed=nobody_waits).start()
        return ""

    def _register(self, chief_address: str) -> None:
        chief, membership = self._client_of(chief_address, "")
        with contextlib.suppress(RopewalkError):
            self._take_part(chief, membership.join(still_wanted=self.check))
            self._membership = membership

    def _lose(self, error: RopewalkError) -> None:
        # The final checkpoint is to be evaluated even if its chief is gone by then.
        log.debug("%s", error)

    def check(self) -> None:
        """Raise if the evaluator was asked to end, or the job failed or was stopped."""
        if self._pending is not None:
            raise self._pending
        membership = self._membership
        if membership is not None and membership.phase in (Phase.STOPPED, Phase.FAILED):
            membership.check()

    def finish(self, ending: Ending) -> int:
        """Report to the chief unless the job is over; returns the exit code."""
        membership = self._membership
        if membership is not None and not membership.phase.is_over:
            membership.finish(TaskEnd(ending.outcome, ending.message))
        return ending.code


def _chosen_checkpoint(chief: ChiefClient) -> str | None:
    """Ask for the checkpoint to begin with; returns its name, or None: not chosen, or the chief did
    not answer.
    """
    try:
        return chief.status(timeout_s=_CALL_S).begins_with
    except PeerLostError:  # a busy machine has reset a connection: it is asked again
        return None
