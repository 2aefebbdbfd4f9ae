"""Optimizers that apply the gradients of the arrays of a store."""

from collections.abc import Mapping
from typing import Any

from ..core.errors import ConfigurationError
from ..distribute.optimizer import Optimizer
from ..distribute.variables.variable import Variable
from .worker_sums import scaled


class RulesByName:
    """The optimizers of a store's arrays.

    Args:
        variables: The arrays, by name.
        optimizer: Optimizer for all; or for each name its own; None: none has one.
    """

    def __init__(
        self,
        variables: Mapping[str, Variable],
        optimizer: Optimizer | Mapping[str, Optimizer] | None,
    ) -> None:
        self._variables = variables
        self._places = {name: place for place, name in enumerate(variables)}
        by_name = (
            optimizer if isinstance(optimizer, Mapping) else dict.fromkeys(variables, optimizer)
        )
        self._optimizers = {
            name: optimizer_of_name
            for name in variables
            if (optimizer_of_name := by_name.get(name)) is not None
        }

    def updates(
        self, gradients: Mapping[str, Any], scale: float | None
    ) -> list[tuple[Optimizer, list[tuple[Any, Variable]]]]:
        """Collect what each optimizer has to apply: pairs of gradient and variable.

        Args:
            gradients: Gradients by names of the store: arrays, IndexedSlices, or None for none.
            scale: Multiplies them; None: they stay as they are.

        Raises:
            ConfigurationError: One has no optimizer.
        """
        by_optimizer: dict[int, tuple[Optimizer, list[tuple[Any, Variable]]]] = {}
        variables, optimizers = self._variables, self._optimizers
        # In the order of the store, in which the servers have them too: neighbours are updated by
        # one call of a kernel.
        names = (
            variables
            if len(gradients) == len(variables)
            else sorted(gradients, key=self._places.__getitem__)
        )
        for name in names:
            gradient = gradients[name]
            if gradient is None:
                continue
            optimizer = optimizers.get(name)
            if optimizer is None:
                raise ConfigurationError(
                    f"{variables[name].name!r} has no optimizer in this store, so gradients cannot "
                    "be pushed; give one to ArrayStore, or push deltas",
                    variable=name,
                )
            pushed = gradient if scale is None else scaled(gradient, scale)
            entry = by_optimizer.get(id(optimizer))
            if entry is None:
                entry = by_optimizer[id(optimizer)] = (optimizer, [])
            entry[1].append((pushed, variables[name]))
        return list(by_optimizer.values())
