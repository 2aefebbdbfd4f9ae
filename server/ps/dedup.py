"""Exactly-once pushes: which of a worker's pushes may be applied now. Pure.

A worker numbers its pushes to a ps 1, 2, 3 … in each generation. The ps applies number n + 1 only
after n, answers n and below as duplicates, and refuses a number that leaves a gap. So a lost reply,
a reconnect, and a repeated or reordered message neither apply a push twice nor drop it.

A push that broke off halfway is not counted here; the blocks that it reached remember it
(``block.Block.applied``) and skip it when it is repeated. The state is one entry per task: bounded.
"""

from dataclasses import dataclass, field

from ...core.errors import RefusedError, SequenceError, TooManyWorkersError
from ...core.task import Incarnation, TaskId


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
