"""MultiWorkerMirroredStrategy: replicas of several workers in sync, with equal copies of the variables.

Every worker runs the program; a reduction first adds up the replicas of a worker, then goes round the ring of
workers (``collectives``).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...cluster.resolved import ResolvedTask, resolve
from ...cluster.resolver import ClusterResolver
from ...cluster.roles import CHIEF, PS, WORKER, ps_of
from ...cluster.tf_config import TFConfigClusterResolver
from ...collectives.group import CollectiveGroup
from ...collectives.nccl import DTYPES as NCCL_DTYPES
from ...collectives.nccl import NcclLink, nccl_available
from ...core.arrays import DType, is_float
from ...core.errors import ConfigurationError
from ...core.indexed_slices import IndexedSlices
from ...core.settings import load_settings
from ...core.task import TaskId
from ..base.arrays import as_array, is_on_gpu, to_host
from ..base.communication import CommunicationImplementation, CommunicationOptions
from ..base.devices import HOST, compute_devices, is_gpu, physical_gpu
from ..base.reductions import ReduceOp, axis_sums, combine, concatenate, divided, widened
from ..base.values import DistributedValues, PerReplica, is_variable, on_every_replica
from ..runtime import current_runtime
from ..variables.variable import VariableSpec
from .cross_device_ops import choose_cross_device_ops, devices_of, is_sparse, mirror
from .mirrored import MirroredExtended
from .packing import by_dtype, join, packs_to_send, split
from .strategy import Strategy


class MultiWorkerMirroredStrategy(Strategy):
    """As ``tf.distribute.MultiWorkerMirroredStrategy``.

    Every worker runs the program, with its own ``TF_CONFIG``; making the strategy waits for the others.

    Args:
        cluster_resolver: Where the cluster comes from; None: TF_CONFIG, or this process alone.
        communication_options: Packing, timeout and implementation of collective operations.

    Raises:
        ConfigurationError: The cluster has parameter servers, or this process is no worker of it; or NCCL
            is asked for and a replica has no GPU, or CuPy no NCCL.
        JoinTimeoutError: A worker did not come.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        runtime = current_runtime()
        given = cluster_resolver if cluster_resolver is not None else TFConfigClusterResolver()
        if runtime is not None and not runtime.alone:
            task = runtime.task
        else:
            task = resolve(given, source=_source(given))
        self._resolver = given
        options = communication_options or CommunicationOptions()
        super().__init__(MultiWorkerExtended(self, task, options))

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """As given, or of TF_CONFIG."""
        return self._resolver

    def close(self) -> None:
        """Leave the ring. A process that ends leaves it, too."""
        self._extended_group.close()

    @property
    def _extended_group(self) -> CollectiveGroup:
        extended = self.extended
        assert isinstance(extended, MultiWorkerExtended)  # noqa: S101 - made above
        return extended.group


CollectiveAllReduceStrategy = MultiWorkerMirroredStrategy


def _source(resolver: ClusterResolver) -> str:
    return "TF_CONFIG" if isinstance(resolver, TFConfigClusterResolver) else type(resolver).__name__


