"""The state of a job: its members, their leases, and the phase of the work.

Pure: time is an argument, nothing is sent or waited for, the caller holds the lock. The chief's
servicer and loop feed it events and carry out what it decides, so a test can replay any history as
plain data.

A job ends in this order: the workers finish, the chief's program finishes, the last checkpoint is
written, every task is told ``DONE``, the chief ends.
"""

import math
from collections.abc import Iterable, Mapping

from ...core.errors import OtherJobError, PeerLostError, RefusedError
from ...core.exit_codes import is_retryable
from ...core.report import PsCounters, TaskEnd, TaskReport
from ...core.task import (
    LONGEST_FIRST_STEP_S,
    Incarnation,
    Outcome,
    Phase,
    State,
    TaskId,
    is_other_job,
)
from ...core.terminal import counted
from ..liveness import Evidence, Judgement, is_to_be_asked, judge
from ..spec import EVALUATOR, PS
from .barrier import JobBarrier
from .members import Challenge, Member, Members, Process, take_place

_MOST_PS = 1024
_GENERATIONS = 1 << 20  # that one start of a chief gives out, at most


class JobPhase:
    """The phase of a job, and why it is in it. Not thread-safe: the caller locks.

    Attributes:
        phase: Phase of the job; one that is over stays.
        reason: Why, for people; while the job runs, what its chief waits for.
        caveat: Text that the status shows while the job runs and its chief waits for nothing.
        has_failed_for_good: Whether it failed by a task that would fail again.
    """

    def __init__(self) -> None:
        self.phase = Phase.RUNNING
        self.reason = ""
        self.caveat = ""
        self.has_failed_for_good = False

    def stop(self, reason: str) -> None:
        """Ask every task to end at its next step."""
        if self.phase is Phase.RUNNING:
            self._enter_phase(Phase.STOPPING, reason)

    def fail(self, reason: str, *, for_good: bool = False) -> None:
        """Fail the job, which cannot succeed. The first reason is kept.

        Args:
            reason: Why, for people.
            for_good: A task would fail again if all were started once more.
        """
        if not self.phase.is_over:
            self.has_failed_for_good = for_good
            self._enter_phase(Phase.FAILED, reason)

    def wait_for(self, what: str) -> None:
        """Show in the status that the chief waits for something; empty: no longer."""
        if self.phase is Phase.RUNNING:
            self.reason = what or self.caveat

    def complete(self) -> None:
        """End the job: the last checkpoint is written."""
        if self.phase is Phase.RUNNING:
            self._enter_phase(Phase.DONE, "")
        elif self.phase is Phase.STOPPING:
            self._enter_phase(Phase.STOPPED, self.reason)

    def _enter_phase(self, phase: Phase, reason: str) -> None:
        self.phase, self.reason = phase, reason


