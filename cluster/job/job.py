"""The state of a job: its members, their leases, and the phase of the work.

Pure: time is an argument, nothing is sent or waited for, the caller holds the lock. The chief's
servicer and loop feed it events and carry out what it decides, so a test can replay any history as
plain data.

A job ends in this order: the workers finish, the chief's program finishes, the last checkpoint is
written, every task is told ``DONE``, the chief ends.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...core.errors import OtherJobError, PeerLostError, RefusedError, TooManyWorkersError
from ...core.exit_codes import is_retryable
from ...core.report import PsCounters, TaskReport
from ...core.states import Outcome, Phase, State
from ...core.task import Incarnation, TaskId, is_other_job
from ..roles import EVALUATOR, PS, WORKER
from .barrier import JobBarrier
from .takeover import Challenge, Process, take_place

_MOST_PS = 1024
_GENERATIONS = 1 << 20  # that one start of a chief gives out, at most


@dataclass(slots=True)
class Member:
    """One task of the job.

    Attributes:
        since: When ``state`` began.
        heard: Time of the task's last message.
        knows: The phase of the job that the task says it was told.
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
    knows: Phase = Phase.RUNNING
    challenge: Challenge | None = None

    @property
    def process(self) -> Process:
        """Where it runs."""
        return Process(self.host, self.pid)


