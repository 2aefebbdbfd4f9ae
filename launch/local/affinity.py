"""Cores near GPUs: a task that has a GPU of its own runs on those of the GPU's NUMA node.

A copy between a GPU and memory of another node crosses the link between processors, and the kernel
gives a process memory of the node that it runs on. Which cores are near a GPU is read from the
driver's and the kernel's files; where they say nothing, and where somebody has bound the launcher
already (a container, Slurm, ``taskset``), nothing happens.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ...core.process.accelerators import node_gpus
from ...core.task import TaskId

_ROOT = Path("/")
_DRIVER = "proc/driver/nvidia/gpus"  # a folder for each GPU, named by its PCI id
_DEVICES = "sys/bus/pci/devices"
_OF_USER = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PLACES", "OMP_PROC_BIND")
_ORDER = "CUDA_DEVICE_ORDER"


def cores_near(
    shares: Mapping[TaskId, Sequence[str]], given: Mapping[str, str], root: Path = _ROOT
) -> dict[TaskId, frozenset[int]]:
    """Choose the cores of each task that has GPUs of its own; those of other tasks are free.

    Args:
        shares: GPUs of tasks, by their names in ``CUDA_VISIBLE_DEVICES``.
        given: Variables of the launcher: what they say of cores counts.
        root: Folder in which ``/proc`` and ``/sys`` are.
    """
    if not shares or any(name in given for name in _OF_USER) or _is_bound():
        return {}
    gpus = _Gpus(root, in_order=given.get(_ORDER) == "PCI_BUS_ID")
    names = [name for own in shares.values() for name in own]
    found: dict[TaskId, frozenset[int]] = {}
    for task, own in shares.items():
        near = [gpus.cores(name) for name in own]
        if all(near) and all(names.count(name) == 1 for name in own):
            found[task] = frozenset().union(*near)
    return found


def bind(pid: int, cores: frozenset[int]) -> None:
    """Have a process run on some cores; empty: on any. One that has ended is left."""
    if cores:
        with suppress(OSError):  # it has ended, or none of them is on
            os.sched_setaffinity(pid, cores)


def _is_bound() -> bool:
    """Return whether this process may not run on all cores."""
    return not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < (
        os.cpu_count() or 1
    )


class _Gpus:
    """GPUs of the machine, by their PCI ids.

    Args:
        root: Folder in which ``/proc`` and ``/sys`` are.
        in_order: Whether CUDA's numbers follow PCI ids. By default its first GPU is the fastest,
            which is the same order where all are of one model.
    """

    def __init__(self, root: Path, *, in_order: bool) -> None:
        self._root = root
        said = {path.parent.name: _fields(path) for path in root.glob(f"{_DRIVER}/*/information")}
        self._uuids = {pci: fields.get("GPU UUID", "") for pci, fields in sorted(said.items())}
        self._has_numbers = in_order or len({each.get("Model") for each in said.values()}) == 1

    def cores(self, name: str) -> frozenset[int]:
        """Read which cores are near a GPU; empty: it is not known."""
        pci = self._pci_of(name)
        if pci is None:
            return frozenset()
        return _cores_of(_text(self._root / _DEVICES / pci / "local_cpulist"))

    def _pci_of(self, name: str) -> str | None:
        if name.isdigit():
            numbered = list(self._uuids) if self._has_numbers else []
            return numbered[int(name)] if int(name) < len(numbered) else None
        if name.startswith("MIG-"):
            name = next((gpu.uuid for gpu in node_gpus() if name in gpu.parts), "")
        found = [pci for pci, uuid in self._uuids.items() if name and uuid.startswith(name)]
        return found[0] if len(found) == 1 else None


def _fields(path: Path) -> dict[str, str]:
    """Read a file of lines ``name: value``."""
    pairs = (line.partition(":") for line in _text(path).splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _cores_of(listed: str) -> frozenset[int]:
    """Read a list of cores as the kernel writes it: ``0-3,8``."""
    cores: set[int] = set()
    with suppress(ValueError):
        for part in filter(None, listed.strip().split(",")):
            first, _, last = part.partition("-")
            cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)
