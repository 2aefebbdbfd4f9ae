"""The tasks of a job: what each has said last, and who may take a place. Pure: the caller locks."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ...core.errors import OtherJobError, PeerLostError, RefusedError, TooManyWorkersError
from ...core.exit_codes import ExitCode
from ...core.report import ProcessUsage, PsCounters, TaskReport
from ...core.task import Phase, State, TaskId
from ..liveness import Rhythm
from ..spec import EVALUATOR, PS, WORKER

# -- May another process take the place of a task that is at work? -----------------------------
# A task that restarts takes its place back, and the process that had it is fenced. A second job
# with the same TF_CONFIG looks the same, but the process it would replace still lives. So a
# newcomer asks again for a while: if the other process is heard of meanwhile, the newcomer is
# refused, and if not, it was a restart.
#
# Pure: time is an argument.

_QUIET = 4  # of a lease: with five heartbeats missing in a row the process is taken for dead


@dataclass(frozen=True, slots=True)
class Process:
    """The machine and process of a task."""

    host: str = ""
    pid: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host or 'an unknown host'}"


@dataclass(frozen=True, slots=True)
class Challenge:
    """A newcomer that asked for a place.

    Attributes:
        newcomer: The task that asks for the place.
        since: Time at which it first asked.
    """

    newcomer: Process
    since: float


def take_place(
    task: TaskId,
    holder: Process,
    challenge: Challenge,
    *,
    heard: float,
    lease_s: float,
    now: float,
) -> None:
    """Return if the newcomer may have the place.

    Args:
        task: The place.
        holder: Process that has the place.
        challenge: The newcomer, and since when it asks.
        heard: Time at which the holder was last heard of.
        lease_s: The job's. Unit: seconds.
        now: The current time.

    Raises:
        PeerLostError: Not yet: ask again.
        OtherJobError: The holder lives.
    """
    asked_s = now - challenge.since
    if heard <= challenge.since and asked_s >= lease_s / _QUIET:
        return
    conflict = (
        f"{holder} runs as {task} already and was heard of {now - heard:.1f} s ago; "
        f"{challenge.newcomer} wants the same place"
    )
    if heard > challenge.since and asked_s >= lease_s:
        raise OtherJobError(
            f"{conflict}. Two jobs have the same TF_CONFIG, or the task was started twice: stop "
            "one of them, or give this job addresses of its own",
            task=task,
            holder=holder,
            newcomer=challenge.newcomer,
        )
    raise PeerLostError(f"{conflict}, and has it if the other is silent", task=task)


# -- The tasks of a job, and what each has said last. Pure: the caller locks -------------------


_EVALUATORS = 8  # the part of the places beside the cluster that evaluators have


@dataclass(slots=True)
class Member:
    """A task of the job.

    Attributes:
        since: Time at which ``state`` began.
        heard: Time of the task's last message.
        exit_code: Exit code with which its process has ended or ends; 0: nobody has said.
        knows: The phase of the job that the task says it was told.
        is_late: Whether its lease has run out, and its process is there.
        rhythm: Times between the signs of life of its process.
    """

    task: TaskId
    since: float
    state: State = State.MISSING
    heard: float = 0.0
    generation: int = 0
    address: str = ""
    detail: str = ""
    exit_code: int = 0
    host: str = ""
    pid: int = 0
    report: TaskReport = field(default_factory=TaskReport)
    counters: PsCounters | None = None
    knows: Phase = Phase.RUNNING
    challenge: Challenge | None = None
    is_late: bool = False
    rhythm: Rhythm = field(default_factory=Rhythm)

    @property
    def usage(self) -> ProcessUsage:
        """Use of its machine by the task, as of its last report."""
        return self.report.usage if self.counters is None else self.counters.usage

    @property
    def process(self) -> Process:
        """Machine and process of the task."""
        return Process(self.host, self.pid)

    @property
    def has_part(self) -> bool:
        """Whether it is at work, has done its work, or was asked to leave it to others."""
        was_asked = self.state is State.LEFT and self.exit_code == ExitCode.DRAINED
        return was_asked or self.state in (State.ALIVE, State.DONE)

    def enter(self, state: State, now: float, detail: str = "") -> None:
        """Be in a state from now on, unless it is that already."""
        if self.state is not state:
            self.state, self.since = state, now
        if detail or state is State.ALIVE:
            self.detail = detail
        self.is_late = False

    def hear(self, now: float, *, is_new: bool = False) -> None:
        """Note that a message of this task has come; the first one of another process has no
        rhythm yet.
        """
        if is_new:
            self.rhythm = Rhythm()
        self.heard = now
        self.rhythm.heard(now)
        if self.is_late:
            self.is_late, self.detail = False, ""


class Members(dict[TaskId, Member]):
    """The members of a job by task: those of the spec, and others that have come.

    Args:
        expected: Tasks of the spec and their addresses.
        chief: The chief, which may be worker 0.
        now: The current time.
        max_dynamic: Most tasks beside the expected ones.
    """

    def __init__(
        self, expected: Iterable[tuple[TaskId, str]], chief: TaskId, now: float, max_dynamic: int
    ) -> None:
        super().__init__((task, Member(task, now, address=address)) for task, address in expected)
        self._chief = chief
        self._max_dynamic = max_dynamic
        self._expected = frozenset(self)

    def add_ps(self, task: TaskId, address: str, now: float) -> None:
        """Expect a ps, too, that the spec does not have."""
        self[task] = Member(task, now, address=address)
        self._expected |= {task}

    def of(self, task: TaskId, now: float) -> Member:
        """Find the member of a task that registers; a new one for a dynamic worker.

        Raises:
            RefusedError: The task cannot be one of this job.
            TooManyWorkersError: There are too many tasks already.
        """
        member = self.get(task)
        if task.type == PS or (
            member is None and task != self._chief and task.type not in (WORKER, EVALUATOR)
        ):
            raise RefusedError(
                f"{task} does not register with {self._chief}: the chief itself, workers and the "
                "evaluator do",
                task=task,
            )
        if member is None:
            self._make_room(task)
            member = self[task] = Member(task, now)
        return member

    def _make_room(self, task: TaskId) -> None:
        """Have room for one more dynamic task: the one that is gone for longest is forgotten."""
        dynamic = [member for member in self.values() if member.task not in self._expected]
        most = self._max_dynamic
        if task.type == EVALUATOR:  # a few of them, which keep no worker out
            dynamic = [member for member in dynamic if member.task.type == EVALUATOR]
            most = max(1, most // _EVALUATORS)
        if len(dynamic) < most:
            return
        gone = [member for member in dynamic if member.state is not State.ALIVE]
        if not gone:
            raise TooManyWorkersError(
                f"{task} is refused: {len(dynamic)} tasks take part that are not in the cluster of "
                f"{self._chief}, as many as may (max_sessions); raise ROPEWALK_MAX_SESSIONS on the "
                f"chief and the ps, or run fewer {task.type}s",
                task=task,
                limit="max_sessions",
                value=most,
            )
        del self[min(gone, key=lambda member: member.since).task]

    # -- workers -----------------------------------------------------------------------------

    def waited_for(self) -> list[TaskId]:
        """List the tasks at work besides the chief; the last checkpoint waits for them.

        Those that only serve others are not.
        """
        return [member.task for member in self.at_work() if member.task != self._chief]

    def at_work(self) -> list[Member]:
        """List the members whose program runs, the chief too."""
        return self._with_programs(State.ALIVE)

    @property
    def missing(self) -> list[TaskId]:
        """Tasks of the spec of which the chief has heard nothing yet."""
        return [member.task for member in self.values() if member.state is State.MISSING]

    def not_registered(self) -> list[TaskId]:
        """List the workers of the spec that have not registered yet."""
        missing = self._with_programs(State.MISSING)
        return [member.task for member in missing if member.task != self._chief]

    def _with_programs(self, state: State) -> list[Member]:
        """List the members in a state that run the program."""
        return [
            member
            for member in self.values()
            if member.state is state
            and member.task.type not in (PS, EVALUATOR)
            and not member.report.serves
        ]

    def workers_all_gone(self) -> list[Member]:
        """List the workers, if none of them has a part in the job (any more); else nothing."""
        workers = [member for member in self.values() if member.task.type == WORKER]
        return [] if any(member.has_part for member in workers) else workers

    @property
    def workers_at_work(self) -> list[TaskId]:
        """Workers that are alive, also those that only serve others, but for a chief."""
        alive = [member.task for member in self.values() if member.state is State.ALIVE]
        return [task for task in alive if task.type == WORKER and task != self._chief]

    def uneven_replicas(self) -> dict[TaskId, int]:
        """Collect the replicas of every task that has said so, if they differ; else nothing."""
        counts = {m.task: m.report.replicas for m in self.values() if m.report.replicas}
        return counts if len(set(counts.values())) > 1 else {}

    # -- ps ----------------------------------------------------------------------------------

    @property
    def processes(self) -> dict[TaskId, int]:
        """Number of the process of each ps that has answered."""
        ps = (member for member in self.values() if member.task.type == PS)
        return {member.task: member.generation for member in ps if member.generation}

    def in_state(self, *states: State) -> set[TaskId]:
        """Find the ps in one of these states."""
        return {m.task for m in self.values() if m.task.type == PS and m.state in states}

    # -- progress ----------------------------------------------------------------------------

    @property
    def pushes(self) -> int:
        """Pushes that the ps have counted, first values too."""
        counters = [member.counters for member in self.values()]
        return sum(counts.pushes for counts in counters if counts is not None)

    @property
    def global_step(self) -> int:
        """Global step as the ps count it; without ps, the highest one that a task reported."""
        counted = [m.counters.global_step for m in self.values() if m.counters is not None]
        reported = (member.report.global_step for member in self.values())
        return max(counted or reported, default=0)

    @property
    def total_steps(self) -> int:
        """The goal the programs reported; 0: none."""
        return max((member.report.total_steps for member in self.values()), default=0)
