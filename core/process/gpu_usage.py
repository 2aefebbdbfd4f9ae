"""The NVIDIA GPUs of this process: how busy they are, and their memory, by the driver's NVML.

Needs nvidia-ml-py, the extra ``nvml``, which is loaded where there is a driver and never else. What
the driver does not say, as of a part of a GPU (MIG), is left out.

Source: NVML API Reference; its Python names are those of nvidia-ml-py.
"""

import os
from collections.abc import Callable, Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from ..report import GpuUsage
from ..settings import read_environment

_DRIVER = Path("/proc/driver/nvidia/version")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


_Value = TypeVar("_Value")


def own_gpus() -> tuple[GpuUsage, ...]:
    """Read the GPUs of this process; none without one, without a driver or without the extra."""
    nvml = _driver()
    return read_gpus(nvml, read_environment(_VISIBLE), os.getpid()) if nvml is not None else ()


@cache
def _driver(driver: Path = _DRIVER) -> ModuleType | None:
    """Load NVML, once; None: there is none."""
    if not driver.exists():
        return None
    try:
        nvml = import_module("pynvml")
        nvml.nvmlInit()
    except Exception:  # noqa: BLE001 - not installed, or the driver and its library do not fit
        return None
    return nvml


def read_gpus(nvml: Any, visible: str, pid: int) -> tuple[GpuUsage, ...]:
    """Read the GPUs that a process computes on; if the driver knows of none: those it may use.

    Args:
        nvml: The driver, as nvidia-ml-py names it.
        visible: CUDA_VISIBLE_DEVICES of the process; empty: all.
        pid: Number of the process. In a container the driver may know it by another.
    """
    found = [(gpu, _own_bytes(nvml, gpu, pid)) for gpu in _visible(nvml, visible)]
    used = [each for each in found if each[1]] or found
    return tuple(_read(nvml, gpu, own) for gpu, own in used)


def _visible(nvml: Any, visible: str) -> Iterator[Any]:
    if not visible:
        for number in range(_said(nvml, nvml.nvmlDeviceGetCount, default=0)):
            yield from _one(nvml, nvml.nvmlDeviceGetHandleByIndex, number)
    for name in visible.split(","):
        # What is after a name that names none is not used either, as CUDA has it.
        if name.strip().isdigit():
            yield from _one(nvml, nvml.nvmlDeviceGetHandleByIndex, int(name))
        elif name.strip().startswith(("GPU-", "MIG-")):
            yield from _one(nvml, nvml.nvmlDeviceGetHandleByUUID, name.strip())


def _one(nvml: Any, handle: Callable[[Any], Any], name: int | str) -> Iterator[Any]:
    if (gpu := _said(nvml, handle, name, default=None)) is not None:
        yield gpu


def _own_bytes(nvml: Any, gpu: Any, pid: int) -> int:
    running: list[Any] = _said(nvml, nvml.nvmlDeviceGetComputeRunningProcesses, gpu, default=[])
    return sum(int(each.usedGpuMemory or 0) for each in running if each.pid == pid)


def _read(nvml: Any, gpu: Any, own_bytes: int) -> GpuUsage:
    memory = _said(nvml, nvml.nvmlDeviceGetMemoryInfo, gpu, default=None)
    rates = _said(nvml, nvml.nvmlDeviceGetUtilizationRates, gpu, default=None)
    return GpuUsage(
        name=str(_said(nvml, nvml.nvmlDeviceGetUUID, gpu, default="")),
        busy=rates.gpu / 100 if rates is not None else -1.0,
        own_bytes=own_bytes,
        used_bytes=memory.used if memory is not None else 0,
        total_bytes=memory.total if memory is not None else 0,
    )


def _said(nvml: Any, ask: Callable[..., _Value], *arguments: Any, default: _Value) -> _Value:
    try:
        return ask(*arguments)
    except nvml.NVMLError:
        return default
