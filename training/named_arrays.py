"""A tree of arrays as variables by name: reading, changing, and what of a tree goes where."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import optree

from ..core.arrays.any_framework import as_array, to_host
from ..core.arrays.indexed_slices import IndexedSlices
from ..core.errors import UnknownVariableError
from ..core.terminal import Shown
from ..distribute.base.reductions import VariableAggregation
from ..distribute.strategies.default import get_strategy
from ..distribute.strategies.strategy import Strategy
from ..distribute.variables.variable import Variable, has_creators

if TYPE_CHECKING:
    from ..distribute.strategies.steps_alone import StepsAlone


class NamedArrays(Shown):
    """The arrays of a store, and their names; see :class:`~ropewalk.training.ArrayStore`.

    Args:
        arrays: First values, as a nested structure.
        strategy: Strategy under which the arrays live; None: the current one.
        name: Comes first in every name.
        tables: Variables by name that are in no tree.

    Attributes:
        strategy: Strategy under which the arrays live.
        variables: Variables by name. A program may have several models of the same names, one for
            each fold of its data, say: the variables of the second begin with ``model_2/``.

    Raises:
        ValueError: Two leaves have one name, or a variable is another strategy's.
    """

    def __init__(
        self,
        arrays: Any,
        strategy: Strategy | None,
        name: str,
        tables: Mapping[str, Variable] | None,
    ) -> None:
        self.strategy = strategy if strategy is not None else get_strategy()
        paths, tree_leaves, self._structure = optree.tree_flatten_with_path(
            arrays, none_is_leaf=True
        )
        names = ["/".join(filter(None, (name, *map(str, path)))) or "value" for path in paths]
        _refuse_doubles(names)
        new = [
            n for n, leaf in zip(names, tree_leaves, strict=True) if not isinstance(leaf, Variable)
        ]
        self._prefix = _free_prefix(self.strategy, new)
        with self.strategy.scope():
            self.variables = {
                name: self._variable(name, leaf)
                for name, leaf in zip(names, tree_leaves, strict=True)
            }
        self._all = list(self.variables.values())
        self._tree_names = names
        if tables:
            _refuse_doubles([*names, *tables])
            self.variables |= {name: self._variable(name, table) for name, table in tables.items()}

    def _shown(self) -> dict[str, Any]:
        shapes = {name: variable.shape for name, variable in self.variables.items()}
        return {"arrays": shapes, "strategy": self.strategy}

    def _variable(self, name: str, leaf: Any) -> Variable:
        if isinstance(leaf, Variable):
            if leaf.strategy is not self.strategy:
                raise ValueError(
                    f"{leaf.name!r} at {name!r} was created under another strategy; create it in "
                    "this one's scope"
                )
            return leaf
        value = as_array(leaf)
        trainable = value.dtype.kind not in "iub"
        # Deltas of replicas in sync add up, as those of workers do.
        return Variable(
            value,
            name=self._prefix + name,
            trainable=trainable,
            aggregation=VariableAggregation.SUM,
        )

    @property
    def names(self) -> list[str]:
        """Array names in tree order."""
        return list(self._tree_names)

    @property
    def step(self) -> int:
        """The job's global step, as far as this worker knows; 0 under strategies without one."""
        return int(getattr(self.strategy, "global_step", 0))

    @property
    def alone(self) -> "StepsAlone | None":
        """Steps on the program's own arrays; None: other processes have the variables, too."""
        return self.strategy.extended.alone

    def pull(self, names: Iterable[str] | None = None) -> Any:
        """Pull values to the host, read-only; they stay as they are, however long they are kept.

        In ``run`` those of the step; outside as they are now, by one round trip.

        Args:
            names: Names of the arrays; None: all.

        Returns:
            The tree; with ``names`` a dict of these.

        Raises:
            UnknownVariableError: The store has no array of such a name.
        """
        if names is None:
            return self._tree(self.strategy.extended.read_all(self._all))
        wanted = list(names)
        chosen = [self._found(name) for name in wanted]
        values = map(to_host, self.strategy.extended.read_all(chosen))
        return dict(zip(wanted, values, strict=True))

    def pull_rows(self, name: str, indices: Any) -> Any:
        """Pull rows of one array; only these travel. Shape ``(*indices.shape, *row)``."""
        return self._found(name).sparse_read(indices)

    def assign(self, values: Any) -> None:
        """Overwrite values: a tree, or a mapping of some names."""
        for name, value in self._by_name(values).items():
            self._found(name).assign(value)

    def push_delta(self, deltas: Any) -> None:
        """Add to values. Deltas of several workers add up, in whatever order they arrive.

        Args:
            deltas: The tree, or a mapping of names: arrays, IndexedSlices, or None for none.

        Raises:
            UnknownVariableError: The store has no array of such a name.
            ShapeMismatchError: A delta is not of its array's shape.
        """
        for name, delta in self._by_name(deltas).items():
            if delta is None:
                continue
            variable = self._found(name)
            if isinstance(delta, IndexedSlices):
                variable.scatter_add(delta)
            else:
                variable.assign_add(delta)

    def _tree(self, values: Sequence[Any]) -> Any:
        return optree.tree_unflatten(self._structure, map(to_host, values))

    def _found(self, name: str) -> Variable:
        try:
            return self.variables[name]
        except KeyError:
            names = ", ".join(map(repr, list(self.variables)[:8]))
            more = ", …" if len(self.variables) > 8 else ""
            raise UnknownVariableError(
                f"this store has no array {name!r}; it has {names}{more}", variable=name
            ) from None

    def _by_name(self, tree: Any) -> Mapping[str, Any]:
        """Find what was given for each name: a tree like that of the values, or a mapping of
        names.
        """
        if isinstance(tree, Mapping) and tree.keys() <= self.variables.keys():
            return tree
        values, structure = optree.tree_flatten(tree, none_is_leaf=True)
        if structure != self._structure:
            if isinstance(tree, Mapping) and all(isinstance(key, str) for key in tree):
                for key in tree:
                    if not any(n == key or n.startswith(f"{key}/") for n in self.variables):
                        self._found(key)
            raise ValueError(
                f"the tree given to this store is not that of its values: {structure} instead of "
                f"{self._structure}; give such a tree, or a mapping of names"
            )
        return dict(zip(self._tree_names, values, strict=True))


def _free_prefix(strategy: Strategy, names: Sequence[str]) -> str:
    """Choose what to put before names so that no variable has one of them; the same on every task.

    Nothing where creators make the variables: those of an Estimator find them again by name.
    """
    if has_creators():
        return ""
    prefix, number = "", 1
    while any(strategy.extended.has_name(prefix + name) for name in names):
        number += 1
        prefix = f"model_{number}/"
    return prefix


def _refuse_doubles(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"two arrays of the tree have the name {name!r}; rename one")
        seen.add(name)
