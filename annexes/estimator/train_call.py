"""Arguments of one call of ``Estimator.train``."""

from collections.abc import Sequence
from dataclasses import dataclass

from .hooks import CheckpointSaverListener, SessionRunHook
from .inputs import InputFn


@dataclass(frozen=True)
class TrainCall:
    """The checked arguments of ``Estimator.train``.

    Attributes:
        input_fn: Input function.
        hooks: Hooks of the program.
        listeners: Listeners to the checkpoints.
        steps: Number of further steps of the job; None: no such limit.
        max_steps: Global step at which the training ends; None: no such limit.
    """

    input_fn: InputFn
    hooks: Sequence[SessionRunHook]
    listeners: Sequence[CheckpointSaverListener]
    steps: int | None = None
    max_steps: int | None = None

    def is_done_at(self, step: int) -> bool:
        """Return whether nothing is left to do at a global step."""
        return self.max_steps is not None and step >= self.max_steps

    def last_step(self, first: int) -> int | None:
        """Compute the global step at which a training ends that begins at ``first``; None: with its
        input.
        """
        if self.max_steps is not None:
            return self.max_steps
        return first + self.steps if self.steps is not None else None
