"""The state of a job: who is there, who is lost, and whether the work is complete.

Pure: time is an argument, nothing is sent or waited for, the caller holds the lock. The chief's
servicer feeds it calls and carries out what it decides, so a test can replay any history as plain
data.

A job ends by itself, in order: workers finish, the chief's own program finishes, the last
checkpoint is written, ``DONE`` is told to everybody, the chief leaves last.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..core.errors import FencedError
from ..core.report import PsCounters, TaskReport
from ..core.states import Outcome, Phase, State
from ..core.task import Incarnation, TaskId
from .roles import EVALUATOR, PS


@dataclass(slots=True)
class Member:
    """One task of the job.

    Attributes:
        since: When ``state`` began.
        heard: When the task was last heard of.
        told: The phase it was last told.
    """

    task: TaskId
    since: float
    state: State = State.MISSING
    heard: float = 0.0
    generation: int = 0
    address: str = ""
    detail: str = ""
    host: str = ""
    pid: int = 0
    report: TaskReport = field(default_factory=TaskReport)
    counters: PsCounters | None = None
    told: Phase = Phase.RUNNING


class Job:
    """Membership by leases, and the phase of the job. Not thread-safe: the caller locks."""

    def __init__(
        self, expected: Iterable[tuple[TaskId, str]], *, chief: TaskId, lease_s: float, now: float
    ) -> None:
        """Begin a job.

        Args:
            expected: Tasks of the spec and their addresses.
            chief: Who leads.
            lease_s: A task not heard of for this long is lost. Unit: seconds.
            now: The time.
        """
        self.chief = chief
        self.lease_s = lease_s
        self.began = now
        self.phase = Phase.RUNNING
        self.reason = ""
        self.phase_since = now
        self.members = {
            task: Member(task, since=now, address=address) for task, address in expected
        }
        self._last_generation = 0

    def register(
        self,
        task: TaskId,
        *,
        now: float,
        epoch: int,
        address: str = "",
        host: str = "",
        pid: int = 0,
    ) -> Incarnation:
        """Begin a new life of a task; the one before is fenced.

        Args:
            task: Need not be in the spec: dynamic workers are not.
            now: The time.
            epoch: Least generation to give out, from the wall clock in milliseconds, so that a
                restarted chief never repeats one.
            address: Where the task serves.
            host: Its machine.
            pid: Its process there.
        """
        member = self.members.setdefault(task, Member(task, since=now))
        self._last_generation = max(self._last_generation + 1, epoch)
        member.generation = self._last_generation
        member.address = address or member.address
        member.host, member.pid, member.heard, member.detail = host, pid, now, ""
        member.report = TaskReport()
        self._enter(member, State.ALIVE, now)
        return Incarnation(task, member.generation)

    def heartbeat(self, who: Incarnation, report: TaskReport, *, now: float) -> Phase:
        """Renew a lease; returns the phase to tell the task.

        Raises:
            FencedError: A newer life of the task has registered.
        """
        member = self._current(who, now)
        member.heard = now
        member.report = report
        if member.state is State.LOST:
            self._enter(member, State.ALIVE, now, "came back")
        member.told = self.phase
        return self.phase

    def finish(
        self, who: Incarnation, outcome: Outcome, message: str, report: TaskReport, *, now: float
    ) -> Phase:
        """A task's part is over. A failure fails the job, unless it is the evaluator's.

        Raises:
            FencedError: A newer life of the task has registered.
        """
        member = self._current(who, now)
        member.heard = now
        member.report = report
        if member.state not in (State.DONE, State.FAILED):
            self._enter(member, State(outcome.value), now, message)
            if outcome is Outcome.FAILED and who.task.type != EVALUATOR:
                self.fail(f"{who.task} failed: {message}", now=now)
            elif outcome is Outcome.LEFT and who.task == self.chief and self.phase is Phase.RUNNING:
                self.fail(f"{who.task} left before the work was complete: {message}", now=now)
        member.told = self.phase
        return self.phase

    def ps_answered(
        self, task: TaskId, generation: int, counters: PsCounters, *, now: float
    ) -> None:
        """The chief reached a ps. One that restarted has lost its variables: the job fails."""
        member = self.members[task]
        restarted = member.generation not in (0, generation)
        member.generation, member.counters, member.heard = generation, counters, now
        self._enter(member, State.ALIVE, now)
        if restarted:
            self.fail(f"{task} restarted and lost its variables", now=now)

    def ps_refused(self, task: TaskId, why: str, *, now: float) -> None:
        """A ps will not serve this job, e.g. since another chief holds it: the job fails."""
        self._enter(self.members[task], State.FAILED, now, why)
        self.fail(f"{task}: {why}", now=now)

    def expire(self, *, now: float) -> list[TaskId]:
        """Mark tasks whose lease ran out; return them. A lost ps fails the job."""
        lost = []
        for member in self.members.values():
            if member.state is State.ALIVE and now - member.heard > self.lease_s:
                silent = f"no sign of life for {now - member.heard:.0f} s"
                self._enter(member, State.LOST, now, silent)
                lost.append(member.task)
                if member.task.type == PS:
                    self.fail(f"{member.task} ({member.address}) was lost: {silent}", now=now)
        return lost

    def stop(self, reason: str, *, now: float) -> None:
        """Ask everybody to end at their next step."""
        if self.phase is Phase.RUNNING:
            self._enter_phase(Phase.STOPPING, reason, now)

    def fail(self, reason: str, *, now: float) -> None:
        """The job cannot succeed. The first reason stays."""
        if not self.phase.is_over:
            self._enter_phase(Phase.FAILED, reason, now)

    def complete(self, *, now: float) -> None:
        """The last checkpoint is written: the job is over."""
        if self.phase is Phase.RUNNING:
            self._enter_phase(Phase.DONE, "", now)
        elif self.phase is Phase.STOPPING:
            self._enter_phase(Phase.STOPPED, self.reason, now)

    def waited_for(self) -> list[TaskId]:
        """Who still works, but for the chief: the last checkpoint waits for these.

        Lost, missing and departed workers are not waited for, and an evaluator never is.
        """
        return [
            member.task
            for member in self.members.values()
            if member.state is State.ALIVE
            and member.task.type not in (PS, EVALUATOR)
            and member.task != self.chief
        ]

    def not_come(self) -> list[TaskId]:
        """Workers of the spec that nobody has heard of yet."""
        return [
            member.task
            for member in self.members.values()
            if member.state is State.MISSING
            and member.task.type not in (PS, EVALUATOR)
            and member.task != self.chief
        ]

    def untold(self) -> list[TaskId]:
        """Who is alive and has not yet heard that the job is over."""
        return [
            member.task
            for member in self.members.values()
            if member.state in (State.ALIVE, State.DONE)
            and member.told is not self.phase
            and member.task.type != PS
            and member.task != self.chief
        ]

    def missing(self, *, now: float) -> list[tuple[TaskId, float]]:
        """Tasks of the spec that are not there, and since when, in seconds."""
        return [
            (member.task, now - member.since)
            for member in self.members.values()
            if member.state in (State.MISSING, State.LOST)
        ]

    @property
    def global_step(self) -> int:
        """The highest anybody reported."""
        return max((member.report.global_step for member in self.members.values()), default=0)

    @property
    def total_steps(self) -> int:
        """The goal the programs reported; 0: none."""
        return max((member.report.total_steps for member in self.members.values()), default=0)

    def _current(self, who: Incarnation, now: float) -> Member:
        # A task no spec lists is a dynamic worker's: a chief that restarted takes it back, too.
        member = self.members.setdefault(who.task, Member(who.task, since=now))
        if who.generation < member.generation:
            raise FencedError(
                f"{who} was superseded by generation {member.generation}: another process took "
                "its place. This one must end",
                task=who.task,
                generation=who.generation,
                current=member.generation,
            )
        if who.generation > member.generation:
            # A chief that restarted and has not seen this task yet.
            member.generation = who.generation
            self._last_generation = max(self._last_generation, who.generation)
            if member.state is State.MISSING:
                self._enter(member, State.ALIVE, now)
        return member

    @staticmethod
    def _enter(member: Member, state: State, now: float, detail: str = "") -> None:
        if member.state is not state:
            member.state, member.since = state, now
        if detail or state is State.ALIVE:
            member.detail = detail

    def _enter_phase(self, phase: Phase, reason: str, now: float) -> None:
        self.phase, self.reason, self.phase_since = phase, reason, now
