"""``wl.training.jax``: what a JAX program uses of Windlass."""

from .jax_embedding import RowGradients, embedding_lookup, value_and_grad
from .jax_state import TrainState
from .worker_part import worker_part

__all__ = ["RowGradients", "TrainState", "embedding_lookup", "value_and_grad", "worker_part"]
