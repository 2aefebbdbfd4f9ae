"""NCCL between workers: one GPU of each, through CuPy.

NCCL waits forever for a lost worker, and does not compare shapes or dtypes. So the group's ring
exchanges NCCL's identity, compares calls before they begin, and probes the workers while NCCL
waits. The one exception is a worker lost while the communicator is created: NCCL alone can notice
that.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.errors import CollectiveMismatchError
from ...core.process.accelerators import load_cupy, load_nccl
from ...distribute.strategies.nccl_calls import nccl_dtype, nccl_group
from .group import CollectiveGroup

log = logging.getLogger(__name__)

_SUCCESS, _NOT_READY = 0, 600  # cudaSuccess, cudaErrorNotReady


class NcclLink:
    """The NCCL communicator of a worker. Used by one thread at a time, in the same order on all
    workers.

    Args:
        group: The workers, which must all create one now.
        gpu: Number of this worker's GPU; every worker needs its own.

    Raises:
        RopewalkError: A worker is lost.
    """

    def __init__(self, group: CollectiveGroup, gpu: int) -> None:
        cupy = load_cupy()
        self._nccl = load_nccl()
        self._cupy = cupy
        self._group = group
        own = self._nccl.get_unique_id()  # bytes; a tuple of numbers before CuPy 14
        identity = group.broadcast(np.array(list(own), np.int64)).tolist()
        with cupy.cuda.Device(gpu):
            self._communicator = self._nccl.NcclCommunicator(
                group.size, type(own)(identity), group.rank
            )

    def all_reduce(self, arrays: Sequence[Any], *, timeout_s: float | None = None) -> None:
        """Sum arrays over the workers, in place, and wait for it.

        They are compared once, and summed together: one by one each would cost two messages round
        the workers.

        Args:
            arrays: contiguous arrays on this worker's GPU, of ``DTYPES``, of the same shapes and
                dtypes on all workers.
            timeout_s: Overrides the group's.

        Raises:
            CollectiveMismatchError: A worker has another size or dtype.
            CollectiveTimeoutError: A worker did not reach the call in time.
            PeerLostError: A worker is lost.
            CUDARuntimeError: This worker's GPU has failed; the others are told.
            NcclError: NCCL has failed; the others are told.
        """
        if not arrays:
            return
        calls = [(array.data.ptr, array.size, nccl_dtype(array)) for array in arrays]
        self._compare([call[1:] for call in calls], timeout_s)
        what = f"all_reduce of {sum(size for _, size, _ in calls)} elements with NCCL"
        end: Any = None

        def is_done() -> bool:
            nonlocal end
            if end is None:  # begun here: the others are told of an error
                end = self._begin(arrays[0].device, calls)
            return self._has_passed(end)

        try:
            self._group.watch(is_done, what, timeout_s=timeout_s)
        except BaseException:
            self._abort()
            raise

    def _begin(self, device: Any, calls: Sequence[tuple[int, int, int]]) -> Any:
        """Begin calls of a pointer, a size and a dtype; an event that is at their end."""
        with device:
            stream = self._cupy.cuda.get_current_stream()
            with nccl_group():
                for pointer, size, number in calls:
                    self._communicator.allReduce(
                        pointer, pointer, size, number, self._nccl.NCCL_SUM, stream.ptr
                    )
            end = self._cupy.cuda.Event()
            end.record(stream)
        return end

    def _abort(self) -> None:
        """Give NCCL up, else the stream would never end."""
        try:
            self._communicator.abort()
        except RuntimeError as error:  # of a GPU that has failed; the first error is the one
            log.warning("NCCL could not be given up: %s", error)

    def _has_passed(self, event: Any) -> bool:
        """Return whether the GPU has come to an event.

        Raises:
            CUDARuntimeError: Something before it failed on the GPU, which stays so. ``event.done``
                would be False for ever.
            NcclError: NCCL has failed.
        """
        runtime = self._cupy.cuda.runtime
        status = runtime.eventQuery(event.ptr)
        if status not in (_SUCCESS, _NOT_READY):
            raise runtime.CUDARuntimeError(status)
        self._communicator.check_async_error()
        return bool(status == _SUCCESS)

    def _compare(self, mine: Sequence[tuple[int, int]], timeout_s: float | None) -> None:
        """Raise unless all workers have arrays of the same sizes and dtypes."""
        gathered = self._group.all_gather(np.array(mine, np.int64), timeout_s=timeout_s)
        for member, rows in zip(self._group.members, gathered, strict=True):
            theirs = [(int(size), int(number)) for size, number in rows]
            if theirs == list(mine):
                continue
            if len(theirs) != len(mine):
                what = f"{member} reduces {len(theirs)} arrays, this worker {len(mine)}"
            else:
                at, (a, b) = next(
                    (i, pair)
                    for i, pair in enumerate(zip(theirs, mine, strict=True))
                    if pair[0] != pair[1]
                )
                what = (
                    f"{member} reduces {a[0]} elements of NCCL's dtype {a[1]} as array {at} of "
                    f"{len(mine)}, this worker {b[0]} of {b[1]}"
                )
            raise CollectiveMismatchError(
                f"{what}; every worker must make the same calls, in the same order, with arrays "
                "of the same shape",
                task=member,
            )
