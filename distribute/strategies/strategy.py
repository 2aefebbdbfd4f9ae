"""Strategy, StrategyExtended and the default strategy: the interface every strategy shares."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np

from ..base.communication import CommunicationOptions
from ..base.contexts import (
    Frame,
    Merging,
    code_of,
    entered,
    get_replica_context,
    pop_frame,
    push_frame,
    require_cross_replica,
    top_frame,
)
from ..base.devices import HOST, is_gpu, on_device
from ..base.reductions import ReduceOp, clip_scale, reduce_axis
from ..base.values import (
    DistributedValues,
    Mirrored,
    PerReplica,
    ValueContext,
    container_of,
    is_variable,
    local_results,
    map_structure,
    regroup,
    select_component,
)
from ..data.options import AutoShardPolicy
from ..variables.local import LocalVariable
from ..variables.mirrored import DistributedVariable, SyncOnReadVariable
from ..variables.variable import Variable, VariableSpec
from .cross_device_ops import CrossDeviceOps, ReductionToOneDevice, devices_of, mirror
from .replica_runner import ReplicaRunner

if TYPE_CHECKING:
    from ..data.distributed import DistributedDataset
    from ..data.options import InputContext, InputOptions


class _Scope:
    """What ``strategy.scope()`` returns. Reading it in ``with … as`` gives the strategy."""

    def __init__(self, strategy: "Strategy") -> None:
        self._strategy = strategy
        self._frames: list[Frame | None] = []

    def __enter__(self) -> "Strategy":
        strategy = self._strategy
        current = top_frame()
        if current is not None and current.strategy is the_default_strategy():
            current = None  # inside its `run`: there is no other strategy
        if current is not None and current.strategy is not strategy:
            raise RuntimeError(
                "Mixing different tf.distribute.Strategy objects: "
                f"{type(current.strategy).__name__} is current, and the scope of "
                f"{type(strategy).__name__} was entered"
            )
        if current is not None and current.replica is not None:
            require_cross_replica(strategy, "scope")
        frame = Frame(strategy, None)
        push_frame(frame)
        self._frames.append(frame)
        return strategy

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        frame = self._frames.pop()
        if frame is not None:
            pop_frame(frame)
            if kind is None:
                self._strategy.extended.scope_left()


class _DefaultScope(_Scope):
    """The default strategy's scope does nothing, but must not stand inside another's."""

    def __enter__(self) -> "Strategy":
        current = top_frame()
        if current is not None and current.strategy is not self._strategy:
            raise RuntimeError("Must not nest tf.distribute.Strategy scopes.")
        self._frames.append(None)
        return self._strategy


class StrategyExtended:
    """The algorithms of a strategy, one object each. As ``tf.distribute.StrategyExtended``.

    Args:
        strategy: Whose.
        devices: One per replica of this worker.
        cross_device_ops: How values of several of them become one.
        first_replica: Number of the first of them among those in sync.
    """

    def __init__(
        self,
        strategy: "Strategy",
        devices: Sequence[str],
        cross_device_ops: CrossDeviceOps | None = None,
        first_replica: int = 0,
    ) -> None:
        self._strategy = strategy
        self._devices = tuple(devices)
        self._cross_device_ops = cross_device_ops or ReductionToOneDevice()
        self.first_replica = first_replica
        self._runner = ReplicaRunner(strategy, self._devices, first_replica)
        self._names: dict[str, int] = {}  # name → the last number tried for one like it
        self._colocated: list[Variable] = []

    # -- what there is -----------------------------------------------------------------------

    @property
    def replica_devices(self) -> tuple[str, ...]:
        """Devices of this worker's replicas, of every strategy."""
        return self._devices

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Devices of this worker's replicas."""
        return self._devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Devices that hold variables."""
        return self._devices

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are aggregated in one step."""
        return len(self._devices)

    @property
    def num_input_pipelines(self) -> int:
        """Workers among which input is sharded."""
        return 1

    @property
    def input_pipeline_id(self) -> int:
        """This worker's number among them."""
        return 0

    @property
    def default_shard_policy(self) -> AutoShardPolicy:
        """How input is divided between workers if its dataset does not say."""
        return AutoShardPolicy.AUTO

    def any_worker(self, mine: bool) -> bool:
        """Whether it is so on any worker in sync; every one of them must ask."""
        return mine

    @property
    def experimental_require_static_shapes(self) -> bool:
        """No: that is TPUs' need."""
        return False

    @property
    def experimental_between_graph(self) -> bool:
        """Whether every worker runs the program for itself."""
        return False

    @property
    def experimental_should_init(self) -> bool:
        """Whether this task gives variables their first values."""
        return True

    @property
    def should_checkpoint(self) -> bool:
        """Whether this task writes checkpoints."""
        return True

    @property
    def should_save_summary(self) -> bool:
        """Whether this task writes summaries."""
        return True

    # -- variables ---------------------------------------------------------------------------

    def create_variable(self, spec: VariableSpec) -> Variable:
        """Make a variable. Called by ``Variable(...)``."""
        return LocalVariable(spec, self._strategy, self._devices[0], self.unique_name(spec.name))

    def unique_name(self, wished: str) -> str:
        """A name no variable of this strategy has; the same on every task that runs the program."""
        name, count = wished, self._names.get(wished, 0)
        while name in self._names:
            count += 1
            name = f"{wished}_{count}"
        self._names[wished] = count
        self._names.setdefault(name, 0)
        return name

    def colocate_vars_with(self, colocate_with_variable: Variable) -> AbstractContextManager[None]:
        """Variables created in the context go where this one is.

        Raises:
            ValueError: It belongs to another strategy.
        """
        if not self.variable_created_in_scope(colocate_with_variable):
            raise ValueError(
                "`colocate_vars_with` needs a variable that must be created in the same strategy scope, "
                f"got {colocate_with_variable!r}"
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
        """Whether a variable was made under this strategy.

        Raises:
            ValueError: It is no variable.
        """
        if not isinstance(v, Variable):
            raise ValueError(f"not a variable: {v!r}")
        return v.strategy is self._strategy

    def value_container(self, value: Any) -> Any:
        """The distributed variable a component belongs to; else the value itself."""
        owner = container_of(value)
        return value if owner is None else owner

    def read_var(self, v: Variable) -> Any:
        """The value to use in cross-replica context."""
        return v.read_value()

    def scope_left(self) -> None:
        """A ``with strategy.scope()`` ended without an error."""

    # -- running and updating ----------------------------------------------------------------

    def call_for_each_replica(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call ``fn`` on every local replica; as ``strategy.run``.

        Raises:
            RuntimeError: In replica context.
        """
        require_cross_replica(self._strategy, "extended.call_for_each_replica")
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

        Distributed arguments are split per component. In replica context all replicas meet first.

        Args:
            var: Of this strategy.
            fn: Runs in an update context: neither of a replica nor of all.
            args: Further positional arguments.
            kwargs: Keyword arguments.
            group: One Mirrored structure of the results; False: a tuple with one per component.

        Raises:
            ValueError: ``var`` belongs to another strategy.
        """
        if not self.variable_created_in_scope(var):
            raise ValueError(f"{var.name!r} was created under another strategy")
        context = get_replica_context()
        if context is not None and context.strategy is self._strategy:
            merge = Merging(
                lambda _, a, k: self.update(var, fn, a, k, group), (id(var), code_of(fn))
            )
            return context.merge_call(merge, (args, kwargs or {}))
        components = self._components(var)
        results = [
            self._update_one(number, component.device, fn, component, args, kwargs or {})
            for number, component in enumerate(components)
        ]
        return regroup(results, mirrored=True) if group else tuple(results)

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
        """Where state goes that belongs to no single variable."""
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
        """Update variables, in cross-replica context, with gradients already reduced."""
        for _, variable in pairs:
            if variable.strategy is not self._strategy:
                raise ValueError(f"{variable.name!r} was created under another strategy")
            if isinstance(variable, SyncOnReadVariable):
                raise ValueError(
                    f"{variable.name!r} has synchronization ON_READ: each replica writes its own copy, "
                    "optimizers "
                    "do not"
                )
        rule = optimizer.rule
        whole = [g.values[0] if isinstance(g, DistributedValues) else g for g, _ in pairs]
        scale = 1.0 if rule.global_clipnorm is None else clip_scale(whole, rule.global_clipnorm)
        parts = [
            (
                _holder(component),
                gradient.values[number] if isinstance(gradient, DistributedValues) else gradient,
            )
            for gradient, variable in pairs
            for number, component in enumerate(self._components(variable))
        ]
        for holder, part in parts:
            holder.check_update(
                part, rule
            )  # of a step that cannot be applied as a whole nothing is
        for holder, part in parts:
            holder.apply(part, rule, gradient_scale=scale)

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
            options: For several workers.

        Returns:
            Mirrored on the destinations; the array itself on one device.

        Raises:
            RuntimeError: In replica context.
            ValueError: Shapes differ, or SUM of what is not distributed.
        """
        require_cross_replica(self._strategy, "extended.reduce_to")
        assert not isinstance(destinations, list | tuple), "destinations must not be a list"  # noqa: S101
        return self._reduce_to(ReduceOp.of(reduce_op), value, destinations, options)

    def batch_reduce_to(
        self,
        reduce_op: ReduceOp | str,
        value_destination_pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None = None,
    ) -> list[Any]:
        """Reduce many values; the results, in order. See :meth:`reduce_to`."""
        require_cross_replica(self._strategy, "extended.batch_reduce_to")
        return self._batch_reduce_to(ReduceOp.of(reduce_op), value_destination_pairs, options)

    def _reduce_to(
        self, op: ReduceOp, value: Any, destinations: Any, options: CommunicationOptions | None
    ) -> Any:
        if not self.differs(value):
            return mirror(self._of_all(op, value), devices_of(destinations))
        return self._cross_device_ops.reduce(op, value, destinations, options)

    def _batch_reduce_to(
        self,
        op: ReduceOp,
        pairs: Sequence[tuple[Any, Any]],
        options: CommunicationOptions | None,
    ) -> list[Any]:
        if all(self.differs(value) for value, _ in pairs):
            return self._cross_device_ops.batch_reduce(op, list(pairs), options)
        return [self._reduce_to(op, value, where, options) for value, where in pairs]

    def differs(self, value: Any) -> bool:
        """Whether a value may differ between replicas; if not there is nothing to reduce."""
        return _differs(value)

    def _of_all(self, op: ReduceOp, value: Any) -> Any:
        """The reduction of what every replica has: a mean is the value itself."""
        mirrored = isinstance(value, DistributedValues)
        single = value.values[0] if isinstance(value, DistributedValues) else value
        single = single.read_value() if is_variable(single) else single
        if op is ReduceOp.MEAN or self.num_replicas_in_sync == 1:
            return single
        if not mirrored and not np.any(single):
            return single  # zeros add up to zeros
        raise ValueError(
            f"SUM of a value that is not distributed over {self.num_replicas_in_sync} replicas "
            "is ambiguous; reduce a PerReplica value"
        )

    def reduce_over(self, op: ReduceOp, value: DistributedValues, axis: Any) -> Any:
        """``strategy.reduce`` of one value, to the host."""
        if axis is None:
            return self._reduce_to(op, value, HOST, None)
        return reduce_axis(op, [self._host(v) for v in value.values], axis)

    def gather_to_all(
        self, value: DistributedValues, axis: int, options: CommunicationOptions | None = None
    ) -> Any:
        """Values of all replicas put together, on every replica."""
        return self._cross_device_ops.gather(value, value, axis, options)

    def gather_to_host(self, value: DistributedValues, axis: int) -> Any:
        """Values of all replicas put together."""
        return self._cross_device_ops.gather(value, HOST, axis, None)

    def of_first_replica(self, value: DistributedValues) -> Any:
        """What the first replica of all has."""
        return value.values[0]

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """A value on every device of ``destinations``; Python numbers stay as they are.

        Raises:
            RuntimeError: In replica context.
        """
        require_cross_replica(self._strategy, "extended.broadcast_to")
        if isinstance(tensor, int | float):
            return tensor
        where = self.replica_devices if destinations is None else devices_of(destinations)
        return mirror(tensor, where)

    @staticmethod
    def _host(value: Any) -> Any:
        from ..base.arrays import to_host

        return to_host(value)


def _differs(value: Any) -> bool:
    """Whether a value may differ between replicas; if not there is nothing to reduce."""
    if isinstance(value, Mirrored):
        return False
    if isinstance(value, DistributedVariable):
        return isinstance(value, SyncOnReadVariable)
    return isinstance(value, DistributedValues)


def _holder(variable: Any) -> LocalVariable:
    """What holds a variable's value in this process."""
    component = getattr(variable, "component", None)
    holder = component() if component is not None else variable
    if isinstance(holder, LocalVariable):
        return holder
    if hasattr(variable, "variables"):
        raise ValueError(
            f"{variable.name!r} is made of {len(variable.variables)} variables; give the optimizer those "
            "(`.variables`), each with its part of the gradient"
        )
    raise ValueError(f"{variable.name!r} was created under another strategy")


class Strategy:
    """As ``tf.distribute.Strategy``: state and computation over a set of replicas."""

    def __init__(self, extended: StrategyExtended | None = None) -> None:
        self._extended = extended if extended is not None else StrategyExtended(self, [HOST])

    @property
    def extended(self) -> StrategyExtended:
        """The strategy's algorithms."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are aggregated in one step."""
        return self._extended.num_replicas_in_sync

    @property
    def cluster_resolver(self) -> Any:
        """Where the cluster comes from; None for one worker."""
        return None

    def scope(self) -> _Scope:
        """Make this strategy current; create variables and optimizers in it."""
        return _Scope(self)

    def colocate_vars_with(self, colocate_with_variable: Variable) -> AbstractContextManager[None]:
        """As ``extended.colocate_vars_with``, which is TensorFlow's newer name of it."""
        return self._extended.colocate_vars_with(colocate_with_variable)

    def run(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...] | list[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: Any = None,  # noqa: ARG002 - TensorFlow's, of use on TPUs only
    ) -> Any:
        """Call ``fn`` once per local replica, each with its part of distributed arguments.

        Raises:
            ValueError: ``args`` is neither a list nor a tuple.
            RuntimeError: Inside another ``run``.
        """
        if not isinstance(args, list | tuple):
            raise ValueError(f"positional args must be a list or tuple, got {type(args).__name__}")
        frame = top_frame()
        if frame is not None and frame.replica is not None:
            default = the_default_strategy()
            if frame.strategy is not default or self is default:
                raise RuntimeError("strategy.run inside strategy.run; call the function itself")
            with self.scope():
                return self._extended.call_for_each_replica(fn, tuple(args), kwargs)
        return self._extended.call_for_each_replica(fn, tuple(args), kwargs)

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Any = None) -> Any:
        """One value out of one per replica, on the host.

        Args:
            reduce_op: SUM or MEAN, also as a string in any case.
            value: Nested; PerReplica leaves are reduced.
            axis: None: element-wise over replicas. Integer(s): over these axes of each replica too; MEAN is
                then the total sum over the total count, so uneven batches weigh by their size.

        Raises:
            RuntimeError: In replica context.
            ValueError: Another op, shapes that differ, or an axis past the rank.
        """
        require_cross_replica(self, "reduce")
        op = ReduceOp.of(reduce_op)
        extended = self._extended

        def reduce_leaf(leaf: Any) -> Any:
            if isinstance(leaf, DistributedValues):
                if axis is None and not extended.differs(leaf):
                    return extended._of_all(op, leaf)
                return extended.reduce_over(op, leaf, axis)
            if extended.differs(leaf):
                return extended.reduce_over(op, PerReplica([leaf]), axis)
            single = extended._of_all(op, leaf)
            return single if axis is None else extended.reduce_over(op, PerReplica([single]), axis)

        return map_structure(reduce_leaf, value)

    def gather(self, value: Any, axis: int) -> Any:
        """Per-replica values put together along an axis, on the host. They may differ in length there.

        Raises:
            RuntimeError: In replica context.
            ValueError: Scalars, an axis past the rank, or shapes that differ elsewhere.
            NotImplementedError: IndexedSlices.
        """
        require_cross_replica(self, "gather")
        count = len(self._extended.replica_devices)

        def gather_leaf(leaf: Any) -> Any:
            values = leaf if isinstance(leaf, DistributedValues) else PerReplica([leaf] * count)
            return self._extended.gather_to_host(values, axis)

        return map_structure(gather_leaf, value)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """One value per local replica; a 1-tuple of what is not distributed."""
        return local_results(value, len(self._extended.replica_devices))

    unwrap = experimental_local_results

    def group(self, value: Any, name: str | None = None) -> None:
        """TensorFlow's: joins operations of a graph. Here everything has happened already."""

    def experimental_distribute_values_from_function(
        self, value_fn: Callable[[ValueContext], Any]
    ) -> Any:
        """A value per local replica, from ``value_fn(ValueContext)``; the value itself for one replica."""
        require_cross_replica(self, "experimental_distribute_values_from_function")
        extended = self._extended
        count = len(extended.replica_devices)
        values = [
            value_fn(ValueContext(extended.first_replica + i, self.num_replicas_in_sync))
            for i in range(count)
        ]
        return values[0] if count == 1 else regroup(values, always_wrap=True)

    def experimental_distribute_dataset(
        self, dataset: Any, options: "InputOptions | None" = None
    ) -> "DistributedDataset":
        """Split every global batch of a dataset over the replicas.

        Args:
            dataset: Batches: see :func:`windlass.data.as_dataset` for what is taken.
            options: How it is sharded between workers and prefetched.
        """
        from ..data.distributed import distribute_dataset

        return distribute_dataset(self, dataset, options)

    def distribute_datasets_from_function(
        self,
        dataset_fn: "Callable[[InputContext], Any]",
        options: "InputOptions | None" = None,
    ) -> "DistributedDataset":
        """Datasets of per-replica batches; ``dataset_fn(InputContext)`` is called once per worker.

        Nothing is rebatched or sharded: consecutive elements go to consecutive replicas.
        """
        from ..data.distributed import distribute_from_function

        return distribute_from_function(self, dataset_fn, options)

    experimental_distribute_datasets_from_function = distribute_datasets_from_function

    def __copy__(self) -> NoReturn:
        raise RuntimeError("Must not copy a strategy: variables belong to one")

    def __deepcopy__(self, memo: Any) -> Self:
        raise RuntimeError("Must not copy a strategy: variables belong to one")


class _DefaultExtended(StrategyExtended):
    """Of the default strategy: no devices of its own."""

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """None.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("worker_devices() method unsupported by default strategy.")

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """None.

        Raises:
            RuntimeError: Always.
        """
        raise RuntimeError("parameter_devices() method unsupported by default strategy.")

    def unique_name(self, wished: str) -> str:
        """The name itself: programs without a strategy may use one twice."""
        return wished

    def broadcast_to(self, tensor: Any, destinations: Any) -> Any:
        """The value.

        Raises:
            NotImplementedError: With destinations.
        """
        if destinations is not None:
            raise NotImplementedError("the default strategy has no devices to broadcast to")
        return tensor


class DefaultStrategy(Strategy):
    """The strategy of a program that uses none: one replica, no distribution, a scope that does nothing."""

    def __init__(self) -> None:
        super().__init__(_DefaultExtended(self, [HOST]))

    def scope(self) -> _Scope:
        """A scope that changes nothing."""
        return _DefaultScope(self)

    def __deepcopy__(self, memo: Any) -> Self:
        return self


_default = DefaultStrategy()


def the_default_strategy() -> Strategy:
    """The one default strategy of the process."""
    return _default


__all__ = ["DefaultStrategy", "Strategy", "StrategyExtended"]
