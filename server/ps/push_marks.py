"""Marks of complete pushes, of workers and of closures, and the global step they make. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...core.errors import LimitExceededError, RefusedError, SequenceError, TooManyWorkersError
from ...core.task import Incarnation, TaskId
from ...core.wire.bounds import MAX_STEP_LEAD
from ...core.wire.closure_pushes import ClosureMarks, ClosureRun
from ...engine.push_target import StepInfo

# -- Exactly-once pushes: which of a worker's pushes may be applied now. Pure ------------------
# A worker numbers its pushes to a ps 1, 2, 3 … in each generation. The ps applies number n + 1
# only after n, answers n and below as duplicates, and refuses a number that leaves a gap. So a
# lost reply, a reconnect, and a repeated or reordered message neither apply a push twice nor drop
# it.
#
# A push that broke off halfway is not counted here; the blocks that it reached remember it
# (``block.Block.applied``) and skip it when it is repeated. The state is one entry per task:
# bounded.


@dataclass(slots=True)
class PushLog:
    """Generation and last complete push of each task. The caller locks. The caller locks.

    Attributes:
        limit: Most tasks it remembers.
    """

    last: dict[TaskId, tuple[int, int]] = field(default_factory=dict)
    limit: int = 4096

    def register_incarnation(self, who: Incarnation) -> None:
        """Register an incarnation of a task; older ones are fenced from now on.

        Raises:
            FencedError: A newer incarnation has registered.
            RefusedError: It is no incarnation of a task.
            TooManyWorkersError: There are too many tasks.
        """
        if who.generation < 1:
            raise RefusedError(f"{who} is not an incarnation of a task: generations begin at 1")
        generation, _ = self.last.get(who.task, (0, 0))
        who.check_not_superseded(generation)
        if who.generation > generation:
            if not generation and len(self.last) >= self.limit:
                raise TooManyWorkersError(
                    f"{who.task} is refused: {len(self.last)} tasks have pushed here, as many as a "
                    "ps remembers; raise ROPEWALK_MAX_SESSIONS on the ps",
                    task=who.task,
                    limit="max_sessions",
                    value=self.limit,
                )
            self.last[who.task] = (who.generation, 0)

    def is_new(self, who: Incarnation, sequence: int) -> bool:
        """Return whether to apply this push (True), or it is a duplicate (False).

        Raises:
            FencedError: A newer incarnation of the task has registered.
            SequenceError: An earlier push has not arrived.
        """
        self.register_incarnation(who)
        _, applied = self.last[who.task]
        if sequence <= applied:
            return False
        if sequence > applied + 1:
            raise SequenceError(
                f"push {sequence} of {who} came before push {applied + 1}; send that one first",
                task=who.task,
                sequence=sequence,
                expected=applied + 1,
            )
        return True

    def applied(self, who: Incarnation, sequence: int) -> None:
        """Count a push that was applied completely."""
        generation, last = self.last.get(who.task, (0, 0))
        if generation == who.generation:
            self.last[who.task] = (generation, max(last, sequence))


# -- Exactly-once pushes of closures: which of them may be applied now. Pure -------------------
# As for pushes of workers, above. A closure numbers its pushes to a ps
# 1, 2, 3 … in each attempt; number n + 1 is applied only after n, and n and below are answered as
# duplicates, whichever attempt brought them. The state is one entry per lane: bounded.


@dataclass(slots=True)
class ClosurePushLog:
    """Closure of each lane, and that one's last complete push. The caller locks. The caller locks.

    Attributes:
        limit: Most lanes.
    """

    limit: int = 1024
    _marks: ClosureMarks = field(default_factory=ClosureMarks)

    @property
    def marks(self) -> ClosureMarks:
        """Marks of each lane."""
        return self._marks

    def take(self, marks: ClosureMarks) -> None:
        """Have these marks instead."""
        self._marks = marks.copy()

    def is_new(self, run: ClosureRun, number: int) -> bool:
        """Return whether to apply this push (True), or it is a duplicate (False).

        Attempts before its oldest one are refused from now on.

        Raises:
            FencedError: The closure is over, or this attempt was given up.
            SequenceError: An earlier push has not arrived.
            LimitExceededError: The lane is beyond what a ps remembers.
        """
        if run.lane >= self.limit:
            raise LimitExceededError(
                f"{run} has lane {run.lane}, and a ps remembers {self.limit}; raise "
                "ROPEWALK_MAX_SESSIONS on the ps",
                limit="max_sessions",
                value=run.lane,
            )
        self._marks.mark(run, 0)
        applied = self._marks.applied(run)
        if number <= applied:
            return False
        if number > applied + 1:
            raise SequenceError(
                f"push {number} of {run} came before push {applied + 1}; send that one first",
                sequence=number,
                expected=applied + 1,
            )
        return True

    def applied(self, run: ClosureRun, number: int) -> None:
        """Count a push that was applied completely.

        Raises:
            FencedError: The closure is over, or this attempt was given up.
        """
        self._marks.mark(run, number)


# Most tasks that a ps remembers, per worker that may be connected: those that come and go.
_TASKS_PER_SESSION = 16
_LANES_PER_SESSION = 4  # a worker has two closures, and those of lost ones wait


@dataclass(frozen=True, slots=True)
class LogCopied:
    """The marks of complete pushes, and the global step, at one moment.

    Attributes:
        contents: Identity of what the share holds; see ``Store.contents``.
    """

    pushes: Mapping[TaskId, tuple[int, int]]
    counted: Mapping[TaskId, tuple[int, int]]
    closures: ClosureMarks
    global_step: int
    contents: int = 0


class PushMarks:
    """The marks of a store: which pushes are complete. The caller locks.

    Args:
        task: The ps, for messages.
        max_sessions: Most workers that may be connected.

    Attributes:
        closures: Marks of the pushes of closures.
        global_step: Worker steps applied, as far as this ps knows.
    """

    def __init__(self, task: TaskId, max_sessions: int) -> None:
        self._task = task
        self._log = PushLog(limit=_TASKS_PER_SESSION * max_sessions)
        self.closures = ClosurePushLog(limit=_LANES_PER_SESSION * max_sessions)
        self._counted: dict[TaskId, tuple[int, int]] = {}  # last (generation, sequence) counted
        self.global_step = 0

    def register_incarnation(self, who: Incarnation) -> None:
        """Register an incarnation that opens a session; older ones of its task are fenced.

        Raises:
            FencedError: A newer incarnation has registered.
        """
        self._log.register_incarnation(who)

    def is_new(self, info: StepInfo) -> bool:
        """Return whether to apply a push (True), or it is a duplicate (False).

        Raises:
            FencedError: A newer incarnation of the task has registered.
            SequenceError: An earlier push has not arrived.
            RefusedError: Its global step is not possible.
        """
        most = self.global_step + MAX_STEP_LEAD
        if info.global_step > most:
            raise RefusedError(
                f"{self._task}: {info.who.task} computed a push at global step "
                f"{info.global_step}; this ps is at {self.global_step}, and nobody can be beyond "
                f"{most}",
                task=info.who.task,
                value=info.global_step,
                limit=most,
            )
        if info.closure is None:
            return self._log.is_new(info.who, info.sequence)
        self._log.register_incarnation(info.who)
        return self.closures.is_new(info.closure, info.sequence)

    def complete(self, info: StepInfo, step_increment: int) -> bool:
        """Count a push that was applied completely, and its steps; whether it is the first time.

        The same push may have been counted already, through a session that broke off.
        """
        if info.closure is not None:
            self._log.register_incarnation(info.who)
            is_first = self.closures.is_new(info.closure, info.sequence)
            self.closures.applied(info.closure, info.sequence)
        else:
            self._log.register_incarnation(info.who)
            mark = (info.who.generation, info.sequence)
            is_first = self._counted.get(info.who.task, (0, 0)) < mark
            if is_first:
                self._counted[info.who.task] = mark
                self._log.applied(info.who, info.sequence)
        if is_first:
            self.global_step = max(self.global_step, info.global_step) + step_increment
        return is_first

    def last_push(self, who: Incarnation) -> int:
        """Return the number of a worker's last complete push outside closures."""
        generation, sequence = self._log.last.get(who.task, (0, 0))
        return sequence if generation == who.generation else 0

    def copied(self, contents: int) -> LogCopied:
        """Copy all marks, for a follower of a store with these contents."""
        return LogCopied(
            pushes=dict(self._log.last),
            counted=dict(self._counted),
            closures=self.closures.marks.copy(),
            global_step=self.global_step,
            contents=contents,
        )

    def take(self, log: LogCopied) -> None:
        """Have the leader's marks instead."""
        self._log.last = dict(log.pushes)
        self._counted = dict(log.counted)
        self.closures.take(log.closures)
        self.global_step = log.global_step
