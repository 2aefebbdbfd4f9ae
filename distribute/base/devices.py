"""The devices of this process: GPUs, and CPUs; both may be split into logical ones.

A device is named as in TensorFlow: ``/device:CPU:0`` among the devices of a process, and with its
task in front (:func:`in_task`) where a strategy or a variable says where something is. Logical CPU
devices let a program with several replicas be tried without a GPU, logical GPU devices with one.
"""

import re
import threading
from functools import lru_cache
from typing import Any

from ...core.arguments import ArgumentTypeError
from ...core.arrays.any_framework import as_array, is_on_gpu, to_host
from ...core.process.accelerators import count_gpus, load_cupy

CPU, GPU = "CPU", "GPU"
HOST = "/device:CPU:0"
LOCALHOST = "/job:localhost/replica:0/task:0"  # the task of a process without a cluster

_NAME = re.compile(r"^(?:.*/)?(?:device:)?(?P<kind>cpu|gpu)(?::(?P<index>\d+|\*))?$", re.IGNORECASE)
_TASK = re.compile(
    r"^(?:/job:[^/:]+)?(?:/replica:(?:\d+|\*))?(?:/task:(?:\d+|\*))?$", re.IGNORECASE
)
_lock = threading.Lock()
_logical = {CPU: 1, GPU: 0}  # 0: as many as there are


class _DeviceOfThread(threading.local):
    device: str | None = None


_of_thread = _DeviceOfThread()


def set_logical_cpu_devices(count: int) -> None:
    """Split the CPU into ``count`` logical devices, each a replica of strategies made from now on.

    Raises:
        ValueError: ``count`` < 1.
    """
    if count < 1:
        raise ValueError(f"at least one logical CPU device is needed, got {count}")
    with _lock:
        _logical[CPU] = count


def set_logical_gpu_devices(count: int | None) -> None:
    """Split the GPUs into ``count`` logical devices, to try several replicas on one; None: no
    split.

    Raises:
        ValueError: ``count`` < 1.
    """
    if count is not None and count < 1:
        raise ValueError(f"at least one logical GPU device is needed, got {count}")
    with _lock:
        _logical[GPU] = count or 0


def logical_cpu_devices() -> list[str]:
    """List the names of the CPU devices."""
    with _lock:
        return [f"/device:CPU:{i}" for i in range(_logical[CPU])]


def logical_gpu_devices() -> list[str]:
    """List the names of the GPU devices; none without a GPU that CuPy can use."""
    gpus = count_gpus()
    with _lock:
        return [f"/device:GPU:{i}" for i in range(gpus and (_logical[GPU] or gpus))]


def list_logical_devices(device_type: str | None = None) -> list[str]:
    """List the names of this process's devices: all, or those of one type (``"CPU"``,
    ``"GPU"``).
    """
    kinds = {"CPU": logical_cpu_devices, "GPU": logical_gpu_devices}
    return [
        device
        for kind, names in kinds.items()
        if device_type is None or device_type.upper() == kind
        for device in names()
    ]


def compute_devices() -> list[str]:
    """List the devices where replicas run: every GPU, or the CPU devices if there is none."""
    return logical_gpu_devices() or logical_cpu_devices()


def canonical(name: str) -> str:
    """Write a device's name in full, out of any form TensorFlow takes.

    ``GPU:0``, ``/cpu:0``, ``/job:worker/task:1/device:GPU:1``.

    Raises:
        ArgumentTypeError: It is no text.
        ValueError: It names no CPU or GPU.
    """
    device = _canonical(name) if isinstance(name, str) else None
    if device is None:
        kind = ValueError if isinstance(name, str) else ArgumentTypeError
        raise kind(f"{name!r} is no device; devices are named like 'CPU:0' and 'GPU:1'")
    return device


@lru_cache(maxsize=256)  # asked in every step
def _canonical(name: str) -> str | None:
    match = _NAME.match(name)
    if match is None:
        return None
    index = match["index"] if match["index"] not in (None, "*") else 0
    return f"/device:{match['kind'].upper()}:{int(index)}"


def task_name(job: str, index: int) -> str:
    """Name a task as it stands in front of a device: ``/job:worker/replica:0/task:1``."""
    return f"/job:{job}/replica:0/task:{index}"


def in_task(task: str, device: str) -> str:
    """Name a device with its task: ``/job:localhost/replica:0/task:0/device:CPU:0``."""
    return f"{task}{device}"


def check_exists(name: str) -> str:
    """Check that this process has a device, and return its canonical name.

    Raises:
        ValueError: It has not; says which there are.
    """
    device = canonical(name)
    if device not in (devices := [*logical_cpu_devices(), *logical_gpu_devices()]):
        raise ValueError(
            f"there is no device {name!r} here; there are {', '.join(devices)}. More logical ones "
            "are made with rw.config.set_logical_cpu_devices and set_logical_gpu_devices"
        )
    return device


def is_gpu(device: str) -> bool:
    """Return whether a canonical name is a GPU's."""
    return f":{GPU}:" in device


def physical_gpu(device: str) -> int:
    """Find CUDA's number of a logical GPU device."""
    return int(device.rpartition(":")[2]) % max(1, count_gpus())


def place(value: Any, device: str) -> Any:
    """Put a value as an array into a device's memory; the value itself if it is there already."""
    if not is_gpu(device):
        return to_host(value)
    array = as_array(value)
    number = physical_gpu(device)
    if is_on_gpu(array) and array.device.id == number:
        return array
    cupy = load_cupy()
    with cupy.cuda.Device(number):
        return cupy.asarray(array)


def device_of(array: Any) -> str:
    """Name the device that an array is on."""
    return f"/device:GPU:{array.device.id}" if is_on_gpu(array) else HOST


class on_device:  # noqa: N801 - used as a function, as `tf.device`
    """A context in which work of this thread goes to a device. As ``tf.device``.

    It is a device of this process: job and task in the name are ignored, because a strategy
    places variables, and each task runs its own work.

    Args:
        device_name: Name of a device; a GPU becomes CuPy's current one. A task without a device, or
            ``""``: the device outside of the context. None: that outside of every such context.

    Raises:
        ValueError: ``device_name`` names no CPU or GPU.
        RuntimeError: ``device_name`` is a function, which needs a graph.
    """

    def __init__(self, device_name: str | None) -> None:
        if callable(device_name):
            raise RuntimeError("rw.device takes a device's name: functions of devices need a graph")
        self._cleared = device_name is None
        is_task = isinstance(device_name, str) and _TASK.match(device_name) is not None
        self._device = None if device_name is None or is_task else canonical(device_name)
        self._before: str | None = None
        self._current: Any = None

    def __enter__(self) -> str:
        device = HOST if self._cleared else self._device or current_device()
        if self._device is not None and is_gpu(device):
            self._current = load_cupy().cuda.Device(physical_gpu(device))
            self._current.__enter__()
        self._before, _of_thread.device = _of_thread.device, device
        return device

    def __exit__(self, *error: object) -> None:
        _of_thread.device = self._before
        if self._current is not None:
            self._current.__exit__(*error)


def current_device() -> str:
    """Return the device this thread works for."""
    return _of_thread.device or HOST
