"""What a PyTorch program changes in parameters between two steps, where others have them, too."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import ConfigurationError
from ..array_store import ArrayStore
from ..extras import require
from ..in_sync import copy_counts
from .tensors import Targets

torch: Any = require("torch", "torch")


class ProgramChanges:
    """Gives parameters that the program has clamped, loaded or replaced to all workers.

    In sync every worker has to make the same change. Among asynchronous workers the chief's changes
    count, and those of another worker are overwritten once, as the first values are.

    Args:
        store: Store of the parameters.
        names: Names of the parameters.
        targets: Tensors into which they are loaded after each step.
    """

    def __init__(self, store: ArrayStore, names: Iterable[str], targets: Targets) -> None:
        self._store, self._names, self._targets = store, list(names), targets
        self._counts = copy_counts(store.strategy)
        self._overwritten = 0  # before steps in turn

    def follow(self, given: Mapping[str, Array]) -> Mapping[str, Array]:
        """Have the store take what the program has changed, before a step.

        Args:
            given: The values that were loaded last, by name.

        Returns:
            What it has taken, by name.

        Raises:
            ConfigurationError: Another asynchronous worker than the chief has changed parameters
                before two steps in turn.
        """
        changed = self._targets.changed(self._names, given)
        if self._counts:
            taken = {name: np.array(value) for name, value in changed.items()}
            if taken:
                self._store.assign(taken)
            return taken
        self._overwritten = self._overwritten + 1 if changed else 0
        if self._overwritten > 1:
            name = next(iter(changed))
            raise ConfigurationError(
                f"this program changes {name!r} between steps, as clamping does, or another "
                "optimizer of the same parameters, on a worker that is not the chief, and of "
                "asynchronous workers the chief's changes alone count. "
                'Keep the optimizer on the worker (deltas="always"), which pushes such changes '
                "with its own, or train in sync",
                variable=name,
            )
        return {}


def refuse_changes_in_forward(module: Any, workers: int) -> None:
    """Refuse layers that change their parameters by the examples of one worker.

    Args:
        module: None: nothing is known of it.
        workers: That train it.

    Raises:
        ConfigurationError: Several do, and an embedding has a ``max_norm``.
    """
    if module is None or workers < 2:
        return
    for name, layer in module.named_modules():
        if (
            isinstance(layer, torch.nn.Embedding | torch.nn.EmbeddingBag)
            and layer.max_norm is not None
        ):
            raise ConfigurationError(
                f"{name or 'the module'!r} has max_norm={layer.max_norm:g}, by which each forward "
                f"changes the rows of one worker's batch, and {workers} workers train it. Leave "
                "max_norm out and scale what the layer returns (torch.renorm(rows, 2, 0, "
                f"{layer.max_norm:g}))",
                variable=name,
            )
