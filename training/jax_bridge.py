"""``wl.training.jax``: what a JAX program uses of Windlass."""

from .jax_state import TrainState
from .worker_part import worker_part

__all__ = ["TrainState", "worker_part"]
