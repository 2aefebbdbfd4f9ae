"""Layouts, compiled: what the payload of a step means in this ps's memory."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from ...core.steps import Operation
from ...core.update_rules import UpdateRule
from .block import Block, Range


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbours in the payload that are neighbours in memory, with one operation in common."""

    block: Block
    where: Range
    operation: Operation
    rule: UpdateRule | None
    sparse: bool
    row_bytes: int
    rows: int

    @property
    def num_bytes(self) -> int:
        """Bytes in the payload, if dense."""
        return (self.where.stop - self.where.start) * self.block.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Layout:
    """Compiled: what a step's payload means.

    Attributes:
        segments: In payload order.
        pending: Per segment, how many segments of its block are still to come after it. A block is
            changed once per push, when its last segment has arrived.
    """

    segments: tuple[Segment, ...] = ()
    pending: tuple[int, ...] = ()

    def num_bytes(self, rows: Sequence[int]) -> int:
        """Bytes of the values, given the rows of each sparse entry."""
        counts = iter(rows)
        return sum(
            next(counts) * segment.row_bytes if segment.sparse else segment.num_bytes
            for segment in self.segments
        )

    @property
    def num_sparse(self) -> int:
        """Entries that carry row numbers."""
        return sum(segment.sparse for segment in self.segments)


def join_segments(segments: Iterable[Segment]) -> Layout:
    """A layout of these segments, in order; neighbours become one."""
    joined: list[Segment] = []
    for segment in segments:
        both = _join(joined[-1], segment) if joined else None
        if both is None:
            joined.append(segment)
        else:
            joined[-1] = both
    left: dict[int, int] = {}
    pending = []
    for segment in reversed(joined):
        count = left.get(id(segment.block), 0)
        pending.append(count)
        left[id(segment.block)] = count + 1
    return Layout(tuple(joined), tuple(reversed(pending)))


def _join(left: Segment, right: Segment) -> Segment | None:
    """One segment for two neighbours, or None."""
    if (
        left.block is right.block
        and left.where.last == right.where.first
        and left.operation is right.operation
        and left.rule == right.rule
        and not left.sparse
        and not right.sparse
    ):
        where = Range(left.where.first, right.where.last, left.where.start, right.where.stop)
        return replace(left, where=where)
    return None
