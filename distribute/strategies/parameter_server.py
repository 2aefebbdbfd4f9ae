"""ParameterServerStrategy: variables on parameter servers, asynchronous between workers.

A step is one ``strategy.run``: it begins with the values of one pull, ends with one push of
everything its optimizers were given, and the same round trip brings the values for the next step.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from ...client.ps.ahead import PushWatcher
from ...client.ps.push_plans import Write
from ...client.ps.snapshot import PsSnapshot
from ...cluster.placement.balance import Placement, greedy_by_bytes
from ...cluster.placement.partitioners import PartitionFunction
from ...cluster.resolvers.resolver import ClusterResolver
from ...cluster.roles import CHIEF, EVALUATOR, WORKER, ps_of, workers_of
from ...cluster.spec import counted
from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array, DType
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import WindlassError
from ...core.rules.definitions import ShardDefinition, VariableDefinition
from ...core.wire.compression import WireFormat
from ...core.wire.steps import Operation
from ...telemetry.catalogue import Sample
from ..base.contexts import is_running
from ..base.devices import HOST, compute_devices, task_name
from ..base.moved_average import MovedAverage
from ..base.reductions import clip_norm
from ..base.worker_index import current_worker
from ..data.options import AutoShardPolicy
from ..runtime import ClusterRuntime
from ..variables.parameter_server import (
    OPERATIONS,
    PsShardedVariable,
    PsVariable,
    ps_device,
)
from ..variables.ps_table import PsTable
from ..variables.spec import VariableSpec
from ..variables.variable import Variable
from .created_variables import CreatedVariables
from .extended import FoundRows, StrategyExtended
from .finite_updates import DELTAS, FiniteUpdates
from .joining import runtime_with_servers
from .server_step import Gradients, ServerStep
from .step_interface import Arguments, Keywords
from .steps_alone import StepsAlone, Updates
from .strategy import Strategy

log = logging.getLogger(__name__)

_AS_IT_IS = WireFormat()
TINY_TABLE_BYTES = 16 * 1024
"""Tables with a vocabulary_size up to this come whole with a step's variables. Unit: bytes."""


