"""Changes of a PyTorch program in parameters between two steps, where others have them, too."""

from typing import Any

from ...core.errors import ConfigurationError
from ...training.array_store import ArrayStore
from ...training.extras import require
from ...training.program_changes import ProgramChanges

torch: Any = require("torch", "torch")


def parameter_changes(store: ArrayStore) -> ProgramChanges:
    """Make what gives changes of parameters to all workers.

    Args:
        store: Store of the parameters.
    """
    return ProgramChanges(
        store,
        example="clamping does, or another optimizer of the same parameters",
        remedy='Keep the optimizer on the worker (deltas="always"), which pushes such changes with '
        "its own, or train in sync",
    )


def refuse_changes_in_forward(module: Any, workers: int) -> None:
    """Refuse layers that change their parameters by the examples of one worker.

    Args:
        module: Module to look at; None: nothing is known of it.
        workers: Number of workers that train it.

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
