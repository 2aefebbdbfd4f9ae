"""``cupy.cuda.runtime``: what the driver is asked for."""

from ..devices import current, machine


class CUDARuntimeError(RuntimeError):
    """What the driver has refused, by its number.

    Args:
        status: A ``cudaError_t``.
    """

    def __init__(self, status: int) -> None:
        super().__init__(f"CUDA error {status}")
        self.status = status


def getDeviceCount() -> int:
    """GPUs of the machine."""
    return machine.gpus


def getDevice() -> int:
    """The current GPU."""
    return current.gpu


def eventQuery(event: int) -> int:
    """The status of an event, not checked: 0, 600 where it is to come, or that of a failed GPU."""
    return 0
