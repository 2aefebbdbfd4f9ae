"""ParameterServerStrategy: variables on parameter servers, asynchronous between workers.

A step is one ``strategy.run``: it begins with the values of one pull, ends with one push of
everything its optimizers were given, and the same round trip brings the values for the next step.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from ...client.ps.snapshot import PsSnapshot
from ...client.ps.step import Advance, Step, Write
from ...cluster.placement import PartitionFunction, Placement, greedy_by_bytes
from ...cluster.resolvers.resolver import ClusterResolver
from ...cluster.spec import CHIEF, EVALUATOR, WORKER, counted, ps_of, workers_of
from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.rules.definitions import ShardDefinition
from ...core.wire.steps import Operation, WireFormat
from ..base.contexts import is_running
from ..base.devices import HOST, compute_devices, task_name
from ..base.interface import Arguments, Keywords, Updates
from ..base.moved_average import MovedAverage
from ..base.reductions import clip_norm
from ..runtime import ClusterRuntime
from ..variables.parameter_server import (
    OPERATIONS,
    PsShardedVariable,
    PsVariable,
    ps_device,
)
from ..variables.spec import VariableSpec
from ..variables.variable import Variable
from .created_variables import CreatedVariables
from .extended import StrategyExtended
from .finite_updates import DELTAS, FiniteUpdates
from .joining import runtime_with_servers
from .server_step import ServerStep
from .server_tables import ServerTables
from .steps_alone import StepsAlone
from .strategy import Strategy

log = logging.getLogger(__name__)

_AS_IT_IS = WireFormat()


class ParameterServerStrategy(Strategy):
    """A strategy like ``tf.distribute.ParameterServerStrategy``, with a program per worker as in
    its first form.

    Every worker runs the program; variables are created by the chief and found by the others;
    gradients are applied on the servers as they arrive. Started by ``ropewalk run`` or ``ropewalk
    local`` it uses their cluster. Started by plain ``python`` the process joins the cluster of
    ``TF_CONFIG`` here; a ps serves until the job is over, and ends. Without a cluster the process
    is all of it.

    Args:
        cluster_resolver: Source of the cluster; None: TF_CONFIG, the launcher, or this process
            alone.
        variable_partitioner: Cuts variables into shards along axis 0; see ``partitioners``.
        placement: Function that chooses a ps for each shard: ``greedy_by_bytes`` (default) or
            ``round_robin``.
        wire_format: Format that leaves something out on the way over the network: narrower dtypes,
            small gradient elements.
        prefetch: Do not wait for the push at the end of a step: the next step begins with the
            values that arrived meanwhile, which lack this worker's own last update. Hides the time
            on the way behind the program's; the staleness in the status counts it.
        runtime: Runtime of the task that makes the strategy; None: that of the program's cluster.

    Raises:
        ConfigurationError: The cluster is not valid, or has no ps.
        JoinTimeoutError: The other tasks did not answer.
        ValueError: ``cluster_resolver`` names another cluster than this process is in, or another
            task than it runs as.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        variable_partitioner: PartitionFunction | None = None,
        *,
        placement: Placement = greedy_by_bytes,
        wire_format: WireFormat = _AS_IT_IS,
        prefetch: bool = False,
        runtime: ClusterRuntime | None = None,
    ) -> None:
        runtime = runtime_with_servers(runtime, cluster_resolver)
        self._resolver = cluster_resolver or runtime.task.resolver
        if runtime.task.task.type != EVALUATOR:
            runtime.session.wire_format = wire_format
        self._ps = ParameterServerExtended(
            self, runtime, variable_partitioner, placement, prefetch=prefetch
        )
        self.replicas_of_workers: Callable[[], int] | None = None  # where a coordinator has some
        self.replicas_read: int | None = None  # by the program, before there was a coordinator
        super().__init__(self._ps)

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are aggregated in one step: the devices of this worker.

        Once the strategy has a ``ClusterCoordinator`` they are those of each worker, as the workers
        compute then; it waits for the first one of them.

        Raises:
            ConfigurationError: The workers do not have the same number of devices.
            JoinTimeoutError: No worker came within join_timeout_s.
        """
        if self.replicas_of_workers is not None:
            return self.replicas_of_workers()
        self.replicas_read = self._ps.num_replicas_in_sync
        return self.replicas_read

    @property
    def extended(self) -> "ParameterServerExtended":
        """The algorithms."""
        return self._ps

    @property
    def cluster_resolver(self) -> ClusterResolver:
        """Resolver that the constructor was given, or of the task that runs the program."""
        return self._resolver

    @property
    def global_step(self) -> int:
        """Steps of all workers that the servers had applied when this worker last asked."""
        return self._ps.runtime.session.global_step

    def snapshot(self, timeout_s: float = 30.0) -> PsSnapshot:
        """Take a snapshot of all variables on the servers at one moment, while the workers train
        on.

        Each worker's steps are in the values up to one number: all of them, whichever servers they
        went to, and none beyond. All steps that this task has made are among them. Reading
        variables one after the other, or a checkpoint of a program's own, has no such moment.

        Pushes of the workers wait for a round trip and for the steps that are under way, at most
        ``cut_hold_s``; reading them holds up no worker. A server keeps what changes before it is
        read: at most its values once more.

        Args:
            timeout_s: Time to try again if a worker stands still at that moment, comes or leaves,
                or another snapshot or a checkpoint is being taken. Unit: seconds.

        Raises:
            CutVoidError: It could not be had in time; training goes on.
            ConfigurationError: This task has no session with servers.
        """
        return self._ps.snapshot(timeout_s)


class ParameterServerExtended(StrategyExtended):
    """Algorithms of :class:`ParameterServerStrategy`. Thread-safe over a step's replicas.

    Attributes:
        created: The program's variables.
        tables: Rows of embeddings' tables.
    """

    tables: ServerTables
    divides_input = False  # as in TensorFlow, each goes through all of its dataset

    def __init__(
        self,
        strategy: Strategy,
        runtime: ClusterRuntime,
        partitioner: PartitionFunction | None,
        placement: Placement,
        *,
        prefetch: bool,
    ) -> None:
        super().__init__(strategy, compute_devices())
        self.runtime = runtime
        runtime.progress.replicas = len(self.replica_devices)
        if runtime.task.spec:
            self.task_name = task_name(runtime.task.task.type, runtime.task.task.index)
        # Every worker runs the program; the chief creates variables and writes.
        self.experimental_between_graph = True
        self.experimental_should_init = runtime.task.is_chief
        self.should_checkpoint = self.should_save_summary = runtime.task.is_chief
        self._lock = threading.RLock()
        self.created = CreatedVariables(runtime, partitioner, placement, self._lock)
        self._step = ServerStep(runtime, prefetch=prefetch)
        self._prefetch = prefetch
        self._finite_deltas = FiniteUpdates(runtime, DELTAS)
        self._alone = StepsAlone(
            strategy,
            runtime,
            self._step,
            self._lock,
            define=self.created.define,
            bind=self.created.bind,
        )
        self._refused = False  # the deltas of the step
        self.tables = ServerTables(
            runtime,
            len(self.replica_devices),
            self._step,
            self.created,
            self._lock,
            self.unique_name,
            prefetch=prefetch,
        )
        self.assign_in_step: Callable[[str, Array], bool] = self._step.assign_in_step

    def shown(self) -> dict[str, Any]:
        """Describe the task and its cluster, too."""
        task = self.runtime.task
        of_cluster = {"task": task.task.short, "cluster": counted(task.spec)} if task.spec else {}
        return {**of_cluster, **super().shown()}

    @property
    def batch_devices(self) -> tuple[str, ...]:
        """The host, where a step has the servers' values: any framework takes both from there."""
        return (HOST,) * len(self.replica_devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The parameter servers."""
        tasks = ps_of(self.runtime.task.spec)
        return tuple(ps_device(task.index) for task in tasks) or (ps_device(0),)

    @property
    def num_input_pipelines(self) -> int:
        """Tasks that train; an evaluator has all of its input for itself."""
        task, spec = self.runtime.task.task, self.runtime.task.spec
        return 1 if task.type == EVALUATOR else max(1, len(workers_of(spec)))

    @property
    def input_pipeline_id(self) -> int:
        """Number of this task's pipeline among all, the chief first."""
        task, spec = self.runtime.task.task, self.runtime.task.spec
        if task.type == EVALUATOR:
            return 0
        ahead = spec.num_tasks(CHIEF) if task.type == WORKER and CHIEF in spec.jobs else 0
        return task.index + ahead

    @property
    def shuffles_input(self) -> bool:
        """Not on an evaluator: what it measures does not depend on an order."""
        return self.runtime.task.task.type != EVALUATOR

    def barrier(self, timeout_s: float) -> None:
        """Wait for the other tasks that run the program, with this one's pushes applied."""
        with self._lock:
            self.created.define()
            self._step.finish()
        self.runtime.job.barrier(timeout_s)

    # -- variables ---------------------------------------------------------------------------

    def create_variable(self, spec: VariableSpec) -> PsVariable:
        """Note a variable; the servers hear of it with its neighbours, when the scope ends."""
        with self._lock:
            near = self._colocated[-1] if self._colocated else None
            parts = self.created.parts_of(spec) if near is None else 1
            kind = PsShardedVariable if parts > 1 else PsVariable
            name = self.unique_name(spec.name)
            variable = kind(spec.with_parts(parts), name, self._strategy, self)
            self.created.note(variable, near)
            return variable

    def find_variable(self, spec: VariableSpec, name: str, *, sharded: bool) -> PsVariable:
        """Find a variable that another task created, as that task describes it."""
        kind = PsShardedVariable if sharded else PsVariable
        with self._lock:
            variable = kind(spec, name, self._strategy, self)
            self.created.note(variable)
            return variable

    def shards_of(self, variable: PsVariable) -> list[tuple[int, ShardDefinition]]:
        """List the shards in order, as (index of the ps, shard)."""
        with self._lock:
            self.created.define()
            return self.runtime.session.variables.shards(variable.name)

    def scope_left(self) -> None:
        """Define what was created: errors show where the model is built."""
        self.created.define()

    def read(self, variable: PsVariable) -> Array:
        """Read the value: of this step's pull inside ``run``, current outside."""
        with self._lock:
            self.created.define()
            return self._step.read(variable._name, self.created.small)

    def snapshot(self, timeout_s: float) -> PsSnapshot:
        """See :meth:`ParameterServerStrategy.snapshot`."""
        session = self.runtime.session
        with self._lock:
            self.created.define()
            self._step.finish()
        if (taken := self.runtime.job.snapshot(timeout_s)) is not None:
            return taken
        names = self.created.names
        values = session.step(Step(reads=names)).values if names else {}
        return PsSnapshot(dict(values), session.global_step, {})

    def read_all(self, variables: Sequence[Variable], *, arrived: bool = False) -> list[Any]:
        """Read the values of several variables, outside of ``run`` by one round trip at most."""
        with self._lock:
            self.created.define()
            if is_running(self._strategy):
                return super().read_all(variables)
            return self._step.read_all([v.name for v in variables], arrived=arrived)

    def read_applied(self, variables: Sequence[Variable]) -> list[Any]:
        """Read by one round trip, which pushes what the step has collected."""
        with self._lock:
            self.created.define()
            return list(self._step.read_applied([variable.name for variable in variables]))

    def same_step(self) -> AbstractContextManager[None]:
        """Let the servers count its pushes no more."""
        return self._step.count.joined()

    def will_read(self, variables: Sequence[Variable]) -> None:
        """Have the push at the end of this step bring these values."""
        with self._lock:
            self._step.will_read([variable.name for variable in variables])

    def apply_and_read(
        self,
        updates: Updates,
        reads: Sequence[Variable],
        averages: Sequence[tuple[Variable, MovedAverage]] = (),
        *,
        added: Sequence[tuple[Variable, Any]] = (),
        assigned: Sequence[tuple[Variable, Any]] = (),
    ) -> list[Any]:
        """Apply and read by one round trip, and no replica: a step of bridges is often shorter than
        to run one.
        """
        self.runtime.job.check()
        names = [variable.name for variable in reads]
        with self._lock:
            self.created.define()
            step = self._step
            if not (added or assigned):
                values = self._alone.apply_and_read(updates, reads, _changed(averages))
                if values is not None:
                    return values
            step.begin()
            self._refused = False
            try:
                step.will_read(names)
                for optimizer, pairs in updates:
                    self.apply_gradients(optimizer, pairs)
                self.move_averages(averages)
                step.add_last([*_writes("assign_add", added), *_writes("assign", assigned)])
            except BaseException:
                step.end(push=False)
                raise
            step.end(push=True)
            return step.read_all(names, arrived=True)

    @property
    def alone(self) -> StepsAlone | None:
        """Steps of this process if it has the only ps; None: it has not, or a step begins with
        older values.
        """
        return None if self.runtime.in_process is None or self._prefetch else self._alone

    def read_rows(self, variable: PsVariable, indices: Array) -> Array:
        """Read rows of a variable, as they are now."""
        with self._lock:
            self.created.define()
            self._step.settle(variable.name)
            return self.runtime.session.rows.lookup(variable.name, indices)

    def write(
        self, variable: PsVariable, operation: Operation, value: Array | IndexedSlices
    ) -> None:
        """Assign or add on the servers: in ``run`` with the step's push, outside at once."""
        with self._lock:
            self.created.define()
            at_once = not is_running(self._strategy)  # another thread's may be under way
            self._step.write(variable._name, operation, value, at_once=at_once)

    # -- steps -------------------------------------------------------------------------------

    def advance_with(self, advance: Callable[[], Advance | None] | None) -> None:
        """Have each push of the program advance what ``advance`` returns (ADR 114); None: none."""
        with self._lock:
            self._step.advance_with(advance)

    def wait_for_push(self) -> None:
        """Wait until what the program has pushed is applied."""
        with self._lock:
            self._step.wait()

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Arguments = (), kwargs: Keywords = None
    ) -> Any:
        """Make a step: pull, run, push."""
        self.runtime.job.check()
        with self._lock:
            self.created.define()
            self._step.begin(only_replica=len(self.replica_devices) == 1)
            self._refused = False
        try:
            result = super().call_for_each_replica(fn, args, kwargs)
        except BaseException:
            with self._lock:
                self._step.end(push=False)
            raise
        with self._lock:
            self.created.define()  # the step may have made and assigned some
            self._step.end(push=True)
        return result

    def move_averages(self, moves: Sequence[tuple[Variable, MovedAverage]]) -> None:
        """Push what this step adds to the servers' averages, with its gradients."""
        moves = _changed(moves)
        if not moves or self._refused:
            return
        by_decay: dict[float, dict[str, Array]] = {}
        for variable, moved in moves:
            by_decay.setdefault(moved.decay, {})[variable.name] = moved.added()
        with self._lock:
            self.created.define()
            self._step.add_writes(
                [Write(Operation.ASSIGN_ADD, added, decay) for decay, added in by_decay.items()]
            )

    def last_write_counts(self, variables: Iterable[Variable]) -> None:
        """Keep silent about writes to some variables that are lost: the last one counts."""
        self._step.lost_writes.expect(variable.name for variable in variables)

    def as_one_step(self) -> AbstractContextManager[None]:
        """See :meth:`StrategyExtended.as_one_step`."""
        return self._step.count.as_one()

    def refuses_deltas(self, deltas: Mapping[str, Any]) -> bool:
        """Return whether deltas hold NaN or infinity."""
        self._refused = self._finite_deltas.refuses(deltas, self.runtime.session.global_step)
        return self._refused

    def apply_gradients(self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> None:
        """Put gradients into this step's push; outside ``run``, push them now.

        Raises:
            ValueError: A variable was created outside this strategy's scope.
        """
        with self._lock:
            self.created.define()
            batches: list[dict[str, Array | IndexedSlices]] = [{}]
            for given, variable in pairs:
                gradient = given if isinstance(given, IndexedSlices) else to_host(given)
                if not isinstance(variable, PsVariable) or variable._strategy is not self._strategy:
                    raise ValueError(
                        f"{variable.name!r} was created outside this strategy's scope; create it "
                        "in `with strategy.scope():`"
                    )
                # A second update of a variable is a push of its own.
                name = variable._name
                if name in batches[0]:
                    batches.append({name: gradient})
                else:
                    batches[0][name] = gradient
            self.created.bind(optimizer, [variable for _, variable in pairs])
            session, current = self.runtime.session, optimizer.current
            if (limit := current.clipnorm) is not None:
                batches = [
                    {name: clip_norm(gradient, limit) for name, gradient in batch.items()}
                    for batch in batches
                ]
            changes = optimizer.hyperparameters(lambda: session.global_step)
            self._step.add(
                [
                    Write(Operation.APPLY, batch, 0.0, current.global_clipnorm, changes)
                    for batch in batches
                ]
            )

    def iterations(self, variables: Sequence[Variable]) -> int:  # noqa: ARG002
        """Return the global step, as far as this worker knows."""
        return self.runtime.session.global_step


def _writes(method: str, values: Iterable[tuple[Variable, Any]]) -> Iterator[Write]:
    sent: dict[str, Array | IndexedSlices] = {}
    for variable, value in values:
        if not isinstance(variable, PsVariable):
            raise TypeError(f"{variable.name!r} is no variable of parameter servers")
        sent[variable.name] = variable.as_sent(method, value)
    if sent:
        yield Write(OPERATIONS[method], sent)


def _changed(
    moves: Sequence[tuple[Variable, MovedAverage]],
) -> list[tuple[Variable, MovedAverage]]:
    """Drop averages of layers that have not computed in the step."""
    # A comparison by NumPy takes ten times as long.
    return [(v, each) for v, each in moves if each.after.tobytes() != each.before.tobytes()]
