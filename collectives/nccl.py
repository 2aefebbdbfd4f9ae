"""NCCL between workers: one GPU of each, through CuPy.

NCCL waits for a worker that is gone for ever, and adds up whatever it is given. So the ring of the
group passes on NCCL's identity, compares calls before they begin, and looks after the workers while
NCCL waits. Only a worker that is lost while the communicator is made, right after all have
answered, is NCCL's to notice.
"""

from typing import Any

import numpy as np

from ..core.accelerators import load_cupy
from ..core.errors import CollectiveMismatchError
from .group import CollectiveGroup

DTYPES = ("float16", "float32", "float64")


def nccl_available() -> bool:
    """Whether CuPy has NCCL."""
    try:
        return bool(load_cupy().cuda.nccl.available)
    except (ImportError, AttributeError):
        return False


def nccl_dtype(array: Any) -> int:
    """NCCL's number of an array's dtype, which is one of ``DTYPES``."""
    nccl = load_cupy().cuda.nccl
    numbers = (nccl.NCCL_FLOAT16, nccl.NCCL_FLOAT32, nccl.NCCL_FLOAT64)
    return int(numbers[DTYPES.index(array.dtype.name)])


class NcclLink:
    """This worker's end. Used by one thread at a time, in one order everywhere.

    Args:
        group: The workers, which all make one now.
        gpu: Number of this worker's GPU; no two workers may have the same one.

    Raises:
        WindlassError: A worker is gone.
    """

    def __init__(self, group: CollectiveGroup, gpu: int) -> None:
        cupy = load_cupy()
        self._nccl = cupy.cuda.nccl
        self._cupy = cupy
        self._group = group
        identity = group.broadcast(np.array(self._nccl.get_unique_id(), np.int64))
        with cupy.cuda.Device(gpu):
            self._communicator = self._nccl.NcclCommunicator(
                group.size, tuple(int(number) for number in identity), group.rank
            )

    def all_reduce(self, array: Any, *, timeout_s: float | None = None) -> None:
        """Sum an array over the workers, in place.

        Args:
            array: contiguous array on the GPU, of one of ``DTYPES``, of one shape and dtype on all
                workers.
            timeout_s: Instead of the group's.

        Raises:
            CollectiveMismatchError: A worker gave another size or dtype.
            CollectiveTimeoutError: One took too long.
            PeerLostError: One is gone.
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
            self._communicator.abort()  # else the stream would never come to its end
            raise

    def _compare(self, size: int, number: int, timeout_s: float | None) -> None:
        facts = self._group.all_gather(np.array([[size, number]]), timeout_s=timeout_s)
        for member, (theirs,) in zip(self._group.members, facts, strict=True):
            if (int(theirs[0]), int(theirs[1])) != (size, number):
                raise CollectiveMismatchError(
                    f"{member} reduces {theirs[0]} elements of NCCL's dtype {theirs[1]}, this "
                    f"worker {size} of {number}; every worker must make the same calls, in the "
                    "same order, with arrays of the same shape",
                    task=member,
                )
