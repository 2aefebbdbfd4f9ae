"""Warnings about an optimizer's state that servers keep, where Keras alone would not."""

import logging
from typing import Any

log = logging.getLogger(__name__)


class StateWarnings:
    """Warnings about the state of one model's optimizer.

    Args:
        model: Name of the model.
        state: Description of what the servers keep of the optimizer, for people; empty: nothing.
        is_chief: Whether this worker says what only one of all workers has to.
    """

    def __init__(self, model: str, state: str, *, is_chief: bool) -> None:
        self._model = model
        self._state = state
        self._is_chief = is_chief
        self._told_of_file = False

    def compiled_again(self, optimizer: Any, steps: int) -> None:
        """Say that another optimizer goes on with the state of the one before.

        Args:
            optimizer: The one before.
            steps: Number of training steps that this worker has made.
        """
        self._warn(
            optimizer,
            steps,
            "was compiled again",
            "would begin anew. To begin anew train a copy: keras.models.clone_model(model) in "
            "the scope, with set_weights(model.get_weights())",
        )

    def loaded_file(self, optimizer: Any, steps: int) -> None:
        """Say that a file's state of the optimizer is not what the servers go on with."""
        self._warn(
            optimizer,
            steps,
            "has loaded a file",
            "takes those of the file. A job that resumes from its checkpoints (model_dir) goes on "
            "with the state that they have",
        )

    def began_anew(self, optimizer: Any, iterations: int) -> None:
        """Say that of a backup's optimizer only the number of updates goes on."""
        if "moments" in self._state and iterations and self._is_chief:
            log.warning(
                "%r goes on from update %d, as its backup says, but the moments of its %s begin "
                "anew: the servers had them, and no file of Keras does. Give the job a model_dir, "
                "whose checkpoints have them",
                self._model,
                iterations,
                type(optimizer).__name__,
            )

    def saved_file(self, optimizer: Any, steps: int) -> None:
        """Say once that a file has the optimizer's moments as they began, not those of the servers.

        Keras reads a file's moments with the number of steps, and would train on by both.
        """
        if "moments" in self._state and steps and not self._told_of_file:
            self._told_of_file = True
            log.warning(
                "%r is saved without the moments of its %s, which are on the servers and in the "
                "job's checkpoints (model_dir): compile a model that is loaded from the file "
                "with a new optimizer before it trains on",
                self._model,
                type(optimizer).__name__,
            )

    def _warn(self, optimizer: Any, steps: int, event: str, alone: str) -> None:
        if self._state and steps and self._is_chief:
            log.warning(
                "%r %s: the servers go on with the %s that its %s has by now, where Keras alone %s",
                self._model,
                event,
                self._state,
                type(optimizer).__name__,
                alone,
            )
