"""``rw.training.jax``: what a JAX program uses of Ropewalk."""

from ...training.worker_part import worker_part
from .embedding import RowGradients, embedding_lookup, value_and_grad
from .state import TrainState

__all__ = ["RowGradients", "TrainState", "embedding_lookup", "value_and_grad", "worker_part"]
