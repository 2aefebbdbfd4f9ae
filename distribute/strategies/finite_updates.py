"""FiniteUpdates: refuse steps with NaN or infinity, and end a program that makes nothing else.

One such update ruins the model for every worker and every later checkpoint. Asynchronous workers
look at what they are about to push; those in sync at what they have reduced, which is the same on
all of them, so all refuse the same step.
"""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...core.arrays.any_framework import is_on_gpu
from ...core.arrays.finite import first_not_finite, first_not_finite_on_gpus
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import NonFiniteGradientError
from ...core.process.events import event
from ..runtime import ClusterRuntime

log = logging.getLogger(__name__)

_LOGGED_EVERY = 100
AVERAGES = "the moving average"
DELTAS = "what an optimizer on the worker has made"


class FiniteUpdates:
    """Refuses steps with NaN or infinity in one task's program. Not thread-safe.

    Args:
        runtime: Runtime of this task: its settings ``nonfinite_gradients`` and ``nonfinite_limit``
            apply, and its progress counts the refused steps.
        what: Name of what is checked, for messages.
    """

    def __init__(self, runtime: ClusterRuntime, what: str = "the gradient") -> None:
        self._runtime = runtime
        self._what = what
        self._in_a_row = 0

    def refuses(self, updates: Mapping[str, Any], global_step: int) -> bool:
        """Decide whether a step is to change nothing.

        Args:
            updates: Arrays or IndexedSlices by name of the variable. None at all is no step.
            global_step: Global step, for people.

        Raises:
            NonFiniteGradientError: So many steps in a row are refused that the model has diverged.
        """
        if self._runtime.settings.nonfinite_gradients == "allow":
            return False
        variable = not_finite(updates)
        if variable is not None:
            self._refuse(variable, global_step)
            return True
        if updates:
            self._in_a_row = 0
        return False

    def note_finite(self) -> None:
        """Note that a step was applied whose updates another part has checked."""
        self._in_a_row = 0

    def _refuse(self, variable: str, global_step: int) -> None:
        progress, limit = self._runtime.progress, self._runtime.settings.nonfinite_limit
        task = self._runtime.task.task
        progress.refused_pushes += 1
        self._in_a_row += 1
        if self._in_a_row >= limit:
            raise NonFiniteGradientError(
                f"{task}: {self._what} of {variable!r} was NaN or infinite {limit} steps in a row "
                f"(global step {global_step}): the model has diverged. Lower the learning rate, "
                "clip gradients, or allow it with ROPEWALK_NONFINITE_GRADIENTS=allow",
                task=task,
                variable=variable,
                in_a_row=limit,
            )
        if progress.refused_pushes == 1 or progress.refused_pushes % _LOGGED_EVERY == 0:
            log.warning(
                "refused a push: %s of %r is NaN or infinite (global step %d; %d refused so far)",
                self._what,
                variable,
                global_step,
                progress.refused_pushes,
                extra=event(
                    "push.refused",
                    variable=variable,
                    step=global_step,
                    refused=progress.refused_pushes,
                ),
            )


def not_finite(updates: Mapping[str, Any]) -> str | None:
    """Find an update with NaN or infinity; None: there is none.

    Args:
        updates: Arrays of NumPy or CuPy, or IndexedSlices, by name.
    """
    arrays, kinds = updates, set(map(type, updates.values()))
    if IndexedSlices in kinds:
        arrays = {
            name: update.values if isinstance(update, IndexedSlices) else update
            for name, update in updates.items()
        }
        kinds = set(map(type, arrays.values()))
    if kinds == {np.ndarray}:  # of ten thousand variables each look would show
        return first_not_finite(arrays)
    on_gpus = {name: array for name, array in arrays.items() if is_on_gpu(array)}
    on_host = {name: array for name, array in arrays.items() if isinstance(array, np.ndarray)}
    return first_not_finite(on_host) or first_not_finite_on_gpus(on_gpus)
