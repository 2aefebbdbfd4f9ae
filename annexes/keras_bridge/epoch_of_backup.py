"""First epoch of the chief's ``BackupAndRestore``, for the workers beside it."""

import logging
from typing import Any

import fsspec

from ...core.backoff import attempts
from ...core.outside_text import read_json
from .frameworks import keras

log = logging.getLogger(__name__)

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