class Job:
    """Membership by leases, and the phase of the job. Not thread-safe: the caller locks."""

    def __init__(
        self,
        expected: Iterable[tuple[TaskId, str]],
        *,
        chief: TaskId,
        lease_s: float,
        now: float,
        name: str | None = "",
        max_dynamic: int = 256,
        shares_move: bool = False,
    ) -> None:
        """Begin a job.

        Args:
            expected: Tasks of the spec and their addresses.
            chief: The chief, which may be worker 0.
            lease_s: A task without a message for this long is lost. Unit: seconds.
            now: The current time.
            name: Id of the job; None: its chief has yet to find out, and nobody may register.
            max_dynamic: Most tasks beside the expected ones.
            shares_move: Other ps may have what a ps had: the loss of one fails the job only where
                :meth:`fail` is called for it.
        """
        self.name = name
        self.chief = chief
        self.lease_s = lease_s
        self.began = now
        self.phase = Phase.RUNNING
        self.reason = ""
        self.has_failed_for_good = False  # by a task that would fail again
        self.saved_step = 0  # of the last checkpoint
        self.has_lost_variables = False  # which the reason says
        self.program_is_outside = False  # the chief's, so that it has to be told things, too

        self.members = {
            task: Member(task, since=now, address=address) for task, address in expected
        }
        self._expected = frozenset(self.members)
        self._max_dynamic = max_dynamic
        self._shares_move = shares_move
        self._last_generation = 0
        self._perhaps_kept: dict[TaskId, int] = {}  # process of each ps that a chief before led
        self._barrier = JobBarrier()

    def identify(self, name: str, *, after: int) -> int:
        """Say which job this is, before anybody registers; a restarted chief's goes on.

        Generations go on as well: from a round number past all that are known, because some that
        the last chief gave out may have been shown to nobody else.

        Args:
            name: Its id.
            after: The highest generation known of its tasks.

        Returns:
            The last generation that counts as given out.
        """
        self.name = name
        self._last_generation = (after // _GENERATIONS + 1) * _GENERATIONS
        return self._last_generation

    def register(
        self,
        task: TaskId,
        *,
        now: float,
        address: str = "",
        host: str = "",
        pid: int = 0,
        job: str = "",
        is_gone: bool = False,
        serves: bool = False,
    ) -> Incarnation:
        """Begin a new incarnation of a task; the older one is fenced.

        Args:
            task: Need not be in the spec: dynamic workers are not.
            now: The current time.
            address: Where the task serves.
            host: Its machine.
            pid: Its process there.
            job: Id of the job it was started for; empty: it has none.
            is_gone: The process that had the place is known to have ended.
            serves: It has no program of its own, and ends with the job.

        Raises:
            PeerLostError: Another process had the place a moment ago: ask again.
            OtherJobError: Another process has it, or the task is of another job.
            RefusedError: The task cannot be one of this job.
            TooManyWorkersError: There are too many tasks already.
        """
        if self.name is None:
            raise PeerLostError(f"{self.chief} does not know yet which job it leads", task=task)
        self._check_job(task, job)
        member = self._member(task, now)
        newcomer = Process(host, pid)
        if member.state is State.ALIVE and member.process != newcomer and not is_gone:
            if member.challenge is None or member.challenge.newcomer != newcomer:
                member.challenge = Challenge(newcomer, now)
            take_place(
                task,
                member.process,
                member.challenge,
                heard=member.heard,
                lease_s=self.lease_s,
                now=now,
            )
        member.challenge = None
        self._last_generation += 1
        member.generation = self._last_generation
        member.address = address or member.address
        member.host, member.pid, member.heard, member.detail = host, pid, now, ""
        member.report = TaskReport(serves=serves)
        self._enter(member, State.ALIVE, now)
        return Incarnation(task, member.generation, self.name)

    def heartbeat(
        self, who: Incarnation, report: TaskReport, *, now: float, knows: Phase = Phase.RUNNING
    ) -> Phase:
        """Renew a lease; returns the phase to tell the task.

        Args:
            who: The task.
            report: Its progress.
            now: The time.
            knows: The phase it was told last: only its own word shows that an answer arrived.

        Raises:
            FencedError: A newer incarnation of the task has registered.
        """
        member = self._current(who, now)
        member.heard = now
        member.report = report
        if member.state is State.LOST:
            self._enter(member, State.ALIVE, now, "came back")
        member.knows = knows
        return self.phase

    def finish(
        self,
        who: Incarnation,
        outcome: Outcome,
        message: str,
        report: TaskReport,
        *,
        now: float,
        exit_code: int = 0,
    ) -> Phase:
        """A task's part is over. A failure fails the job, unless it is the evaluator's.

        Args:
            who: The task.
            outcome: How its part ended.
            message: Why, for people.
            report: What it did.
            now: The current time.
            exit_code: With which its process ends; 0: it does not say.

        Raises:
            FencedError: A newer incarnation of the task has registered.
        """
        member = self._current(who, now)
        member.heard = now
        member.report = report
        if member.state not in (State.DONE, State.FAILED):
            self._enter(member, State(outcome.value), now, message)
            if outcome is Outcome.FAILED and who.task.type != EVALUATOR:
                self.has_failed_for_good |= not (self.phase.is_over or is_retryable(exit_code))
                self.fail(f"{who.task} failed: {message}")
            elif outcome is Outcome.LEFT and who.task == self.chief and self.phase is Phase.RUNNING:
                self.fail(f"{who.task} left before the work was complete: {message}")
        return self.phase

    def arrive(
        self, who: Incarnation, call: int, *, now: float
    ) -> tuple[list[TaskId], list[TaskId]]:
        """A task is at its barrier number ``call``, or still is.

        Returns:
            (the tasks that run the program and are missing, of them those that have finished it)

        Raises:
            FencedError: A newer incarnation of the task has registered.
        """
        self._current(who, now)
        running = [m for m in self.members.values() if m.task.type not in (PS, EVALUATOR)]
        expected = [Incarnation(member.task, member.generation) for member in running]
        missing = self._barrier.arrive(who, call, expected)
        over = (State.DONE, State.FAILED)
        return missing, [task for task in missing if self.members[task].state in over]

    def ps_answered(
        self, task: TaskId, generation: int, counters: PsCounters, *, now: float
    ) -> None:
        """A ps answered the chief. If it has restarted it is empty: the job fails, unless other ps
        have its variables.
        """
        member = self.members[task]
        member.heard = now
        if member.generation not in (0, generation) and not self._shares_move:
            self._enter(member, State.LOST, now, "restarted")  # and stays lost, whoever answers
            self.fail_without_variables(f"{task} restarted and lost its variables")
            return
        member.generation, member.counters = generation, counters
        self._enter(member, State.ALIVE, now)
        if self._perhaps_kept.get(task) == generation:
            kept, self._perhaps_kept = self._perhaps_kept, {}
            self.expect_processes(kept)  # the others have theirs, too, or have lost them

    def check_ps(self, task: TaskId, job: str) -> None:
        """Whether a ps may come to this job.

        Raises:
            PeerLostError: The chief does not know yet which job it leads: ask again.
            RefusedError: It is no ps, or has an index that none can have.
            OtherJobError: It was started for another job.
        """
        if self.name is None:
            raise PeerLostError(f"{self.chief} does not know yet which job it leads", task=task)
        if task.type != PS or task.index >= _MOST_PS:
            raise RefusedError(f"{task} cannot come as a ps: ps:0 to ps:{_MOST_PS - 1} can")
        self._check_job(task, job)

    def add_ps(self, task: TaskId, address: str, *, now: float) -> None:
        """A ps has come that the cluster did not have."""
        self.members[task] = Member(task, since=now, address=address)
        self._expected |= {task}

    def ps_left(self, task: TaskId, *, now: float) -> None:
        """A ps that was asked to stop has gone, after others took over what it had."""
        self._enter(self.members[task], State.LEFT, now, "was asked to stop")

    def ps_refused(self, task: TaskId, why: str, *, now: float) -> None:
        """A ps refused to serve this job, e.g. because it serves another chief: the job fails."""
        self._enter(self.members[task], State.FAILED, now, why)
        self.fail(f"{task}: {why}")

    def expire(self, *, now: float) -> list[TaskId]:
        """Mark tasks whose lease ran out; return them. A lost ps fails the job."""
        lost = []
        for member in self.members.values():
            if member.state is State.ALIVE and now - member.heard > self.lease_s:
                silent = f"no sign of life for {now - member.heard:.0f} s"
                self._enter(member, State.LOST, now, silent)
                lost.append(member.task)
                if member.task.type == PS and not self._shares_move:
                    self.fail_without_variables(
                        f"{member.task} ({member.address}) was lost: {silent}"
                    )
        return lost

    def stop(self, reason: str) -> None:
        """Ask every task to end at its next step."""
        if self.phase is Phase.RUNNING:
            self._enter_phase(Phase.STOPPING, reason)

    def fail(self, reason: str) -> None:
        """The job cannot succeed. The first reason is kept."""
        if not self.phase.is_over:
            self._enter_phase(Phase.FAILED, reason)

    def fail_without_variables(self, why: str) -> None:
        """Variables are gone: the job fails, if it has not yet, and says how much is lost."""
        steps = self.global_step - self.saved_step
        what = f"{steps} steps" if steps > 1 else "what was pushed"
        lost = f". Lost since the last checkpoint: {what}"  # it may not have heard of a push yet
        if self.phase is Phase.FAILED and not self.has_lost_variables:
            self.reason += lost
        self.has_lost_variables = True
        self.fail(why + lost)

    @property
    def processes(self) -> dict[TaskId, int]:
        """Which process each ps is that has answered."""
        ps = (member for member in self.members.values() if member.task.type == PS)
        return {member.task: member.generation for member in ps if member.generation}

    def in_state(self, *states: State) -> set[TaskId]:
        """The ps in one of these states."""
        return {m.task for m in self.members.values() if m.task.type == PS and m.state in states}

    def expect_processes(
        self, processes: Mapping[TaskId, int], *, if_one_answers: bool = False
    ) -> None:
        """Say which process of each ps has the variables; a restarted chief's job goes on.

        Args:
            processes: They had them when the chief before wrote that down.
            if_one_answers: None has said yet that it still has them; all may have been started
                again, to go on from a checkpoint.
        """
        if if_one_answers:
            self._perhaps_kept = dict(processes)
            return
        for task, process in processes.items():
            if task in self.members:
                self.members[task].generation = process

    def wait_for(self, what: str) -> None:
        """The chief waits for something, which the status shows; empty: no longer."""
        if self.phase is Phase.RUNNING:
            self.reason = what

    def complete(self) -> None:
        """The last checkpoint is written: the job is over."""
        if self.phase is Phase.RUNNING:
            self._enter_phase(Phase.DONE, "")
        elif self.phase is Phase.STOPPING:
            self._enter_phase(Phase.STOPPED, self.reason)

    def waited_for(self) -> list[TaskId]:
        """Tasks at work besides the chief; the last checkpoint waits for them.

        Those that only serve others are not.
        """
        return self._with_programs(State.ALIVE)

    @property
    def workers_at_work(self) -> list[TaskId]:
        """Workers that are alive, also those that only serve others, but for a chief."""
        alive = [member.task for member in self.members.values() if member.state is State.ALIVE]
        return [task for task in alive if task.type == WORKER and task != self.chief]

    def not_registered(self) -> list[TaskId]:
        """Workers of the spec that have not registered yet."""
        return self._with_programs(State.MISSING)

    def _with_programs(self, state: State) -> list[TaskId]:
        """Tasks in a state that run the program, the chief left out."""
        return [
            member.task
            for member in self.members.values()
            if member.state is state
            and member.task.type not in (PS, EVALUATOR)
            and member.task != self.chief
            and not member.report.serves
        ]

    def uninformed(self) -> list[TaskId]:
        """Tasks that are alive and have not said that they know the job's final phase."""
        return [
            member.task
            for member in self.members.values()
            if member.state in (State.ALIVE, State.DONE)
            and member.knows is not self.phase
            and member.task.type != PS
            and (member.task != self.chief or self.program_is_outside)
        ]

    def missing(self, *, now: float) -> list[tuple[TaskId, float]]:
        """Tasks of the spec that are missing or lost, and for how many seconds."""
        return [
            (member.task, now - member.since)
            for member in self.members.values()
            if member.state in (State.MISSING, State.LOST)
        ]

    def uneven_replicas(self) -> dict[TaskId, int]:
        """Replicas of every task that has said so, if they differ; else nothing."""
        counts = {m.task: m.report.replicas for m in self.members.values() if m.report.replicas}
        return counts if len(set(counts.values())) > 1 else {}

    @property
    def last_generation(self) -> int:
        """The highest one that was given out."""
        return self._last_generation

    @property
    def pushes(self) -> int:
        """Pushes that the ps have counted, first values too."""
        counters = [member.counters for member in self.members.values()]
        return sum(each.pushes for each in counters if each is not None)

    @property
    def global_step(self) -> int:
        """As the ps count it; without ps, the highest one that a task reported."""
        counted = [m.counters.global_step for m in self.members.values() if m.counters is not None]
        reported = (member.report.global_step for member in self.members.values())
        return max(counted or reported, default=0)

    @property
    def total_steps(self) -> int:
        """The goal the programs reported; 0: none."""
        return max((member.report.total_steps for member in self.members.values()), default=0)

    def _current(self, who: Incarnation, now: float) -> Member:
        self._check_job(who.task, who.job)
        member = self._member(who.task, now)
        who.check_not_superseded(member.generation)
        if who.generation > member.generation:
            # This chief has restarted and does not know the task yet; nor, before it is identified,
            # how far it has counted.
            if self.name is not None and who.generation > self._last_generation + _GENERATIONS:
                raise RefusedError(
                    f"{who}: no chief of this job gave out that generation; the last one is "
                    f"{self._last_generation}",
                    task=who.task,
                    generation=who.generation,
                )
            member.generation = who.generation
            self._last_generation = max(self._last_generation, who.generation)
            if member.state is State.MISSING:
                self._enter(member, State.ALIVE, now)
                member.heard = now
        return member

    def _member(self, task: TaskId, now: float) -> Member:
        """The member of a task; a new one for a dynamic worker, which is not in the spec."""
        member = self.members.get(task)
        if task.type == PS or (
            member is None and task != self.chief and task.type not in (WORKER, EVALUATOR)
        ):
            raise RefusedError(
                f"{task} does not register with {self.chief}: the chief itself, workers and the "
                "evaluator do",
                task=task,
            )
        if member is None:
            self._make_room(task)
            member = self.members[task] = Member(task, since=now)
        return member

    def _make_room(self, task: TaskId) -> None:
        """Have room for one more dynamic task: the one that is gone for longest is forgotten."""
        dynamic = [member for member in self.members.values() if member.task not in self._expected]
        if len(dynamic) < self._max_dynamic:
            return
        gone = [member for member in dynamic if member.state is not State.ALIVE]
        if not gone:
            raise TooManyWorkersError(
                f"{task} is refused: {len(dynamic)} tasks take part that are not in the cluster of "
                f"{self.chief}, as many as may (max_sessions); raise WINDLASS_MAX_SESSIONS on the "
                "chief and the ps, or run fewer workers",
                task=task,
                limit="max_sessions",
                value=self._max_dynamic,
            )
        del self.members[min(gone, key=lambda member: member.since).task]

    def _check_job(self, task: TaskId, job: str) -> None:
        if is_other_job(self.name or "", job):
            raise OtherJobError(
                f"{task} belongs to job {job!r}, {self.chief} leads job {self.name!r}: two jobs "
                "use one address. Stop one of them, or give this job addresses of its own",
                task=task,
                job=job,
            )

    @staticmethod
    def _enter(member: Member, state: State, now: float, detail: str = "") -> None:
        if member.state is not state:
            member.state, member.since = state, now
        if detail or state is State.ALIVE:
            member.detail = detail

    def _enter_phase(self, phase: Phase, reason: str) -> None:
        self.phase, self.reason = phase, reason