class ParameterServerStrategy(Strategy):
    """As ``tf.distribute.ParameterServerStrategy``, with a program per worker as in its first form.

    Every worker runs the program; variables are created by the chief and found by the others;
    gradients are applied on the servers as they arrive. Started by ``windlass run`` or ``windlass
    local`` it uses their cluster. Started by plain ``python`` the process joins the cluster of
    ``TF_CONFIG`` here; a ps serves until the job is over, and ends. Without a cluster the process
    is all of it.

    Args:
        cluster_resolver: Where the cluster comes from; None: TF_CONFIG, the launcher, or this
            process alone.
        variable_partitioner: Cuts variables into shards along axis 0; see ``partitioners``.
        placement: Which ps gets which shard: ``greedy_by_bytes`` (default) or ``round_robin``.
        wire_format: What is left out on the way over the network: narrower dtypes, small gradient
            elements.
        prefetch: Do not wait for the push at the end of a step: the next step begins with the
            values that arrived meanwhile, which lack this worker's own last update. Hides the time
            on the way behind the program's; the staleness in the status counts it.
        runtime: Runtime of the task that makes the strategy; None: that of the program's cluster.

    Raises:
        ConfigurationError: The cluster is not valid, or has no ps.
        JoinTimeoutError: The other tasks did not answer.
        ValueError: ``cluster_resolver`` names another task than this process runs as.
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
        """As given, or of the task that runs the program."""
        return self._resolver

    @property
    def global_step(self) -> int:
        """Steps of all workers that the servers had applied when this worker last asked."""
        return self._ps.runtime.session.global_step

    def snapshot(self, timeout_s: float = 30.0) -> PsSnapshot:
        """All variables on the servers at one moment, while the workers train on.

        Each worker's steps are in the values up to one number: all of them, whichever servers they
        went to, and none beyond. All steps that this task has made are among them. Reading
        variables one after the other, or a checkpoint of a program's own, has no such moment.

        Pushes of the workers wait for a round trip and for the steps that are under way, at most
        ``cut_hold_s``; reading them holds up no worker. A server keeps what changes before it is
        read: at most its values once more.

        Args:
            timeout_s: How long it is tried again if a worker stands still at that moment, comes or
                leaves, or another snapshot or a checkpoint is being taken. Unit: seconds.

        Raises:
            CutVoidError: It could not be had in time; training goes on.
            ConfigurationError: This task has no session with servers.
        """
        return self._ps.snapshot(timeout_s)


class ParameterServerExtended(StrategyExtended):
    """Algorithms of :class:`ParameterServerStrategy`. Thread-safe over a step's replicas.

    Attributes:
        created: The program's variables.
    """

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
        runtime.progress.replicas = len(self._devices)
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
        self._delays = False  # gradients of some tables
        self.assign_in_step: Callable[[str, Array], bool] = self._step.assign_in_step

    def shown(self) -> dict[str, Any]:
        """The task and its cluster, too."""
        task = self.runtime.task
        of_cluster = {"task": task.task.short, "cluster": counted(task.spec)} if task.spec else {}
        return {**of_cluster, **super().shown()}

    @property
    def batch_devices(self) -> tuple[str, ...]:
        """The host, where a step has the servers' values: any framework takes both from there."""
        return (HOST,) * len(self._devices)

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
        """This task's number among them, the chief first."""
        task, spec = self.runtime.task.task, self.runtime.task.spec
        if task.type == EVALUATOR:
            return 0
        ahead = spec.num_tasks(CHIEF) if task.type == WORKER and CHIEF in spec.jobs else 0
        return task.index + ahead

    @property
    def default_shard_policy(self) -> AutoShardPolicy:
        """Workers are not in sync: as in TensorFlow each goes through all of its dataset."""
        return AutoShardPolicy.OFF

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
        """A variable that another task created, as that task describes it."""
        kind = PsShardedVariable if sharded else PsVariable
        with self._lock:
            variable = kind(spec, name, self._strategy, self)
            self.created.note(variable)
            return variable

    def create_table(self, definition: VariableDefinition) -> PsTable:
        """Note a growing table; the servers hear of it with its neighbours.

        Raises:
            ValueError: A closure creates it.
        """
        if current_worker.get() is not None:
            raise ValueError(
                f"a closure creates table {definition.name!r}; create it in the coordinator's "
                "program, in `with strategy.scope():`, before the closure is scheduled"
            )
        with self._lock:
            name = self.unique_name(definition.name)
            table = PsTable(replace(definition, name=name))
            self.created.note(table)
            return table

    def find_table(self, definition: VariableDefinition) -> PsTable:
        """A growing table that another task created, as that task describes it."""
        with self._lock:
            table = PsTable(definition)
            self.created.note(table)
            return table

    def shards_of(self, variable: PsVariable) -> list[tuple[int, ShardDefinition]]:
        """(index of the ps, shard), in order."""
        with self._lock:
            self.created.define()
            return self.runtime.session.shards(variable.name)

    def scope_left(self) -> None:
        """Define what was created: errors show where the model is built."""
        self.created.define()

    def read(self, variable: PsVariable) -> Array:
        """The value: of this step's pull inside ``run``, current outside."""
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
        values = session.step(pulls=names).values if names else {}
        return PsSnapshot(dict(values), session.global_step, {})

    def read_all(self, variables: Sequence[Variable], *, arrived: bool = False) -> list[Any]:
        """The values of several variables, outside of ``run`` by one round trip at most."""
        with self._lock:
            self.created.define()
            if is_running(self._strategy):
                return super().read_all(variables)
            return self._step.read_all([v.name for v in variables], arrived=arrived)

    def read_applied(self, variables: Sequence[Variable]) -> list[Any]:
        """One round trip, which pushes what the step has collected."""
        with self._lock:
            self.created.define()
            return list(self._step.read_applied([variable.name for variable in variables]))

    @contextmanager
    def same_step(self) -> Iterator[None]:
        """The servers count its pushes no more."""
        self._step.joins = True
        try:
            yield
        finally:
            self._step.joins = False

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
        """One round trip, and no replica: a step of bridges is often shorter than to run one."""
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
        """Where this process has the only ps, unless a step begins with older values."""
        return None if self.runtime.in_process is None or self._prefetch else self._alone

    def read_rows(self, variable: PsVariable, indices: Array) -> Array:
        """Rows of a variable, as they are now."""
        with self._lock:
            self.created.define()
            self._step.settle(variable.name)
            return self.runtime.session.lookup(variable.name, indices)

    def lookup_rows(self, wanted: Sequence[tuple[Variable | PsTable, Array]]) -> list[FoundRows]:
        """Rows of variables and tables as they are now, in one exchange."""
        return self.lookup_states(wanted, ())[0]

    def lookup_states(
        self,
        wanted: Sequence[tuple[Variable | PsTable, Array]],
        states: Sequence[tuple[PsTable, Array]],
    ) -> tuple[list[FoundRows], list[FoundRows]]:
        """Rows as :meth:`lookup_rows`, and rows of tables with slots and counts, in one exchange.

        In a step variables of up to ``TINY_TABLE_BYTES`` are read whole, as others that it reads,
        unless the values that it reads were asked for before its last push (``prefetch``).
        """
        with self._lock:
            self.created.define()
            found: dict[str, FoundRows] = {}
            if self._step.is_active and not self._prefetch:
                found = {v.name: (self._whole(v), i) for v, i in wanted if _comes_whole(v, i)}
            ids = {variable.name: own for variable, own in wanted if variable.name not in found}
            for name in ids:
                self._step.settle(name)
            whole: dict[str, FoundRows] = {}
            if ids:
                keys = {table.name: own for table, own in states}
                rows, whole = self.runtime.session.rows.lookup_states(ids, keys)
                found |= rows
            return (
                [found[variable.name] for variable, _ in wanted],
                [whole[table.name] for table, _ in states],
            )

    def _whole(self, variable: Variable | PsTable) -> Array:
        value = self._step.read(variable.name, self.created.small)
        return value.reshape(value.shape[0], -1)

    def look_up_ahead(
        self, wanted: Sequence[tuple[Variable | PsTable, Array]]
    ) -> Callable[[], list[FoundRows]]:
        """Look up rows for a later step, beside the one that is under way."""
        with self._lock:
            self.created.define()
        session = self.runtime.session
        ahead = session.rows.look_up_ahead({variable.name: ids for variable, ids in wanted})

        def rows() -> list[FoundRows]:
            with self._lock:
                for variable, _ in wanted:
                    self._step.settle(variable.name)
                found = session.rows.catch_up(ahead)
                return [found[variable.name] for variable, _ in wanted]

        return rows

    def set_row_dtype(self, table: Variable | PsTable, dtype: DType) -> None:
        """Have rows of a table travel in a narrower dtype between this worker and the servers."""
        if self.runtime.task.task.type != EVALUATOR:
            self.runtime.session.set_row_dtype(table.name, dtype)

    def begin_look_ahead(self, count: int) -> None:
        """Prepare for lookups by :meth:`look_up_ahead`."""
        super().begin_look_ahead(count)
        self.runtime.session.rows.keep_lookups(count + 1)

    def push_rows(self, gradients: Sequence[tuple[PsTable, IndexedSlices]]) -> None:
        """Put gradients of rows into this step's push; outside ``run``, push them now."""
        with self._lock:
            self.created.define()
            self._step.add_writes(
                [Write(table.name, Operation.APPLY, rows) for table, rows in gradients]
            )

    def watch_pushes(self, table: PsTable, watcher: PushWatcher) -> None:
        """Show gradients that this worker pushes to a growing table to a watcher."""
        if self.runtime.task.task.type != EVALUATOR:
            self.runtime.session.rows.watch_pushes(table.name, watcher)

    def delay_rows(self, table: PsTable, steps: int, max_bytes: int) -> None:
        """Have gradients of a growing table wait for some steps, and travel summed.

        Args:
            table: Its gradients are then pushed by every so many steps of this worker, when more
                waits than ``max_bytes``, in :meth:`barrier`, and at the end of the program.
            steps: At least 1.
            max_bytes: Unit: bytes.
        """
        with self._lock:
            if not self._delays:
                self.runtime.at_end.append(self._push_delayed_at_end)
            self._delays = True
            self._step.delayed.delay(table.name, steps, max_bytes)

    def push_delayed(self) -> None:
        """Push gradients of rows that wait for a later step."""
        with self._lock:
            self._step.push_delayed()

    def _push_delayed_at_end(self) -> None:
        try:
            self.push_delayed()
        except WindlassError as error:
            log.warning(
                "%s ends, and gradients of rows that waited (staleness_writes) are lost: %s",
                self.runtime.task.task,
                error,
            )

    def show_samples(self, collect: Callable[[], Iterable[Sample]]) -> None:
        """Show samples among this task's metrics."""
        self.runtime.measures.append(collect)

    def write(
        self, variable: PsVariable, operation: Operation, value: Array | IndexedSlices
    ) -> None:
        """Assign or add on the servers: in ``run`` with the step's push, outside at once."""
        with self._lock:
            self.created.define()
            at_once = not is_running(self._strategy)  # another thread's may be under way
            self._step.write(variable._name, operation, value, at_once=at_once)

    # -- steps -------------------------------------------------------------------------------

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Arguments = (), kwargs: Keywords = None
    ) -> Any:
        """One step: pull, run, push."""
        self.runtime.job.check()
        with self._lock:
            self.created.define()
            self._step.begin(only_replica=len(self._devices) == 1)
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
        add = Operation.ASSIGN_ADD
        with self._lock:
            self.created.define()
            self._step.add_writes(
                [Write(v.name, add, moved.added(), moved.decay) for v, moved in moves]
            )

    def as_one_step(self) -> AbstractContextManager[None]:
        """See :meth:`StrategyExtended.as_one_step`."""
        return self._step.as_one()

    def refuses_deltas(self, deltas: Mapping[str, Any]) -> bool:
        """Whether they hold NaN or infinity."""
        self._refused = self._finite_deltas.refuses(deltas, self.runtime.session.global_step)
        return self._refused

    def apply_gradients(self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> None:
        """Put gradients into this step's push; outside ``run``, push them now.

        Raises:
            ValueError: A variable was created outside this strategy's scope.
        """
        with self._lock:
            self.created.define()
            batches: list[Gradients] = [{}]
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
            self._step.add(batches, current.global_clipnorm, changes)

    def iterations(self, variables: Sequence[Variable]) -> int:  # noqa: ARG002
        """The global step, as far as this worker knows."""
        return self.runtime.session.global_step


def _comes_whole(variable: Variable | PsTable, ids: Array) -> bool:
    """Whether a step reads the whole variable for these rows.

    Not if it has not all of them: the session says which.
    """
    if not isinstance(variable, PsVariable) or variable.definition.num_bytes > TINY_TABLE_BYTES:
        return False
    return not ids.size or bool(ids.min() >= 0 and ids.max() < variable.definition.shape[0])


def _writes(method: str, values: Iterable[tuple[Variable, Any]]) -> Iterator[Write]:
    for variable, value in values:
        if not isinstance(variable, PsVariable):
            raise TypeError(f"{variable.name!r} is no variable of parameter servers")
        yield Write(variable.name, OPERATIONS[method], variable.as_sent(method, value))


def _changed(
    moves: Sequence[tuple[Variable, MovedAverage]],
) -> list[tuple[Variable, MovedAverage]]:
    """Averages without those of layers that have not computed in the step."""
    # A comparison by NumPy takes ten times as long.
    return [(v, each) for v, each in moves if each.after.tobytes() != each.before.tobytes()]
