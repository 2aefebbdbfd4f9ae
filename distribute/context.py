"""Which strategy is current, and on which side of it we are: replica or cross-replica.

Contexts are a stack per thread, as in TensorFlow. Outside everything the default strategy is current, in
a replica context with id 0.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .reduce_op import ReduceOp
from .values import PerReplica, map_structure, on_every_replica

if TYPE_CHECKING:
    from .strategy import Strategy


@dataclass(frozen=True, slots=True)
class Frame:
    """One entered context. ``replica`` is None in cross-replica context."""

    strategy: "Strategy"
    replica: "ReplicaContext | None"


class _Stack(threading.local):
    def __init__(self) -> None:
        self.frames: list[Frame] = []


_stack = _Stack()
_global: list["Strategy"] = []  # what experimental_set_strategy set; at most one


def push_frame(frame: Frame) -> None:
    """Enter a context in this thread."""
    _stack.frames.append(frame)


def pop_frame(frame: Frame) -> None:
    """Leave a context.

    Raises:
        RuntimeError: It is not the one entered last.
    """
    if not _stack.frames or _stack.frames[-1] is not frame:
        raise RuntimeError(
            "Strategy scopes were left in another order than they were entered in; use `with`"
        )
    _stack.frames.pop()


def top_frame() -> Frame | None:
    """The context entered last in this thread, or the one set globally."""
    if _stack.frames:
        return _stack.frames[-1]
    return Frame(_global[0], None) if _global else None


def get_strategy() -> "Strategy":
    """The current strategy; outside any scope the default strategy."""
    frame = top_frame()
    return frame.strategy if frame is not None else default_strategy()


def has_strategy() -> bool:
    """Whether a strategy other than the default one is current."""
    return get_strategy() is not default_strategy()


def in_cross_replica_context() -> bool:
    """True in ``scope()`` and in merge_call functions; False by default and inside ``run``."""
    frame = top_frame()
    return frame is not None and frame.replica is None


def get_replica_context() -> "ReplicaContext | None":
    """This replica's context; None in cross-replica context."""
    frame = top_frame()
    return frame.replica if frame is not None else ReplicaContext(default_strategy(), 0)


def experimental_set_strategy(strategy: "Strategy | None") -> None:
    """Make a strategy current without ``with``; None clears it.

    Raises:
        RuntimeError: Inside a scope.
    """
    if _stack.frames:
        raise RuntimeError("Must not be called inside a `tf.distribute.Strategy` scope.")
    _global.clear()
    if strategy is not None and strategy is not default_strategy():
        _global.append(strategy)


def default_strategy() -> "Strategy":
    """The strategy of a program that uses none: one replica, no distribution."""
    from .strategy import the_default_strategy

    return the_default_strategy()


def require_cross_replica(strategy: "Strategy", method: str) -> None:
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


MergeCall = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


class ReplicaContext:
    """What a replica may do inside ``run``. As ``tf.distribute.ReplicaContext``."""

    def __init__(
        self, strategy: "Strategy", replica_id_in_sync_group: int, merge: MergeCall | None = None
    ) -> None:
        self._strategy = strategy
        self._replica_id = replica_id_in_sync_group
        self._merge = merge

    @property
    def strategy(self) -> "Strategy":
        """The strategy that runs this replica."""
        return self._strategy

    @property
    def replica_id_in_sync_group(self) -> int:
        """Number of this replica among those in sync."""
        return self._replica_id

    @property
    def num_replicas_in_sync(self) -> int:
        """Replicas whose gradients are aggregated in one step."""
        return self._strategy.num_replicas_in_sync

    @property
    def devices(self) -> tuple[str, ...]:
        """Device of this replica."""
        return (self._strategy.extended.worker_devices[self._replica_id],)

    def merge_call(
        self,
        merge_fn: Callable[..., Any],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Pause every replica, run ``merge_fn(strategy, *args)`` once, give each its part of the result.

        Arguments arrive as PerReplica values.

        Raises:
            RuntimeError: This is not the current replica, or other replicas do not make the same calls.
        """
        self._require_current("merge_call")
        if self._merge is not None:
            return self._merge(merge_fn, args, kwargs or {})
        inner = Frame(self._strategy, None)
        push_frame(inner)
        try:
            return merge_fn(self._strategy, *args, **(kwargs or {}))
        finally:
            pop_frame(inner)

    def all_reduce(self, reduce_op: ReduceOp | str, value: Any) -> Any:
        """Reduce a nested value over the replicas; every replica gets the result.

        Raises:
            RuntimeError: This is not the current replica.
        """
        op = ReduceOp.of(reduce_op)
        self._require_current("all_reduce")

        def merge(strategy: "Strategy", tree: Any) -> Any:
            # The very same object from every replica is each one's value.
            count = strategy.num_replicas_in_sync
            return map_structure(
                lambda leaf: strategy.reduce(op, on_every_replica(leaf, count), axis=None), tree
            )

        if self.num_replicas_in_sync == 1:
            return value
        return self.merge_call(merge, (value,))

    def _require_current(self, method: str) -> None:
        frame = top_frame()
        # Outside everything, anybody may ask for the default strategy's context, as often as they like.
        current = (
            frame.replica is self if frame is not None else self._strategy is default_strategy()
        )
        if not current:
            raise RuntimeError(f"{method} of a replica context that is not current")


__all__ = [
    "Frame",
    "PerReplica",
    "ReplicaContext",
    "experimental_set_strategy",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
]
