"""PyTorch: a closure that an optimizer on this worker calls as often as it likes in a step.

LBFGS searches along a line, and optimizers such as SAM look at a second point: what they do next
depends on the loss and on the gradients. Workers in sync have to decide alike, so each call has the
loss and the gradients of all of them, as of the whole batch.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ...training.array_store import ArrayStore
from ...training.extras import require
from .gradients import GradientsInSync
from .tensors import to_array, to_tensor

torch: Any = require("torch", "torch")


def closure_of_all(
    closure: Callable[[], Any],
    gradients: Callable[[], Mapping[str, Any]],
    in_sync: GradientsInSync,
    store: ArrayStore,
) -> Callable[[], Any]:
    """Make a closure whose loss and gradients are those of all workers in sync.

    Args:
        closure: The program's, which computes those of this worker.
        gradients: Returns this worker's gradients, by name.
        in_sync: Reduces them, unless the closure has called ``synchronize``.
        store: Store of the parameters.
    """

    def joint() -> Any:
        loss = closure()
        if not in_sync.begin_step():
            in_sync.reduce(gradients())
        if isinstance(loss, torch.Tensor):
            return to_tensor(_reduced(store, to_array(loss))).to(loss.detach())
        return float(_reduced(store, np.array(loss))) if isinstance(loss, float) else loss

    return joint


def _reduced(store: ArrayStore, loss: Any) -> Any:
    return np.reshape(store.reduce({"loss": loss.reshape(-1)})["loss"], loss.shape)
