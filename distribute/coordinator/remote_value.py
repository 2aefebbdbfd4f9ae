"""The value that a scheduled closure will return."""

import threading
from enum import StrEnum
from typing import Any

import numpy as np

from ...core.showing import Shown
from ..base.values import map_structure


class RemoteValueStatus(StrEnum):
    """The progress of a closure."""

    NOT_READY = "not ready"
    READY = "ready"
    ABORTED = "aborted"


class RemoteValue(Shown):
    """The result of a closure, in the future. As ``tf.distribute.experimental.coordinator``'s.

    The coordinator keeps it, so it can be fetched when the worker is gone.
    """

    def __init__(self) -> None:
        self._settled = threading.Event()
        self._status = RemoteValueStatus.NOT_READY
        self._value: Any = None
        self._error: Exception | None = None

    def _shown(self) -> dict[str, Any]:
        if self._status is RemoteValueStatus.READY:
            return {"status": "ready", "value": self._value}
        if self._status is RemoteValueStatus.ABORTED:
            return {"status": "aborted", "error": self._error}
        return {"status": "not ready"}

    @property
    def status(self) -> RemoteValueStatus:
        """Progress of the closure. A closure that failed or was cancelled is aborted."""
        return self._status

    def fetch(self, timeout_s: float | None = None) -> Any:
        """Wait for the result; arrays are NumPy's.

        Args:
            timeout_s: Longest time to wait; None: as long as it takes. Unit: seconds.

        Raises:
            TimeoutError: It did not come in time.
            CancelledError: Another closure failed before this one began: schedule it again.
            Exception: What the closure raised.
        """
        if not self._settled.wait(timeout_s):
            raise TimeoutError(f"the closure was not done within {timeout_s:g} s")
        if self._error is not None:
            raise self._error
        return self._value

    def get(self) -> Any:
        """Wait for the result, as :meth:`fetch`: values of closures live on the host."""
        return self.fetch()

    def __reduce__(self) -> Any:
        raise ValueError(
            "a RemoteValue cannot be given to a closure: fetch it first, and give the value"
        )

    # -- for the coordinator -----------------------------------------------------------------

    def settle(self, value: Any) -> None:
        """Set what the closure returned."""
        self._value, self._status = map_structure(_number, value), RemoteValueStatus.READY
        self._settled.set()

    def abort(self, error: Exception) -> None:
        """Set the error that the closure raised, or why it will not run."""
        self._error, self._status = error, RemoteValueStatus.ABORTED
        self._settled.set()


def _number(leaf: Any) -> Any:
    """Convert an array without axes to the number of NumPy's that TensorFlow's ``fetch`` gives."""
    return leaf[()] if isinstance(leaf, np.ndarray) and leaf.ndim == 0 else leaf


def fetch(value: Any) -> Any:
    """Fetch the remote values of a nested structure; the other leaves stay as they are."""
    return map_structure(
        lambda leaf: leaf.fetch() if isinstance(leaf, RemoteValue) else leaf, value
    )
