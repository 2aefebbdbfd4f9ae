"""Values of a step that model_fn gives to hooks and summaries by name."""

import contextlib
import logging
from contextvars import ContextVar
from functools import cache
from types import ModuleType
from typing import Any, Protocol

from ...core import annexes
from ...core.errors import MissingExtraError, StorageError

log = logging.getLogger(__name__)

_recorded: ContextVar[dict[str, Any] | None] = ContextVar("ropewalk_recorded", default=None)


def record(name: str, value: Any) -> None:
    """Give a value of this batch a name, for hooks and summaries; in place of
    ``tf.summary.scalar(name, value)``.

    With several replicas those of the first one count.

    Raises:
        RuntimeError: Outside of a model_fn.
    """
    values = _recorded.get()
    if values is None:
        raise RuntimeError("rw.estimator.record is of use in a model_fn, which an Estimator calls")
    values[name] = value


class Recording:
    """Collects what :func:`record` is given in a block."""

    def __enter__(self) -> dict[str, Any]:
        values: dict[str, Any] = {}
        self._token = _recorded.set(values)
        return values

    def __exit__(self, *_: object) -> None:
        _recorded.reset(self._token)


# -- Event files for TensorBoard: the one place that knows who writes them ---------------------


class ScalarWriter(Protocol):
    """The interface of a writer for an Estimator; tensorboardX's and PyTorch's are that too."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any:
        """Write a number."""

    def flush(self) -> Any:
        """Have what was written be there."""


class FileSummaries:
    """Writes to an event file, which is made with the first number. What fails is in the log.

    Args:
        log_dir: Path or fsspec URL.
    """

    def __init__(self, log_dir: str) -> None:
        self._log_dir = log_dir
        self._events: Any = None

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write a number."""
        if self._events is None:
            self._events = _event_files().EventWriter(self._log_dir)
        self._events.add_scalars(global_step, {tag: scalar_value})

    def flush(self) -> None:
        """Have what was written be there."""
        if self._events is not None:
            with contextlib.suppress(StorageError):
                self._events.flush()


class NoSummaries:
    """Writes nothing."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Write nothing."""

    def flush(self) -> None:
        """Write nothing."""


@cache
def summary_writer(log_dir: str) -> ScalarWriter:
    """Find the writer of this process for a directory; without tensorboardX one that writes
    nothing.

    Args:
        log_dir: Path or fsspec URL.
    """
    try:
        _event_files().require_library()
    except MissingExtraError:
        _say_once()
        return NoSummaries()
    return FileSummaries(log_dir)


@cache
def _say_once() -> None:
    log.info("no event files are written; what writes them: pip install 'ropewalk[tensorboard]'")


def _event_files() -> ModuleType:
    return annexes.the("event_files", "tensorboard", "a summary of an Estimator")
