"""Values that differ between replicas, and how structures of them are made and taken apart."""

from collections.abc import Callable, Iterable
from typing import Any

import optree

_NAMESPACE = ""


class DistributedValues:
    """One value per local replica. As ``tf.distribute.DistributedValues``."""

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        """One per local replica, in order."""
        return self._values

    def __repr__(self) -> str:
        inside = ",\n".join(f"  {i}: {value!r}" for i, value in enumerate(self._values))
        return f"{type(self).__name__}:{{\n{inside}\n}}"


class PerReplica(DistributedValues):
    """A value that differs between replicas. No operators: unwrap it, reduce it or pass it to ``run``."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError(
            f"a PerReplica of {len(self._values)} values is no array; use "
            "strategy.experimental_local_results, strategy.reduce or strategy.gather"
        )


class Mirrored(DistributedValues):
    """A value that is the same on every replica."""


def map_structure(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply ``function`` to the leaves of nested dicts, lists and tuples. None is a leaf."""
    return optree.tree_map(function, tree, *rest, none_is_leaf=True)


def leaves(tree: Any) -> list[Any]:
    """The leaves of a nested structure, in order."""
    return optree.tree_leaves(tree, none_is_leaf=True)


def select_replica(replica: int, tree: Any) -> Any:
    """One replica's part of nested arguments; what is not distributed goes to every replica."""

    def pick(leaf: Any) -> Any:
        return leaf.values[replica] if isinstance(leaf, DistributedValues) else leaf

    return map_structure(pick, tree)


def on_every_replica(value: Any, replicas: int) -> DistributedValues:
    """A value that may be distributed as one that is: what is not, every replica has."""
    return value if isinstance(value, DistributedValues) else Mirrored([value] * replicas)


def regroup(results: list[Any]) -> Any:
    """One structure out of one per replica, leaf by leaf.

    A leaf that is the very same object everywhere stays as it is; others become PerReplica. One replica's
    result is returned as it is.

    Raises:
        ValueError: The structures differ.
    """
    if len(results) == 1:
        return results[0]

    def group(*parts: Any) -> Any:
        return parts[0] if all(part is parts[0] for part in parts) else PerReplica(parts)

    return map_structure(group, results[0], *results[1:])


def local_results(value: Any, replicas: int) -> tuple[Any, ...]:
    """One structure per local replica out of one; a value that is not distributed is its only result."""
    if isinstance(value, DistributedValues):
        return value.values
    parts = leaves(value)
    if any(isinstance(part, DistributedValues) for part in parts):
        return tuple(select_replica(replica, value) for replica in range(replicas))
    return (value,)
