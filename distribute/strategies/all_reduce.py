"""All-reduces between the devices of one worker: packed, pairwise, by NCCL; and the choice."""

import logging
import threading
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any

from ...core.arrays.any_framework import as_array, beside, is_on_gpu
from ...core.process.accelerators import load_cupy, load_nccl
from ..base.communication import CommunicationOptions
from ..base.devices import device_of, is_gpu, on_device, physical_gpu, place
from ..base.reductions import ReduceOp, combine, divided, widened
from ..base.values import DistributedValues, Mirrored
from .cross_device_ops import CrossDeviceOps, ReductionToOneDevice, is_sparse, mirror
from .nccl_calls import NCCL_DTYPES, nccl_available, nccl_dtype, nccl_group
from .packing import by_dtype, cuts_by_count, join, split

log = logging.getLogger(__name__)


class _AllReduce(CrossDeviceOps):
    """The base of algorithms that pack many arrays into ``num_packs`` before they reduce them."""

    def __init__(self, num_packs: int = 1) -> None:
        if num_packs < 0:
            raise ValueError(f"num_packs must be >= 0, got {num_packs}")
        self.num_packs = num_packs
        self._otherwise = ReductionToOneDevice()

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: DistributedValues,
        destinations: tuple[str, ...],
        options: CommunicationOptions | None,
    ) -> Any:
        """Reduce where the values are, by all-reduce; to other devices through one of them."""
        values = per_replica_value.values
        if is_sparse(per_replica_value) or len(destinations) != len(values):
            return self._otherwise.reduce_implementation(
                reduce_op, per_replica_value, destinations, options
            )
        parts = [[as_array(value)] for value in values]
        return self._spread([one for (one,) in self._all_reduce(reduce_op, parts)], destinations)

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[DistributedValues, tuple[str, ...]]],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        """Reduce arrays of one dtype in packs; rows and others one by one."""
        pairs = value_destination_pairs
        results: list[Any] = [None] * len(pairs)
        packed: list[int] = []
        for number, (value, devices) in enumerate(pairs):
            if is_sparse(value) or len(devices) != len(value.values):
                results[number] = self.reduce_implementation(reduce_op, value, devices, options)
            else:
                packed.append(number)
        columns = [[as_array(v) for v in pairs[number][0].values] for number in packed]
        for group in by_dtype([column[0] for column in columns]):
            chosen = [columns[i] for i in group]
            # Per device the arrays of the group.
            reduced = self._all_reduce(
                reduce_op, [list(parts) for parts in zip(*chosen, strict=True)]
            )
            for i, parts in zip(group, zip(*reduced, strict=True), strict=True):
                results[packed[i]] = self._spread(list(parts), pairs[packed[i]][1])
        return results

    def _spread(self, values: list[Any], devices: tuple[str, ...]) -> Any:
        if len(values) == 1 or not any(is_gpu(device) for device in devices):
            return mirror(values[0], devices)
        return Mirrored([place(v, device) for v, device in zip(values, devices, strict=True)])

    def _all_reduce(self, op: ReduceOp, per_device: list[list[Any]]) -> list[list[Any]]:
        """Reduce arrays, each packed on its way; returns the results per device."""
        sizes = {tuple(array.shape for array in arrays) for arrays in per_device}
        if self.num_packs == 0 or len(sizes) > 1:
            columns = [self._reduce_flat(op, list(c)) for c in zip(*per_device, strict=True)]
            return [list(row) for row in zip(*columns, strict=True)]
        flat = [join(arrays) for arrays in per_device]
        cuts = cuts_by_count(flat[0].size, min(self.num_packs, max(1, flat[0].size)))
        pieces = [self._reduce_flat(op, [array[a:b] for array in flat]) for a, b in cuts]
        whole = [join(list(parts)) for parts in zip(*pieces, strict=True)]
        return [split(array, per_device[i]) for i, array in enumerate(whole)]

    def _reduce_flat(self, op: ReduceOp, arrays: list[Any]) -> list[Any]:
        raise NotImplementedError(f"{type(self).__name__}._reduce_flat({op}, {arrays})")


class HierarchicalCopyAllReduce(_AllReduce):
    """Devices reduce in pairs, then pairs of pairs; the result is copied back the same way.

    For hosts whose GPUs are linked pairwise (NVIDIA DGX-1).

    Args:
        num_packs: Number of arrays into which the gradients are packed; 0: they are not.
    """

    def _reduce_flat(self, op: ReduceOp, arrays: list[Any]) -> list[Any]:
        level = [widened(array) for array in arrays] if op is ReduceOp.MEAN else arrays
        while len(level) > 1:
            pairs = [level[i : i + 2] for i in range(0, len(level), 2)]
            level = [_pair_sum(pair) if len(pair) == 2 else pair[0] for pair in pairs]
        total = level[0]
        if op is ReduceOp.MEAN:
            total = divided(total, len(arrays), arrays[0].dtype)
        return [place(total, device_of(array)) for array in arrays]


