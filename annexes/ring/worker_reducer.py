"""Reductions over several synchronous workers: first on each worker, then round their ring."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...core.arrays.any_framework import as_array, beside, is_on_gpu, to_host
from ...core.arrays.dtypes import DType
from ...core.arrays.indexed_slices import IndexedSlices
from ...distribute.base.communication import CommunicationImplementation, CommunicationOptions
from ...distribute.base.devices import HOST
from ...distribute.base.reductions import (
    ReduceOp,
    axis_sums,
    combine,
    concatenate,
    divided,
    mean_dtype,
    widened,
)
from ...distribute.base.values import DistributedValues, PerReplica, is_variable, on_every_replica
from ...distribute.strategies.cross_device_ops import CrossDeviceOps, devices_of, is_sparse, mirror
from ...distribute.strategies.nccl_calls import NCCL_DTYPES
from ...distribute.strategies.packing import by_dtype, join, packs_to_send, split
from ...distribute.strategies.reducer import Reducer, ValuesAndPlaces
from .group import CollectiveGroup
from .nccl import NcclLink


class WorkersReducer(Reducer):
    """Reductions over the replicas of all workers; every one of them makes the same calls.

    Args:
        devices: Devices of this worker's replicas, one each; every worker has as many.
        cross_device_ops: Reduction of values of several of them to one.
        group: The workers.
        options: Options for calls that give none.
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
        """Return whether a value differs, also a plain one, with one replica per worker: ``run``
        returns that unwrapped.
        """
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
        dense: list[_LocalSums] = []
        for number, (value, where) in enumerate(pairs):
            if not self.differs(value):
                results[number] = super().reduce(op, value, where, options)
                continue
            local = self._local_sum(op, number, value, nccl, options)
            if isinstance(local.total, IndexedSlices):
                total = self._gather_slices(op, local.total, chosen)
                results[number] = mirror(total, devices_of(where))
            else:
                dense.append(local)
        for local, total in self._over_workers(op, dense, nccl, chosen):
            results[local.number] = mirror(total, devices_of(pairs[local.number][1]))
        return results

    def _local_sum(
        self,
        op: ReduceOp,
        number: int,
        value: Any,
        nccl: NcclLink | None,
        options: CommunicationOptions | None,
    ) -> "_LocalSums":
        """Sum over this worker's replicas, where it goes on from."""
        parts, kind = on_every_replica(value, 1), None
        if op is ReduceOp.MEAN and not is_sparse(parts):
            arrays = [as_array(part) for part in parts.values]
            kind = mean_dtype(arrays[0].dtype)
            parts = PerReplica([widened(array) for array in arrays])
        home = HOST if nccl is None else self._devices[0]
        total = self._cross_device_ops.reduce(ReduceOp.SUM, parts, home, options)
        if isinstance(total, IndexedSlices):
            return _LocalSums(number, total, None)
        if nccl is None or total.dtype.name not in NCCL_DTYPES:
            total = np.asarray(to_host(total))
        return _LocalSums(number, total, kind if kind is not None else total.dtype)

    def _over_workers(
        self,
        op: ReduceOp,
        dense: Sequence["_LocalSums"],
        nccl: NcclLink | None,
        options: CommunicationOptions,
    ) -> Iterator[tuple["_LocalSums", Any]]:
        """Reduce each array over the workers, packed on its way."""
        packs = [
            [dense[group[i]] for i in pack]
            for group in by_dtype([local.total for local in dense])
            for pack in packs_to_send(
                [dense[i].total.nbytes for i in group], options.bytes_per_pack
            )
        ]
        on_gpu = [pack for pack in packs if is_on_gpu(pack[0].total)]
        if nccl is not None:
            for pack, flat in zip(on_gpu, self._nccl_sums(op, on_gpu, nccl, options), strict=True):
                yield from _parts(pack, flat)
        for pack in packs:
            if not is_on_gpu(pack[0].total):
                flat = self._group.all_reduce(
                    join([local.total for local in pack]),
                    divisor=self.num_replicas if op is ReduceOp.MEAN else None,
                    timeout_s=options.timeout_seconds,
                )
                yield from _parts(pack, flat)

    def _nccl_sums(
        self,
        op: ReduceOp,
        packs: Sequence[Sequence["_LocalSums"]],
        nccl: NcclLink,
        options: CommunicationOptions,
    ) -> list[Any]:
        """Packs, each an array on this worker's GPU, over the workers; of a mean they are of
        floats.
        """
        flats = []
        for pack in packs:
            flat = join([local.total for local in pack])
            with beside(flat):
                flats.append(flat.copy() if len(pack) == 1 else flat)  # that may be the program's
        nccl.all_reduce(flats, timeout_s=options.timeout_seconds)
        if op is ReduceOp.SUM:
            return flats
        return [divided(flat, self.num_replicas, flat.dtype) for flat in flats]

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
        """Put the values of the replicas of all workers together."""
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
        """Put the values of the replicas of all workers together, on every replica."""
        return mirror(self.gather_to_host(value, axis), self._devices)

    def of_first_replica(self, value: DistributedValues) -> Any:
        """Return the value of the first replica of the first worker."""
        first = value.values[0]
        if isinstance(first, IndexedSlices):
            rows = self._group.all_gather(np.asarray(first.values))[0]
            return IndexedSlices(rows, self._group.all_gather(first.indices)[0], first.dense_shape)
        return self._group.broadcast(np.asarray(to_host(first)))


class _LocalSums(NamedTuple):
    """The sum of a value over this worker's replicas.

    Attributes:
        number: Place of the value among all.
        total: Sum of the replicas: an array, or rows.
        kind: The dtype of the result.
    """

    number: int
    total: Any
    kind: DType | None


def _parts(pack: Sequence[_LocalSums], flat: Any) -> Iterator[tuple[_LocalSums, Any]]:
    """Yield the results of a pack, each in its dtype."""
    for local, total in zip(pack, split(flat, [each.total for each in pack]), strict=True):
        with beside(total):
            reduced = total.astype(local.kind, copy=False)
        yield local, reduced
