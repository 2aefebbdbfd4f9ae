"""``cupy.cuda.nccl`` of the GPUs of one process: a call that would wait forever is an error."""

import itertools
import threading
from typing import Any

import ml_dtypes
import numpy as np

from ..arrays import memory_at
from ..devices import Device, current

available = True
NCCL_SUM = 0
NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(6, 10)
_DTYPES: list[Any] = [
    np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64,
    np.float16, np.float32, np.float64, ml_dtypes.bfloat16,
]  # fmt: skip
_ID_BYTES = 128


class NcclError(RuntimeError):
    """What NCCL has refused."""


class _Group(threading.local):
    """Calls between ``groupStart`` and ``groupEnd`` of a thread; None: outside of both."""

    calls: "list[tuple[NcclCommunicator, int, int, int]] | None" = None
    was_refused = False


_group = _Group()
_cliques: dict[bytes, set[int]] = {}  # GPUs, by name
_names = itertools.count()
refused: set[int] = set()
"""Ranks whose calls are refused."""


def get_unique_id() -> bytes:
    """A name for a clique."""
    return next(_names).to_bytes(_ID_BYTES, "big")


def groupStart() -> None:
    """Collect this thread's calls from now on."""
    assert _group.calls is None, "a group within a group"
    _group.calls = []


def groupEnd() -> None:
    """Make the calls collected: the first of each rank, then the second of each.

    None of them if one was refused, whose error comes again.
    """
    calls, _group.calls = _group.calls, None
    was_refused, _group.was_refused = _group.was_refused, False
    if was_refused:
        raise NcclError("unhandled system error")
    assert calls is not None, "no group was begun"
    _make(calls)


def _make(calls: "list[tuple[NcclCommunicator, int, int, int]]") -> None:
    waiting: dict[NcclCommunicator, list[tuple[int, int, int]]] = {}
    for communicator, *call in calls:
        waiting.setdefault(communicator, []).append((call[0], call[1], call[2]))
    for communicator in waiting:
        missing = set(range(communicator.count)) - {each.rank for each in waiting}
        assert not missing, f"ranks {missing} are not in the group: the others wait forever"
    for together in zip(*waiting.values(), strict=True):
        _add_up(together)


def _add_up(together: Any) -> None:
    assert len({call[1:] for call in together}) == 1, "sizes or dtypes differ: undefined"
    parts = [memory_at(address, count, _DTYPES[kind]) for address, count, kind in together]
    total = np.sum(parts, axis=0, dtype=parts[0].dtype)
    for part in parts:
        part[...] = total


class NcclCommunicator:
    """One of ``count`` GPUs, the one that is current now.

    Args:
        count: How many add up.
        identity: Which of them belong together.
        rank: Of this GPU.
    """

    def __init__(self, count: int, identity: bytes, rank: int) -> None:
        assert type(identity) is bytes
        assert len(identity) == _ID_BYTES
        assert count == 1 or _group.calls is not None, "no group: waits for the other ranks"
        self.count, self.rank, self.gpu = count, rank, current.gpu
        gpus = _cliques.setdefault(identity, set())
        assert self.gpu not in gpus, "NCCL takes each GPU once"
        gpus.add(self.gpu)

    @staticmethod
    def initAll(devices: list[int]) -> "list[NcclCommunicator]":
        """One of each GPU."""
        identity, made = get_unique_id(), []
        groupStart()
        for rank, gpu in enumerate(devices):
            with Device(gpu):
                made.append(NcclCommunicator(len(devices), identity, rank))
        groupEnd()
        return made

    def allReduce(
        self, source: int, target: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        """Add up, in place, what all ranks have; at the end of the group."""
        assert source == target
        assert op == NCCL_SUM
        assert all(type(each) is int for each in (source, count, dtype, stream))
        if current.gpu != self.gpu:
            raise NcclError(f"GPU {current.gpu} is current, the communicator is of {self.gpu}")
        if self.rank in refused:
            _group.was_refused = _group.calls is not None
            raise NcclError("unhandled system error")
        if _group.calls is None:
            _make([(self, source, count, dtype)])
        else:
            _group.calls.append((self, source, count, dtype))

    def check_async_error(self) -> None:
        """Nothing has failed."""

    def abort(self) -> None:
        """End what waits."""

    def destroy(self) -> None:
        """Leave the others."""
