"""MultiWorkerMirroredStrategy: synchronous workers with equal copies of the variables.

Every worker runs the program; a reduction first adds up the replicas of a worker, then goes round
the ring of workers (``group.py``).
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.resolvers.resolver import ClusterResolver
from ...cluster.spec import CHIEF, PS, WORKER, ps_of, workers_of
from ...core.errors import ConfigurationError, DefinitionMismatchError
from ...core.task import TaskId
from ...distribute.base.communication import CommunicationImplementation, CommunicationOptions
from ...distribute.base.devices import compute_devices, is_gpu, physical_gpu, task_name
from ...distribute.base.moved_average import MovedAverage
from ...distribute.base.values import DistributedValues
from ...distribute.job_snapshots import JobSnapshots
from ...distribute.runtime import ClusterRuntime
from ...distribute.strategies.all_reduce import choose_cross_device_ops
from ...distribute.strategies.finite_updates import AVERAGES, DELTAS, FiniteUpdates
from ...distribute.strategies.joining import runtime_of_workers
from ...distribute.strategies.mirrored import MirroredExtended
from ...distribute.strategies.nccl_calls import nccl_available
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.spec import VariableSpec
from ...distribute.variables.variable import Variable
from .group import CollectiveGroup
from .nccl import NcclLink
from .worker_reducer import WorkersReducer


class MultiWorkerMirroredStrategy(Strategy):
    """A strategy like ``tf.distribute.MultiWorkerMirroredStrategy``.

    Every worker runs the program, with its own ``TF_CONFIG``; making the strategy waits for the
    others.

    Args:
        cluster_resolver: Source of the cluster; None: TF_CONFIG, the launcher, or this process
            alone.
        communication_options: Packing, timeout and implementation of collective operations.
        runtime: Runtime of the task that makes the strategy; None: that of the program's cluster.

    Raises:
        ConfigurationError: The cluster has parameter servers, or this process is no worker of it,
            or it lists only a part of the workers; or NCCL is asked for and a replica has no GPU,
            or CuPy no NCCL.
        JoinTimeoutError: A worker did not join in time.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        runtime: ClusterRuntime | None = None,
    ) -> None:
        runtime = runtime_of_workers(runtime, cluster_resolver)
        self._resolver = cluster_resolver or runtime.task.resolver
        self._multi_worker = MultiWorkerExtended(
            self, runtime, communication_options or CommunicationOptions()
        )
        super().__init__(self._multi_worker)

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """Resolver that the constructor was given, or of the task that runs the program."""
        return self._resolver

    @property
    def global_step(self) -> int:
        """Steps that changed variables, the same on all workers; a job that resumes goes on
        counting.
        """
        return self._multi_worker.steps.global_step

    def close(self) -> None:
        """Leave the ring. A process that ends leaves it, too."""
        self._multi_worker.close()


CollectiveAllReduceStrategy = MultiWorkerMirroredStrategy
_SAVES = "saves, resumes from "  # what the first worker tells the others


def _require_whole(task: ResolvedTask) -> None:
    """Refuse a cluster that does not list all workers: each would train with others, or alone."""
    indices = [member.index for member in workers_of(task.spec) if member.type == WORKER]
    alone = len(workers_of(task.spec)) < 2
    if task.dynamic and (alone or indices != list(range(len(indices)))):
        listed = ", ".join(member.short for member in workers_of(task.spec)) or "none"
        raise ConfigurationError(
            f"{task.task}: this TF_CONFIG is of a dynamic job and lists only a part of the workers "
            f"({listed}); those of MultiWorkerMirroredStrategy wait for each other in every step, "
            "so each needs the whole list. Give it (TFJob: without enableDynamicWorker), or use "
            "ParameterServerStrategy",
            task=task.task,
        )


class ExperimentalMultiWorkerMirroredStrategy(MultiWorkerMirroredStrategy):
    """A strategy like ``tf.distribute.experimental.MultiWorkerMirroredStrategy``, with its
    arguments.

    Args:
        communication: Carrier of collective operations.
        cluster_resolver: Source of the cluster; None: TF_CONFIG, the launcher, or this process
            alone.

    Raises:
        ConfigurationError: See :class:`MultiWorkerMirroredStrategy`.
        JoinTimeoutError: A worker did not join in time.
    """

    def __init__(
        self,
        communication: CommunicationImplementation = CommunicationImplementation.AUTO,
        cluster_resolver: ClusterResolver | None = None,
    ) -> None:
        super().__init__(cluster_resolver, CommunicationOptions(implementation=communication))


