"""ParameterServerStrategy: variables on parameter servers, asynchronous between workers.

A step is one ``strategy.run``: it begins with the values of one pull, ends with one push of everything
its optimizers were given, and the same round trip brings the values for the next step.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...client.ps.parameter_session import PendingStep, StepResult
from ...client.ps.plans import Push
from ...cluster.partitioners import PartitionFunction, parts_of
from ...cluster.placement import Placement, greedy_by_bytes
from ...cluster.resolved import ResolvedTask, resolve
from ...cluster.resolver import ClusterResolver
from ...cluster.roles import CHIEF, EVALUATOR, PS, WORKER, ps_of, workers_of
from ...cluster.tf_config import TFConfigClusterResolver
from ...core.arrays import Array
from ...core.definitions import ShardDefinition
from ...core.errors import ConfigurationError, NonFiniteGradientError
from ...core.finite import first_not_finite
from ...core.indexed_slices import IndexedSlices
from ...core.steps import Operation
from ...core.wire_format import WireFormat
from ..base.arrays import to_host
from ..base.devices import compute_devices
from ..base.reductions import clip_scale
from ..data.options import AutoShardPolicy
from ..runtime import ClusterRuntime, current_runtime, local_runtime
from ..variables.parameter_server import PsVariable
from ..variables.sharded import PsShard, PsShardedVariable
from ..variables.variable import Variable, VariableSpec
from .strategy import Strategy, StrategyExtended

log = logging.getLogger(__name__)

_AS_IT_IS = WireFormat()
_NO_VALUES: Mapping[str, Array | None] = {}
_SMALL_BYTES = 64 * 1024  # a read that has to go out fetches every variable up to this size with it


class ParameterServerStrategy(Strategy):
    """As ``tf.distribute.ParameterServerStrategy``, with a program per worker as in its first form.

    Every worker runs the program; variables are created by the chief and found by the others; gradients
    are applied on the servers as they arrive. Started by ``windlass run`` or ``windlass local`` it uses their
    cluster; in a plain Python process it plays the whole cluster itself.

    Args:
        cluster_resolver: Where the cluster comes from; None: TF_CONFIG, or this process alone.
        variable_partitioner: Cuts variables into shards along axis 0; see ``partitioners``.
        placement: Which ps gets which shard: ``greedy_by_bytes`` (default) or ``round_robin``.
        wire_format: What is left out on the way over the network: narrower dtypes, small gradient elements.
        prefetch: Do not wait for the push at the end of a step: the next step begins with the values that
            arrived meanwhile, which lack this worker's own last update. Hides the time on the way behind
            the program's; the staleness in the status counts it.

    Raises:
        ConfigurationError: The process belongs to a cluster, but was not started by ``windlass run``; or the
            cluster has no ps.
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
    ) -> None:
        runtime = current_runtime()
        if runtime is None:
            runtime = _own_runtime(cluster_resolver)
        elif cluster_resolver is not None and cluster_resolver.task_type is not None:
            given = (cluster_resolver.task_type, cluster_resolver.task_id or 0)
            if given != (runtime.task.task.type, runtime.task.task.index):
                raise ValueError(
                    f"cluster_resolver says this is {given[0]}:{given[1]}, but the process runs as "
                    f"{runtime.task.task.short}"
                )
        self._resolver = cluster_resolver
        if runtime.task.task.type != EVALUATOR:
            runtime.session.wire_format = wire_format
        self._ps = ParameterServerExtended(
            self, runtime, variable_partitioner, placement, prefetch=prefetch
        )
        super().__init__(self._ps)

    @property
    def cluster_resolver(self) -> ClusterResolver | None:
        """As given."""
        return self._resolver

    @property
    def global_step(self) -> int:
        """Steps of all workers that the servers had applied when this worker last asked."""
        return self._ps.runtime.session.global_step

    @property
    def is_chief(self) -> bool:
        """Whether this task leads: it creates variables and writes checkpoints."""
        return self._ps.runtime.task.is_chief

    @property
    def task_index(self) -> int:
        """Number of this task among those that train, the chief first; a seed for its input."""
        return self._ps.input_pipeline_id


