"""Values that differ between replicas, and how structures of them are made and taken apart."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import optree

from ...core.arrays.any_framework import to_host
from .contexts import get_replica_context


class DistributedValues:
    """Values of the local replicas, one each, as ``tf.distribute.DistributedValues``. As
    ``tf.distribute.DistributedValues``.
    """

    def __init__(self, values: Iterable[Any]) -> None:
        self._values = tuple(values)

    @property
    def values(self) -> tuple[Any, ...]:
        """Values of the local replicas, one each, in order."""
        return self._values

    def __repr__(self) -> str:
        inside = ",\n".join(f"  {i}: {value!r}" for i, value in enumerate(self._values))
        return f"{type(self).__name__}:{{\n{inside}\n}}"


class PerReplica(DistributedValues):
    """A value that differs between replicas. Unwrap it, reduce it or pass it to ``run``.

    As an array, inside ``run``, it is this replica's part.
    """

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        context = get_replica_context()
        count = 0 if context is None else len(context.strategy.extended.replica_devices)
        if context is not None and count == len(self._values):
            return _as_host_array(self._values[context.local_id], *args, **kwargs)
        raise ValueError(
            f"a PerReplica of {len(self._values)} values is no array; use "
            "strategy.experimental_local_results, strategy.reduce or strategy.gather"
        )


class Mirrored(DistributedValues):
    """A value that is the same on every replica. As an array it is that value."""

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        return _as_host_array(self._values[0], *args, **kwargs)


def _as_host_array(value: Any, *args: Any, **kwargs: Any) -> Any:
    host = to_host(value)
    return host if not args and not kwargs else host.__array__(*args, **kwargs)


@dataclass(frozen=True, slots=True, eq=False)
class ValueContext:
    """The replica for which ``experimental_distribute_values_from_function`` asks a value.

    Attributes:
        replica_id_in_sync_group: Number of the replica among those in sync.
        num_replicas_in_sync: Number of replicas in sync.
    """

    replica_id_in_sync_group: int = 0
    num_replicas_in_sync: int = 1

    def __str__(self) -> str:
        return (
            f"tf.distribute.ValueContext(replica id {self.replica_id_in_sync_group},  "
            f"total replicas in sync: {self.num_replicas_in_sync})"
        )


def map_structure(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply ``function`` to the leaves of nested dicts, lists and tuples. None is a leaf."""
    return optree.tree_map(function, tree, *rest, none_is_leaf=True)


def leaves(tree: Any) -> list[Any]:
    """List the leaves of a nested structure, in order."""
    return optree.tree_leaves(tree, none_is_leaf=True)


def flatten(tree: Any) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """List the leaves of a nested structure; returns also what builds the structure out of
    others.
    """
    found_leaves, spec = optree.tree_flatten(tree, none_is_leaf=True)
    return found_leaves, partial(optree.tree_unflatten, spec)  # which can be pickled


def up_to(tree: Any, other: Any) -> list[Any]:
    """List what ``other`` has in the places of the leaves of ``tree``, in their order.

    Raises:
        ValueError: Its structure is another one before it comes to these places.
    """
    parts: list[Any] = optree.tree_structure(tree, none_is_leaf=True).flatten_up_to(other)
    return parts


def is_variable(leaf: Any) -> bool:
    """Return whether a leaf is a variable, distributed or not; variables are never unwrapped."""
    return hasattr(leaf, "read_value")


def select_replica(replica: int, tree: Any, replicas: int | None = None) -> Any:
    """Take one replica's part of nested arguments; what is not distributed goes to every replica.

    Args:
        replica: Number of the replica.
        tree: The arguments.
        replicas: Number of replicas; None: not checked.

    Raises:
        ValueError: A value has parts for another number of replicas: some would be left out.
    """

    def pick(leaf: Any) -> Any:
        if isinstance(leaf, DistributedValues) and not is_variable(leaf):
            if replicas is not None and len(leaf.values) != replicas:
                raise ValueError(
                    f"a {type(leaf).__name__} of {len(leaf.values)} values was given to {replicas} "
                    "replica(s); make it by the strategy that runs, e.g. let that one distribute "
                    "the dataset"
                )
            return leaf.values[replica]
        return leaf

    # Nothing is the common case; of arrays and variables the truth must not be asked.
    return tree if isinstance(tree, tuple | dict) and not tree else map_structure(pick, tree)


def select_component(number: int, tree: Any) -> Any:
    """Take one device's part of nested arguments of ``update``: of variables, too."""
    return map_structure(
        lambda leaf: leaf.values[number] if isinstance(leaf, DistributedValues) else leaf, tree
    )


def on_every_replica(value: Any, replicas: int) -> DistributedValues:
    """Distribute a value that may be distributed already: what is not, every replica has."""
    return value if isinstance(value, DistributedValues) else PerReplica([value] * replicas)


def regroup(results: list[Any], *, mirrored: bool = False, always_wrap: bool = False) -> Any:
    """Group structures of replicas to one, leaf by leaf.

    A leaf that is the very same object everywhere stays as it is, and components of one variable
    become the variable; others become PerReplica. One replica's result is returned as it is.

    Args:
        results: Results of the replicas, one each.
        mirrored: The leaves are the same everywhere: Mirrored instead of PerReplica.
        always_wrap: Distribute also what is one object, or of one replica.

    Raises:
        ValueError: The structures differ.
    """
    if len(results) == 1 and not always_wrap:
        return results[0]

    def group(*parts: Any) -> Any:
        if not always_wrap and all(part is parts[0] for part in parts):
            return parts[0]
        owners = [container_of(part) for part in parts]
        if owners[0] is not None and all(owner is owners[0] for owner in owners):
            return owners[0]
        return Mirrored(parts) if mirrored else PerReplica(parts)

    return map_structure(group, results[0], *results[1:])


def container_of(component: Any) -> Any:
    """Find the distributed variable a component belongs to; None if it is no component."""
    owner = getattr(component, "container", None)
    return owner if owner is not None and is_variable(owner) else None


def local_results(value: Any, replicas: int) -> tuple[Any, ...]:
    """Split a value into structures of the local replicas; one that is not distributed is the only
    result.
    """
    if isinstance(value, DistributedValues):
        return value.values
    parts = leaves(value)
    if any(isinstance(part, DistributedValues) for part in parts):
        return tuple(select_component(replica, value) for replica in range(replicas))
    return (value,)
