"""``ropewalk.nn``: a replica's part of the loss, as ``tf.nn`` scales it, and embeddings.

Gradients of replicas are summed, so every replica divides by the size of the *global* batch.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from ..core.public_face import public_getattr
from .base.contexts import get_strategy, has_strategy, in_cross_replica_context
from .embeddings import (
    embedding_lookup,
    embedding_lookup_sparse,
    embedding_lookup_sparse_gradient,
)


def compute_average_loss(
    per_example_loss: Any, sample_weight: Any = None, global_batch_size: int | None = None
) -> Any:
    """Sum a replica's losses, and divide by the number of examples of all replicas.

    Summed over replicas it is the mean over the global batch, and so are its gradients.

    Args:
        per_example_loss: array, shape ``(examples, ...)``: NumPy's or what computes like it, as
            JAX's.
        sample_weight: array, shape ``(examples,)``, that of the losses, or one more extent of 1
            than these; or a number. None: 1.
        global_batch_size: Number of examples of all replicas; None: this replica's examples times
            the replicas in sync, which is wrong for the last batch of an epoch if that is smaller.

    Returns:
        A scalar of the losses' dtype; 0 if ``global_batch_size`` is 0.

    Raises:
        ValueError: The loss is a scalar, or ``global_batch_size`` negative.
        TypeError: ``global_batch_size`` is no integer.
        RuntimeError: Without ``global_batch_size`` in cross-replica context.
    """
    loss = _array(per_example_loss)
    if not loss.ndim:
        raise ValueError("per_example_loss must have one loss per example, got a scalar")
    if global_batch_size is None:
        _require_replica("compute_average_loss")
        size = int(loss.shape[0]) * get_strategy().extended.num_replicas_in_sync
    elif not isinstance(global_batch_size, int | np.integer) or isinstance(global_batch_size, bool):
        raise TypeError(f"global_batch_size must be an integer, got {global_batch_size!r}")
    else:
        size = int(global_batch_size)
    if size < 0:
        raise ValueError(f"global_batch_size must be >= 0, got {size}")
    if sample_weight is not None:
        loss = loss * _weights(sample_weight, loss)
    total = loss.sum()
    return total / size if size else total * 0


def scale_regularization_loss(regularization_loss: Any) -> Any:
    """Divide the sum of regularization losses by the number of replicas, each of which adds it.

    Args:
        regularization_loss: array of any shape: NumPy's or what computes like it.

    Raises:
        RuntimeError: In cross-replica context.
    """
    _require_replica("scale_regularization_loss")
    return _array(regularization_loss).sum() / get_strategy().extended.num_replicas_in_sync


def _array(value: Any) -> Any:
    return value if hasattr(value, "ndim") else np.asarray(value)


def _weights(weight: Any, loss: Any) -> Any:
    """Convert weights to the dtype of losses, and to as many axes."""
    weights = _array(weight)
    if weights.ndim and weights.ndim == loss.ndim + 1:
        weights = weights.reshape(weights.shape[:-1])
    elif weights.ndim and weights.ndim < loss.ndim:
        weights = weights.reshape(*weights.shape, *([1] * (loss.ndim - weights.ndim)))
    return weights.astype(loss.dtype) if hasattr(weights, "astype") else weights


def _require_replica(function: str) -> None:
    if has_strategy() and in_cross_replica_context():
        raise RuntimeError(
            f"{function} in cross-replica context: call it where a replica computes its loss, in "
            "strategy.run"
        )


__all__ = [
    "compute_average_loss",
    "embedding_lookup",
    "embedding_lookup_sparse",
    "embedding_lookup_sparse_gradient",
    "scale_regularization_loss",
]

if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.nn", globals())