class ParameterServerExtended(StrategyExtended):
    """The algorithms of :class:`ParameterServerStrategy`. Thread-safe over the replicas of a step."""

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
        self._partitioner = partitioner
        self._placement = placement
        self._lock = threading.RLock()
        self._variables: dict[str, PsVariable] = {}
        self._undefined: list[PsVariable] = []
        self._beside_others = 0  # variables created near another
        # What this step reads: values of its pull, and what was read or written since.
        self._pulled: Mapping[str, Array] = {}
        self._fresh: dict[str, Array] = {}
        self._values_step = 0
        self._prefetch = prefetch
        self._under_way: PendingStep | None = None
        self._waiter: ThreadPoolExecutor | None = None
        self._reads: dict[str, None] = {}
        self._pushes: dict[str, Array | IndexedSlices] = {}
        self._clip: float | None = None
        self._counted = False
        self._in_step = False
        self._refused_in_a_row = 0
        self._bound: dict[str, object] = {}

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """The parameter servers."""
        tasks = ps_of(self.runtime.task.spec)
        return tuple(str(task) for task in tasks) or ("/job:ps/task:0",)

    @property
    def num_input_pipelines(self) -> int:
        """Tasks that train."""
        return max(1, len(workers_of(self.runtime.task.spec)))

    @property
    def input_pipeline_id(self) -> int:
        """This task's number among them, the chief first."""
        task, spec = self.runtime.task.task, self.runtime.task.spec
        ahead = spec.num_tasks(CHIEF) if task.type == WORKER and CHIEF in spec.jobs else 0
        return task.index + ahead

    @property
    def default_shard_policy(self) -> AutoShardPolicy:
        """Workers are not in sync: as in TensorFlow each goes through all of its dataset."""
        return AutoShardPolicy.OFF

    @property
    def experimental_between_graph(self) -> bool:
        """Every worker runs the program."""
        return True

    @property
    def experimental_should_init(self) -> bool:
        """The chief creates variables."""
        return self.runtime.task.is_chief

    @property
    def should_checkpoint(self) -> bool:
        """The chief writes checkpoints."""
        return self.runtime.task.is_chief

    @property
    def should_save_summary(self) -> bool:
        """The chief writes summaries."""
        return self.runtime.task.is_chief

    # -- variables ---------------------------------------------------------------------------

    def create_variable(self, spec: VariableSpec) -> PsVariable:
        """Note a variable; the servers hear of it with its neighbours, when the scope ends."""
        with self._lock:
            name = self.unique_name(spec.name)
            near = self._colocated[-1] if self._colocated else None
            cut = near is None and parts_of(self._partitioner, spec.shape, spec.dtype) > 1
            kind = PsShardedVariable if cut else PsVariable
            variable = kind(spec, name, self._strategy, self)
            self._variables[name] = variable
            if near is not None:
                self._define()  # what it goes to has to have a place
                self._undefined.append(variable)
                self._define(near)
                self._beside_others += 1
            else:
                self._undefined.append(variable)
            return variable

    def shards_of(self, variable: PsVariable) -> list[tuple[int, ShardDefinition]]:
        """(index of the ps, shard), in order."""
        with self._lock:
            self._define()
            return self.runtime.session.shards(variable.name)

    def scope_left(self) -> None:
        """Define what was created: errors show where the model is built."""
        self._define()

    def _define(self, near: Variable | None = None) -> None:
        """Make known what was created; ``near`` is the variable to whose ps it goes."""
        with self._lock:
            if not self._undefined:
                return
            new, self._undefined = self._undefined, []
            runtime = self.runtime
            restored = runtime.session.define(
                [variable._spec.definition(variable.name) for variable in new],
                {v.name: v.first_value for v in new if v.first_value is not None},
                create=runtime.task.is_chief,
                partitioner=None if near is not None else self._partitioner,
                placement=self._in_turn if near is None else self._beside(near),
                restore_from=runtime.restore_from,
                still_wanted=runtime.check,
            )
            for variable in new:
                variable.first_value = None
            if restored:
                log.info("restored %d variables from %s", len(restored), runtime.restore_from)

    def _in_turn(self, sizes: Sequence[int], loads: Sequence[int], placed: int) -> list[int]:
        """As the placement says; variables placed near others take nobody's turn."""
        return self._placement(sizes, loads, placed - self._beside_others)

    def _beside(self, near: Variable) -> Placement:
        """Places everything on the ps that holds the variable, or its first shard, or this shard of one."""
        ps = near.ps if isinstance(near, PsShard) else self.runtime.session.shards(near.name)[0][0]
        return lambda sizes, loads, placed: [ps] * len(sizes)  # noqa: ARG005

    def read(self, variable: PsVariable) -> Array:
        """The value: of this step's pull inside ``run``, current outside."""
        with self._lock:
            self._define()
            if not self._in_step:
                return self._pull([variable.name]).values[variable.name]
            self._reads[variable.name] = None
            value = self._known(variable.name)
            if value is None:
                # The first step does not know yet what it reads; small variables come along.
                also = [
                    other.name
                    for other in self._variables.values()
                    if other.name not in self._fresh
                    and other.name not in self._pulled
                    and other._spec.definition(other.name).num_bytes <= _SMALL_BYTES
                ]
                self._fresh |= self._pull(list(dict.fromkeys([variable.name, *also]))).values
                value = self._fresh[variable.name]
            return value

    def _known(self, name: str) -> Array | None:
        value = self._fresh.get(name)
        return value if value is not None else self._pulled.get(name)

    def _forget(self) -> None:
        self._pulled, self._fresh = {}, {}

    def read_rows(self, variable: PsVariable, indices: Array) -> Array:
        """Rows of a variable, as they are now."""
        with self._lock:
            self._define()
            return self.runtime.session.lookup(variable.name, indices)

    def write(
        self, variable: PsVariable, operation: Operation, value: Array | IndexedSlices
    ) -> None:
        """Assign or add on the servers, at once."""
        with self._lock:
            self._define()
            push = Push({variable.name: value}, operation)
            self._arrived()  # values under way lack this: no step begins with them
            result = self.runtime.session.step(push, [variable.name])
            if self._in_step:
                self._fresh |= result.values
            else:
                self._forget()

    def _pull(self, names: Sequence[str]) -> StepResult:
        result = self.runtime.session.step(None, names)
        self._values_step = result.global_step
        return result

    # -- steps -------------------------------------------------------------------------------

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """One step: pull, run, push."""
        self.runtime.check()
        with self._lock:
            self._define()
            if not self._pulled and self._reads:
                self._pulled = self._pull(list(self._reads)).values
            self._reads = {}
            self._counted = False
            self._in_step = True
        try:
            result = super().call_for_each_replica(fn, args, kwargs)
        except BaseException:
            self._end_step(push=False)
            raise
        self._end_step(push=True)
        self.runtime.progress.steps += 1
        return result

    def _end_step(self, *, push: bool) -> None:
        with self._lock:
            self._in_step = False
            read = {name: self._known(name) for name in self._reads} if self._prefetch else {}
            self._forget()
            if push and self._pushes:
                self._flush(list(self._reads), read)
            self._pushes, self._clip, self._counted = {}, None, False

    def apply_gradients(self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> None:
        """Put gradients into this step's push; outside ``run``, push them now."""
        rule = optimizer.rule
        with self._lock:
            self._define()
            named: dict[str, Array | IndexedSlices] = {}
            again: list[tuple[str, Array | IndexedSlices]] = []
            for given, variable in pairs:
                gradient = given if isinstance(given, IndexedSlices) else to_host(given)
                if not isinstance(variable, PsVariable) or variable._strategy is not self._strategy:
                    raise ValueError(
                        f"{variable.name!r} was created outside this strategy's scope; create it in "
                        "`with strategy.scope():`"
                    )
                name = variable._name
                if name in named:
                    again.append((name, gradient))
                else:
                    named[name] = gradient
            bound = self._bound
            unbound = [name for name in named if bound.get(name) is not rule]
            if unbound:
                self.runtime.session.bind(unbound, rule)
                self._bound |= dict.fromkeys(unbound, rule)
            if not self._in_step:
                self._counted = False
            if self._pushes and (self._clip is not None or rule.global_clipnorm is not None):
                # A norm is taken over the gradients of one call, as in Keras.
                self._flush([])
            # A second update of one variable in one step cannot travel with the first.
            if not self._pushes.keys().isdisjoint(named):
                self._flush([])
            self._clip = rule.global_clipnorm
            self._pushes |= named
            for name, gradient in again:
                self._flush([])
                self._clip = rule.global_clipnorm
                self._pushes[name] = gradient
            if not self._in_step:
                self._flush([])

    def _flush(self, pulls: Sequence[str], read: Mapping[str, Array | None] = _NO_VALUES) -> None:
        """Push what was collected.

        Args:
            pulls: For the next step.
            read: What this step read; the next one may begin with it.
        """
        pushes = self._pushes
        # Once per step of this worker, however many pushes it takes.
        clip, increment = self._clip, 0 if self._counted else 1
        self._pushes, self._clip = {}, None
        progress = self.runtime.progress
        bad = self._not_finite(pushes)
        if bad is not None:
            self._refuse(bad)
            return
        self._refused_in_a_row = 0
        self._counted = True
        scale = 1.0 if clip is None else clip_scale(list(pushes.values()), clip)
        arrived = self._arrived()
        pending = self.runtime.session.begin(
            Push(pushes),
            pulls,
            step_increment=increment,
            gradient_scale=scale,
            seen_step=self._values_step or None,
            detached=self._prefetch,
        )
        progress.pushes += 1
        if self._prefetch and not self._in_step:
            self._wait_for(pending)
            if arrived is None and read:
                # Nothing was under way: the next step reads once more what this one read.
                self._pulled = {name: value for name, value in read.items() if value is not None}
            elif pulls and (arrived is None or not all(name in arrived.values for name in pulls)):
                arrived = self._arrived()
        else:
            arrived = pending.result()
            progress.staleness.append(arrived.staleness)
        if arrived is not None:
            self._values_step = arrived.global_step
            if not self._in_step:  # else the step goes on reading the values it began with
                self._pulled = arrived.values

    def _arrived(self) -> StepResult | None:
        """What the exchange under way brought; None if there is none."""
        pending, self._under_way = self._under_way, None
        if pending is None:
            return None
        result = pending.result()
        self.runtime.progress.staleness.append(result.staleness)
        return result

    def _wait_for(self, pending: PendingStep) -> None:
        """Read the answer while the program goes on."""
        self._under_way = pending
        if self._waiter is None:
            self._waiter = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._waiter.submit(pending.settle)

    def _not_finite(self, pushes: Mapping[str, Array | IndexedSlices]) -> str | None:
        if self.runtime.settings.nonfinite_gradients == "allow":
            return None
        return first_not_finite(
            {
                name: value.values if isinstance(value, IndexedSlices) else value
                for name, value in pushes.items()
            }
        )

    def _refuse(self, variable: str) -> None:
        """Drop a step whose gradients are not finite. Only here can it be dropped on every ps at once."""
        progress, limit = self.runtime.progress, self.runtime.settings.nonfinite_limit
        progress.refused_pushes += 1
        self._refused_in_a_row += 1
        task = self.runtime.task.task
        if self._refused_in_a_row >= limit:
            raise NonFiniteGradientError(
                f"{task}: the gradient of {variable!r} was NaN or infinite {limit} steps in a row "
                f"(global step {self.runtime.session.global_step}): the model has diverged. Lower the "
                "learning rate, clip gradients, or allow it with WINDLASS_NONFINITE_GRADIENTS=allow",
                task=task,
                variable=variable,
                in_a_row=limit,
            )
        if progress.refused_pushes == 1 or progress.refused_pushes % 100 == 0:
            log.warning(
                "refused a push: the gradient of %r is NaN or infinite (global step %d; %d refused so far)",
                variable,
                self.runtime.session.global_step,
                progress.refused_pushes,
            )


def _own_runtime(resolver: ClusterResolver | None) -> ClusterRuntime:
    given = resolver if resolver is not None else TFConfigClusterResolver()
    source = "TF_CONFIG" if isinstance(given, TFConfigClusterResolver) else type(given).__name__
    task: ResolvedTask = resolve(given, source=source)
    if not task.is_local:
        hint = (
            "a ps runs a server, not the program"
            if task.task.type == PS
            else "connects it to the others"
        )
        raise ConfigurationError(
            f"this process is {task.task} of a cluster ({source}), but was started as a plain Python "
            f"program. Start it with `windlass run PROGRAM`, which {hint}",
            task=task.task,
        )
    return local_runtime(task)
