"""How many GPUs this machine has. The one place that asks CuPy's runtime for them."""


def count_gpus() -> int:
    """GPUs that CuPy can use; 0 without CuPy, a driver or a device."""
    try:
        import cupy
    except ImportError:
        return 0
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0
