"""ParameterServerStrategy: variables on parameter servers, asynchronous between workers.

A step is one ``strategy.run``: it begins with the values of one pull, ends with one push of everything
its optimizers were given, and the same round trip brings the values for the next step.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..client.plans import PushItem
from ..client.session import StepResult
from ..cluster.partitioners import Partitioner
from ..cluster.placement import Placement, greedy_by_bytes
from ..cluster.resolved import ResolvedTask, resolve
from ..cluster.resolver import ClusterResolver
from ..cluster.roles import CHIEF, PS, WORKER, ps_of
from ..cluster.tf_config import TFConfigClusterResolver
from ..core.arrays import Array, all_finite
from ..core.errors import ConfigurationError, NonFiniteGradientError
from ..core.indexed_slices import IndexedSlices
from ..core.steps import Operation
from .devices import compute_devices
from .ps_variable import PsVariable
from .reduce_op import clip_scale
from .runtime import ClusterRuntime, current_runtime, local_runtime
from .strategy import Strategy, StrategyExtended
from .variable import Variable, VariableSpec

log = logging.getLogger(__name__)

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

    Raises:
        ConfigurationError: The process belongs to a cluster, but was not started by ``windlass run``.
        ValueError: ``cluster_resolver`` names another task than this process runs as.
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        variable_partitioner: Partitioner | None = None,
        *,
        placement: Placement = greedy_by_bytes,
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
        self._ps = ParameterServerExtended(self, runtime, variable_partitioner, placement)
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
        task, spec = self._ps.runtime.task.task, self._ps.runtime.task.spec
        ahead = spec.num_tasks(CHIEF) if task.type == WORKER and CHIEF in spec.jobs else 0
        return task.index + ahead


class ParameterServerExtended(StrategyExtended):
    """The algorithms of :class:`ParameterServerStrategy`. Thread-safe over the replicas of a step."""

    def __init__(
        self,
        strategy: Strategy,
        runtime: ClusterRuntime,
        partitioner: Partitioner | None,
        placement: Placement,
    ) -> None:
        super().__init__(strategy, compute_devices())
        self.runtime = runtime
        self._partitioner = partitioner
        self._placement = placement
        self._lock = threading.RLock()
        self._variables: dict[str, PsVariable] = {}
        self._undefined: list[PsVariable] = []
        self._values: dict[str, Array] = {}
        self._values_step = 0
        self._reads: dict[str, None] = {}
        self._pushes: dict[str, PushItem] = {}
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

    # -- variables ---------------------------------------------------------------------------

    def create_variable(self, spec: VariableSpec) -> PsVariable:
        """Note a variable; the servers hear of it with its neighbours, when the scope ends."""
        with self._lock:
            name, count = spec.name, 0
            while name in self._variables:
                count += 1
                name = f"{spec.name}_{count}"
            variable = PsVariable(spec, name, self._strategy, self)
            self._variables[name] = variable
            self._undefined.append(variable)
            return variable

    def scope_left(self) -> None:
        """Define what was created: errors show where the model is built."""
        self._define()

    def _define(self) -> None:
        with self._lock:
            if not self._undefined:
                return
            new, self._undefined = self._undefined, []
            runtime = self.runtime
            restored = runtime.session.define(
                [variable._spec.definition(variable.name) for variable in new],
                {v.name: v._spec.initial for v in new if v._spec.initial is not None},
                create=runtime.task.is_chief,
                partitioner=self._partitioner,
                placement=self._placement,
                restore_from=runtime.restore_from,
                still_wanted=runtime.check,
            )
            if restored:
                log.info("restored %d variables from %s", len(restored), runtime.restore_from)

    def read(self, variable: PsVariable) -> Array:
        """The value: of this step's pull inside ``run``, current outside."""
        with self._lock:
            self._define()
            if not self._in_step:
                return self._pull([variable.name]).values[variable.name]
            self._reads[variable.name] = None
            if variable.name not in self._values:
                # The first step does not know yet what it reads; small variables come along.
                also = [
                    other.name
                    for other in self._variables.values()
                    if other.name not in self._values
                    and other._spec.definition(other.name).num_bytes <= _SMALL_BYTES
                ]
                self._values |= self._pull(list(dict.fromkeys([variable.name, *also]))).values
            return self._values[variable.name]

    def read_rows(self, variable: PsVariable, indices: Array) -> Array:
        """Rows of a variable, as they are now."""
        with self._lock:
            self._define()
            return self.runtime.session.lookup(variable.name, indices)

    def write(self, variable: PsVariable, operation: Operation, value: Array) -> None:
        """Assign or add on the servers, at once."""
        with self._lock:
            self._define()
            item = PushItem(variable.name, operation, value)
            result = self.runtime.session.step([item], [variable.name])
            if self._in_step:
                self._values |= result.values
            else:
                self._values.clear()

    def _pull(self, names: Sequence[str]) -> StepResult:
        result = self.runtime.session.step((), names)
        self._values_step = result.global_step
        return result

    # -- steps -------------------------------------------------------------------------------

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """One step: pull, run, push."""
        self.runtime.check()
        with self._lock:
            self._define()
            if not self._values and self._reads:
                self._values = dict(self._pull(list(self._reads)).values)
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
            self._values = {}
            if push and self._pushes:
                self._flush(list(self._reads))
            self._pushes, self._clip, self._counted = {}, None, False

    def apply_gradients(self, optimizer: Any, pairs: list[tuple[Any, Variable]]) -> None:
        """Put gradients into this step's push; outside ``run``, push them now."""
        rule = optimizer.rule
        with self._lock:
            self._define()
            names = []
            for _, variable in pairs:
                if not isinstance(variable, PsVariable) or variable.strategy is not self._strategy:
                    raise ValueError(
                        f"{variable.name!r} was created outside this strategy's scope; create it in "
                        "`with strategy.scope():`"
                    )
                names.append(variable.name)
            unbound = [name for name in names if self._bound.get(name) is not rule]
            if unbound:
                self.runtime.session.bind(unbound, rule)
                self._bound |= dict.fromkeys(unbound, rule)
            if not self._in_step:
                self._counted = False
            if self._pushes and (self._clip is not None or rule.global_clipnorm is not None):
                # A norm is taken over the gradients of one call, as in Keras.
                self._flush([])
            for gradient, variable in pairs:
                if variable.name in self._pushes:
                    # A second update of one variable in one step cannot travel with the first.
                    self._flush([])
                self._clip = rule.global_clipnorm
                self._pushes[variable.name] = PushItem(variable.name, Operation.APPLY, gradient)
            if not self._in_step:
                self._flush([])

    def _flush(self, pulls: Sequence[str]) -> None:
        pushes = list(self._pushes.values())
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
        scale = 1.0 if clip is None else clip_scale([item.value for item in pushes], clip)
        result = self.runtime.session.step(
            pushes,
            pulls,
            step_increment=increment,
            gradient_scale=scale,
            seen_step=self._values_step or None,
        )
        progress.pushes += 1
        progress.staleness.append(result.staleness)
        self._values_step = result.global_step
        if not self._in_step:  # else the step goes on reading the values it began with
            self._values = dict(result.values)

    def _not_finite(self, pushes: Sequence[PushItem]) -> str | None:
        if self.runtime.settings.nonfinite_gradients == "allow":
            return None
        for item in pushes:
            value = item.value
            if not all_finite(value.values if isinstance(value, IndexedSlices) else value):
                return item.variable
        return None

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
