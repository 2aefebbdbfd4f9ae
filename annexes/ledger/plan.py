"""The plan of a ledger: which examples a range has, and the number that says how far one has come.

Pure. The examples of an epoch stand in an order that each task draws by itself; a *range* is some
of them that stand beside each other, a few steps' worth, and is leased to one worker at a time.

The progress of a range is one number (a *mark*), which only grows, also from epoch to epoch: the
epoch, the examples of the range whose steps are complete, and how many pushes of the step after
these were made. A worker makes one push after the other, so that a push of a step says that those
before it are complete.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError

_STEPS = 8  # of a range, at least: a lease is a call to the chief
MOST_RANGES = 65_536
"""Most ranges of an epoch: 512 KiB on each ps."""
_PUSH_BITS = 16
MOST_PUSHES = 2**_PUSH_BITS - 1
"""Most pushes of a step."""
_MOST_MARK = 2**63 - 1


class RangePlace(NamedTuple):
    """A place in a range: the examples before it are trained.

    Attributes:
        epoch: Number of the epoch, from 0.
        start: Number of examples of the range that are trained.
    """

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Numbers on which all tasks that go through the same data have to agree.

    Attributes:
        examples: Number of examples of an epoch, at least 1.
        batch: Examples of a step.
        seed: Seed of the orders.
        shuffle: Whether each epoch has an order of its own; False: that of the index.
    """

    examples: int
    batch: int
    seed: int = 0
    shuffle: bool = True

    @property
    def range_examples(self) -> int:
        """Number of examples of a range; the last one may have fewer."""
        steps = -(-self.examples // self.batch)
        return self.batch * max(_STEPS, -(-steps // MOST_RANGES))

    @property
    def ranges(self) -> int:
        """Number of ranges of an epoch."""
        return -(-self.examples // self.range_examples)

    def positions(self, number: int) -> range:
        """Return the positions of a range's examples in the order of an epoch."""
        size = self.range_examples
        return range(number * size, min((number + 1) * size, self.examples))

    def numbers(self) -> tuple[int, int, int]:
        """Return the numbers that are kept with the progress, to be compared by who goes on."""
        return self.examples, self.batch, 2 * (self.seed % 2**62) + self.shuffle

    def mark(self, place: RangePlace, pushes: int) -> int:
        """Compute the mark of a push.

        Args:
            place: Place at which the step of the push begins.
            pushes: Number of pushes of the step, this one included; 0: the step has none yet.

        Raises:
            ConfigurationError: The number is beyond what a mark can say.
        """
        mark = (place.epoch * (self.range_examples + 1) + place.start) << _PUSH_BITS | pushes
        if pushes > MOST_PUSHES or mark > _MOST_MARK:
            raise ConfigurationError(
                f"push {pushes} of a step in epoch {place.epoch} is beyond what a ledger counts: "
                f"{MOST_PUSHES} pushes of a step; take the next batch of the dataset for each step"
            )
        return mark

    def settled(self, epoch: int) -> int:
        """Compute the mark of a range that is complete in an epoch."""
        return self.mark(RangePlace(epoch, self.range_examples), 0)

    def place(self, mark: int) -> RangePlace:
        """Return the place that a mark says, in the epoch of the mark."""
        return RangePlace(*divmod(mark >> _PUSH_BITS, self.range_examples + 1))


class RangesProgress(NamedTuple):
    """The progress of all ranges in an epoch.

    Attributes:
        epoch: The latest epoch that was begun.
        done: bool, shape ``(ranges,)``: the ranges that are complete.
        begun: bool, of that shape: those that were begun and are not known to be complete.
    """

    epoch: int
    done: Array
    begun: Array


def progress_of(plan: Plan, marks: Array) -> RangesProgress:
    """Read the progress from the marks of all ps.

    Args:
        plan: The plan.
        marks: int64, shape ``(ps, ranges)``.
    """
    furthest, least = marks.max(axis=0), marks.min(axis=0)
    epoch = plan.place(int(furthest.max(initial=0))).epoch
    done = least >= plan.settled(epoch)
    begun = (furthest >= plan.mark(RangePlace(epoch, 0), 1)) & ~done
    return RangesProgress(epoch, done, begun)


def start_of(plan: Plan, epoch: int, marks: Array) -> int:
    """Return the number of examples of a range that all ps have trained in an epoch.

    Args:
        plan: The plan.
        epoch: The epoch.
        marks: int64, shape ``(ps,)``: the marks of the range.
    """
    place = plan.place(int(marks.min()))
    return place.start if place.epoch == epoch else 0


# -- Orders ------------------------------------------------------------------------------------
# A permutation that is computed for the positions that are wanted: none is kept, whatever the
# number of examples. Feistel rounds permute the numbers below a power of four, and what falls
# outside of the examples is permuted again until it does not (Black and Rogaway, "Ciphers with
# Arbitrary Finite Domains", CT-RSA 2002). The rounds mix by the finalizer of SplitMix64.

_ROUNDS = 6


def shuffled(positions: Array, examples: int, key: tuple[int, ...]) -> Array:
    """Permute positions: distinct ones in ``[0, examples)`` to distinct ones there.

    Args:
        positions: int64, shape ``(n,)``.
        examples: Number of examples.
        key: Numbers that choose the permutation, each at least 0.

    Returns:
        int64, shape ``(n,)``.
    """
    half = np.uint64(max(1, ((examples - 1).bit_length() + 1) // 2))
    rounds = np.random.SeedSequence(key).generate_state(_ROUNDS, np.uint64)
    numbers = positions.astype(np.uint64)
    outside = np.ones(numbers.shape, np.bool_)
    while outside.any():
        numbers[outside] = _permuted(numbers[outside], half, rounds)
        outside = numbers >= np.uint64(examples)
    return numbers.astype(np.int64)


def _permuted(numbers: Array, half: np.uint64, rounds: Array) -> Array:
    mask = (np.uint64(1) << half) - np.uint64(1)
    left, right = numbers >> half, numbers & mask
    for key in rounds:
        left, right = right, left ^ (_mixed(right + key) & mask)
    return (left << half) | right


def _mixed(numbers: Array) -> Array:
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = numbers ^ (numbers >> np.uint64(31))
    return mixed
