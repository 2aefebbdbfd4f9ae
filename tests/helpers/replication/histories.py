"""What the tasks of a counting job have written down, as histories of the counts on each ps."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..linearizability import Operation, counters, impossible_answer


@dataclass(frozen=True, slots=True)
class History:
    """What one task has done.

    Attributes:
        slot: Which number in each count is its own.
        pushes: When each push was called, and when it was answered (None: it never was).
        reads: (index of the count, the numbers, called, answered) in order.
    """

    slot: int
    pushes: list[tuple[float, float | None]]
    reads: list[tuple[int, tuple[int, ...], float, float]]

    @property
    def acknowledged(self) -> int:
        """How many pushes were answered."""
        return sum(answered is not None for _, answered in self.pushes)

    def check_steps_seen(self) -> None:
        """Check that no read goes back, and that each one has what this task knew was applied."""
        last: dict[int, tuple[int, ...]] = {}
        answers = sorted(answered for _, answered in self.pushes if answered is not None)
        done = 0
        for index, numbers, called, _ in self.reads:
            while done < len(answers) and answers[done] <= called:
                done += 1
            before = last.get(index, numbers)
            assert all(a <= b for a, b in zip(before, numbers, strict=True)), (
                f"task {self.slot} read count {index} as {before}, and at {called} as {numbers}"
            )
            assert not self.pushes or numbers[self.slot] >= done, (
                f"task {self.slot} made {done} steps before {called}, and read {numbers}"
            )
            last[index] = numbers


def read_history(file: Path, slot: int) -> History:
    """Read what a task has written; its last line may be of a call that has no answer."""
    pushes: list[tuple[float, float | None]] = []
    reads: list[tuple[int, tuple[int, ...], float, float]] = []
    called = 0.0
    for line in file.read_text().splitlines():
        event, *words = line.split()
        when = float(words[-1])
        if event == "push":
            pushes.append((when, None))
        elif event == "pushed":
            pushes[-1] = (pushes[-1][0], when)
        elif event == "read":
            called = when
        elif event == "value":
            reads.append((int(words[0]), tuple(json.loads(words[1])), called, when))
    return History(slot, pushes, reads)


def check_histories(histories: list[History], counts: list[list[int]]) -> None:
    """Check all that the tasks of a job saw, and the counts at its end.

    Args:
        histories: Of all tasks.
        counts: The numbers of each count at the end.
    """
    for each in histories:
        each.check_steps_seen()
        for index, numbers in enumerate(counts if each.pushes else ()):
            least, most = each.acknowledged, len(each.pushes)
            assert least <= numbers[each.slot] <= most, (
                f"task {each.slot}: {least} steps were answered and {most - least} were not; "
                f"count {index} has {numbers[each.slot]}"
            )
    for index, numbers in enumerate(counts):
        operations = list(_operations(histories, index))
        wrong = impossible_answer(operations, (0,) * len(numbers), counters)
        assert wrong is None, (
            f"no order of effects explains what was read of count {index}: {wrong}"
        )


def _operations(histories: list[History], index: int) -> Iterator[Operation]:
    for each in histories:
        name = f"task {each.slot}"
        for called, answered in each.pushes:
            yield Operation(name, "add", each.slot, called, answered)
        for of, numbers, called, answered in each.reads:
            if of == index:
                yield Operation(name, "read", numbers, called, answered)
