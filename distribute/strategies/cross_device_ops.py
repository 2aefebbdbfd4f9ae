"""Cross-device operations: how values on several devices of one worker become one, and get back.

On CPU devices, which share memory, a result is computed once and every device has the same
read-only array. On GPUs it is copied, or NCCL leaves it everywhere.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.arrays.any_framework import as_array
from ...core.arrays.indexed_slices import IndexedSlices
from ..base.communication import CommunicationOptions
from ..base.contexts import get_strategy
from ..base.devices import (
    canonical,
    compute_devices,
    device_of,
    is_gpu,
    on_device,
    place,
)
from ..base.reductions import ReduceOp, combine, concatenate, divided
from ..base.values import DistributedValues, Mirrored
from ..variables.mirrored import DistributedVariable
from ..variables.variable import Variable

Pair = tuple[DistributedValues, Any]


def devices_of(destinations: Any) -> tuple[str, ...]:
    """List the devices a destination names: a variable, a distributed value, or a device's name.

    Raises:
        ValueError: It names none.
    """
    if isinstance(destinations, str):
        return (canonical(destinations),)
    if isinstance(destinations, DistributedVariable):
        return tuple(canonical(component.device) for component in destinations.values)
    if isinstance(destinations, Variable):
        return (canonical(destinations.device),)
    if isinstance(destinations, DistributedValues):
        return _devices_of_values(destinations)
    if hasattr(destinations, "__array__") or isinstance(destinations, int | float):
        return (device_of(as_array(destinations)),)
    raise ValueError(
        "destinations must be a variable, a distributed value or a device's name, got "
        f"{type(destinations).__name__}"
    )


def _devices_of_values(values: DistributedValues) -> tuple[str, ...]:
    """List the devices of values: logical devices do not show in arrays; the strategy knows
    them.
    """
    devices = get_strategy().extended.replica_devices
    if len(devices) != len(values.values):
        devices = tuple(compute_devices())[: len(values.values)]
    if len(devices) != len(values.values):
        devices = tuple(f"/device:CPU:{i}" for i in range(len(values.values)))
    return devices


def mirror(value: Any, devices: Sequence[str]) -> Any:
    """Copy a value to every device: Mirrored; the value itself for one device."""
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
    """The base of reductions, as ``tf.distribute.CrossDeviceOps``: subclasses define the three
    ``_implementation`` methods.

    What these are given as destinations is always a tuple of devices' names.
    """

    def reduce(
        self,
        reduce_op: ReduceOp,
        per_replica_value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Reduce one value to ``destinations``.

        Raises:
            ValueError: ``per_replica_value`` is not distributed, shapes differ, or ``reduce_op`` is
                a name.
        """
        _require_distributed(per_replica_value)
        return self.reduce_implementation(
            ReduceOp.required(reduce_op), per_replica_value, devices_of(destinations), options
        )

    def batch_reduce(
        self,
        reduce_op: ReduceOp,
        value_destination_pairs: Sequence[Pair],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduce many values, each to its destination; the results, in order.

        Raises:
            ValueError: The pairs are no list of pairs of a distributed value and a destination, or
                ``reduce_op`` is a name.
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
        return self.batch_reduce_implementation(ReduceOp.required(reduce_op), pairs, options)

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
        """Reduce a value, and put it on ``destinations``."""
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
        """Reduce many values; one after the other unless a subclass knows better."""
        return [
            self.reduce_implementation(reduce_op, value, devices, options)
            for value, devices in value_destination_pairs
        ]

    def broadcast_implementation(self, tensor: Any, destinations: tuple[str, ...]) -> Any:
        """Copy a value to ``destinations``."""
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
        reduce_to_device: Device that reduces; None: the first device of the destinations.
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


def is_sparse(value: DistributedValues) -> bool:
    """Return whether a value is rows, on any replica."""
    return any(isinstance(part, IndexedSlices) for part in value.values)
