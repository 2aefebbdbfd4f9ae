"""The part of ``fit`` that every worker shares with the others, at its begin and after each
epoch.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from ...core.errors import ConfigurationError, RefusedError
from ...distribute.strategies.strategy import Strategy
from ...training.in_sync import workers_in_sync
from ...training.progress import report, report_metrics
from .frameworks import keras
from .in_sync import of_all_workers
from .optimizer import require_scale

_UNKNOWN = -1


class JobCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Comes last, after those of the program.

    It tells the job's progress bar how many steps all workers will make, and the chief's metrics.
    Workers in sync begin with the chief's epoch, which ``BackupAndRestore`` brings back there, make
    sure that they will make equally many steps, and stop together.

    Args:
        strategy: Strategy of the model.
        first_epoch: The ``initial_epoch`` of ``fit``.
        begin_epoch: Called when an epoch begins.
    """

    def __init__(
        self, strategy: Strategy, first_epoch: int, begin_epoch: Callable[[], None]
    ) -> None:
        super().__init__()
        self._strategy = strategy
        self._first_epoch = first_epoch
        self._begin_epoch = begin_epoch
        self._in_sync = workers_in_sync(strategy) > 1
        self._task = strategy.extended.task_name.replace("/replica:0", "")

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Agree with the other workers, once per ``fit``."""
        steps = self.params.get("steps") or _UNKNOWN
        epochs = self.params["epochs"]
        first = self.model._initial_epoch or self._first_epoch
        if self._in_sync:
            first = self._agree(steps, epochs, first)
        if steps != _UNKNOWN and self._strategy.extended.should_checkpoint:
            extended = self._strategy.extended
            workers = 1 if self._in_sync else extended.num_input_pipelines
            done = int(getattr(self._strategy, "global_step", 0))
            report(total_steps=done + workers * steps * max(0, epochs - first))

    def _agree(self, steps: int, epochs: int, first: int) -> int:
        mine = np.array([[steps, epochs, first]], np.int64)
        every = of_all_workers(self._strategy, mine)
        self.model._initial_epoch = first = int(every[0, 2])
        for column, what in ((0, "steps per epoch"), (1, "epochs")):
            numbers = every[:, column].tolist()
            if len(set(numbers)) > 1:
                shown = ", ".join(
                    f"{name} {'an unknown number of' if n == _UNKNOWN else n}"
                    for name, n in zip(self._names(len(numbers)), numbers, strict=True)
                )
                raise ConfigurationError(
                    f"workers in sync would make different numbers of {what}: {shown}; give each "
                    "as many examples, or steps_per_epoch"
                )
        return first

    def _names(self, count: int) -> list[str]:
        group = getattr(self._strategy.extended, "group", None)
        members = getattr(group, "members", None) or [f"replica {i}" for i in range(count)]
        return [str(member) for member in members]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Count its steps."""
        self._begin_epoch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Show the numbers of this epoch; stop if one stops.

        Raises:
            NonFiniteGradientError: The loss is scaled, and its gradients overflow nevertheless.
        """
        require_scale(getattr(self.model, "optimizer", None), self._task)
        numbers: dict[str, Any] = {
            name: float(value) for name, value in (logs or {}).items() if np.ndim(value) == 0
        }
        with suppress(RefusedError):  # more metrics than a status has place for
            report_metrics(numbers, self.model.name)
        if self._in_sync:
            stop = self._strategy.extended.any_worker(bool(self.model.stop_training))
            self.model.stop_training = stop
