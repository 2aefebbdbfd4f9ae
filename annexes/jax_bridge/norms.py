"""JAX: whether a worker in sync seems to have clipped its gradients before they are averaged.

A gradient of JAX is an array without a history, so what a program has done to it cannot be known.
But gradients that were clipped by their joint norm have the limit for their norm, step after step,
which those of real batches never have.
"""

import logging
import math
from collections.abc import Mapping

import numpy as np

from ...core.arrays.dtypes import Array, is_float

log = logging.getLogger(__name__)

_STEPS = 5
_SAME = 1e-5  # relative; a norm of float32 is rounded


class SameNorms:
    """Warns once of gradients that have one joint norm in several steps in a row."""

    def __init__(self) -> None:
        self._last, self._count = math.nan, 0

    def note(self, gradients: Mapping[str, Array]) -> None:
        """Look at the gradients of a step.

        Args:
            gradients: Gradients of this worker, by name, on the host.
        """
        if self._count > _STEPS:
            return
        norm = _joint_norm(gradients)
        is_same = norm > 0 and math.isclose(norm, self._last, rel_tol=_SAME)
        self._last, self._count = norm, self._count + 1 if is_same else 1
        if self._count == _STEPS:
            self._count += 1
            log.warning(
                "the gradients of this worker had the norm %.6g in %d steps in a row, as if they "
                "were clipped before they are averaged over the workers in sync; clip those of "
                "the whole batch: optax.chain(optax.clip_by_global_norm(%.6g), ...) for the "
                "optimizer, or clip what state.synchronize(gradients) returns",
                norm,
                _STEPS,
                norm,
            )


def _joint_norm(gradients: Mapping[str, Array]) -> float:
    squares = 0.0
    for array in gradients.values():
        if is_float(array.dtype):
            flat = array.reshape(-1).astype(np.promote_types(array.dtype, np.float32), copy=False)
            squares += float(np.dot(flat, flat))
    return math.sqrt(squares)