def _pair_sum(pair: Sequence[Any]) -> Any:
    where = device_of(pair[0])
    with on_device(where):
        return combine(ReduceOp.SUM, [pair[0], place(pair[1], where)])


class NcclAllReduce(_AllReduce):
    """NVIDIA's all-reduce between the GPUs of this worker, through CuPy.

    Values elsewhere, and of dtypes that NCCL does not add up, are reduced on one device.

    Args:
        num_packs: Number of arrays into which the gradients are packed; 0: they are not.
    """

    _warned = False

    def _reduce_flat(self, op: ReduceOp, arrays: list[Any]) -> list[Any]:
        wide = [widened(array) for array in arrays] if op is ReduceOp.MEAN else arrays
        on_gpus = all(is_on_gpu(array) for array in arrays)
        if not on_gpus or wide[0].dtype.name not in NCCL_DTYPES:
            if not NcclAllReduce._warned and not on_gpus:
                NcclAllReduce._warned = True
                log.warning("NcclAllReduce: the values are not all on GPUs; reducing on one device")
            total = combine(op, [place(array, device_of(arrays[0])) for array in arrays])
            return [place(total, device_of(array)) for array in arrays]
        # Replicas that share a GPU are added up there first: NCCL takes each GPU once.
        by_gpu: dict[int, list[Any]] = {}
        for array in wide:
            by_gpu.setdefault(array.device.id, []).append(array)
        sums = [
            combine(ReduceOp.SUM, group) if len(group) > 1 else _copy(group[0])
            for group in by_gpu.values()
        ]
        if len(sums) > 1:
            _nccl_sum_in_place(sums)
        if op is ReduceOp.MEAN:
            sums = [divided(total, len(arrays), arrays[0].dtype) for total in sums]
        per_gpu = dict(zip(by_gpu, sums, strict=True))
        return [per_gpu[array.device.id] for array in arrays]


def _copy(array: Any) -> Any:
    with beside(array):
        return array.copy()


_nccl_lock = threading.Lock()


@lru_cache(maxsize=8)
def _communicators(gpus: tuple[int, ...]) -> list[Any]:
    """Make a communicator for each GPU.

    Made in a group, as ``initAll`` does, which CuPy calls with the interpreter's lock held: for the
    seconds that it takes on many GPUs no heartbeat would be sent, and the task would count as lost.
    """
    cupy, nccl = load_cupy(), load_nccl()
    identity = nccl.get_unique_id()
    made = []
    with nccl_group():
        for rank, gpu in enumerate(gpus):
            with cupy.cuda.Device(gpu):
                made.append(nccl.NcclCommunicator(len(gpus), identity, rank))
    return made


def _nccl_sum_in_place(arrays: list[Any]) -> None:
    """Add up one array of each GPU, in all of them.

    Raises:
        NcclError: NCCL has failed. The next call makes new communicators.
    """
    cupy, nccl = load_cupy(), load_nccl()
    with _nccl_lock:  # two groups at once would wait for each other
        communicators = _communicators(tuple(array.device.id for array in arrays))
        calls = []
        for array in arrays:
            with array.device:
                stream = cupy.cuda.get_current_stream().ptr
            calls.append((array.device, array.data.ptr, array.size, nccl_dtype(array), stream))
        try:
            with nccl_group():
                for (device, pointer, size, number, stream), communicator in zip(
                    calls, communicators, strict=True
                ):
                    with device:
                        communicator.allReduce(
                            pointer, pointer, size, number, nccl.NCCL_SUM, stream
                        )
        except BaseException:
            _communicators.cache_clear()
            for communicator in communicators:
                communicator.abort()  # else what has begun would wait forever
            raise


def choose_cross_device_ops(devices: Sequence[str]) -> CrossDeviceOps:
    """Choose NCCL if it is available and each device has its own GPU, else reduction on one
    device.
    """
    gpus = {physical_gpu(device) for device in devices if is_gpu(device)}
    if len(devices) > 1 and len(gpus) == len(devices):
        if nccl_available():
            return NcclAllReduce()
        _tell_of_nccl(len(gpus))
    return ReductionToOneDevice()


@cache
def _tell_of_nccl(gpus: int) -> None:
    log.warning(
        "CuPy finds no NCCL, so the gradients of %d GPUs are added up on one of them, which is "
        "slower: `pip install 'ropewalk[gpu]'` (CUDA 12) or 'ropewalk[gpu-cuda13]' brings it",
        gpus,
    )
