"""GPUs of this machine for the tasks of a local cluster, and the cores near each.

A copy between a GPU and memory of another NUMA node crosses the link between processors, and the
kernel gives a process memory of the node that it runs on: a task that has a GPU of its own runs on
the cores of the GPU's node. Which they are is read from the driver's and the kernel's files; where
those say nothing, and where somebody has bound the launcher already (a container, Slurm,
``taskset``), nothing happens.
"""

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

from ...core.errors import ConfigurationError
from ...core.process.accelerators import node_gpus
from ...core.settings import environment_variables
from ...core.task import TaskId
from ...core.terminal import counted
from .cluster import LocalRoles

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


AUTO = "auto"
"""A number of workers: as many as there are GPUs for."""
VISIBLE = "CUDA_VISIBLE_DEVICES"
_JAX_MEMORY = "XLA_PYTHON_CLIENT_"
_SHARED = {
    # JAX' first process takes three quarters of a GPU's memory, TensorFlow's all of it; then there
    # is not enough for the others.
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "TF_FORCE_GPU_ALLOW_GROWTH": "true",
}


def visible_gpus(named: str | None) -> list[str]:
    """List the GPUs that the launcher may use.

    Args:
        named: Names of the GPUs as ``CUDA_VISIBLE_DEVICES`` has them; None: all of the machine,
            of one that is divided (MIG) its parts.
    """
    if named is None:
        return [name for i, gpu in enumerate(node_gpus()) for name in gpu.parts or (str(i),)]
    names = [stripped for name in named.split(",") if (stripped := name.strip())]
    return list(takewhile(lambda name: name != "-1", names))  # where CUDA stops, too


def machines_gpus() -> list[str]:
    """List the GPUs that this process may use; it heeds ``CUDA_VISIBLE_DEVICES``."""
    return visible_gpus(environment_variables().get(VISIBLE))


def workers_for_gpus(cluster: LocalRoles, gpus: Sequence[str]) -> int:
    """Count the workers with which each task that runs the program has GPUs of its own.

    Args:
        cluster: The other roles, and how many GPUs each task has.
        gpus: Names of the GPUs.

    Raises:
        ConfigurationError: There are no GPUs, or too few for the other roles.
    """
    if not gpus:
        raise ConfigurationError(
            "--workers auto starts as many workers as there are GPUs for, and this machine shows "
            "none (nvidia-smi, CUDA_VISIBLE_DEVICES); say how many, e.g. --workers 2"
        )
    others = replace(cluster, workers=0).tasks_with_program()
    count = len(gpus) // cluster.gpus_each - len(others)
    if count < 0 or not (count or (cluster.chief and not cluster.coordinator)):
        besides = f", beside {', '.join(task.short for task in others)}" if others else ""
        raise ConfigurationError(
            f"--workers auto finds no GPU for a worker: there "
            f"{'is' if len(gpus) == 1 else 'are'} {counted(len(gpus), 'GPU')}, "
            f"{cluster.gpus_each} for each task{besides}; say how many, e.g. --workers 1, and some "
            "share one, or start fewer other tasks"
        )
    return count


def divide_gpus(
    tasks: Sequence[TaskId], gpus: Sequence[str], each: int = 1
) -> dict[TaskId, list[str]]:
    """Divide the GPUs among the tasks; where there are too few of them, tasks share one.

    Args:
        tasks: Tasks that run the program.
        gpus: Names of the GPUs.
        each: GPUs for each task. One is what programs of PyTorch take, and what most others are
            written for.

    Raises:
        ConfigurationError: There are too few for more than one each.
    """
    if not gpus or not tasks:
        return {}
    if each > 1 and each * len(tasks) > len(gpus):
        raise ConfigurationError(
            f"{len(tasks)} tasks that run the program and {each} GPUs for each take "
            f"{each * len(tasks)} GPUs, and there are {len(gpus)} ({', '.join(gpus)}); start fewer "
            "workers, or give each fewer GPUs (--gpus-per-worker, resources.gpu of a job file)"
        )
    if len(tasks) > len(gpus):
        return {task: [gpus[i % len(gpus)]] for i, task in enumerate(tasks)}
    return {task: list(gpus[i * each : (i + 1) * each]) for i, task in enumerate(tasks)}


def gpu_variables(
    task: TaskId, shares: Mapping[TaskId, Sequence[str]], given: Mapping[str, str]
) -> dict[str, str]:
    """Set the variables by which the libraries of a task keep to its GPUs.

    Args:
        task: The task.
        shares: GPUs of all tasks, by :func:`divide_gpus`.
        given: Variables that the task has already: what they say of memory counts.
    """
    own = shares.get(task)
    if own is None:
        return {}
    variables = {VISIBLE: ",".join(own)}
    if sum(own[0] in others for others in shares.values()) > 1:
        of_user = any(name.startswith(_JAX_MEMORY) for name in given)
        variables |= {
            name: value
            for name, value in _SHARED.items()
            if name not in given and not (of_user and name.startswith(_JAX_MEMORY))
        }
    return variables


def describe_shares(shares: Mapping[TaskId, Sequence[str]]) -> str:
    """Describe the GPUs' division; empty: there are none."""
    if not shares:
        return ""
    count = len({gpu for own in shares.values() for gpu in own})
    tasks = len(shares)
    if count < tasks:
        return f"{tasks} tasks share {counted(count, 'GPU')}"
    gpus = counted(len(next(iter(shares.values()))), "GPU")
    return f"{counted(tasks, 'task')} {'has' if tasks == 1 else 'have'} {gpus} each"
