"""Moving averages of a JAX model (Flax's ``batch_stats``) that all workers share.

A JAX model returns its new averages from each step, beside its loss. They are given to the state
with the gradients, and travel with them; how the steps of several workers become one average is in
``distribute/base/moved_average.py``.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...distribute.base.moved_average import MovedAverage
from ...training.extras import require
from .arrays import name_of, on_device


class JaxAverages:
    """A tree of averages, and their names in the job.

    Args:
        tree: A pytree; its floating-point and integer arrays are shared, the rest stays as it is.
        momentum: The weight that an average keeps in a step, in [0, 1].
        prefix: Comes first in every name: empty, or with a slash at its end.
        taken: Names that parameters have.

    Attributes:
        first: The shared arrays by name, on the host.

    Raises:
        ValueError: ``momentum`` is not in [0, 1], or a name is taken.
    """

    def __init__(
        self, tree: Any, momentum: float, *, prefix: str, taken: Mapping[str, Any]
    ) -> None:
        if not 0 <= momentum <= 1:
            raise ValueError(
                f"momentum is what an average keeps of itself in a step, such as 0.99; got "
                f"{momentum!r}, which is not in [0, 1]"
            )
        self._decay = 1.0 - momentum
        utilities = require("jax", "jax").tree_util
        paths, self._structure = utilities.tree_flatten_with_path(tree)
        self._leaves = [leaf for _, leaf in paths]
        self._positions: dict[str, int] = {}
        for i, (path, leaf) in enumerate(paths):
            if not _is_number(leaf):
                continue
            name = prefix + name_of(path)
            if name in taken or name in self._positions:
                raise ValueError(
                    f"there are two arrays {name!r} in params and averages; give one of the trees "
                    'a name of its own, such as averages={"batch_stats": …}'
                )
            self._positions[name] = i
        self.first: dict[str, Array] = {
            name: np.asarray(self._leaves[i]) for name, i in self._positions.items()
        }

    def whole(self, values: Mapping[str, Array]) -> Any:
        """Build the program's tree, of JAX arrays.

        Args:
            values: Values by name, of all arrays that are shared and perhaps more.
        """
        leaves = list(self._leaves)
        arrays = on_device([values[name] for name in self._positions])
        for i, array in zip(self._positions.values(), arrays, strict=True):
            leaves[i] = array
        return require("jax", "jax").tree_util.tree_unflatten(self._structure, leaves)

    def moved(self, tree: Any, before: Mapping[str, Array]) -> dict[str, MovedAverage]:
        """Collect what a step has made of the averages, by name; integers count.

        Args:
            tree: Tree that the step returned.
            before: The values that the step was given, by name.

        Raises:
            ValueError: It has another structure than the averages.
        """
        leaves, structure = require("jax", "jax").tree_util.tree_flatten(tree)
        if structure != self._structure:
            raise ValueError(
                f"the averages of a step are {structure}, those of this state {self._structure}; "
                "give what the model returned for the whole tree"
            )
        averages: dict[str, MovedAverage] = {}
        for name, i in self._positions.items():
            after = np.asarray(leaves[i])
            counts = after.dtype.kind in "iu"
            averages[name] = MovedAverage(before[name], after, 0.0 if counts else self._decay)
        return averages


def _is_number(leaf: Any) -> bool:
    """Return whether a leaf is an array of floating-point numbers or integers; not a key or a truth
    value.
    """
    jax = require("jax", "jax")
    dtype = getattr(leaf, "dtype", None)
    kinds = (np.floating, np.integer)
    return dtype is not None and any(jax.numpy.issubdtype(dtype, kind) for kind in kinds)
