"""The program's tree of JAX arrays, and the names that its arrays have in a job.

A job keeps arrays by name. Optax needs the tree itself: masks and labels are trees of the same
structure, and functions that choose parameters are given its paths. The tree that optax sees is the
program's own; a leaf that is not shared is None there, as Equinox's ``partition`` leaves it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ...training.extras import require
from .arrays import name_of

__all__ = ["ParameterTree", "is_floating", "named_leaves"]


class ParameterTree:
    """The structure of a model's parameters, and a name for each array that is shared.

    Args:
        params: A pytree of any registered kind. Its floating-point arrays are shared; other leaves
            (integers, functions, keys of random numbers, Python numbers) stay as they are.
        prefix: Comes first in every name: empty, or with a slash at its end.

    Attributes:
        prefix: Prefix of all names.
        first: The shared arrays by name, on the host, sorted by name as the dicts of a store are.

    Raises:
        ValueError: There is no floating-point array, or there is one of complex numbers; or the
            tree is that of ``optax.lookahead``.
    """

    def __init__(self, params: Any, *, prefix: str = "") -> None:
        self._jax = require("jax", "jax")
        self._tree = self._jax.tree_util
        self.prefix = prefix
        if type(params).__name__ == "LookaheadParams":
            raise ValueError(
                "optax.lookahead takes the gradients of params.fast alone, and a TrainState those "
                "of all its params; give it the parameters themselves, and an optimizer that keeps "
                "its slow copy in its own state, such as optax.contrib.schedule_free"
            )
        self._leaves, self._structure = self._tree.tree_flatten(params)
        pairs = [
            (prefix + name, i)
            for i, (name, leaf) in enumerate(named_leaves(params))
            if self._is_shared(prefix + name, leaf)
        ]
        if not pairs:
            raise ValueError(
                "params has no floating-point array; give the tree of the model's parameters "
                "(nnx.split, eqx.partition, or what Flax's init returns)"
            )
        positions = dict(sorted(pairs))
        self._names = list(positions)
        self._positions = list(positions.values())
        self.first: dict[str, Array] = {
            name: self._on_host(self._leaves[i]) for name, i in positions.items()
        }
        only_shared = [0 if i in self._positions else None for i in range(len(self._leaves))]
        self._shared_structure = self._tree.tree_structure(
            self._tree.tree_unflatten(self._structure, only_shared)
        )
        self._in_order = [name for name, _ in pairs]
        self._names_of: dict[Any, list[str | None]] = {}

    def _is_shared(self, name: str, leaf: Any) -> bool:
        if _has_dtype(leaf, np.complexfloating):
            raise ValueError(
                f"{name!r} of params is an array of {leaf.dtype}, which no variable can be; give "
                "its real and its imaginary part as two arrays, and join them in the model"
            )
        return _has_dtype(leaf, np.floating)

    def _on_host(self, leaf: Any) -> Array:
        """Convert to what JAX has: float64 of NumPy is float32 unless JAX was told to have 64
        bits.
        """
        return np.asarray(leaf, self._jax.dtypes.canonicalize_dtype(leaf.dtype))

    # -- values ------------------------------------------------------------------------------

    def whole(self, arrays: Sequence[Any]) -> Any:
        """Build the program's tree.

        Args:
            arrays: The shared ones, in the order of ``first``.
        """
        leaves = list(self._leaves)
        for i, array in zip(self._positions, arrays, strict=True):
            leaves[i] = array
        return self._tree.tree_unflatten(self._structure, leaves)

    def shared(self, arrays: Mapping[str, Any]) -> Any:
        """Build the program's tree of shared arrays alone, with None for every other leaf.

        Args:
            arrays: Arrays by name, all of them.
        """
        return self._tree.tree_unflatten(
            self._shared_structure, [arrays[name] for name in self._in_order]
        )

    def by_name(self, tree: Any) -> dict[str, Any]:
        """List the leaves of a tree such as :meth:`shared` makes, by name.

        Raises:
            ValueError: The tree has another structure.
        """
        leaves = self._shared_structure.flatten_up_to(tree)
        return dict(zip(self._in_order, leaves, strict=True))

    # -- gradients ---------------------------------------------------------------------------

    def named_gradients(self, gradients: Any) -> dict[str, Any]:
        """Name the gradients, where they are.

        Args:
            gradients: A tree like the program's, or what is left of it without the leaves that have
                no gradient.

        Raises:
            ConfigurationError: It is that of a function which is being traced.
            ValueError: It has an array that the program's tree has not.
            RuntimeError: A gradient was donated to a jitted function before.
        """
        leaves, structure = self._tree.tree_flatten(gradients)
        names = self._names_of.get(structure)
        if names is None:
            names = self._names_of[structure] = self._learn_names(gradients)
        by_name = {name: leaf for name, leaf in zip(names, leaves, strict=True) if name is not None}
        try:
            gone = [n for n, leaf in by_name.items() if getattr(leaf, "is_deleted", bool)()]
        except self._jax.errors.ConcretizationTypeError:
            raise ConfigurationError(
                "apply_gradients was called in a function that JAX is tracing (jit, scan, vmap), "
                "and the exchange with the servers cannot be compiled into it: have the jitted "
                "function take state.params and return the gradients, and call apply_gradients "
                "with them outside of it"
            ) from None
        if gone:
            raise RuntimeError(
                f"the gradient of {gone[0]!r} was donated to a jitted function and is gone; "
                "call apply_gradients before, or do not donate gradients"
            )
        return by_name

    def with_gradients(self, gradients: Any, named: Mapping[str, Any]) -> Any:
        """Build the tree of gradients with other leaves.

        Args:
            gradients: Gradients that :meth:`named_gradients` was given.
            named: Leaves by name, in the place of those that it returned.
        """
        leaves, structure = self._tree.tree_flatten(gradients)
        names = self._names_of[structure]
        other = [
            leaf if name is None else named[name] for name, leaf in zip(names, leaves, strict=True)
        ]
        return self._tree.tree_unflatten(structure, other)

    def _learn_names(self, gradients: Any) -> list[str | None]:
        names: list[str | None] = []
        for short, leaf in named_leaves(gradients):
            name = self.prefix + short
            if name in self.first:
                names.append(name)
            elif _has_dtype(leaf, np.inexact):
                parameters = ", ".join(self._names[:8])
                raise ValueError(
                    f"gradients have an array {name!r} that params has not; params has "
                    f"{parameters}. Give gradients of the tree that the TrainState was given. A "
                    "parameter that is a Python number is not shared: make it a jnp.asarray; and "
                    "of optax.lookahead, which takes gradients of a part of its parameters, keep "
                    "the slow ones in the state of an optax.GradientTransformation of your own"
                )
            else:
                names.append(None)  # float0, of an integer; or no array at all
        return names


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """List the leaves of any pytree with a name for each: ``layers/0/kernel`` of JAX's keys.

    Leaves whose names would be equal (``{"a/b": …, "a": {"b": …}}``) have JAX's own, which are not:
    ``['a/b']``, ``['a']['b']``.
    """
    utilities = require("jax", "jax").tree_util
    paths = utilities.tree_flatten_with_path(tree)[0]
    names = [name_of(path) for path, _ in paths]
    count = Counter(names)
    return [
        (name if count[name] == 1 else utilities.keystr(path), leaf)
        for name, (path, leaf) in zip(names, paths, strict=True)
    ]


def is_floating(leaf: Any) -> bool:
    """Return whether a leaf is a floating-point array, or a float of Python."""
    return isinstance(leaf, float) or _has_dtype(leaf, np.floating)


def _has_dtype(leaf: Any, kind: type) -> bool:
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and bool(require("jax", "jax").numpy.issubdtype(dtype, kind))
