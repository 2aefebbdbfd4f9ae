"""GPUs through CuPy: how many this machine has. The one place that imports CuPy."""

from types import ModuleType


def load_cupy() -> ModuleType:
    """CuPy.

    Raises:
        ImportError: It is not installed; says how.
    """
    try:
        import cupy
    except ImportError as error:
        raise ImportError("GPU devices need CuPy: install windlass[gpu]") from error
    return cupy  # type: ignore[no-any-return]


def count_gpus() -> int:
    """GPUs that CuPy can use; 0 without CuPy, a driver or a device."""
    try:
        cupy = load_cupy()
    except ImportError:
        return 0
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0
