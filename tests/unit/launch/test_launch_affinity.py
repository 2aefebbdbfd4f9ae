"""Which cores tasks with GPUs run on, of the files of a played machine with two NUMA nodes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.calls import Calls
from ropewalk.core.process.accelerators import NodeGpu
from ropewalk.core.task import TaskId
from ropewalk.launch.local import gpus
from ropewalk.launch.local.gpus import bind, cores_near

ONE, TWO = TaskId("worker", 0), TaskId("worker", 1)
NEAR = {"0000:17:00.0": "0-3,8\n", "0000:97:00.0": "4-7\n"}
LOW, HIGH = frozenset({0, 1, 2, 3, 8}), frozenset({4, 5, 6, 7})
UUIDS = {"0000:17:00.0": "GPU-aaaa-1", "0000:97:00.0": "GPU-bbbb-2"}


def write_gpu(root: Path, pci: str, model: str = "NVIDIA H100 80GB HBM3") -> None:
    """The files of the driver and of the kernel about a GPU."""
    information = root / "proc" / "driver" / "nvidia" / "gpus" / pci / "information"
    information.parent.mkdir(parents=True)
    information.write_text(
        f"Model: \t\t {model}\nIRQ:   \t\t 18\nGPU UUID: \t {UUIDS[pci]}\nBus Location: \t {pci}\n"
    )
    device = root / "sys" / "bus" / "pci" / "devices" / pci
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text(NEAR[pci])


@pytest.fixture(autouse=True)
def bound(calls: Calls) -> set[str]:
    """Who has bound this process to some of the cores: nobody at first."""
    by = set[str]()
    calls.after(gpus, "_is_bound", lambda _: bool(by))
    return by


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with a GPU on each of two nodes."""
    for pci in NEAR:
        write_gpu(tmp_path, pci)
    return tmp_path


@pytest.mark.parametrize(
    ("one", "two", "found"),
    [
        (["0"], ["1"], {ONE: LOW, TWO: HIGH}),
        (["1"], ["0"], {ONE: HIGH, TWO: LOW}),
        (["GPU-bbbb"], ["GPU-aaaa-1"], {ONE: HIGH, TWO: LOW}),
        (["0", "1"], [], {ONE: LOW | HIGH}),
        (["0"], ["0"], {}),
        (["0"], ["7"], {ONE: LOW}),
        (["GPU-cccc"], ["1"], {TWO: HIGH}),
        (["GPU-"], ["1"], {TWO: HIGH}),
    ],
    ids=["numbers", "the other way", "names", "two of one task", "shared", "no such number",
         "no such name", "a name of several"],
)  # fmt: skip
def test_a_task_with_a_gpu_of_its_own_runs_near_it(
    root: Path, one: list[str], two: list[str], found: dict[TaskId, frozenset[int]]
) -> None:
    shares = {task: own for task, own in ((ONE, one), (TWO, two)) if own}
    assert cores_near(shares, {}, root) == found


def test_a_part_of_a_gpu_is_where_the_gpu_is(root: Path, calls: Calls) -> None:
    listed = [NodeGpu("GPU-aaaa-1"), NodeGpu("GPU-bbbb-2", ("MIG-1", "MIG-2"))]
    calls.after(gpus, "node_gpus", lambda _: listed)
    assert cores_near({ONE: ["MIG-1"], TWO: ["MIG-2"]}, {}, root) == {ONE: HIGH, TWO: HIGH}
    assert cores_near({ONE: ["MIG-3"]}, {}, root) == {}


def test_numbers_of_unequal_gpus_count_where_their_order_is_said(tmp_path: Path) -> None:
    """CUDA's first GPU is the fastest, unless a variable says otherwise."""
    write_gpu(tmp_path, "0000:17:00.0", "NVIDIA T4")
    write_gpu(tmp_path, "0000:97:00.0", "NVIDIA H100")
    assert cores_near({ONE: ["0"]}, {}, tmp_path) == {}
    assert cores_near({ONE: ["0"]}, {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, tmp_path) == {ONE: LOW}


@pytest.mark.parametrize("name", ["OMP_PROC_BIND", "GOMP_CPU_AFFINITY"])
def test_what_the_user_says_of_cores_counts(root: Path, name: str) -> None:
    assert cores_near({ONE: ["0"]}, {name: "true"}, root) == {}


def test_where_the_launcher_is_bound_already_nothing_happens(root: Path, bound: set[str]) -> None:
    bound.add("taskset")
    assert cores_near({ONE: ["0"]}, {}, root) == {}


@pytest.mark.parametrize("text", ["", "nonsense\n", None], ids=["empty", "nonsense", "no file"])
def test_without_the_information_nothing_happens(root: Path, text: str | None) -> None:
    path = root / "sys" / "bus" / "pci" / "devices" / "0000:17:00.0" / "local_cpulist"
    path.unlink()
    if text is not None:
        path.write_text(text)
    assert cores_near({ONE: ["0"]}, {}, root) == {}


def test_a_machine_without_a_driver_has_no_such_files(tmp_path: Path) -> None:
    assert cores_near({ONE: ["0"]}, {}, tmp_path) == {}


def test_a_process_is_bound_and_one_that_has_ended_is_left() -> None:
    cores = frozenset({min(os.sched_getaffinity(0))})
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    try:
        bind(process.pid, frozenset())
        assert os.sched_getaffinity(process.pid) == os.sched_getaffinity(0)
        bind(process.pid, cores)
        assert os.sched_getaffinity(process.pid) == cores
    finally:
        process.communicate(b"\n")
    bind(process.pid, cores)
