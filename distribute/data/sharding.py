"""How global batches become batches of replicas and workers. Pure: structures of arrays in and out.

Rules of TensorFlow's rebatching, in TensorFlow's order: batches are cut first, then the parts are
dealt out.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, cycle, islice
from typing import Any

from ..base.arrays import as_array, namespace_of
from ..base.values import flatten, leaves, map_structure

Batch = Any


def batch_sizes(global_batch: int, workers: int, replicas: int, worker: int) -> list[int]:
    """Sizes of the batches a worker makes of global batches of one size, over and over.

    The sizes all workers use in one step add up to the global batch: each begins at another place
    of the same list.

    Args:
        global_batch: Examples per step.
        workers: How many there are.
        replicas: Per worker.
        worker: Which one this is.
    """
    slots = workers * replicas
    base, extra = divmod(global_batch, slots)
    sizes = [base + (slot < extra) for slot in range(slots)]
    start = worker * replicas % slots
    return sizes[start:] + sizes[:start]


def cut(batch: Batch, parts: int) -> list[Batch]:
    """Cut a batch into parts of equal length, rounded up; the last may be short or empty."""
    arrays = as_arrays(batch)
    length = common_length(arrays)
    size = math.ceil(length / parts)
    return [take(arrays, min(i * size, length), min((i + 1) * size, length)) for i in range(parts)]


def fill(batch: Batch, sizes: Sequence[int] | None, parts: int) -> list[Batch]:
    """Cut a batch into parts of these sizes, filled in order; a short batch leaves empty parts.

    Args:
        batch: At most ``sum(sizes)`` examples; one with more is cut evenly.
        sizes: Of the parts; None: even, rounded up.
        parts: How many there are.
    """
    arrays = as_arrays(batch)
    length = common_length(arrays)
    if sizes is None or length > sum(sizes):
        return cut(arrays, parts)
    ends = [min(end, length) for end in accumulate(sizes)]
    return [take(arrays, start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def recut(batches: Iterable[Batch], sizes: Sequence[int]) -> Iterator[Batch]:
    """Put batches end to end and cut them anew, into these sizes over and over.

    A size of 0 gives an empty batch. The last batch may be shorter.
    """
    rest: list[tuple[Batch, int]] = []  # (arrays, length), in order
    held = 0
    source = iter(batches)
    template: Batch | None = None
    for size in cycle(sizes):
        while held < size or template is None:
            try:
                arrays = as_arrays(next(source))
            except StopIteration:
                if held:
                    yield _join([part for part, _ in rest])
                return
            template = arrays
            length = common_length(arrays)
            if length:
                rest.append((arrays, length))
                held += length
        if not size and not held:
            # Only while there is something to come: empty batches must not go on for ever.
            try:
                arrays = as_arrays(next(source))
            except StopIteration:
                return
            rest.append((arrays, common_length(arrays)))
            held += rest[-1][1]
        taken: list[Batch] = []
        missing = size
        while missing:
            arrays, length = rest.pop(0)
            if length > missing:
                taken.append(take(arrays, 0, missing))
                rest.insert(0, (take(arrays, missing, length), length - missing))
                held -= missing
                missing = 0
            else:
                taken.append(arrays)
                held -= length
                missing -= length
        yield _join(taken) if taken else take(template, 0, 0)


def deal(elements: Iterable[Batch], workers: int, worker: int) -> Iterator[Batch]:
    """Element ``k`` goes to worker ``k % workers``."""
    return islice(iter(elements), worker, None, workers)


def take(arrays: Batch, start: int, stop: int) -> Batch:
    """Examples ``[start, stop)`` of a batch."""
    return map_structure(lambda array: array[start:stop], arrays)


def empty_like(batch: Batch) -> Batch:
    """A batch of the same kind without examples.

    Raises:
        ValueError: A leaf is a scalar.
    """
    arrays = as_arrays(batch)
    if any(leaf.ndim == 0 for leaf in leaves(arrays)):
        raise _no_batch(arrays)
    return take(arrays, 0, 0)


def as_arrays(batch: Batch) -> Batch:
    """A batch with arrays as leaves."""
    return map_structure(as_array, batch)


def common_length(tree: Batch) -> int:
    """Examples of a batch.

    Raises:
        ValueError: A leaf is a scalar, or first axes differ.
    """
    lengths = {leaf.shape[0] if leaf.ndim else None for leaf in leaves(tree)}
    if len(lengths) != 1 or None in lengths:
        raise _no_batch(tree)
    return int(lengths.pop() or 0)


def _no_batch(tree: Batch) -> ValueError:
    shapes = map_structure(lambda leaf: leaf.shape, tree)
    return ValueError(
        "arrays of one batch need the same first axis. Call the `batch` method on the input "
        f"Dataset if these are single examples. Shapes: {shapes}"
    )


def _join(parts: Sequence[Batch]) -> Batch:
    if len(parts) == 1:
        return parts[0]
    columns = [flatten(part)[0] for part in parts]
    _, rebuild = flatten(parts[0])
    return rebuild(
        [namespace_of(column[0]).concatenate(column) for column in zip(*columns, strict=True)]
    )
