"""GPUs: how many this process and this machine have. The one place that imports CuPy."""

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple


def load_cupy() -> ModuleType:
    """Load CuPy.

    Raises:
        ImportError: It is not installed; says how.
    """
    try:
        import cupy
    except ImportError as error:
        raise ImportError(
            "GPU devices need CuPy: pip install 'ropewalk[gpu]', or for CUDA 13 "
            "'ropewalk[gpu-cuda13]'"
        ) from error
    return cupy  # type: ignore[no-any-return]


def load_nccl() -> ModuleType:
    """Load CuPy's NCCL, which CuPy 14 has only where it is imported by name.

    Raises:
        ImportError: CuPy is not installed.
    """
    load_cupy()
    return import_module("cupy.cuda.nccl")


def count_gpus() -> int:
    """Count the GPUs that CuPy can use; 0 without CuPy, a driver or a device."""
    try:
        cupy = load_cupy()
    except ImportError:
        return 0
    try:
        return int(cupy.cuda.runtime.getDeviceCount())
    except cupy.cuda.runtime.CUDARuntimeError:
        return 0


class NodeGpu(NamedTuple):
    """A GPU of this machine.

    Attributes:
        uuid: Name of the GPU, ``GPU-…``.
        parts: Names of the parts into which it is divided (MIG), ``MIG-…``; empty: it is whole.
    """

    uuid: str
    parts: tuple[str, ...] = ()


def count_node_gpus() -> int:
    """Count the NVIDIA GPUs of this machine; see :func:`node_gpus`."""
    return len(node_gpus())


def node_gpus(timeout_s: float = 20.0) -> list[NodeGpu]:
    """List the NVIDIA GPUs of this machine that its user may use, by ``nvidia-smi``; none
    without it.

    Unlike :func:`count_gpus` it does not initialize CUDA, after which a process no longer heeds
    ``CUDA_VISIBLE_DEVICES``; and it does not heed that variable.

    Args:
        timeout_s: A driver that does not answer within it has none. Unit: seconds.
    """
    import shutil
    import subprocess

    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        output = subprocess.run(
            [command, "--list-gpus"],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return _gpus_of(output.stdout)


def _gpus_of(listing: str) -> list[NodeGpu]:
    """Read what ``nvidia-smi --list-gpus`` writes: a line for each GPU, and below it its parts."""
    found: list[NodeGpu] = []
    for line in listing.splitlines():
        uuid = line.rpartition("UUID: ")[2].rstrip(") ")
        if line.startswith("GPU "):
            found.append(NodeGpu(uuid))
        elif found and line.lstrip().startswith("MIG "):
            found[-1] = found[-1]._replace(parts=(*found[-1].parts, uuid))
    return found


def gpus_in_use() -> bool:
    """Return whether this process has loaded CuPy, and there is a GPU. Does not load it."""
    return "cupy" in sys.modules and count_gpus() > 0


class _Pinning:
    """The maker of pinned memory, if that is not CuPy."""

    allocate: Callable[[int], Any] | None = None


def pin_memory_with(allocate: Callable[[int], Any]) -> None:
    """Have values in pinned memory from now on: a framework of the program computes on a GPU.

    Args:
        allocate: Makes a flat ``uint8`` NumPy array of so many bytes.
    """
    _Pinning.allocate = allocate


def pinned_memory(num_bytes: int) -> Any:
    """Allocate a flat ``uint8`` NumPy array that the driver copies as it is; None: no GPU is in
    use.

    Takes time to make: use it again.
    """
    if _Pinning.allocate is not None:
        return _Pinning.allocate(num_bytes)
    if not gpus_in_use():
        return None
    import cupyx

    return cupyx.empty_pinned((num_bytes,), "uint8")
