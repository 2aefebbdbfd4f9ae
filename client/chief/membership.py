"""A task's membership in a job: registering, heartbeats, the job's phase, and barriers."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from ...core.backoff import Backoff, attempts
from ...core.clock import Clock, Silence, SystemClock
from ...core.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    FencedError,
    JobDoneError,
    JobStoppedError,
    JoinTimeoutError,
    PeerLostError,
    RopewalkError,
    said_of,
)
from ...core.process.events import event, record
from ...core.process.log_records import REPORTED_BY_LAUNCHER
from ...core.process.threads import new_thread
from ...core.process.waiting import WaitLog
from ...core.report import TaskEnd, TaskReport
from ...core.settings import Settings
from ...core.task import Incarnation, Phase, TaskId
from ...proto.v1.chief_pb2 import HeartbeatResponse
from .calls import ChiefClient

log = logging.getLogger(__name__)

# -- Membership --------------------------------------------------------------------------------

_CALL_S = 5.0
_CONFIRM_S = 2.0
_PORT_S = 2.0  # for the chief's machine to take a connection
_LOOK_S = 0.05  # in a job that begins with a step of every task


class Membership:
    """A task's membership of the job, kept up by a heartbeat thread.

    Args:
        task: The task that is a member.
        address: Address at which the task serves; empty if it does not.
        chief: Client to the chief.
        settings: Timeouts.
        report: Called at every heartbeat.
        on_lost: Called once, from the heartbeat thread, when the program must be interrupted.
        on_stopping: Called once, from the heartbeat thread, when the program should end at its next
            step.
        on_answer: Called from the heartbeat thread with the answer to each heartbeat.
        clock: Clock, replaced in tests.
    """

    def __init__(
        self,
        task: TaskId,
        address: str,
        chief: ChiefClient,
        settings: Settings,
        *,
        report: Callable[[], TaskReport],
        on_lost: Callable[[RopewalkError], None],
        on_stopping: Callable[[RopewalkError], None] = lambda error: None,  # noqa: ARG005
        on_answer: Callable[[HeartbeatResponse], None] = lambda answer: None,  # noqa: ARG005
        clock: Clock | None = None,
    ) -> None:
        self.task = task
        self._address = address
        self._chief = chief
        self._settings = settings
        self._report = report
        self._clock = clock or SystemClock()
        self._leaving = threading.Event()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended: TaskEnd | None = None  # this task's part of the job
        self._is_end_known = False  # to the chief that leads now
        self._lost = False
        self.phase = Phase.RUNNING
        self.reason = ""
        self.is_held = False  # after its first step this task waits for those of others
        self.who = Incarnation(task, 0)
        self._on_lost, self._on_stopping, self._on_answer = on_lost, on_stopping, on_answer

    def join(self, *, still_wanted: Callable[[], None] = lambda: None) -> Incarnation:
        """Register, waiting for a late chief until the join timeout; begin the heartbeats.

        Raises:
            JobDoneError: The job is done: the chief is about to leave.
            JoinTimeoutError: The chief did not answer.
            ProtocolMismatchError: It speaks another protocol.
        """
        timeout_s = self._settings.join_timeout_s
        waits = WaitLog(self.task, limit_s=timeout_s, limit="join_timeout_s")

        def waiting(error: Exception | None) -> None:
            still_wanted()
            waits.tick(f"the chief at {self._chief.address}", error or "")

        try:
            for attempt in attempts(timeout_s=timeout_s, max_s=0.5, before_sleep=waiting):
                with attempt:
                    answer = self._chief.register(
                        self.task,
                        self._address,
                        timeout_s=_CALL_S,
                        serves=self._report().serves,
                    )
                    self.who, heartbeat_s, self.phase, self.reason, self.is_held = answer
        except PeerLostError as error:
            raise JoinTimeoutError(
                f"{self.task} waited {timeout_s:g} s (join_timeout_s) for the chief at "
                f"{self._chief.address}; the last answer: {error}. Is it started, and can this "
                "machine reach its address?",
                task=self.task,
                missing="chief",
            ) from error
        waits.done()
        record("task.joined", chief=self._chief.address, generation=self.who.generation)
        self._thread = new_thread(
            f"{self.task.short}-heartbeat",
            partial(self._beat, heartbeat_s),
            failed=lambda error: self._lose(
                RopewalkError(f"{self.task} cannot send heartbeats any more: {said_of(error)}")
            ),
        )
        self._thread.start()
        if self.phase is Phase.DONE:
            raise JobDoneError(f"{self.task}: the job is done already; nothing is left to do")
        return self.who

    def _beat(self, heartbeat_s: float) -> None:
        self._renew_until_over(heartbeat_s)
        if self.phase.is_over and not self._lost:
            # The chief stays until it has heard that everybody knows. That this was heard, too,
            # does not matter here.
            with contextlib.suppress(RopewalkError):
                self._heartbeat(_CONFIRM_S)

    def _heartbeat(self, timeout_s: float) -> tuple[Phase, str]:
        return self._chief.heartbeat(
            self.who,
            self._report(),
            knows=self.phase,
            timeout_s=timeout_s,
            on_answer=self._on_answer,
            on_held=self._be_held,
        )

    def _be_held(self, held: bool) -> None:
        self.is_held = held

    def _leaves_within(self, heartbeat_s: float) -> bool:
        """Wait until a heartbeat is due; returns whether this task leaves.

        Where others may wait for this task's first step, one is due as soon as it is made; while it
        waits for theirs, they come twice as often.
        """
        until = self._clock.now() + heartbeat_s
        if self.is_held and self._report().steps:
            return self._clock.wait(self._leaving, heartbeat_s / 2)
        while self.is_held and until - self._clock.now() > _LOOK_S:
            if self._clock.wait(self._leaving, _LOOK_S):
                return True
            if self._report().steps:
                return False
        return self._clock.wait(self._leaving, max(0.0, until - self._clock.now()))

    def _renew_until_over(self, heartbeat_s: float) -> None:
        silence, is_away = Silence(self._clock.now(), heartbeat_s + 2 * _CALL_S), False
        while not self._leaves_within(heartbeat_s):
            try:
                phase, reason = self._heartbeat(min(_CALL_S, self._settings.lease_s))
            except PeerLostError as error:
                silent_s = silence.look(self._clock.now())
                self._is_end_known = False  # the next answer may be another chief's
                if self._has_lost_chief(silent_s):
                    self._lose(
                        PeerLostError(
                            f"{self.task}: the chief at {self._chief.address} has not answered for "
                            f"{silent_s:.0f} s ({error}); it is lost. Restart the job: it resumes "
                            "from the last checkpoint",
                            task=self.task,
                            peer="chief",
                        )
                    )
                    return
                if silent_s > self._settings.lease_s and not is_away:
                    is_away = True
                    log.warning(
                        "%s goes on without the chief, which has not answered for %.0f s (%s)",
                        self.task,
                        silent_s,
                        error,
                        extra=event("chief.silent", silent_s=round(silent_s), error=error),
                    )
                continue
            except RopewalkError as error:
                self._lose(error)
                return
            if is_away:
                log.info("%s: the chief answers again", self.task, extra=event("chief.back"))
            silence.heard(self._clock.now())
            is_away = False
            self._update(phase, reason)
            if self._ended is not None and not self._is_end_known and not phase.is_over:
                self._tell_end(self._ended)
            if phase.is_over:
                return

    def _has_lost_chief(self, silent_s: float) -> bool:
        """Decide whether to give up a silent chief: one whose process is there may hold its
        interpreter's lock, and is waited for as long as a ps waits for it.
        """
        settings = self._settings
        if silent_s <= settings.chief_lost_s:
            return False
        return silent_s > settings.orphan_timeout_s or not self._chief.is_there(_PORT_S)

    def _update(self, phase: Phase, reason: str) -> None:
        if phase is not self.phase and phase.is_over:
            # The user has seen an error of this task itself.
            why = f": {reason}" if reason and not reason.startswith(f"{self.task} ") else ""
            ended = event("job.ended", phase=phase, reason=reason)
            log.info("the job %s%s", phase.ended_how, why, extra=REPORTED_BY_LAUNCHER | ended)
        begins_to_stop = phase is Phase.STOPPING is not self.phase
        self.phase, self.reason = phase, reason
        if begins_to_stop:
            record("job.stopping", reason=reason)
        if phase.is_over:
            self._over.set()
        if self._ended is not None:
            return
        if begins_to_stop:
            self._on_stopping(self._stopping())
        elif phase is Phase.FAILED:
            self._on_lost(PeerLostError(f"{self.task} ends because the job failed: {reason}"))
        elif phase is Phase.STOPPED:
            self._on_lost(
                JobStoppedError(f"{self.task} ends because the job was stopped: {reason}")
            )

    def _lose(self, error: RopewalkError) -> None:
        lost = event("task.gave_up", error=error)
        if isinstance(error, FencedError):
            log.error("%s", error, extra=lost)
        self.phase, self.reason, self._lost = Phase.FAILED, str(error), True
        self._over.set()
        if not self._leaving.is_set():
            self._on_lost(error)

    def check(self) -> None:
        """Raise if the program should end now. Called between steps.

        Raises:
            JobStoppedError: The job was asked to stop.
        """
        if self.phase in (Phase.STOPPING, Phase.STOPPED):
            raise self._stopping()
        if self.phase is Phase.FAILED:
            raise PeerLostError(f"{self.task} ends because the job failed: {self.reason}")

    def _stopping(self) -> JobStoppedError:
        return JobStoppedError(f"{self.task} ends because the job is stopping: {self.reason}")

    def finish(self, end: TaskEnd, *, within_s: float = _CALL_S) -> None:
        """Report the end of this task's work, and again to a chief that is started anew.

        A failure to reach the chief is logged.

        Args:
            end: The end to report: finished, or failed and why.
            within_s: Time to try to reach the chief. Unit: seconds.
        """
        self._ended = end
        if not self._lost:  # else the chief has gone, or this task was fenced
            self._tell_end(end, within_s)

    def _tell_end(self, end: TaskEnd, within_s: float = _CALL_S) -> None:
        self._is_end_known = True  # unless a heartbeat fails from now on
        try:
            for attempt in attempts(timeout_s=within_s, max_s=0.5):
                with attempt:
                    phase, reason = self._chief.finish(
                        self.who, end, self._report(), timeout_s=_CALL_S
                    )
        except RopewalkError as error:
            self._is_end_known = False
            log.warning("could not report the end to the chief: %s", error)
            return
        self._update(phase, reason)

    def wait_over(self, timeout_s: float | None = None) -> bool:
        """Wait until the job is over or its chief is lost; returns whether it is."""
        return self._over.wait(timeout_s)

    def close(self) -> None:
        """Stop the heartbeats. The lease expires."""
        self._leaving.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_CALL_S + 1)


# -- Waiting at a barrier until every task that runs the program has arrived -------------------

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


class BarrierClient:
    """A client for the barriers of one task, one after the other. Use from one thread.

    Args:
        chief: Counts the tasks.
        who: Incarnation of the calling task.
        check: Called while waiting; raises when the program should end.
    """

    def __init__(self, chief: ChiefClient, who: Incarnation, check: Callable[[], None]) -> None:
        self._chief = chief
        self._who = who
        self._check = check
        self._call = 0

    def wait(self, timeout_s: float) -> None:
        """Wait until all have arrived.

        Args:
            timeout_s: Unit: seconds.

        Raises:
            CollectiveTimeoutError: They have not; names the missing tasks.
            CollectiveMismatchError: One has finished its program without this barrier.
            FencedError: A newer incarnation of this task has registered.
        """
        self._call += 1
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        missing: list[TaskId] = []
        last = ""
        while True:
            self._check()
            try:
                missing, finished = self._chief.arrive(self._who, self._call, timeout_s=_CALL_S)
                last = ""
            except PeerLostError as error:
                finished, last = [], f"; the chief's last answer: {error}"
            else:
                if not missing:
                    return
            if finished:
                raise CollectiveMismatchError(
                    f"{self._who.task} waits at barrier {self._call}, and {_names(finished)} has "
                    "finished its program without coming there; every task must make the same "
                    "number of barriers",
                    task=self._who.task,
                    finished=_names(finished),
                )
            if time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"{self._who.task} waited {timeout_s:g} s (timeout_s) at barrier {self._call} "
                    f"for {_names(missing) or 'the chief'}{last}. Does every task come to it, and "
                    "are all alive?",
                    task=self._who.task,
                    missing=_names(missing),
                    timeout_s=timeout_s,
                )
            time.sleep(backoff.next_s())


def _names(tasks: list[TaskId]) -> str:
    return ", ".join(str(task) for task in tasks)
