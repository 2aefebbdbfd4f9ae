"""NCCL between workers: one GPU of each, through CuPy.

NCCL waits forever for a lost worker, and does not compare shapes or dtypes. So the group's ring
exchanges NCCL's identity, compares calls before they begin, and probes the workers while NCCL
waits. The one exception is a worker lost while the communicator is created: NCCL alone can notice
that.
"""

from typing import Any

import numpy as np

from ..core.errors import CollectiveMismatchError
from ..core.process.accelerators import load_cupy, load_nccl
from .group import CollectiveGroup

DTYPES = ("float16", "float32", "float64")


def nccl_available() -> bool:
    """Whether CuPy has NCCL."""
    try:
        return bool(load_nccl().available)
    except ImportError:
        return False


def nccl_dtype(array: Any) -> int:
    """NCCL's number for an array's dtype, one of ``DTYPES``."""
    nccl = load_nccl()
    numbers = (nccl.NCCL_FLOAT16, nccl.NCCL_FLOAT32, nccl.NCCL_FLOAT64)
    return int(numbers[DTYPES.index(array.dtype.name)])


class NcclLink:
    """This worker's NCCL communicator. Used by one thread at a time, in the same order on all
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

    def all_reduce(self, array: Any, *, timeout_s: float | None = None) -> None:
        """Sum an array over the workers, in place.

        Args:
            array: contiguous array on the GPU, of one of ``DTYPES``, of one shape and dtype on all
                workers.
            timeout_s: Overrides the group's.

        Raises:
            CollectiveMismatchError: A worker has another size or dtype.
            CollectiveTimeoutError: A worker did not reach the call in time.
            PeerLostError: A worker is lost.
        """
        what = f"all_reduce of {array.size} {array.dtype.name} with NCCL"
        number = nccl_dtype(array)
        self._compare(array.size, number, timeout_s)
        with array.device:
            stream = self._cupy.cuda.get_current_stream()
            self._communicator.allReduce(
                array.data.ptr, array.data.ptr, array.size, number, self._nccl.NCCL_SUM, stream.ptr
            )
            end = self._cupy.cuda.Event()
            end.record(stream)
        try:
            self._group.watch(lambda: bool(end.done), what, timeout_s=timeout_s)
        except BaseException:
            self._communicator.abort()  # else the stream would never end
            raise

    def _compare(self, size: int, number: int, timeout_s: float | None) -> None:
        gathered = self._group.all_gather(np.array([[size, number]]), timeout_s=timeout_s)
        for member, (theirs,) in zip(self._group.members, gathered, strict=True):
            if (int(theirs[0]), int(theirs[1])) != (size, number):
                raise CollectiveMismatchError(
                    f"{member} reduces {theirs[0]} elements of NCCL's dtype {theirs[1]}, this "
                    f"worker {size} of {number}; every worker must make the same calls, in the "
                    "same order, with arrays of the same shape",
                    task=member,
                )
