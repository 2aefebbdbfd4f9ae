"""Exactly-once pushes: which of a worker's pushes may be applied now. Pure.

A worker numbers its pushes to a ps 1, 2, 3 … in each generation. The ps applies number n + 1 only
after n, answers n and below as duplicates, and refuses what would leave a gap, so a lost reply, a
reconnect, a repeated or a reordered message neither applies twice nor drops silently.

A push that broke off halfway is not counted here; the blocks it reached remember it themselves
(``block.Block.applied``) and skip it when it comes again. State is one entry per task: bounded.
"""

from dataclasses import dataclass, field

from ...core.errors import FencedError, RefusedError, SequenceError
from ...core.task import Incarnation, TaskId


@dataclass(slots=True)
class PushLog:
    """Per task: its generation and its last push that was applied whole. The caller locks."""

    last: dict[TaskId, tuple[int, int]] = field(default_factory=dict)

    def register_incarnation(self, who: Incarnation) -> None:
        """A task presents itself; an older incarnation of it is fenced from now on.

        Raises:
            FencedError: A newer incarnation has been here.
        """
        if who.generation < 1:
            raise RefusedError(f"{who} is no incarnation of a task: generations begin at 1")
        generation, _ = self.last.get(who.task, (0, 0))
        if who.generation < generation:
            raise FencedError(
                f"{who} was superseded by generation {generation}: another process took its place. "
                "This one must end",
                task=who.task,
                generation=who.generation,
                current=generation,
            )
        if who.generation > generation:
            self.last[who.task] = (who.generation, 0)

    def is_new(self, who: Incarnation, sequence: int) -> bool:
        """Whether this push is to be applied (True) or was before (False).

        Raises:
            FencedError: A newer incarnation of the task has been here.
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
        """The push was applied whole."""
        generation, last = self.last.get(who.task, (0, 0))
        if generation == who.generation:
            self.last[who.task] = (generation, max(last, sequence))
