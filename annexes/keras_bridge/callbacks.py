"""Callbacks of ``fit``: which of the program's run on each worker, and those that all workers get.

Those that write files run on the chief alone.
"""

import inspect
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import fsspec
import numpy as np

from ...core.backoff import attempts
from ...core.errors import ConfigurationError, RefusedError
from ...core.outside_text import read_json
from ...distribute.base.reductions import VariableAggregation
from ...distribute.strategies.strategy import Strategy
from ...distribute.variables.variable import Variable
from ...training.in_sync import workers_in_sync
from ...training.progress import report, report_metrics
from .frameworks import keras
from .in_sync import of_all_workers
from .optimizer import require_scale

log = logging.getLogger(__name__)

# -- First epoch of the chief's ``BackupAndRestore``, for the workers beside it ----------------


_FILE = "training_metadata.json"  # as Keras calls it
_MOST_CHARACTERS = 1_000_000
_PATIENCE_S = 1.0  # the chief may be writing it


class LoadedBackup(keras.callbacks.Callback):  # type: ignore[misc]
    """Takes the place of a ``BackupAndRestore`` on a worker in sync other than the chief.

    Such a worker has a copy of the weights, so it loads what the chief loads. It writes nothing.

    Args:
        backup: The program's callback.
    """

    def __init__(self, backup: Any) -> None:
        super().__init__()
        self._backup = backup

    def on_train_begin(self, logs: Any = None) -> None:
        """Load the backup, once per ``fit``."""
        self._backup.set_model(self.model)
        self._backup.on_train_begin(logs)


class EpochOfBackup(keras.callbacks.Callback):  # type: ignore[misc]
    """Takes the place of a ``BackupAndRestore`` on a worker of servers other than the chief.

    It writes nothing. If there is a backup, because the job or this worker alone was restarted,
    ``fit`` begins with the epoch that the backup has; weights are those of the servers. A worker
    that does not see the chief's files begins with its first epoch.

    Args:
        backup_dir: Backup folder of the callback: a path or fsspec URL.
    """

    def __init__(self, backup_dir: Any) -> None:
        super().__init__()
        self._path = f"{str(backup_dir).rstrip('/')}/{_FILE}"

    def on_train_begin(self, logs: Any = None) -> None:  # noqa: ARG002
        """Read the epoch of the backup, once per ``fit``."""
        try:
            for attempt in attempts(timeout_s=_PATIENCE_S, retry_on=ValueError):
                with attempt:
                    epoch = self._epoch()
        except (ValueError, OSError) as error:
            log.warning("%s cannot be read, so all epochs are made: %s", self._path, error)
            return
        if epoch:
            log.info("beginning with epoch %d, that of %s", epoch + 1, self._path)
            self.model._initial_epoch = epoch

    def _epoch(self) -> int:
        try:
            with fsspec.open(self._path, "r") as file:
                return int(read_json(file.read(_MOST_CHARACTERS))["epoch"])
        except FileNotFoundError:
            return 0
        except KeyError as error:
            raise ValueError(f"it has no {error}") from error


_WRITERS = ("BackupAndRestore", "CSVLogger", "ModelCheckpoint", "RemoteMonitor", "TensorBoard")


def runs_here(callback: Any, *, is_chief: bool) -> bool:
    """Return whether a callback runs on this worker. ``chief_only = True`` makes another one a
    writer.
    """
    writers = tuple(getattr(keras.callbacks, name) for name in _WRITERS)
    return is_chief or not (isinstance(callback, writers) or getattr(callback, "chief_only", False))


