"""The strategy and the context (replica, cross-replica, update) that this thread is in.

Contexts are a stack per thread, as in TensorFlow. Outside everything the default strategy is
current, in a replica context with id 0.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ...core.public_face import provided
from .communication import CommunicationOptions
from .devices import in_task
from .interface import StrategyInterface
from .reductions import ReduceOp, axis_number


@dataclass(frozen=True, slots=True)
class Frame:
    """A context that was entered.

    Attributes:
        replica: Context of the replica; None in cross-replica context.
        component: Number of the device whose component is updated, in an update context.
    """

    strategy: StrategyInterface
    replica: "ReplicaContext | None"
    component: int | None = None


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.chosen: Frame | None = None  # by experimental_set_strategy


_stack = _Stack()
_default: list[StrategyInterface] = []  # once it was asked for; one


def push_frame(frame: Frame) -> None:
    """Enter a context in this thread."""
    _stack.frames.append(frame)


def pop_frame(frame: Frame) -> None:
    """Leave a context, and with it those in it that were not left.

    Raises:
        RuntimeError: It is not the one entered last.
    """
    frames = _stack.frames
    if frames and frames[-1] is frame:
        frames.pop()
        return
    depth = next((i for i, entry in enumerate(frames) if entry is frame), len(frames))
    del frames[depth:]
    raise RuntimeError(
        "Strategy scopes were left in another order than they were entered in; use `with`"
    )


@contextmanager
def entered(frame: Frame) -> Iterator[None]:
    """Enter a context for a block."""
    push_frame(frame)
    try:
        yield
    finally:
        pop_frame(frame)


def top_frame() -> Frame | None:
    """Return the context entered last in this thread, or that of the strategy set for it."""
    return _stack.frames[-1] if _stack.frames else _stack.chosen


def is_running(strategy: StrategyInterface) -> bool:
    """Return whether this thread is in a ``run`` of a strategy, be it in a merge."""
    for frame in _stack.frames:  # noqa: SIM110 - a generator costs three times this
        if frame.replica is not None and frame.strategy is strategy:
            return True
    return False


def get_strategy() -> StrategyInterface:
    """Return the current strategy; outside any scope the default strategy."""
    frame = top_frame()
    return frame.strategy if frame is not None else default_strategy()


def has_strategy() -> bool:
    """Return whether a strategy other than the default one is current."""
    return get_strategy() is not default_strategy()


def in_cross_replica_context() -> bool:
    """Return True in ``scope()``, merges and update functions; False by default and in ``run``."""
    frame = top_frame()
    return frame is not None and frame.replica is None


def get_replica_context() -> "ReplicaContext | None":
    """Return this replica's context; None in cross-replica context."""
    frame = top_frame()
    return frame.replica if frame is not None else ReplicaContext(default_strategy(), 0)


def update_component() -> int | None:
    """Return the component that an update function works on; None outside of
    ``extended.update``.
    """
    frame = top_frame()
    return frame.component if frame is not None else None


def get_loss_reduction() -> ReduceOp:
    """Return SUM always, as ``tf.compat.v1.distribute.get_loss_reduction``. As
    ``tf.compat.v1.distribute.get_loss_reduction``.

    A program divides its loss by the global batch size; TensorFlow says MEAN inside its Estimator
    alone.
    """
    return ReduceOp.SUM


def experimental_set_strategy(strategy: StrategyInterface | None) -> None:
    """Make a strategy current in this thread without ``with``; None clears it.

    Raises:
        RuntimeError: Inside a scope.
        AttributeError: It is no strategy.
    """
    if _stack.frames:
        raise RuntimeError("Must not be called inside a `tf.distribute.Strategy` scope.")
    if strategy is not None and not hasattr(strategy, "scope"):
        raise AttributeError(
            "experimental_set_strategy takes a strategy, or None, which clears it; "
            f"{strategy!r} has no scope"
        )
    _stack.chosen = None
    if strategy is not None and strategy is not default_strategy():
        _stack.chosen = Frame(strategy, None)


def default_strategy() -> StrategyInterface:
    """Return the strategy of a program that uses none: one replica, no distribution."""
    if not _default:
        _default[:] = [provided("default_strategy")()]
    return _default[0]


def require_cross_replica(strategy: StrategyInterface, method: str) -> None:
    """Refuse a cross-replica method in replica context.

    Raises:
        RuntimeError: We are inside ``run``.
    """
    frame = top_frame()
    if frame is not None and frame.replica is not None:
        raise RuntimeError(
            f"{type(strategy).__name__}.{method} requires being in cross-replica context, use "
            "get_replica_context().merge_call()"
        )


def require_own_cross_replica(strategy: StrategyInterface, method: str) -> None:
    """Refuse a method that reduces values in replica context and under another strategy.

    Raises:
        RuntimeError: We are inside ``run``, or inside the scope of another strategy.
    """
    require_cross_replica(strategy, method)
    if current := _other_than(strategy):
        raise RuntimeError(
            f"Mixing different tf.distribute.Strategy objects: {type(strategy).__name__}.{method} "
            f"was called in the scope of {type(current).__name__}; call it in its own "
            "`with strategy.scope():`, or outside of every scope"
        )


