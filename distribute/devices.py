"""The devices of this process: GPUs, and CPUs that may be split into logical ones for tests."""

import threading

from ..core.accelerators import count_gpus

_lock = threading.Lock()
_logical_cpus = [1]


def set_logical_cpu_devices(count: int) -> None:
    """Split the CPU into ``count`` logical devices, each a replica of strategies made from now on.

    Raises:
        ValueError: ``count`` < 1.
    """
    if count < 1:
        raise ValueError(f"at least one logical CPU device is needed, got {count}")
    with _lock:
        _logical_cpus[0] = count


def logical_cpu_devices() -> list[str]:
    """Names of the CPU devices."""
    with _lock:
        return [f"/device:CPU:{i}" for i in range(_logical_cpus[0])]


def compute_devices() -> list[str]:
    """Where replicas run: every GPU, or the CPU devices if there is none."""
    gpus = count_gpus()
    return [f"/device:GPU:{i}" for i in range(gpus)] if gpus else logical_cpu_devices()
