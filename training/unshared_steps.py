"""Steps of PyTorch's and optax' optimizers, noted for ``core/process/frameworks``.

They are looked at once a program has made a strategy and imported the framework, in whatever order
(``core/process/frameworks.py``). Those of Keras are noted where they are shared
(``keras_bridge/loops.py``).
"""

import functools
from typing import Any

from ..core.process.frameworks import note_unshared_step
from .extras import require


def follow_torch() -> None:
    """Note the steps of ``torch.optim``."""
    hooks = require("torch.optim.optimizer", "torch")
    hooks.register_optimizer_step_post_hook(
        lambda optimizer, _, __: note_unshared_step(f"torch.optim.{type(optimizer).__name__}")
    )


def follow_optax() -> None:
    """Note where updates are applied, be it in a function that is only traced once."""
    optax: Any = require("optax", "jax")
    apply_updates = optax.apply_updates

    @functools.wraps(apply_updates)
    def applied(*args: Any, **kwargs: Any) -> Any:
        note_unshared_step("optax")
        return apply_updates(*args, **kwargs)

    optax.apply_updates = applied
