"""Ring algorithms: what one collective call sends and receives, in which order. No I/O of its own.

Every worker sends to the next one and receives from the previous one. An all-reduce is a
reduce-scatter followed by an all-gather, in which each worker sends ``2 (n-1)/n`` of the array, the
minimum. The array is cut into chunks that pass through the steps as a pipeline, so that a chunk is
reduced and sent on while it is in the cache. Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009.

Every element is summed on one worker, in one order, and copied from there: results are equal to the
bit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from ...core.arrays.dtypes import Array

CHUNK_BYTES = 256 * 1024  # for links in shared memory: a few chunks fit in the cache
STREAM_CHUNK_BYTES = 1024 * 1024  # for streams: amortizes the cost of a frame
_AHEAD = 2  # chunks sent before as many are received, so that neighbours need no lockstep
_SMALL_BYTES = 64 * 1024  # up to here every worker gathers and sums all arrays: half as many hops


class Link(Protocol):
    """The two links of a worker, for one call."""

    def send(self, payload: Array) -> None:
        """Send a chunk to the next worker."""
        ...

    def receive(self, num_bytes: int) -> Array:
        """Wait for a chunk from the previous worker, valid until :meth:`release`."""
        ...

    def release(self) -> None:
        """Release the chunk received last, which is not needed any more."""
        ...


@dataclass(frozen=True, slots=True)
class Ring:
    """A worker's position in a ring.

    Attributes:
        rank: Rank of this worker.
        size: Number of workers.
        chunk_bytes: Largest chunk, the same on all workers.
    """

    rank: int
    size: int
    chunk_bytes: int = CHUNK_BYTES

    # -- all-reduce --------------------------------------------------------------------------

    def all_reduce(self, link: Link, values: Array, out: Array, divisor: int | None = None) -> None:
        """Sum over the workers.

        Args:
            link: Link of this call.
            values: flat array, of the same length on all workers. May be ``out``.
            out: flat array for the result.
            divisor: Divides the sum, for floats; None: no division.
        """
        if self.size == 1:
            _finish(values, out, divisor)
        elif values.nbytes * self.size <= _SMALL_BYTES or values.size < self.size:
            self._all_reduce_small(link, values, out, divisor)
        else:
            self._all_reduce_chunks(link, values, out, divisor)

    def _all_reduce_small(self, link: Link, values: Array, out: Array, divisor: int | None) -> None:
        everyones = np.empty((self.size, values.size), values.dtype)
        everyones[self.rank] = values
        self._pass_around(link, list(everyones))
        total = everyones[0]
        for rank in range(1, self.size):
            total = np.add(total, everyones[rank], dtype=values.dtype)
        _finish(total, out, divisor)

    def _all_reduce_chunks(
        self, link: Link, values: Array, out: Array, divisor: int | None
    ) -> None:
        n = self.size
        source, target = _parts(values, n), _parts(out, n)
        chunk = max(1, self.chunk_bytes // values.itemsize)
        count = -(-source[0].size // chunk)
        # At tick t chunk t - s is in step s: a pipeline.
        for tick in range(count + 2 * n - 3):
            steps = range(max(0, tick - count + 1), min(2 * n - 2, tick + 1))
            for first in range(0, len(steps), _AHEAD):
                now = [
                    (step, slice((tick - step) * chunk, (tick - step + 1) * chunk))
                    for step in steps[first : first + _AHEAD]
                ]
                for step, cut in now:
                    self._send_chunk(link, (target if step else source), step, cut)
                for step, cut in now:
                    self._take_chunk(link, source, target, step, cut, divisor)

    def _send_chunk(self, link: Link, parts: Sequence[Array], step: int, cut: slice) -> None:
        going = parts[(self.rank - step) % self.size][cut]
        if going.size:
            link.send(going.view(np.uint8))

    def _take_chunk(
        self,
        link: Link,
        source: Sequence[Array],
        target: Sequence[Array],
        step: int,
        cut: slice,
        divisor: int | None,
    ) -> None:
        n = self.size
        part = (self.rank - step - 1) % n
        into = target[part][cut]
        if not into.size:
            return
        received = link.receive(into.nbytes).view(into.dtype)
        if step >= n - 1:  # the all-gather: chunks are final
            np.copyto(into, received)
        else:
            np.add(source[part][cut], received, out=into)
            if divisor is not None and step == n - 2:
                np.divide(into, into.dtype.type(divisor), out=into)
        link.release()

    # -- the others --------------------------------------------------------------------------

    def all_gather(self, link: Link, mine: Array, sizes: Sequence[int]) -> list[Array]:
        """Gather every worker's array.

        Args:
            link: Link of this call.
            mine: flat array.
            sizes: Elements per worker, by rank.

        Returns:
            Flat arrays of all workers, by rank.
        """
        everyones = [np.empty(size, mine.dtype) for size in sizes]
        everyones[self.rank][...] = mine
        self._pass_around(link, everyones)
        return everyones

    def _pass_around(self, link: Link, everyones: Sequence[Array]) -> None:
        """Fill in the other workers' arrays, chunk by chunk."""
        n = self.size
        if n == 1:
            return
        chunk = max(1, self.chunk_bytes // everyones[0].itemsize)
        count = -(-max(part.size for part in everyones) // chunk)
        for tick in range(count + n - 2):
            for step in range(n - 1):
                number = tick - step
                if not 0 <= number < count:
                    continue
                cut = slice(number * chunk, (number + 1) * chunk)
                going = everyones[(self.rank - step) % n][cut]
                into = everyones[(self.rank - step - 1) % n][cut]
                if going.size:
                    link.send(going.view(np.uint8))
                if into.size:
                    _take(link, into)

    def broadcast(self, link: Link, values: Array, root: int) -> None:
        """Fill ``values`` with those of ``root``, chunk by chunk along the ring."""
        if self.size == 1:
            return
        chunk = max(1, self.chunk_bytes // values.itemsize)
        last = (root - 1) % self.size
        for start in range(0, values.size, chunk):
            part = values[start : start + chunk]
            if self.rank != root:
                _take(link, part)
            if self.rank != last:
                link.send(part.view(np.uint8))


def bounds(size: int, parts: int) -> list[int]:
    """Compute bounds of parts that differ by at most one element, larger ones first."""
    base, extra = divmod(size, parts)
    ends = [0]
    for part in range(parts):
        ends.append(ends[-1] + base + (part < extra))
    return ends


def _parts(array: Array, parts: int) -> list[Array]:
    ends = bounds(array.size, parts)
    return [array[a:b] for a, b in pairwise(ends)]


def _finish(total: Array, out: Array, divisor: int | None) -> None:
    if divisor is None:
        np.copyto(out, total)
    else:
        np.divide(total, total.dtype.type(divisor), out=out)


def _take(link: Link, into: Array) -> None:
    np.copyto(into, link.receive(into.nbytes).view(into.dtype))
    link.release()
