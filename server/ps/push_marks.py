"""Marks of complete pushes, of workers and of closures, and the global step they make. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...core.errors import RefusedError
from ...core.task import Incarnation, TaskId
from ...core.wire.bounds import MAX_STEP_LEAD
from ...core.wire.closure_pushes import ClosureMarks
from ...engine.push_target import StepInfo
from .closure_log import ClosurePushLog
from .dedup import PushLog

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
