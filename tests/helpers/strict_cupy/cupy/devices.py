"""GPUs of the played machine, and the one that is current in each thread."""

import os
import threading
from typing import Any


class _Machine:
    """How many GPUs there are."""

    gpus = int(os.environ.get("FAKE_GPUS", "2"))


machine = _Machine()


class _Current(threading.local):
    gpu = 0


current = _Current()


class Device:
    """``cupy.cuda.Device``: current in its context, which may be entered again.

    Args:
        device: Number of a GPU; None: the current one.
    """

    def __init__(self, device: Any = None) -> None:
        self.id = current.gpu if device is None else int(device)
        if not 0 <= self.id < machine.gpus:
            raise RuntimeError(f"cudaErrorInvalidDevice: invalid device ordinal {self.id}")
        self._before: list[int] = []

    def __enter__(self) -> "Device":
        self._before.append(current.gpu)
        current.gpu = self.id
        return self

    def __exit__(self, *error: object) -> None:
        current.gpu = self._before.pop()

    def use(self) -> None:
        """Make it current for good."""
        current.gpu = self.id

    def synchronize(self) -> None:
        """Wait for nothing: all is done at once."""

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"