class MultiWorkerExtended(MirroredExtended):
    """The algorithms of :class:`MultiWorkerMirroredStrategy`."""

    def __init__(
        self, strategy: Strategy, runtime: ClusterRuntime, options: CommunicationOptions
    ) -> None:
        task = runtime.task
        if ps_of(task.spec) or task.task.type == PS:
            raise ConfigurationError(
                f"{task.task}: MultiWorkerMirroredStrategy has no use for parameter servers; take "
                "`ps` out of the cluster, or use ParameterServerStrategy",
                task=task.task,
            )
        if task.task.type not in (CHIEF, WORKER):
            raise ConfigurationError(
                f"{task.task} is no worker of the cluster, so it is not in sync with them; "
                "evaluate under MirroredStrategy, or without a strategy",
                task=task.task,
            )
        _require_whole(task)
        self._job: JobSnapshots | None = None
        self._finite = FiniteUpdates(runtime)
        self._finite_deltas = FiniteUpdates(runtime, DELTAS)
        self._finite_averages = FiniteUpdates(runtime, AVERAGES)
        self._refused = False  # the gradients of the step, or what was made of them
        self.group = CollectiveGroup(
            task,
            runtime.settings,
            timeout_s=options.timeout_seconds,
            still_wanted=runtime.job.check,
            clock=runtime.progress.clock,
        )
        devices = compute_devices()
        with_nccl = options.implementation is CommunicationImplementation.NCCL
        if with_nccl and not (all(map(is_gpu, devices)) and nccl_available()):
            raise ConfigurationError(
                f"{task.task}: implementation=NCCL needs a GPU for every replica and CuPy with "
                f"NCCL, and the replicas' devices are {', '.join(devices)}; use RING",
                task=task.task,
            )
        reducer = WorkersReducer(devices, choose_cross_device_ops(devices), self.group, options)
        first = self.group.rank * len(devices)
        super().__init__(
            strategy, devices, first_replica=first, reducer=reducer, progress=runtime.progress
        )
        if task.spec:
            self.task_name = task_name(task.task.type, task.task.index)
        # Every worker runs the program and takes part in saving; the first one writes.
        self.experimental_between_graph = True
        self.should_checkpoint = self.should_save_summary = self.group.rank == 0
        try:
            self._join(task.task, len(devices))
            self._join_job(runtime.snapshots or JobSnapshots())
            if with_nccl and self.group.size > 1:
                reducer.use_nccl(NcclLink(self.group, physical_gpu(devices[0])))
        except BaseException:
            self.group.close()  # no caller gets it, and it holds a port
            raise

    def shown(self) -> dict[str, Any]:
        """Describe which worker of how many it is, too."""
        return {"worker": self.group.rank, "workers": self.group.size, **super().shown()}

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

    def _join_job(self, job: JobSnapshots) -> None:
        """Let the job save the variables, if the first worker's task does so."""
        saves = self.group.rank == 0 and job.offer()
        said = self.group.from_first(f"{_SAVES}{job.restore_from}" if saves else "")
        if said:
            self._job = job
            self.steps.join(job, self.group, said.removeprefix(_SAVES))
        elif self.group.size > 1:
            self.steps.join_workers(self.group)

    def close(self) -> None:
        """Leave the ring; before it, take what the job saves at its end."""
        if self._job is not None and sys.exc_info()[1] is None and self.group.is_open:
            self._job.end(together=True)
        self.group.close()

    # -- what there is -----------------------------------------------------------------------

    @property
    def num_input_pipelines(self) -> int:
        """Workers."""
        return self.group.size

    @property
    def input_pipeline_id(self) -> int:
        """Number of this worker."""
        return self.group.rank

    def any_worker(self, mine: bool) -> bool:
        """Return whether ``mine`` is true on any worker; every one of them must call this."""
        return bool(self.group.all_reduce(np.array([mine], np.int64))[0])

    def barrier(self, timeout_s: float) -> None:
        """Wait for the other workers."""
        self.group.barrier(timeout_s=timeout_s)

    # -- variables ---------------------------------------------------------------------------

    def apply_gradients(self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> None:
        """Apply gradients as other strategies do; those with NaN or infinity change nothing on any
        worker.

        Raises:
            NonFiniteGradientError: So many steps in a row are refused that the model has diverged.
        """
        reduced = {
            variable.name: each.values[0] if isinstance(each, DistributedValues) else each
            for each, variable in pairs
        }
        self._refused = self._finite.refuses(reduced, self.steps.global_step)
        if not self._refused:
            super().apply_gradients(optimizer, pairs)

    def move_averages(self, moves: Sequence[tuple[Variable, MovedAverage]]) -> None:
        """Move averages as other strategies do; not in a step that was refused, or if they have NaN
        or infinity.

        Raises:
            NonFiniteGradientError: So many steps in a row are refused that the model has diverged.
        """
        if self._refused:
            return
        after = {variable.name: moved.after for variable, moved in moves}
        if not self._finite_averages.refuses(after, self.steps.global_step):
            super().move_averages(moves)

    def refuses_deltas(self, deltas: Mapping[str, Any]) -> bool:
        """Return whether deltas hold NaN or infinity."""
        self._refused = self._finite_deltas.refuses(deltas, self.steps.global_step)
        return self._refused

    def _first_value(self, spec: VariableSpec) -> Any:
        """Take the first worker's value, so that random ones agree.

        Raises:
            DefinitionMismatchError: Workers define the variable differently.
        """
        mine = np.asarray(super()._first_value(spec), spec.dtype)
        said = self.group.agree(f"{spec.name!r} as {mine.dtype.name}{list(mine.shape)}")
        if len(set(said)) > 1:
            shown = ", ".join(
                f"{member.short} {one}"
                for member, one in zip(self.group.members, said, strict=True)
            )
            raise DefinitionMismatchError(
                f"workers create different variables: {shown}; every worker must run the same "
                "program and create the same variables, in the same order",
                variable=spec.name,
            )
        return self.group.broadcast(mine)
