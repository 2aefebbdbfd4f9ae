"""One job of a standalone cluster: its tasks, how they ended, and what that makes of the job."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ...core.exit_codes import ExitCode, describe_exit, is_retryable, shell_status
from ...core.settings import ALL_WORKERS
from ...core.task import TaskId
from ..exit_policy import on_exit
from ..roles import CHIEF, PS, WORKER
from .orders import Start, Stop
from .submission import Submission

MOST_ATTEMPTS = 10  # of a worker that was lost
_STOP_S = 15.0  # after the chief's end, or a request to stop, before tasks are asked by SIGTERM
_KILL_S = 105.0  # and after that, before they are killed: a large checkpoint is being written
_GIVE_UP_S = 30.0  # and after that, before they count as ended: a node cannot end them
LOST = -9  # the code of a task of which its node knows nothing, or that it cannot end


class JobState(StrEnum):
    """Where a job stands."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(slots=True)
class PlacedTask:
    """A task of a job.

    Attributes:
        task: Which.
        node: Where it runs.
        address: Where it serves, host:port.
        code: How it ended, as ``subprocess`` has it; None while it runs.
        attempt: How often it was started again.
    """

    task: TaskId
    node: TaskId
    address: str
    code: int | None = None
    attempt: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether it does not run."""
        return self.code is not None


@dataclass(slots=True)
class StandaloneJob:
    """A job from its submission to its end. Every change says what to do as orders.

    Attributes:
        submission: As it was asked for.
        submitted: Time.
        driver_heard: Time of the driver's last sign of life.
        reason: Why it waits, stops or has failed, for people.
        exit_code: Once it has ended, as a shell has it.
    """

    submission: Submission
    submitted: float
    driver_heard: float
    state: JobState = JobState.QUEUED
    reason: str = ""
    exit_code: int = 0
    started: float | None = None
    ended: float | None = None
    tasks: dict[TaskId, PlacedTask] = field(default_factory=dict)
    _over_since: float | None = None
    _was_asked: bool = False
    _killed: float | None = None
    _first_failure: tuple[TaskId, int] | None = None

    @property
    def id(self) -> str:
        """Its id."""
        return self.submission.id

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs."""
        return self.state is JobState.ENDED

    @property
    def cluster(self) -> dict[str, list[str]]:
        """TF_CONFIG's cluster."""
        spec: dict[str, list[str]] = {}
        for placed in self.tasks.values():
            spec.setdefault(placed.task.type, []).append(placed.address)
        return spec

    def begin(
        self, placed: Iterable[PlacedTask], settings: Mapping[str, str], *, now: float
    ) -> list[tuple[TaskId, Start]]:
        """Start all tasks; returns the orders, each with its node."""
        self.tasks = {each.task: each for each in placed}
        self.state, self.started, self.reason = JobState.RUNNING, now, ""
        return [(each.node, self._start(each, settings)) for each in self.tasks.values()]

    def _start(self, placed: PlacedTask, settings: Mapping[str, str]) -> Start:
        asked = self.submission
        task = {"type": placed.task.type, "index": placed.task.index}
        serves = placed.task.type == PS or (placed.task.type == WORKER and asked.coordinator)
        if placed.task.type == CHIEF and asked.is_driven_from_outside:
            command: tuple[str, ...] = ("lead",)
        elif serves:
            command = ("run",)
        else:
            command = ("run", *asked.program, "--", *asked.arguments)
        return Start(
            self.id,
            placed.task,
            placed.attempt,
            json.dumps({"cluster": self.cluster, "task": task}),
            asked.digest,
            command,
            {"wait_for_workers": str(ALL_WORKERS), **settings, **asked.settings},
        )

    def task_ended(
        self,
        task: TaskId,
        code: int,
        settings: Mapping[str, str] | None,
        *,
        why: str = "",
        now: float,
    ) -> list[tuple[TaskId, Start]]:
        """A task's process has ended.

        Args:
            task: Which.
            code: How, as ``subprocess`` has it.
            settings: To start it again with; None: its node is lost.
            why: For people, if its code does not say why.
            now: The time.

        Returns:
            The order to start it again, if that is what to do: a worker that was lost.
        """
        placed = self.tasks.get(task)
        if placed is None or placed.has_ended or self.has_ended:
            return []
        placed.code = code
        chief = self.tasks[TaskId(CHIEF, 0)]
        over = self.state is JobState.STOPPING or chief.code == 0
        verdict = on_exit(task, code, chief=chief.task, stopping=over)
        if verdict.failed and self._first_failure is None:
            self._first_failure = task, code
            self.reason = why or verdict.message
        job_over = code in (ExitCode.PEER_LOST, ExitCode.DRAINED)
        again = task.type == WORKER and code != 0 and is_retryable(code) and not job_over
        again = again and not over and not chief.has_ended and placed.attempt < MOST_ATTEMPTS
        if again and settings is not None:
            placed.attempt, placed.code = placed.attempt + 1, None
            return [(placed.node, self._start(placed, settings))]
        if self._over_since is None and (verdict.job_ends or chief.has_ended):
            self._over_since = now
        if all(each.has_ended for each in self.tasks.values()):
            self._end(now)
        return []

    def _end(self, now: float) -> None:
        was_stopped = self.state is JobState.STOPPING
        self.state, self.ended = JobState.ENDED, now
        chief = self.tasks[TaskId(CHIEF, 0)].code or 0
        first = self._first_failure
        if first is not None and first[1] in (ExitCode.PEER_LOST, ExitCode.DRAINED):
            # Who lost a peer, or was told to end, only followed.
            codes = {each.task: each.code or 0 for each in self.tasks.values()}
            own = [(task, code) for task, code in codes.items() if 0 < code < 128]
            killed = [(task, code) for task, code in codes.items() if code < 0 and task.type == PS]
            if own or killed:
                first = (own or killed)[0]
                how = first[1] if first[1] > 0 else f"signal {-first[1]}"
                if first != self._first_failure:
                    self.reason = f"{first[0].short} ended with {how}: {describe_exit(first[1])}"
        code = first[1] if first is not None else chief
        self.exit_code = shell_status(code or (int(ExitCode.DRAINED) if was_stopped else 0))

    def stop(self, reason: str, *, kill: bool, now: float) -> list[tuple[TaskId, Stop]]:
        """Ask it to save and end, or end it at once; returns the orders."""
        if self.has_ended:
            return []
        if self.state is JobState.QUEUED:
            self.state, self.ended, self.reason = JobState.ENDED, now, reason
            self.exit_code = int(ExitCode.DRAINED)
            return []
        if self.state is JobState.RUNNING:
            self.state, self.reason = JobState.STOPPING, reason
            self._over_since = now
        if kill:
            return self._kill_all(now)
        chief = self.tasks[TaskId(CHIEF, 0)]
        return [] if chief.has_ended else [(chief.node, Stop(self.id, chief.task))]

    def overdue(self, *, now: float) -> list[tuple[TaskId, Stop]]:
        """Orders for tasks that should have ended by themselves."""
        if self._over_since is None or self.has_ended:
            return []
        waited_s = now - self._over_since
        if self._killed is not None and now - self._killed >= _GIVE_UP_S:
            for task in [each.task for each in self.tasks.values() if not each.has_ended]:
                why = f"{task.short} was given up: its node could not end it in {_GIVE_UP_S:g} s"
                self.task_ended(task, LOST, None, why=why, now=now)
            return []
        if waited_s >= _STOP_S + _KILL_S and self._killed is None:
            return self._kill_all(now)
        if waited_s >= _STOP_S and not self._was_asked:
            self._was_asked = True
            return self._stop_all(kill=False)
        return []

    def _kill_all(self, now: float) -> list[tuple[TaskId, Stop]]:
        if self._killed is None:
            self._killed = now
        return self._stop_all(kill=True)

    def _stop_all(self, *, kill: bool) -> list[tuple[TaskId, Stop]]:
        return [
            (placed.node, Stop(self.id, placed.task, kill))
            for placed in self.tasks.values()
            if not placed.has_ended
        ]
