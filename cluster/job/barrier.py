"""The barrier of a job: who has arrived, and who is missing. Pure.

Rounds follow each other: a task that arrives joins the current one, and the last to arrive ends it.
A task names its call by a number of its own, so that a call which is repeated, because the answer
was lost, is not taken for the next one. A restarted task begins its program anew and joins whatever
round is current; what its earlier process had announced does not count.
"""

from collections.abc import Collection

from ...core.errors import RefusedError
from ...core.task import Incarnation, TaskId


class JobBarrier:
    """Arrivals of the tasks of one job. The caller locks."""

    def __init__(self) -> None:
        self._round = 0
        # Task → (who, its call, the round it joined): of each its last one.
        self._calls: dict[TaskId, tuple[Incarnation, int, int]] = {}

    def arrive(
        self, who: Incarnation, call: int, expected: Collection[Incarnation]
    ) -> list[TaskId]:
        """Note that a task is at its barrier number ``call``, or still is; returns who is missing.

        Args:
            who: The task.
            call: Number of the barrier, from 1, counted by this generation of the task.
            expected: Tasks that the barrier waits for, as they are now.

        Returns:
            The tasks that have not arrived; empty: the barrier is over.

        Raises:
            RefusedError: It has left out a call.
        """
        last = self._calls.get(who.task)
        if last is not None and last[0] == who:
            if call < last[1]:
                return []  # of a round that is over, and late
            if call > last[1] + 1:
                raise RefusedError(
                    f"{who.task} is at barrier {call}, and was at {last[1]} before: calls count up "
                    "by one",
                    task=who.task,
                    value=call,
                    limit=last[1] + 1,
                )
        if last is None or last[:2] != (who, call):
            last = self._calls[who.task] = (who, call, self._round)
        if last[2] < self._round:
            return []
        missing = [one.task for one in expected if not self.has(one)]
        if not missing:
            self._round += 1
        return missing

    def has(self, one: Incarnation) -> bool:
        """Return whether a task is at the current barrier."""
        who, _, joined = self._calls.get(one.task, (None, 0, -1))
        return who == one and joined == self._round