def require_own(strategy: StrategyInterface, what: str) -> None:
    """Refuse to change a variable under another strategy, whose replicas would each change it.

    Raises:
        RuntimeError: The current strategy is neither this one nor the default one.
    """
    if current := _other_than(strategy):
        raise RuntimeError(
            f"Mixing different tf.distribute.Strategy objects: {what} belongs to "
            f"{type(strategy).__name__} and is changed under {type(current).__name__}; create "
            "variables in the scope of the strategy that runs them"
        )


def _other_than(strategy: StrategyInterface) -> StrategyInterface | None:
    """Return the current strategy, if that is neither this one nor the default one."""
    current = get_strategy()
    return None if current is strategy or current is default_strategy() else current


def code_of(function: Callable[..., Any]) -> object:
    """Find what functions made on each replica by the same line have in common."""
    while isinstance(function, partial):
        function = function.func
    plain = getattr(function, "__func__", function)
    return getattr(plain, "__code__", plain)


@dataclass(frozen=True, slots=True)
class Merging:
    """A function for ``merge_call``; replicas must agree on ``agreed`` as well as on its code."""

    function: Callable[..., Any]
    agreed: tuple[object, ...]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self.function(*args, **kwargs)


MergeCall = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class ReplicaContext:
    """The replica inside ``run``, and what it may do there, as ``tf.distribute.ReplicaContext``. As
    ``tf.distribute.ReplicaContext``.

    ``with`` makes one that a program has made the current context.

    Args:
        strategy: Strategy whose replica it is.
        replica_id_in_sync_group: Number of the replica among those of all synchronous workers.
        merge: Carries out ``merge_call`` with the other replicas of this worker; None: there are
            none.
        local_id: Number of the replica on this worker.
    """

    def __init__(
        self,
        strategy: StrategyInterface,
        replica_id_in_sync_group: int,
        merge: MergeCall | None = None,
        local_id: int = 0,
    ) -> None:
        self._strategy = strategy
        self._replica_id = replica_id_in_sync_group
        self._merge = merge
        self.local_id = local_id
        self._entered: list[Frame] = []

    def __enter__(self) -> None:
        frame = Frame(self._strategy, self)
        push_frame(frame)
        self._entered.append(frame)

    def __exit__(self, *_: object) -> None:
        pop_frame(self._entered.pop())

    @property
    def strategy(self) -> Any:
        """The :class:`Strategy` that runs this replica."""
        return self._strategy

    @property
    def replica_id_in_sync_group(self) -> int:
        """Number of this replica among those in sync, over all workers."""
        return self._replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are aggregated in one step."""
        return self._strategy.extended.num_replicas_in_sync

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of this replica, with its task.

        Raises:
            RuntimeError: This is not the current replica.
        """
        self._require_current("devices")
        extended = self._strategy.extended
        return (in_task(extended.task_name, extended.replica_devices[self.local_id]),)

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run ``merge_fn(strategy, *args)`` once for all replicas; each gets its part of the
        result.

        Arguments arrive as PerReplica values; what is the very same object on every replica arrives
        as it is. With several workers it runs once on each of them.

        Raises:
            RuntimeError: This is not the current replica, or the replicas do not make the same
                calls in the same order; the message shows where each of them is.
        """
        self._require_current("merge_call")
        if self._merge is not None:
            return self._merge(merge_fn, args, kwargs or {})
        with entered(Frame(self._strategy, None)):
            return merge_fn(self._strategy, *args, **(kwargs or {}))

    def all_reduce(
        self, reduce_op: ReduceOp | str, value: Any, options: CommunicationOptions | None = None
    ) -> Any:
        """Reduce a nested value over the replicas; every replica gets the result.

        Args:
            reduce_op: SUM or MEAN.
            value: Arrays, numbers or IndexedSlices, nested. IndexedSlices are concatenated.
            options: Options of the collectives, for strategies of several workers.

        Raises:
            RuntimeError: This is not the current replica.
        """
        op = ReduceOp.of(reduce_op)
        self._require_current("all_reduce")
        if self.num_replicas_in_sync == 1:
            return value

        def merge(strategy: StrategyInterface, tree: Any) -> Any:
            return strategy.extended.reduce_to_all(op, tree, options)

        return self.merge_call(Merging(merge, (op,)), (value,))

    def all_gather(self, value: Any, axis: int, options: CommunicationOptions | None = None) -> Any:
        """Concatenate a nested value over the replicas; every replica gets the result.

        Args:
            value: Arrays, nested. They may differ in length along ``axis``, and in nothing else.
            axis: Along which they are put together.
            options: Options of the collectives, for strategies of several workers.

        Raises:
            RuntimeError: This is not the current replica.
            TypeError: The axis is a float.
            ValueError: A scalar, shapes that differ elsewhere, or an axis that is no number.
        """
        axis = axis_number(axis)
        self._require_current("all_gather")

        def merge(strategy: StrategyInterface, tree: Any) -> Any:
            return strategy.extended.gather_to_all(tree, axis, options)

        return self.merge_call(Merging(merge, (axis,)), (value,))

    def _require_current(self, method: str) -> None:
        frame = top_frame()
        # Outside everything, anybody may ask for the default strategy's context, as often as they
        # like.
        current = (
            frame.replica is self if frame is not None else self._strategy is default_strategy()
        )
        if not current:
            raise RuntimeError(
                f"{method} of a replica context that is not current. Need to be inside "
                "`call_for_each_replica()` (`strategy.run`)"
            )

    def __repr__(self) -> str:
        return f"<ReplicaContext {self._replica_id} of {self.num_replicas_in_sync}>"