def arguments_here(
    fit: Any,
    args: tuple[Any, ...],
    kwargs: Any,
    *,
    is_chief: bool,
    in_sync: bool,
    take_input: Callable[[Any, int | None], Any],
    job: Callable[[int], list[Any]],
) -> Any:
    """Adapt the arguments of a model's ``fit`` to this worker.

    Elsewhere than on the chief writers are left out, and no progress is shown unless it is asked
    for. Callbacks of the program are given ``validation_data``, as Keras once did.

    Args:
        fit: The model's.
        args: Positional arguments that the program gave.
        kwargs: Keyword arguments that the program gave.
        is_chief: Whether writers run here.
        in_sync: Whether each worker has a copy of the weights, in sync with the others'.
        take_input: Makes what Keras takes of data and a number of steps.
        job: Makes the job's callbacks, of the first epoch; they come last.

    Returns:
        ``inspect.BoundArguments``.
    """
    bound = inspect.signature(fit).bind(*args, **kwargs)
    arguments = bound.arguments
    for data, steps in (("x", "steps_per_epoch"), ("validation_data", "validation_steps")):
        if data in arguments:
            arguments[data] = take_input(arguments[data], arguments.get(steps))
    callbacks = arguments.get("callbacks")
    ours = job(arguments.get("initial_epoch", 0))
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks.callbacks = _chosen(callbacks.callbacks, is_chief=is_chief, in_sync=in_sync)
        for job_callback in ours:
            callbacks.append(job_callback)
            job_callback.set_model(callbacks.model)
        chosen = callbacks.callbacks
    else:
        every = callbacks if isinstance(callbacks, (list, tuple)) else [callbacks]
        every = [callback for callback in every if callback is not None]
        chosen = _chosen(every, is_chief=is_chief, in_sync=in_sync)
        arguments["callbacks"] = [*chosen, *ours]
    for callback in chosen:
        if not hasattr(callback, "validation_data"):
            callback.validation_data = arguments.get("validation_data")
    if not is_chief and "verbose" in bound.signature.parameters:
        arguments.setdefault("verbose", 0)
    return bound


def _chosen(callbacks: list[Any], *, is_chief: bool, in_sync: bool) -> list[Any]:
    chosen: list[Any] = []
    for callback in callbacks:
        if runs_here(callback, is_chief=is_chief):
            chosen.append(callback)
        elif isinstance(callback, keras.callbacks.BackupAndRestore):
            chosen.append(LoadedBackup(callback) if in_sync else EpochOfBackup(callback.backup_dir))
    return chosen


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


_LOOK_S = 1.0  # between two looks, of which each is a small round trip


# -- The end of ``fit`` on the other workers where the chief's ends with weights of its own ----
# Asynchronous workers make all of their epochs, whatever the chief does. But where the chief's
# program has set weights after its last step (``EarlyStopping(restore_best_weights=True)`` does),
# what others train from then on would be thrown away. So the chief says in a variable how many of
# its ``fit`` have ended in this way, and the others look at it now and then: they end theirs of
# that number, and those before it. Which of them are to end goes by their number, so that a
# worker that is late, or was started again, catches up.


class FitEnd:
    """The number of the chief's last ``fit`` that has ended the others'.

    Args:
        strategy: Strategy of asynchronous workers.
        name: Name of the variable.
        is_chief: Whether this worker is the one that says it.
    """

    def __init__(self, strategy: Strategy, name: str, *, is_chief: bool) -> None:
        with strategy.scope():
            self._ended: Variable = Variable(
                np.zeros((), np.int64),
                name=name,
                trainable=False,
                aggregation=VariableAggregation.ONLY_FIRST_REPLICA,
            )
        self._told = -1
        if is_chief:  # of a job that resumes: another program's
            self.tell(0)

    def tell(self, number: int) -> None:
        """End the ``fit`` of this number, and those before it, on the other workers."""
        if number != self._told:
            self._told = number
            self._ended.assign(number)

    def now(self) -> int:
        """Read the number, by a round trip."""
        return int(self._ended.read_value())


class EndsWithChief(keras.callbacks.Callback):  # type: ignore[misc]
    """Ends ``fit`` on another worker than the chief.

    Args:
        find: Returns what the chief says it in; None: nothing is shared yet.
        number: Number of this ``fit`` among those of its model.
        clock: Seconds that go on.
    """

    def __init__(
        self,
        find: Callable[[], FitEnd | None],
        number: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._find, self._number, self._clock = find, number, clock
        self._next = clock()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:  # noqa: ARG002
        """Look, if it is time."""
        now, end = self._clock(), self._find()
        if end is None or now < self._next:
            return
        self._next = now + _LOOK_S
        if end.now() >= self._number:
            log.info(
                "fit ends here: that of the chief has ended with weights that its program has set, "
                "such as the best ones"
            )
            self.model.stop_training = True
