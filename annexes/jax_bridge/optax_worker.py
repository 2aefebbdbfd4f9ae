"""An optax optimizer that runs on this worker: its updates, and its state for checkpoints.

It is given what it would be given alone: the program's tree of parameters and gradients.
"""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...distribute.strategies.strategy import Strategy
from ...training.extras import require
from ...training.kept_state import KeptState, can_keep
from .arrays import on_device, start_copies, to_hosts
from .tree import ParameterTree, named_leaves

__all__ = ["WorkerOptimizer"]

log = logging.getLogger(__name__)


class WorkerOptimizer:
    """Runs a transformation on the whole tree.

    Args:
        optimizer: A ``GradientTransformation``, or an object with its two methods.
        tree: Tree of the parameters.
        strategy: Strategy under which the state is kept.
        name: Name of the bridge, the prefix of the state's names.

    Attributes:
        state: The ``opt_state``; None before :meth:`begin`.
        kept: State as the job's checkpoints have it.
    """

    def __init__(
        self, optimizer: Any, tree: ParameterTree, strategy: Strategy, *, name: str
    ) -> None:
        self._jax = require("jax", "jax")
        self._optimizer = optimizer
        self._tree = tree
        self._update = self._jax.jit(optimizer.update)
        self._add = self._jax.jit(
            lambda values, updates: [
                value + update.astype(value.dtype)
                for value, update in zip(values, updates, strict=True)
            ]
        )
        self.state: Any = None
        self._names_of: dict[Any, list[str | None]] = {}
        entries = self._entries(self._init(tree.first))
        zeros = {n: np.zeros_like(entry) for n, entry in entries.items()}
        first = {n: array for n, array in zeros.items() if can_keep(array)}
        self.kept = KeptState(first, self.take, strategy, kind="optax", prefix=name)

    def _init(self, values: Mapping[str, Any]) -> Any:
        arrays = on_device(list(values.values()))
        return self._optimizer.init(self._tree.shared(dict(zip(values, arrays, strict=True))))

    def begin(self, values: Mapping[str, Any]) -> None:
        """Make the state of a new job.

        Args:
            values: The parameters by name.
        """
        self.state = self._init(values)

    def update(
        self, gradients: Mapping[str, Any], values: Mapping[str, Any], extra: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Any]:
        """Let optax make updates, which are what is added to the parameters.

        ``state`` stays as it is, for the step may yet be refused.

        Args:
            gradients: Gradients by name; the optimizer is given zeros for a parameter that has
                none.
            values: The parameters, by name.
            extra: Further arguments of the optimizer's ``update``, such as ``value``.

        Returns:
            An update for each gradient, by name; and the ``opt_state`` after it.

        Raises:
            ValueError: The updates are not a tree like the parameters.
        """
        every = {
            name: gradients[name] if name in gradients else np.zeros_like(value)
            for name, value in values.items()
        }
        inputs = self._tree.shared(every), self.state, self._tree.shared(values)
        updates, state = self._run(inputs, extra)
        by_name = self._tree.by_name(updates)
        return to_hosts({name: by_name[name] for name in gradients}), state

    def apply(
        self, gradients: Mapping[str, Any], values: Mapping[str, Any], extra: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Let optax update the parameters on their device.

        Args:
            gradients: Gradients by name; the optimizer is given zeros for a parameter that has
                none.
            values: The parameters, by name.
            extra: Further arguments of the optimizer's ``update``.

        Returns:
            The new parameters, by name; those without a gradient as they were.

        Raises:
            ValueError: The updates are not a tree like the parameters.
        """
        every = gradients
        if len(gradients) < len(values):
            zeros = self._jax.numpy.zeros_like
            every = {n: gradients[n] if n in gradients else zeros(v) for n, v in values.items()}
        inputs = self._tree.shared(every), self.state, self._tree.shared(values)
        updates, self.state = self._run(inputs, extra)
        by_name = self._tree.by_name(updates)
        names = list(gradients)
        # By itself: within one function with the update it would be rounded otherwise.
        new = self._add([values[name] for name in names], [by_name[name] for name in names])
        return {**values, **dict(zip(names, new, strict=True))}

    def _run(self, inputs: tuple[Any, Any, Any], extra: Mapping[str, Any]) -> Any:
        leaves = self._jax.tree_util.tree_leaves(dict(extra))
        if any(callable(leaf) for leaf in leaves):
            # What a function such as value_fn closes over may change from step to step.
            return self._optimizer.update(*inputs, **extra)
        try:
            return self._update(*inputs, **extra)
        except self._jax.errors.JAXTypeError as error:
            if self._update is self._optimizer.update:
                raise
            log.info("this optax transformation cannot be jitted, and runs without it: %s", error)
            self._update = self._optimizer.update
            return self._update(*inputs, **extra)

    # -- the state, by name ------------------------------------------------------------------

    def entries(self) -> dict[str, Any]:
        """Return the state's arrays as they are now; their copies to the host are started."""
        entries = self._entries(self.state)
        start_copies(list(entries.values()))
        return entries

    def _entries(self, state: Any) -> dict[str, Any]:
        """Name all but keys of random numbers, which stay this worker's."""
        leaves, structure = self._jax.tree_util.tree_flatten(state)
        names = self._names_of.get(structure)
        if names is None:
            dtypes = self._jax.dtypes
            names = self._names_of[structure] = [
                None
                if dtypes.issubdtype(getattr(leaf, "dtype", np.float32), dtypes.extended)
                else name
                for name, leaf in named_leaves(state)
            ]
        return {name: leaf for name, leaf in zip(names, leaves, strict=True) if name is not None}

    def take(self, entries: Mapping[str, Array]) -> None:
        """Go on with another state.

        Args:
            entries: Entries of the state by name; of an entry that is not there the state stays as
                it is.
        """
        structure = self._jax.tree_util.tree_structure(self.state)
        leaves = [
            self._jax.numpy.asarray(entries[name]) if name in entries else leaf
            for name, leaf in named_leaves(self.state)
        ]
        self.state = self._jax.tree_util.tree_unflatten(structure, leaves)
