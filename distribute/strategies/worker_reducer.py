"""Reductions over several synchronous workers: first on each worker, then round their ring."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...collectives.group import CollectiveGroup
from ...collectives.nccl import DTYPES as NCCL_DTYPES
from ...collectives.nccl import NcclLink
from ...core.arrays.any_framework import as_array, is_on_gpu, to_host
from ...core.arrays.dtypes import DType
from ...core.arrays.indexed_slices import IndexedSlices
from ..base.communication import CommunicationImplementation, CommunicationOptions
from ..base.devices import HOST
from ..base.reductions import (
    ReduceOp,
    axis_sums,
    combine,
    concatenate,
    divided,
    mean_dtype,
    widened,
)
from ..base.values import DistributedValues, PerReplica, is_variable, on_every_replica
from .cross_device_ops import CrossDeviceOps, devices_of, is_sparse, mirror
from .packing import by_dtype, join, packs_to_send, split
from .reducer import Reducer, ValuesAndPlaces


class WorkersReducer(Reducer):
    """Reductions over the replicas of all workers; every one of them makes the same calls.

    Args:
        devices: One per replica of this worker; every worker has as many.
        cross_device_ops: How values of several of them become one.
        group: The workers.
        options: Where a call gives none.
    """

    def __init__(
        self,
        devices: Sequence[str],
        cross_device_ops: CrossDeviceOps,
        group: CollectiveGroup,
        options: CommunicationOptions,
    ) -> None:
        super().__init__(devices, cross_device_ops)
        self._group = group
        self._options = options
        self._nccl: NcclLink | None = None

    def use_nccl(self, link: NcclLink) -> None:
        """Send what NCCL can carry over this link."""
        self._nccl = link

    @property
    def num_replicas(self) -> int:
        """Replicas of all workers."""
        return len(self._devices) * self._group.size

    def differs(self, value: Any) -> bool:
        """Also a plain value, with one replica per worker: ``run`` returns that unwrapped."""
        if isinstance(value, DistributedValues) or is_variable(value):
            return super().differs(value)
        return len(self._devices) == 1 and self._group.size > 1

    def reduce(
        self, op: ReduceOp, value: Any, destinations: Any, options: CommunicationOptions | None
    ) -> Any:
        """Reduce one value over the replicas of all workers."""
        if not self.differs(value):
            return super().reduce(op, value, destinations, options)
        return self.batch_reduce(op, [(value, destinations)], options)[0]

    def batch_reduce(
        self, op: ReduceOp, pairs: ValuesAndPlaces, options: CommunicationOptions | None
    ) -> list[Any]:
        """Reduce many values: on each worker first, then packs of them round the ring."""
        chosen = self._options.merge(options)
        ring = chosen.implementation is CommunicationImplementation.RING
        nccl = None if ring else self._nccl
        results: list[Any] = [None] * len(pairs)
        dense: list[tuple[int, Any]] = []
        kinds: dict[int, DType] = {}
        for number, (value, where) in enumerate(pairs):
            if not self.differs(value):
                results[number] = super().reduce(op, value, where, options)
                continue
            parts = on_every_replica(value, 1)
            if op is ReduceOp.MEAN and not is_sparse(parts):
                arrays = [as_array(part) for part in parts.values]
                kinds[number] = mean_dtype(arrays[0].dtype)
                parts = PerReplica([widened(array) for array in arrays])
            home = HOST if nccl is None else self._devices[0]
            local = self._cross_device_ops.reduce(ReduceOp.SUM, parts, home, options)
            if isinstance(local, IndexedSlices):
                total: Any = self._gather_slices(op, local, chosen)
                results[number] = mirror(total, devices_of(where))
            elif nccl is not None and local.dtype.name in NCCL_DTYPES:
                dense.append((number, local))
            else:
                dense.append((number, np.asarray(to_host(local))))
        for group in by_dtype([array for _, array in dense]):
            arrays = [dense[i][1] for i in group]
            for pack in packs_to_send([a.nbytes for a in arrays], chosen.bytes_per_pack):
                members = [arrays[i] for i in pack]
                totals = split(self._sum(op, join(members), chosen), members)
                for i, total in zip(pack, totals, strict=True):
                    number = dense[group[i]][0]
                    kind = kinds.get(number, total.dtype)
                    reduced = total.astype(kind, copy=False)
                    results[number] = mirror(reduced, devices_of(pairs[number][1]))
        return results

    def _sum(self, op: ReduceOp, flat: Any, options: CommunicationOptions) -> Any:
        """One pack, over the workers; of a mean it is of floats."""
        if is_on_gpu(flat):
            assert self._nccl is not None  # noqa: S101 - who else leaves it there
            with flat.device:
                total = flat.copy()
                self._nccl.all_reduce(total, timeout_s=options.timeout_seconds)
                if op is ReduceOp.MEAN:
                    total /= self.num_replicas
            return total
        return self._group.all_reduce(
            flat,
            divisor=self.num_replicas if op is ReduceOp.MEAN else None,
            timeout_s=options.timeout_seconds,
        )

    def _gather_slices(
        self, op: ReduceOp, local: IndexedSlices, options: CommunicationOptions
    ) -> IndexedSlices:
        timeout_s = options.timeout_seconds
        rows = np.concatenate(self._group.all_gather(np.asarray(local.values), timeout_s=timeout_s))
        indices = np.concatenate(self._group.all_gather(local.indices, timeout_s=timeout_s))
        if op is ReduceOp.MEAN:
            rows = divided(rows, self.num_replicas, rows.dtype)
        return IndexedSlices(rows, indices, local.dense_shape)

    def _reduce_axis(self, op: ReduceOp, values: list[Any], axis: Any) -> Any:
        mean = op is ReduceOp.MEAN
        sums, count = axis_sums(values, axis, wide=mean)
        total = self._group.all_reduce(combine(ReduceOp.SUM, sums))
        if not mean:
            return total
        counts = self._group.all_reduce(np.array([count], np.int64))
        return divided(total, int(counts[0]), values[0].dtype)

    def gather_to_host(self, value: DistributedValues, axis: int) -> Any:
        """Values of the replicas of all workers put together."""
        local = concatenate([to_host(part) for part in value.values], axis)
        # The ring gathers along the first axis.
        everyones = self._group.all_gather(np.moveaxis(local, axis, 0))
        return np.moveaxis(np.concatenate(everyones), 0, axis)

    def gather_to_all(
        self,
        value: DistributedValues,
        axis: int,
        options: CommunicationOptions | None,  # noqa: ARG002 - of use to another reducer
    ) -> Any:
        """Values of the replicas of all workers put together, on every replica."""
        return mirror(self.gather_to_host(value, axis), self._devices)

    def of_first_replica(self, value: DistributedValues) -> Any:
        """What the first replica of the first worker has."""
        first = value.values[0]
        if isinstance(first, IndexedSlices):
            rows = self._group.all_gather(np.asarray(first.values))[0]
            return IndexedSlices(rows, self._group.all_gather(first.indices)[0], first.dense_shape)
        return self._group.broadcast(np.asarray(to_host(first)))
