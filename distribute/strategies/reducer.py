"""Reductions by which values of replicas become one: what a strategy reduces and gathers with.

:class:`Reducer` is for the replicas of one worker; ``worker_reducer.py`` has the one for several
workers.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...core.arrays.any_framework import to_host
from ..base.communication import CommunicationOptions
from ..base.devices import HOST
from ..base.reductions import ReduceOp, reduce_axis
from ..base.values import DistributedValues, Mirrored, PerReplica, is_variable
from ..variables.mirrored import DistributedVariable, SyncOnReadVariable
from .cross_device_ops import CrossDeviceOps, devices_of, mirror

ValuesAndPlaces = Sequence[tuple[Any, Any]]
"""Values, each with where its reduction goes."""


class Reducer:
    """Reductions over the replicas of one worker.

    Args:
        devices: Devices of the replicas, one each.
        cross_device_ops: Reduction of values of several devices to one.
    """

    def __init__(self, devices: Sequence[str], cross_device_ops: CrossDeviceOps) -> None:
        self._devices = tuple(devices)
        self._cross_device_ops = cross_device_ops

    @property
    def num_replicas(self) -> int:
        """Replicas over which values are reduced."""
        return len(self._devices)

    def differs(self, value: Any) -> bool:
        """Return whether a value may differ between replicas; if not there is nothing to reduce."""
        if isinstance(value, Mirrored):
            return False
        if isinstance(value, DistributedVariable):
            return isinstance(value, SyncOnReadVariable)
        return isinstance(value, DistributedValues)

    def reduce(
        self, op: ReduceOp, value: Any, destinations: Any, options: CommunicationOptions | None
    ) -> Any:
        """Reduce one value to where ``destinations`` are; see ``StrategyExtended.reduce_to``."""
        if not self.differs(value):
            return mirror(self._of_equals(op, value), devices_of(destinations))
        return self._cross_device_ops.reduce(op, value, destinations, options)

    def batch_reduce(
        self, op: ReduceOp, pairs: ValuesAndPlaces, options: CommunicationOptions | None
    ) -> list[Any]:
        """Reduce many values; the results, in order."""
        if all(self.differs(value) for value, _ in pairs):
            return self._cross_device_ops.batch_reduce(op, list(pairs), options)
        return [self.reduce(op, value, where, options) for value, where in pairs]

    def reduce_to_host(self, op: ReduceOp, value: Any, axis: Any) -> Any:
        """Reduce one value as ``strategy.reduce`` does; ``axis`` None: element-wise over
        replicas.
        """
        if not self.differs(value):
            if axis is None:
                return self._of_equals(op, value)
            if not isinstance(value, DistributedValues):
                value = PerReplica([self._of_equals(op, value)])
        elif not isinstance(value, DistributedValues):
            value = PerReplica([value])
        if axis is None:
            return self.reduce(op, value, HOST, None)
        return self._reduce_axis(op, [to_host(part) for part in value.values], axis)

    def _reduce_axis(self, op: ReduceOp, values: list[Any], axis: Any) -> Any:
        return reduce_axis(op, values, axis)

    def _of_equals(self, op: ReduceOp, value: Any) -> Any:
        """Reduce a value that is equal on every replica: its mean is the value itself."""
        single = value.values[0] if isinstance(value, DistributedValues) else value
        single = single.read_value() if is_variable(single) else single
        if op is ReduceOp.MEAN or self.num_replicas == 1:
            return single
        if not isinstance(value, DistributedValues) and single is not None and not np.any(single):
            return single  # zeros add up to zeros
        raise ValueError(
            f"SUM of a value that is not distributed over {self.num_replicas} replicas is "
            "ambiguous; reduce a PerReplica value"
        )

    def gather_to_all(
        self, value: DistributedValues, axis: int, options: CommunicationOptions | None
    ) -> Any:
        """Put the values of all replicas together along ``axis``, on every replica."""
        return self._cross_device_ops.gather(value, value, axis, options)

    def gather_to_host(self, value: DistributedValues, axis: int) -> Any:
        """Put the values of all replicas together along ``axis``."""
        return self._cross_device_ops.gather(value, HOST, axis, None)

    def of_first_replica(self, value: DistributedValues) -> Any:
        """Return the value of the first replica of all."""
        return value.values[0]
