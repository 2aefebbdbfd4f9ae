"""Strategy, StrategyExtended and the default strategy: the interface every strategy shares."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Self

from .context import Frame, pop_frame, push_frame, require_cross_replica, top_frame
from .devices import compute_devices
from .input import DistributedDataset
from .reduce_op import ReduceOp, clip_scale, combine, reduce_axis
from .replica_runner import ReplicaRunner
from .values import DistributedValues, local_results, map_structure
from .variable import LocalVariable, Variable, VariableSpec


class _Scope:
    """What ``strategy.scope()`` returns. Reading it in ``with … as`` gives the strategy."""

    def __init__(self, strategy: "Strategy") -> None:
        self._strategy = strategy
        self._frames: list[Frame | None] = []

    def __enter__(self) -> "Strategy":
        strategy = self._strategy
        current = top_frame()
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
    """The algorithms of a strategy; one object belongs to one strategy."""

    def __init__(self, strategy: "Strategy", devices: list[str]) -> None:
        self._strategy = strategy
        self._devices = tuple(devices)
        self._runner = ReplicaRunner(strategy, len(devices))

    @property
    def worker_devices(self) -> tuple[str, ...]:
        """Devices of this worker's replicas."""
        return self._devices

    @property
    def parameter_devices(self) -> tuple[str, ...]:
        """Devices that hold variables."""
        return self._devices

    def variable_created_in_scope(self, variable: Variable) -> bool:
        """Whether a variable was made under this strategy."""
        return variable.strategy is self._strategy

    def create_variable(self, spec: VariableSpec) -> Variable:
        """Make a variable. Called by ``Variable(...)``."""
        return LocalVariable(spec, self._strategy)

    def scope_left(self) -> None:
        """A ``with strategy.scope()`` ended without an error."""

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call ``fn`` on every local replica."""
        return self._runner.run(fn, args, kwargs)

    def apply_gradients(self, optimizer: Any, pairs: list[tuple[Any, Variable]]) -> None:
        """Update variables, in cross-replica context, with gradients already reduced."""
        mine: list[tuple[Any, LocalVariable]] = []
        for gradient, variable in pairs:
            if not isinstance(variable, LocalVariable):
                raise ValueError(f"{variable.name!r} was created under another strategy")
            mine.append((gradient, variable))
        clip = optimizer.rule.global_clipnorm
        scale = 1.0 if clip is None else clip_scale([gradient for gradient, _ in mine], clip)
        for gradient, variable in mine:
            variable.apply(gradient, optimizer.rule, gradient_scale=scale)


class Strategy:
    """As ``tf.distribute.Strategy``: state and computation over a set of replicas."""

    def __init__(self, extended: StrategyExtended | None = None) -> None:
        self._extended = (
            extended if extended is not None else StrategyExtended(self, ["/device:CPU:0"])
        )

    @property
    def extended(self) -> StrategyExtended:
        """The strategy's algorithms."""
        return self._extended

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are aggregated in one step."""
        return len(self._extended.worker_devices)

    @property
    def cluster_resolver(self) -> Any:
        """Where the cluster comes from; None for one worker."""
        return None

    def scope(self) -> _Scope:
        """Make this strategy current; create variables and optimizers in it."""
        return _Scope(self)

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
            raise RuntimeError("strategy.run inside strategy.run; call the function itself")
        return self._extended.call_for_each_replica(fn, tuple(args), kwargs or {})

    def reduce(self, reduce_op: ReduceOp | str, value: Any, axis: Any = None) -> Any:
        """One value out of one per replica.

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

        def reduce_leaf(leaf: Any) -> Any:
            values = leaf.values if isinstance(leaf, DistributedValues) else (leaf,)
            if axis is not None:
                return reduce_axis(op, list(values), axis)
            if not isinstance(leaf, DistributedValues):
                if op is ReduceOp.SUM and self.num_replicas_in_sync > 1:
                    raise ValueError(
                        f"SUM of a value that is not distributed over {self.num_replicas_in_sync} replicas "
                        "is ambiguous; reduce a PerReplica value"
                    )
                return leaf
            return combine(op, list(values))

        return map_structure(reduce_leaf, value)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """One value per local replica; a 1-tuple of what is not distributed."""
        return local_results(value, self.num_replicas_in_sync)

    def experimental_distribute_dataset(
        self,
        dataset: Any,
        options: Any = None,  # noqa: ARG002 - TensorFlow's signature
    ) -> DistributedDataset:
        """Split every batch of a dataset over the local replicas.

        Args:
            dataset: An iterable of global batches (nested arrays), or nested arrays whose first axis counts
                batches. See :class:`~windlass.distribute.input.DistributedDataset`.
            options: Accepted for TensorFlow's signature.
        """
        return DistributedDataset(dataset, self.num_replicas_in_sync)

    def __copy__(self) -> NoReturn:
        raise RuntimeError("Must not copy a strategy: variables belong to one")

    def __deepcopy__(self, memo: Any) -> Self:
        raise RuntimeError("Must not copy a strategy: variables belong to one")


class DefaultStrategy(Strategy):
    """The strategy of a program that uses none: one replica, no distribution, a scope that does nothing."""

    def scope(self) -> _Scope:
        """A scope that changes nothing."""
        return _DefaultScope(self)

    def __deepcopy__(self, memo: Any) -> Self:
        return self


_default = DefaultStrategy()


def the_default_strategy() -> Strategy:
    """The one default strategy of the process."""
    return _default


__all__ = ["DefaultStrategy", "Strategy", "StrategyExtended", "compute_devices"]