class Job(JobPhase):
    """Membership by leases, and the phase of the job. Not thread-safe: the caller locks.

    Attributes:
        members: The tasks, by id.
    """

    def __init__(
        self,
        expected: Iterable[tuple[TaskId, str]],
        *,
        chief: TaskId,
        lease_s: float,
        now: float,
        shortest_lease_s: float = math.inf,
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
            shortest_lease_s: Least time after which a task is lost whose process is known to be
                gone. Unit: seconds.
            name: Id of the job; None: its chief has yet to find out, and nobody may register.
            max_dynamic: Most tasks beside the expected ones.
            shares_move: Other ps may have what a ps had: the loss of one fails the job only where
                :meth:`fail` is called for it.
        """
        self.name = name
        self.chief = chief
        self.lease_s = lease_s
        self._shortest_lease_s = min(shortest_lease_s, lease_s)
        self.began = now
        super().__init__()
        self.saved_step = 0  # of the last checkpoint
        self.has_lost_variables = False  # which the reason says
        self.begun_again: set[TaskId] = set()  # ps that have another process than at first
        self.program_is_outside = False  # the chief's, so that it has to be told things, too
        self.holds_first_steps = False  # tasks that have made their first step wait for the others

        self.members = Members(expected, chief, now, max_dynamic)
        self._shares_move = shares_move
        self._last_generation = 0
        self._perhaps_kept: dict[TaskId, int] = {}  # process of each ps that a chief before led
        self._barrier = JobBarrier()

    def identify(self, name: str, *, after: int) -> int:
        """Say which job this is, before anybody registers; a restarted chief's goes on.

        Generations go on as well: from a round number past all that are known, because some that
        the last chief gave out may have been shown to nobody else.

        Args:
            name: Id of the job.
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
            address: Address at which the task serves.
            host: Machine of the task.
            pid: Process of the task there.
            job: Id of the job it was started for; empty: it has none.
            is_gone: The process that had the place is known to have ended.
            serves: Whether it has no program of its own, and ends with the job.

        Raises:
            PeerLostError: Another process had the place a moment ago: ask again.
            OtherJobError: Another process has it, or the task is of another job.
            RefusedError: The task cannot be one of this job.
            TooManyWorkersError: There are too many tasks already.
        """
        if self.name is None:
            raise PeerLostError(f"{self.chief} does not know yet which job it leads", task=task)
        self._check_job(task, job)
        member = self.members.of(task, now)
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
        member.host, member.pid, member.detail = host, pid, ""
        member.hear(now, is_new=True)
        member.exit_code = 0
        member.report = TaskReport(serves=serves)
        member.enter(State.ALIVE, now)
        return Incarnation(task, member.generation, self.name)

    def heartbeat(
        self, who: Incarnation, report: TaskReport, *, now: float, knows: Phase = Phase.RUNNING
    ) -> Phase:
        """Renew a lease; returns the phase to tell the task.

        Args:
            who: The task.
            report: Progress of the task.
            now: The time.
            knows: The phase it was told last: only its own word shows that an answer arrived.

        Raises:
            FencedError: A newer incarnation of the task has registered.
        """
        member = self._current(who, now)
        member.hear(now)
        member.report = report
        if member.state is State.LOST:
            member.enter(State.ALIVE, now, "came back")
        member.knows = knows
        return self.phase

    def finish(self, who: Incarnation, end: TaskEnd, report: TaskReport, *, now: float) -> Phase:
        """End a task's part of the job. A failure fails the job, unless it is the evaluator's.

        Args:
            who: The task.
            end: End of the task's part.
            report: Work of the task, in figures.
            now: The current time.

        Raises:
            FencedError: A newer incarnation of the task has registered.
        """
        member = self._current(who, now)
        member.heard = now
        member.report = report
        if member.state not in (State.DONE, State.FAILED):
            member.enter(State(end.outcome.value), now, end.message)
            member.exit_code = end.exit_code
            left = end.outcome is Outcome.LEFT
            if end.outcome is Outcome.FAILED and who.task.type != EVALUATOR:
                for_good = not is_retryable(end.exit_code)
                self.fail(f"{who.task} failed: {end.message}", for_good=for_good)
            elif left and who.task == self.chief and self.phase is Phase.RUNNING:
                self.fail(f"{who.task} left before the work was complete: {end.message}")
        return self.phase

    def arrive(
        self, who: Incarnation, call: int, *, now: float
    ) -> tuple[list[TaskId], list[TaskId]]:
        """Note that a task is at its barrier number ``call``, or still is.

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

    def yet_to_begin(self, who: TaskId, now: float) -> list[TaskId]:
        """List the tasks at work besides ``who`` that have made no step, and are not at a barrier
        before it.

        A task without a program of its own makes none, and so does one that is at work for longer
        than others would wait for it: a chief that only saves and evaluates.
        """
        return [
            member.task
            for member in self.members.at_work()
            if member.task != who
            and not member.report.steps
            and now - member.since <= LONGEST_FIRST_STEP_S
            and not self._barrier.has(Incarnation(member.task, member.generation))
        ]

    def is_held(self, who: Incarnation, now: float) -> bool:
        """Return whether a task that has made its first step is to wait for those of others."""
        has_program = not self.members[who.task].report.serves
        return self.holds_first_steps and has_program and bool(self.yet_to_begin(who.task, now))

    def ps_answered(
        self, task: TaskId, generation: int, counters: PsCounters, *, now: float
    ) -> None:
        """Handle the answer of a ps. If it has restarted it is empty: the job fails, unless other
        ps have its variables.
        """
        member = self.members[task]
        member.hear(now, is_new=member.generation != generation)
        if member.generation not in (0, generation) and not self._shares_move:
            member.enter(State.LOST, now, "restarted")  # and stays lost, whoever answers
            self.begun_again.add(task)
            self.fail_without_variables(f"{task} restarted and lost its variables")
            return
        member.generation, member.counters = generation, counters
        member.enter(State.ALIVE, now)
        if self._perhaps_kept.get(task) == generation:
            kept, self._perhaps_kept = self._perhaps_kept, {}
            self.expect_processes(kept)  # the others have theirs, too, or have lost them

    def check_ps(self, task: TaskId, job: str) -> None:
        """Check that a ps may come to this job.

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
        """Add a ps that has come, and that the cluster did not have."""
        self.members.add_ps(task, address, now)

    def ps_left(self, task: TaskId, *, now: float) -> None:
        """Handle that a ps that was asked to stop has gone, after others took over what it had."""
        self.members[task].enter(State.LEFT, now, "was asked to stop")

    def ps_refused(self, task: TaskId, why: str, *, now: float) -> None:
        """Fail the job: a ps refused to serve it, e.g. because it serves another chief."""
        self.members[task].enter(State.FAILED, now, why)
        self.fail(f"{task}: {why}")

    def limit_s(self, member: Member) -> float:
        """Compute how long a task that is gone may be silent before it is lost. Unit: seconds."""
        return member.rhythm.limit_s(self._shortest_lease_s, self.lease_s)

    def silent(self, *, now: float) -> list[Member]:
        """List the tasks that are alive and silent for so long that they are to be asked whether
        they are there.
        """
        return [
            member
            for member in self.members.values()
            if member.state is State.ALIVE
            and is_to_be_asked(now - member.heard, self.limit_s(member))
        ]

    def skip(self, seconds: float, *, now: float) -> None:
        """Leave out a time in which this chief did not run: nobody was silent then."""
        for member in self.members.values() if seconds > 0 else ():
            member.heard = min(now, member.heard + seconds)
            member.rhythm.skip(seconds, now)

    def expire(
        self,
        *,
        now: float,
        evidence: Mapping[TaskId, Evidence] | None = None,
        late_s: float = 0.0,
    ) -> list[TaskId]:
        """Mark tasks that are silent for too long as lost; return them. A lost ps fails the job.

        Args:
            now: The current time.
            evidence: Evidence about the processes of silent tasks. One that runs a program, and
                whose process is there, is late, and not lost. Whatever one runs for others can be
                run elsewhere.
            late_s: Longest time that a task may be late. Unit: seconds.
        """
        lost = []
        for member in self.silent(now=now):
            silent_s, known = now - member.heard, (evidence or {}).get(member.task, Evidence.NONE)
            verdict = judge(
                silent_s,
                known,
                limit_s=self.limit_s(member),
                lease_s=self.lease_s,
                late_s=0.0 if member.report.serves else late_s,
            )
            silent = f"no sign of life for {silent_s:.1f} s"
            if known is not Evidence.NONE:
                silent = f"{silent}, {'but' if known is Evidence.THERE else 'and'} {known}"
            if verdict is Judgement.LATE:
                member.is_late, member.detail = True, silent
            elif verdict is Judgement.LOST:
                member.enter(State.LOST, now, silent)
                lost.append(member.task)
                if member.task.type == PS and not self._shares_move:
                    self.fail_without_variables(
                        f"{member.task} ({member.address}) was lost: {silent}"
                    )
        return lost

    def fail_without_variables(self, why: str) -> None:
        """Fail the job, if it has not failed yet, since variables are gone, and say how much is
        lost.
        """
        steps = self.members.global_step - self.saved_step
        what = f"{steps} steps" if steps > 1 else "what was pushed"
        lost = f". Lost since the last checkpoint: {what}"  # it may not have heard of a push yet
        if self.phase is Phase.FAILED and not self.has_lost_variables:
            self.reason += lost
        self.has_lost_variables = True
        self.fail(why + lost)

    def expect_processes(
        self, processes: Mapping[TaskId, int], *, if_one_answers: bool = False
    ) -> None:
        """Say which process of each ps has the variables; a restarted chief's job goes on.

        Args:
            processes: Processes that had the variables when the chief before wrote that down.
            if_one_answers: Whether no process has said yet that it still has them; all may have
                been started again, to go on from a checkpoint.
        """
        if if_one_answers:
            self._perhaps_kept = dict(processes)
            return
        for task, process in processes.items():
            if task in self.members:
                self.members[task].generation = process

    def why_not_done(self) -> str:
        """Say why a job whose chief's program is over has not done its work; empty: it has.

        A chief that has made its steps alone, since none of its workers came or is left, has not;
        one whose job was asked to stop, or has failed, ends as that says.
        """
        gone = self.members.workers_all_gone() if self.phase is Phase.RUNNING else []
        if not gone or not self.members[self.chief].report.steps:
            return ""
        shown = [f"{m.task.short} {m.state}{m.detail and f' ({m.detail})'}" for m in gone[:3]]
        more = [f"{len(gone) - 3} more"] if len(gone) > 3 else []
        return (
            f"the program of {self.chief.short} is over, and none of "
            f"{counted(len(gone), 'worker')} is left to have a part in it: "
            f"{', '.join([*shown, *more])}. What was trained is saved; start the job again to go "
            "on with workers"
        )

    def uninformed(self) -> list[TaskId]:
        """List the tasks that are alive and have not said that they know the job's final phase."""
        return [
            member.task
            for member in self.members.values()
            if member.state in (State.ALIVE, State.DONE)
            and member.knows is not self.phase
            and member.task.type != PS
            and (member.task != self.chief or self.program_is_outside)
        ]

    @property
    def last_generation(self) -> int:
        """The highest one that was given out."""
        return self._last_generation

    def _current(self, who: Incarnation, now: float) -> Member:
        self._check_job(who.task, who.job)
        member = self.members.of(who.task, now)
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
                member.enter(State.ALIVE, now)
                member.heard = now
        return member

    def _check_job(self, task: TaskId, job: str) -> None:
        if is_other_job(self.name or "", job):
            raise OtherJobError(
                f"{task} belongs to job {job!r}, {self.chief} leads job {self.name!r}: two jobs "
                "use one address. Stop one of them, or give this job addresses of its own",
                task=task,
                job=job,
            )
