"""StrategyExtended: a strategy's algorithms, with defaults for strategies of one worker."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from ...core.rules.update_rules import UpdateRule
from ..base.communication import CommunicationOptions
from ..base.contexts import (
    Frame,
    Merging,
    code_of,
    entered,
    get_replica_context,
    require_cross_replica,
    require_own_cross_replica,
)
from ..base.creations import Creations
from ..base.devices import HOST, in_task, is_gpu, on_device
from ..base.interface import Arguments, ExtendedInterface, Keywords, StrategyInterface
from ..base.reductions import ReduceOp, clip_norm, clip_scale
from ..base.values import (
    DistributedValues,
    container_of,
    flatten,
    on_every_replica,
    regroup,
    select_component,
)
from ..variables.holders import holders_of
from ..variables.local import LocalVariable
from ..variables.mirrored import DistributedVariable, SyncOnReadVariable
from ..variables.sharded import ShardedVariable
from ..variables.spec import VariableSpec
from ..variables.variable import Variable
from .cross_device_ops import CrossDeviceOps, ReductionToOneDevice, devices_of, mirror
from .reducer import Reducer
from .replica_runner import ReplicaRunner
from .table_rows import TableRows

if TYPE_CHECKING:
    from .steps_alone import StepsAlone


class StrategyExtended(ExtendedInterface):
    """The algorithms of a strategy, one object each. As ``tf.distribute.StrategyExtended``.

    Args:
        strategy: Strategy whose algorithms these are.
        devices: Devices of this worker's replicas, one each.
        cross_device_ops: Reduction of values of several of them to one.
        first_replica: Number of the first of them among those in sync.
        reducer: Reduces over the replicas; None: over those of this worker.

    Attributes:
        tables: Rows of embeddings' tables.
        experimental_require_static_shapes: False: that is TPUs' need.
        experimental_between_graph: Whether every worker runs the program for itself.
        experimental_should_init: Whether this task gives variables their first values.
        should_checkpoint: Whether this task writes checkpoints.
        should_save_summary: Whether this task writes summaries.
    """

    experimental_require_static_shapes: bool = False
    experimental_between_graph: bool = False
    experimental_should_init: bool = True
    should_checkpoint: bool = True
    should_save_summary: bool = True

    def __init__(
        self,
        strategy: StrategyInterface,
        devices: Sequence[str],
        cross_device_ops: CrossDeviceOps | None = None,
        first_replica: int = 0,
        reducer: Reducer | None = None,
    ) -> None:
        self._strategy = strategy
        self.replica_devices = tuple(devices)
        ops = cross_device_ops or ReductionToOneDevice()
        self.reducer = reducer or Reducer(self.replica_devices, ops)
        self.first_replica = first_replica
        self._runner = ReplicaRunner(strategy, self.replica_devices, first_replica)
        self._names: dict[str, int] = {}  # name → the last number tried for one like it
        self._colocated: list[Variable] = []
        self.creations = Creations()
        self.tables = TableRows(type(strategy).__name__, len(self.replica_devices))

    # -- what there is -----------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        """Describe the strategy for display."""
        return {"replicas": [device.removeprefix("/device:") for device in self.replica_devices]}

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Devices of this worker's replicas, with the task: as ``Variable.device`` has them."""
        return tuple(in_task(self.task_name, device) for device in self.replica_devices)

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Devices that hold variables, named as :attr:`worker_devices`."""
        return self.worker_devices

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are aggregated in one step."""
        return self.reducer.num_replicas

    def require_scope(self, method: str) -> None:
        """Refuse a call in the scope of another strategy.

        Raises:
            RuntimeError: It is one, or we are inside ``run``.
        """
        require_own_cross_replica(self._strategy, method)

    # -- variables ---------------------------------------------------------------------------

    def create_variable(self, spec: VariableSpec) -> Variable:
        """Make a variable. Called by ``Variable(...)``."""
        return LocalVariable(
            spec, self._strategy, self.replica_devices[0], self.unique_name(spec.name)
        )

    def has_name(self, name: str) -> bool:
        """Return whether a variable of this strategy has the name."""
        return name in self._names

    def unique_name(self, wished: str) -> str:
        """Make a name that no variable of this strategy has; the same on every task that runs the
        program.
        """
        name, count = wished, self._names.get(wished, 0)
        while name in self._names:
            count += 1
            name = f"{wished}_{count}"
        self._names[wished] = count
        self._names.setdefault(name, 0)
        return name

    def colocate_vars_with(self, colocate_with_variable: Variable) -> AbstractContextManager[None]:
        """Put variables created in the context where this one is.

        Raises:
            ValueError: It belongs to another strategy.
        """
        if not self.variable_created_in_scope(colocate_with_variable):
            raise ValueError(
                "`colocate_vars_with` needs a variable that must be created in the same strategy "
                f"scope, got {colocate_with_variable!r}"
            )
        return self._colocating(colocate_with_variable)

    @contextmanager
    def _colocating(self, variable: Variable) -> Iterator[None]:
        self._colocated.append(variable)
        try:
            yield
        finally:
            self._colocated.pop()

    def variable_created_in_scope(self, v: Variable) -> bool:
        """Return whether a variable was made under this strategy.

        Raises:
            ValueError: It is no variable.
        """
        if not isinstance(v, Variable):
            raise ValueError(f"not a variable: {v!r}")
        return v.strategy is self._strategy

    def _require_own(self, variable: Variable) -> None:
        if not self.variable_created_in_scope(variable):
            raise ValueError(f"{variable.name!r} was created under another strategy")

    def value_container(self, value: Any) -> Any:
        """Find the distributed variable a component belongs to; else return the value itself."""
        owner = container_of(value)
        return value if owner is None else owner

    def read_var(self, v: Variable) -> Any:
        """Return the value to use in cross-replica context."""
        return v.read_value()

    # -- running and updating ----------------------------------------------------------------

    def run_in_turns(self) -> None:
        """Run one replica of this process at a time, from merge to merge, as TensorFlow does.

        For a framework whose replicas would write the same memory, such as PyTorch's ``grad``.
        """
        self._runner.in_turns = True

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Arguments = (), kwargs: Keywords = None
    ) -> Any:
        """Call ``fn`` on every local replica; as ``strategy.run``.

        Raises:
            RuntimeError: In replica context.
        """
        require_cross_replica(self._strategy, "extended.call_for_each_replica")
        self.creations.begin(code_of(fn))
        return self._runner.run(fn, tuple(args), kwargs or {})

    def update(
        self,
        var: Variable,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call ``fn(component, *args)`` for every component of a variable, on its device.

        Distributed arguments are split per component. In replica context it waits for all replicas
        first.

        Args:
            var: A variable of this strategy.
            fn: The function; it runs in an update context, neither replica nor cross-replica.
            args: Further positional arguments.
            kwargs: Keyword arguments.
            group: Whether the results become one Mirrored structure; False: a tuple with one per
                component.

        Raises:
            ValueError: ``var`` belongs to another strategy.
            RuntimeError: In the scope of another strategy.
        """
        self._require_own(var)
        context = get_replica_context()
        if context is None:
            require_own_cross_replica(self._strategy, "extended.update")
        if context is not None and context.strategy is self._strategy:
            merge = Merging(
                lambda _, a, k: self.update(var, fn, a, k, group), (id(var), code_of(fn))
            )
            return context.merge_call(merge, (args, kwargs or {}))
        self._note_update(var)
        components = self._components(var)
        results = [
            self._update_one(number, component.device, fn, component, args, kwargs or {})
            for number, component in enumerate(components)
        ]
        return regroup(results, mirrored=True) if group else tuple(results)

    def _note_update(self, var: Variable) -> None:
        """Note that a function is about to be called for a variable, which it may change."""

    def _components(self, var: Variable) -> Sequence[Variable]:
        return var.values if isinstance(var, DistributedVariable) else (var,)

    def _update_one(
        self,
        number: int,
        device: str,
        fn: Callable[..., Any],
        component: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        with entered(Frame(self._strategy, None, number)), on_device(device):
            return fn(
                component, *select_component(number, args), **select_component(number, kwargs)
            )

    def non_slot_devices(self, var_list: Sequence[Variable]) -> tuple[str, ...]:  # noqa: ARG002 - TensorFlow's
        """List the devices where state goes that belongs to no single variable."""
        return self.parameter_devices

    def update_non_slot(
        self,
        colocate_with: Any,
        fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        group: bool = True,
    ) -> Any:
        """Call ``fn(*args)`` once per device of ``non_slot_devices``.

        Raises:
            RuntimeError: In replica context.
        """
        require_cross_replica(self._strategy, "extended.update_non_slot")
        devices = (colocate_with,) if isinstance(colocate_with, str) else tuple(colocate_with)

        def call(_: Any, *a: Any, **k: Any) -> Any:
            return fn(*a, **k)

        results = [
            self._update_one(i, device if is_gpu(device) else HOST, call, None, args, kwargs or {})
            for i, device in enumerate(devices)
        ]
        return regroup(results, mirrored=True) if group else tuple(results)

    def apply_gradients(self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> None:
        """Update variables, in cross-replica context, with gradients already reduced.

        Args:
            optimizer: Optimizer whose rule is applied, with the hyperparameters of now.
            pairs: (gradient, variable): array of the variable's shape, IndexedSlices, or one per
                copy.

        Raises:
            ValueError: A variable is another strategy's or ON_READ, or a gradient has another
                shape; then no variable was changed.
        """
        for _, variable in pairs:
            self._require_own(variable)
        apply_locally(optimizer, pairs)

    @property
    def alone(self) -> "StepsAlone | None":
        """Steps on a program's own arrays; None: other processes have the variables, too."""
        return None

    def iterations(self, variables: Sequence[Variable]) -> int:
        """Return how often an optimizer has updated these variables."""
        updates = (holder.updates for each in variables for holder in holders_of(each))
        return max(updates, default=0)

    # -- reducing ----------------------------------------------------------------------------

    def reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value: Any,
        destinations: Any,
        options: CommunicationOptions | None = None,
    ) -> Any:
        """Reduce a value over the replicas, to where ``destinations`` are.

        Args:
            reduce_op: SUM or MEAN.
            value: PerReplica, or what every replica has.
            destinations: A variable, a distributed value, or a device's name.
            options: Options of the collectives, for several workers.

        Returns:
            Mirrored on the destinations; the array itself on one device.

        Raises:
            RuntimeError: In replica context.
            ValueError: Shapes differ, or SUM of what is not distributed.
        """
        require_own_cross_replica(self._strategy, "extended.reduce_to")
        assert not isinstance(destinations, list | tuple), "destinations must not be a list"  # noqa: S101
        return self.reducer.reduce(ReduceOp.of(reduce_op), value, destinations, options)

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduce many values; the results, in order. See :meth:`reduce_to`."""
        require_own_cross_replica(self._strategy, "extended.batch_reduce_to")
        return self.reducer.batch_reduce(ReduceOp.of(reduce_op), value_destination_pairs, options)

    def reduce_to_all(
        self, op: ReduceOp, tree: Any, options: CommunicationOptions | None = None
    ) -> Any:
        """Reduce a nested value over the replicas; as ``ReplicaContext.all_reduce``."""
        found, rebuild = flatten(tree)
        # The very same object from every replica is each one's value.
        values = [on_every_replica(leaf, len(self.replica_devices)) for leaf in found]
        return rebuild(self.batch_reduce_to(op, [(value, value) for value in values], options))

    def gather_to_all(
        self, tree: Any, axis: int, options: CommunicationOptions | None = None
    ) -> Any:
        """Concatenate a nested value over the replicas; as ``ReplicaContext.all_gather``."""
        found, rebuild = flatten(tree)
        values = [on_every_replica(leaf, len(self.replica_devices)) for leaf in found]
        return rebuild([self.reducer.gather_to_all(value, axis, options) for value in values])

    def of_first_replica(self, value: DistributedValues) -> Any:
        """Return the value of the first replica of all."""
        return self.reducer.of_first_replica(value)

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """Copy a value to every device of ``destinations``; Python numbers stay as they are.

        Raises:
            RuntimeError: In replica context.
        """
        require_cross_replica(self._strategy, "extended.broadcast_to")
        if isinstance(tensor, int | float):
            return tensor
        where = self.replica_devices if destinations is None else devices_of(destinations)
        return mirror(tensor, where)


def apply_locally(optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> None:
    """Update every copy of variables with reduced gradients; see ``apply_gradients``."""
    holders = [_copies(variable) for _, variable in pairs]
    bound: UpdateRule = optimizer.rule
    rule: UpdateRule = optimizer.changed_rule(lambda: max(each[0].updates for each in holders))
    if rule.clipnorm is not None:
        pairs = [(_clipped(gradient, rule.clipnorm), variable) for gradient, variable in pairs]
    updates = [
        (holder, _part(gradient, number))
        for (gradient, _), copies in zip(pairs, holders, strict=True)
        for number, holder in enumerate(copies)
    ]
    whole = [_part(gradient, 0) for gradient, _ in pairs]
    scale = 1.0 if rule.global_clipnorm is None else clip_scale(whole, rule.global_clipnorm)
    for holder, gradient in updates:
        holder.check_update(gradient, bound)  # applied as a whole, or not at all
    step = _updates_of(optimizer, pairs) if rule.goes_by_step else None
    for holder, gradient in updates:
        holder.apply(gradient, bound, gradient_scale=scale, changed=rule, step=step)
    optimizer.note(variable for _, variable in pairs)


def _updates_of(optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> int:
    """Return how often an optimizer has updated any of its variables, and of these."""
    variables = [*optimizer.variables, *(variable for _, variable in pairs)]
    return max(_copies(variable)[0].updates for variable in variables)


def _clipped(gradient: Any, limit: float) -> Any:
    if isinstance(gradient, DistributedValues):
        return type(gradient)(clip_norm(each, limit) for each in gradient.values)
    return clip_norm(gradient, limit)


def _part(gradient: Any, number: int) -> Any:
    return gradient.values[number] if isinstance(gradient, DistributedValues) else gradient


def _copies(variable: Variable) -> Sequence[LocalVariable]:
    """Find what holds a variable's value in this process."""
    if isinstance(variable, SyncOnReadVariable):
        raise ValueError(
            f"{variable.name!r} has synchronization ON_READ: each replica writes its own copy, "
            "optimizers do not"
        )
    if isinstance(variable, ShardedVariable):
        raise ValueError(
            f"{variable.name!r} is made of {len(variable.variables)} variables; give the optimizer "
            "those (`.variables`), each with its part of the gradient"
        )
    return holders_of(variable)