class MultiWorkerExtended(MirroredExtended):
    """The algorithms of :class:`MultiWorkerMirroredStrategy`."""

    def __init__(
        self, strategy: Strategy, task: ResolvedTask, options: CommunicationOptions
    ) -> None:
        if ps_of(task.spec) or task.task.type == PS:
            raise ConfigurationError(
                f"{task.task}: MultiWorkerMirroredStrategy has no use for parameter servers; take `ps` "
                "out of the "
                "cluster, or use ParameterServerStrategy",
                task=task.task,
            )
        if task.task.type not in (CHIEF, WORKER):
            raise ConfigurationError(
                f"{task.task} is no worker of the cluster, so it is not in sync with them; evaluate "
                "under MirroredStrategy, or without a strategy",
                task=task.task,
            )
        runtime = current_runtime()
        self._options = options
        self.group = CollectiveGroup(
            task,
            runtime.settings if runtime is not None else load_settings(),
            timeout_s=options.timeout_seconds,
            still_wanted=runtime.check if runtime is not None else lambda: None,
        )
        devices = compute_devices()
        self._nccl: NcclLink | None = None
        with_nccl = options.implementation is CommunicationImplementation.NCCL
        if with_nccl and not (all(map(is_gpu, devices)) and nccl_available()):
            raise ConfigurationError(
                f"{task.task}: implementation=NCCL needs a GPU for every replica and CuPy with NCCL, and the "
                f"replicas' devices are {', '.join(devices)}; use RING",
                task=task.task,
            )
        super().__init__(
            strategy,
            devices,
            choose_cross_device_ops(devices),
            first_replica=self.group.rank * len(devices),
        )
        try:
            self._join(task.task, len(devices))
            if with_nccl and self.group.size > 1:
                self._nccl = NcclLink(self.group, physical_gpu(devices[0]))
        except BaseException:
            self.group.close()  # nobody else has it, and its port is taken
            raise

    def _join(self, task: TaskId, devices: int) -> None:
        """Form the ring, of workers with as many devices each."""
        self.group.open()
        counts = self.group.all_gather(np.array([devices]))
        if any(int(count[0]) != devices for count in counts):
            shown = ", ".join(
                f"{member.short}: {int(count[0])}"
                for member, count in zip(self.group.members, counts, strict=True)
            )
            raise ConfigurationError(
                f"{task}: every worker needs the same number of devices ({shown})", task=task
            )

    # -- what there is -----------------------------------------------------------------------

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas of all workers."""
        return len(self._devices) * self.group.size

    @property
    def num_input_pipelines(self) -> int:
        """Workers."""
        return self.group.size

    @property
    def input_pipeline_id(self) -> int:
        """This worker's number."""
        return self.group.rank

    @property
    def experimental_between_graph(self) -> bool:
        """Every worker runs the program."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Saving is done together; the first worker writes."""
        return self.group.rank == 0

    @property
    def should_save_summary(self) -> bool:
        """The first worker does."""
        return self.group.rank == 0

    def any_worker(self, mine: bool) -> bool:
        """Whether it is so on any worker; every one of them must ask."""
        return bool(self.group.all_reduce(np.array([mine], np.int64))[0])

    # -- variables ---------------------------------------------------------------------------

    def _first_value(self, spec: VariableSpec) -> Any:
        """The first worker's, so that random ones agree."""
        return self.group.broadcast(np.asarray(super()._first_value(spec), spec.dtype))

    # -- reducing ----------------------------------------------------------------------------

    def differs(self, value: Any) -> bool:
        """With one replica per worker ``run`` returns its value as it is: each worker has another one."""
        if isinstance(value, DistributedValues) or is_variable(value):
            return super().differs(value)
        return len(self._devices) == 1 and self.group.size > 1

    def _reduce_to(
        self,
        op: ReduceOp,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None,
    ) -> Any:
        if not self.differs(value):
            return super()._reduce_to(op, value, destinations, options)
        return self._batch_reduce_to(op, [(value, destinations)], options)[0]

    def _batch_reduce_to(
        self,
        op: ReduceOp,
        pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        chosen = self._options.merge(options)
        ring = chosen.implementation is CommunicationImplementation.RING
        nccl = None if ring else self._nccl
        results: list[Any] = [None] * len(pairs)
        dense: list[tuple[int, Any]] = []
        kinds: dict[int, DType] = {}
        for number, (value, where) in enumerate(pairs):
            if not self.differs(value):
                results[number] = super()._reduce_to(op, value, where, options)
                continue
            parts = on_every_replica(value, 1)
            if op is ReduceOp.MEAN and not is_sparse(parts):
                arrays = [as_array(part) for part in parts.values]
                kinds[number] = arrays[0].dtype
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
                    reduced = total.astype(kind, copy=False) if is_float(kind) else total
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
                    total /= self.num_replicas_in_sync
            return total
        return self.group.all_reduce(
            flat,
            divisor=self.num_replicas_in_sync if op is ReduceOp.MEAN else None,
            timeout_s=options.timeout_seconds,
        )

    def _gather_slices(
        self, op: ReduceOp, local: IndexedSlices, options: CommunicationOptions
    ) -> IndexedSlices:
        timeout_s = options.timeout_seconds
        rows = np.concatenate(self.group.all_gather(np.asarray(local.values), timeout_s=timeout_s))
        indices = np.concatenate(self.group.all_gather(local.indices, timeout_s=timeout_s))
        if op is ReduceOp.MEAN:
            rows = divided(rows, self.num_replicas_in_sync, rows.dtype)
        return IndexedSlices(rows, indices, local.dense_shape)

    def reduce_over(self, op: ReduceOp, value: DistributedValues, axis: Any) -> Any:
        """``strategy.reduce`` of one value, to the host of every worker."""
        if axis is None:
            return self._reduce_to(op, value, HOST, None)
        mean = op is ReduceOp.MEAN
        values = [to_host(part) for part in value.values]
        sums, count = axis_sums(values, axis, wide=mean)
        total = self.group.all_reduce(combine(ReduceOp.SUM, sums))
        if not mean:
            return total
        counts = self.group.all_reduce(np.array([count], np.int64))
        return divided(total, int(counts[0]), as_array(values[0]).dtype)

    def gather_to_host(self, value: DistributedValues, axis: int) -> Any:
        """Values of the replicas of all workers put together."""
        local = concatenate([to_host(part) for part in value.values], axis)
        # The ring gathers along the first axis.
        everyones = self.group.all_gather(np.moveaxis(local, axis, 0))
        return np.moveaxis(np.concatenate(everyones), 0, axis)

    def gather_to_all(
        self, value: DistributedValues, axis: int, options: CommunicationOptions | None = None
    ) -> Any:
        """Values of the replicas of all workers put together, on every replica."""
        del options
        return mirror(self.gather_to_host(value, axis), self._devices)

    def of_first_replica(self, value: DistributedValues) -> Any:
        """What the first replica of the first worker has."""
        first = value.values[0]
        if isinstance(first, IndexedSlices):
            rows = self.group.all_gather(np.asarray(first.values))[0]
            return IndexedSlices(rows, self.group.all_gather(first.indices)[0], first.dense_shape)
        return self.group.broadcast(np.asarray(to_host(first)))
