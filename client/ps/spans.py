"""Cutting the places where a pull lands: what of them an answer has."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import RefusedError
from ...core.wire.steps import PullTarget, StepReply, StepRequest


def runs_of(changed: Array, sizes: Array) -> Iterator[tuple[bool, int, int]]:
    """Yield runs of neighbouring entries that all changed, or all did not.

    Args:
        changed: bool, per entry.
        sizes: int64, bytes of each entry.

    Yields:
        (changed, start, stop) in bytes of the whole.
    """
    if not changed.size:
        return
    ends = np.concatenate(([0], np.cumsum(sizes))).tolist()
    turns = [0, *(np.flatnonzero(np.diff(changed)) + 1).tolist(), changed.size]
    for first, last in pairwise(turns):
        yield bool(changed[first]), ends[first], ends[last]


def cut_spans(spans: Sequence[memoryview], start: int, stop: int) -> list[memoryview]:
    """Return the bytes ``[start, stop)`` of spans that count as one after another."""
    pieces, offset = [], 0
    for span in spans:
        low, high = max(start - offset, 0), min(stop - offset, len(span))
        if low < high:
            pieces.append(span[low:high])
        offset += len(span)
    return pieces


def changed_parts(
    request: StepRequest, reply: StepReply, target: PullTarget, peer: str
) -> Sequence[memoryview]:
    """Find the places of the payload, if it has some entries of the pull only; fill in the
    others.

    Raises:
        RefusedError: The reply is one to another pull.
    """
    into, previous = target.into, target.previous
    if not reply.changed or request.pull is None or previous is None:
        return into
    sizes = request.pull.sizes
    if len(reply.changed) != -(-sizes.size // 8):
        raise RefusedError(f"{peer} says what changed of another pull", peer=peer)
    changed = np.unpackbits(
        np.frombuffer(reply.changed, np.uint8), count=sizes.size, bitorder="little"
    ).astype(np.bool_)
    parts: list[memoryview] = []
    for moved, start, stop in runs_of(changed, sizes):
        for own, old in zip(
            cut_spans(into, start, stop), cut_spans(previous, start, stop), strict=True
        ):
            if moved:
                parts.append(own)
            elif previous is not into:
                own[:] = old
    return parts
