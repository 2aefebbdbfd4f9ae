"""Cross-device operations: how values on several devices of one worker become one, and get back.

On CPU devices, which share memory, a result is computed once and every device has the same read-only array.
On GPUs it is copied, or NCCL leaves it everywhere.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from ...collectives.nccl import nccl_available, nccl_dtype
from ...core.accelerators import load_cupy
from ...core.indexed_slices import IndexedSlices
from ..base.arrays import as_array, beside, is_on_gpu
from ..base.communication import CommunicationOptions
from ..base.contexts import get_strategy
from ..base.devices import (
    canonical,
    compute_devices,
    device_of,
    is_gpu,
    on_device,
    physical_gpu,
    place,
)
from ..base.reductions import ReduceOp, combine, concatenate, divided, widened
from ..base.values import DistributedValues, Mirrored
from ..variables.mirrored import DistributedVariable
from ..variables.variable import Variable
from .packing import by_dtype, cuts_by_count, join, split

log = logging.getLogger(__name__)

Pair = tuple[DistributedValues, Any]


def devices_of(destinations: Any) -> tuple[str, ...]:
    """The devices a destination names: a variable, a distributed value, or a device's name.

    Raises:
        TypeError: It names none.
    """
    if isinstance(destinations, str):
        return (canonical(destinations),)
    if isinstance(destinations, DistributedVariable):
        return tuple(component.device for component in destinations.values)
    if isinstance(destinations, Variable):
        return (destinations.device,)
    if isinstance(destinations, DistributedValues):
        return _devices_of_values(destinations)
    if hasattr(destinations, "__array__") or isinstance(destinations, int | float):
        return (device_of(as_array(destinations)),)
    raise TypeError(
        "destinations must be a variable, a distributed value or a device's name, got "
        f"{type(destinations).__name__}"
    )


def _devices_of_values(values: DistributedValues) -> tuple[str, ...]:
    """Logical devices do not show in arrays; the strategy knows them."""
    devices = get_strategy().extended.replica_devices
    if len(devices) != len(values.values):
        devices = tuple(compute_devices())[: len(values.values)]
    if len(devices) != len(values.values):
        devices = tuple(f"/device:CPU:{i}" for i in range(len(values.values)))
    return devices


def mirror(value: Any, devices: Sequence[str]) -> Any:
    """A value on every device: Mirrored; the value itself for one device."""
    if len(devices) == 1:
        return _on(value, devices[0])
    if isinstance(value, np.ndarray) and not any(is_gpu(device) for device in devices):
        # Shared memory, but an object for each: the very same one would regroup as not distributed.
        views = [value.view() for _ in devices]
        for view in views:
            view.flags.writeable = False
        return Mirrored(views)
    if isinstance(value, IndexedSlices):
        return Mirrored([replace(value) for _ in devices])
    return Mirrored([_on(value, device) for device in devices])


def _on(value: Any, device: str) -> Any:
    if isinstance(value, IndexedSlices):
        return value  # rows stay on the host
    return place(value, device)


class CrossDeviceOps:
    """As ``tf.distribute.CrossDeviceOps``: subclasses define the three ``_implementation`` methods.

    What these are given as destinations is always a tuple of devices' names.
    """

    def reduce(
        self,
        reduce_op: ReduceOp | str,
        per_replica_value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Reduce one value to ``destinations``.

        Raises:
            ValueError: ``per_replica_value`` is not distributed, or shapes differ.
        """
        _require_distributed(per_replica_value)
        return self.reduce_implementation(
            ReduceOp.of(reduce_op), per_replica_value, devices_of(destinations), options
        )

    def batch_reduce(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[Pair],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduce many values, each to its destination; the results, in order.

        Raises:
            ValueError: The pairs are no list of pairs of a distributed value and a destination.
        """
        if not isinstance(value_destination_pairs, list | tuple) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 for pair in value_destination_pairs
        ):
            raise ValueError(
                "value_destination_pairs must be a list of (value, destinations) tuples"
            )
        for value, _ in value_destination_pairs:
            _require_distributed(value)
        pairs = [(value, devices_of(where)) for value, where in value_destination_pairs]
        return self.batch_reduce_implementation(ReduceOp.of(reduce_op), pairs, options)

    def broadcast(self, tensor: Any, destinations: Any) -> Any:
        """Copy a value to every device of ``destinations``."""
        return self.broadcast_implementation(as_array(tensor), devices_of(destinations))

    def gather(
        self,
        per_replica_value: Any,
        destinations: Any,
        axis: int,
        options: CommunicationOptions | None = None,  # noqa: ARG002 - of use to other implementations
    ) -> Any:
        """Concatenate a value over the replicas along ``axis``."""
        _require_distributed(per_replica_value)
        devices = devices_of(destinations)
        values = [_on(value, devices[0]) for value in per_replica_value.values]
        return mirror(concatenate(values, axis), devices)

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: DistributedValues,
        destinations: tuple[str, ...],
        options: CommunicationOptions | None,
    ) -> Any:
        """One value, reduced, on ``destinations``."""
        raise NotImplementedError(
            f"{type(self).__name__}.reduce_implementation"
            f"({reduce_op}, {per_replica_value}, {destinations}, {options})"
        )

    def batch_reduce_implementation(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[tuple[DistributedValues, tuple[str, ...]]],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        """Many values; one after the other unless a subclass knows better."""
        return [
            self.reduce_implementation(reduce_op, value, devices, options)
            for value, devices in value_destination_pairs
        ]

    def broadcast_implementation(self, tensor: Any, destinations: tuple[str, ...]) -> Any:
        """One value, copied to ``destinations``."""
        return mirror(tensor, destinations)


def _require_distributed(value: Any) -> None:
    if not isinstance(value, DistributedValues):
        raise ValueError(
            "cross-device operations work on distributed values (PerReplica, Mirrored), got "
            f"{type(value).__name__}"
        )


class ReductionToOneDevice(CrossDeviceOps):
    """Everything is copied to one device, reduced there, and copied back.

    Args:
        reduce_to_device: Where; None: the first device of the destinations.
        accumulation_fn: Adds up a list of arrays; None: element-wise addition.
    """

    def __init__(
        self,
        reduce_to_device: str | None = None,
        accumulation_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        self.reduce_to_device = canonical(reduce_to_device) if reduce_to_device else None
        self.accumulation_fn = accumulation_fn

    def reduce_implementation(
        self,
        reduce_op: ReduceOp,
        per_replica_value: DistributedValues,
        destinations: tuple[str, ...],
        options: CommunicationOptions | None,  # noqa: ARG002 - of use between workers
    ) -> Any:
        """Reduce on one device."""
        where = self.reduce_to_device or destinations[0]
        values = [_on(value, where) for value in per_replica_value.values]
        with on_device(where):
            return mirror(self._combined(reduce_op, values), destinations)

    def _combined(self, reduce_op: ReduceOp, values: list[Any]) -> Any:
        if self.accumulation_fn is None or any(isinstance(v, IndexedSlices) for v in values):
            return combine(reduce_op, values)
        total = as_array(self.accumulation_fn(values))
        if reduce_op is ReduceOp.SUM:
            return total
        return divided(total, len(values), values[0].dtype)


class _AllReduce(CrossDeviceOps):
    """What packs many arrays into ``num_packs`` before it reduces them."""

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
        """All-reduce where the values are; to other devices through one of them."""
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
        """Arrays of one dtype are packed; rows and others go one by one."""
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
        """Per device the reduced arrays, each packed on its way."""
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


def is_sparse(value: DistributedValues) -> bool:
    """Whether a value is rows, on any replica."""
    return any(isinstance(part, IndexedSlices) for part in value.values)


class HierarchicalCopyAllReduce(_AllReduce):
    """Devices reduce in pairs, then pairs of pairs; the result is copied back the same way.

    For hosts whose GPUs are linked pairwise (NVIDIA DGX-1).

    Args:
        num_packs: Into how many arrays the gradients are packed; 0: they are not.
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

    Values elsewhere, integers, and devices NCCL cannot use are reduced on one device.

    Args:
        num_packs: Into how many arrays the gradients are packed; 0: they are not.
    """

    _warned = False

    def _reduce_flat(self, op: ReduceOp, arrays: list[Any]) -> list[Any]:
        if not all(is_on_gpu(array) for array in arrays) or arrays[0].dtype.kind != "f":
            if not NcclAllReduce._warned and arrays[0].dtype.kind == "f":
                NcclAllReduce._warned = True
                log.warning("NcclAllReduce: the values are not all on GPUs; reducing on one device")
            total = combine(op, [place(array, device_of(arrays[0])) for array in arrays])
            return [place(total, device_of(array)) for array in arrays]
        # Replicas that share a GPU are added up there first: NCCL takes each GPU once.
        by_gpu: dict[int, list[Any]] = {}
        for array in arrays:
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
    return list(load_cupy().cuda.nccl.NcclCommunicator.initAll(list(gpus)))


def _nccl_sum_in_place(arrays: list[Any]) -> None:
    cupy = load_cupy()
    nccl = cupy.cuda.nccl
    with _nccl_lock:  # two groups at once would wait for each other
        communicators = _communicators(tuple(array.device.id for array in arrays))
        nccl.groupStart()
        try:
            for array, communicator in zip(arrays, communicators, strict=True):
                with array.device:
                    communicator.allReduce(
                        array.data.ptr, array.data.ptr, array.size, nccl_dtype(array), nccl.NCCL_SUM,
                        cupy.cuda.get_current_stream().ptr,
                    )  # fmt: skip
        finally:
            nccl.groupEnd()


def choose_cross_device_ops(devices: Sequence[str]) -> CrossDeviceOps:
    """NCCL where every device is a GPU of its own and NCCL is there, else reduction on one device."""
    gpus = {physical_gpu(device) for device in devices if is_gpu(device)}
    if len(devices) > 1 and len(gpus) == len(devices) and nccl_available():
        return NcclAllReduce()
    return ReductionToOneDevice()


__all__ = [
    "CrossDeviceOps",
    "HierarchicalCopyAllReduce",
    "NcclAllReduce",
    "ReductionToOneDevice",
]
