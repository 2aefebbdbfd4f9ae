"""What a process uses of its machine, as files of the system say it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ropewalk.core.process.gpu_usage import read_gpus
from ropewalk.core.process.usage import UsageReader
from ropewalk.core.report import GpuUsage

MIB = 2**20
PRESSURE = (
    "some avg10=90.00 avg60=34.50 avg300=1.00 total=1\n"
    "full avg10=0.00 avg60=9.00 avg300=0.00 total=0\n"
)


class Machine:
    """A machine of four processors, in files, and its clocks."""

    def __init__(self, folder: Path) -> None:
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.now = self.own_s = 100.0
        self.write("proc/stat", "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3\n")
        self.write("proc/self/statm", "5000 1024 300 1 0 2000 0")
        self.write("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable: 4096 kB\n")

    def write(self, name: str, text: str) -> None:
        path = self.proc.parent / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def reader(self, gpus: tuple[GpuUsage, ...] = ()) -> UsageReader:
        return UsageReader(
            self.proc, self.cgroups, lambda: self.now, lambda: self.own_s, lambda: gpus
        )


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    monkeypatch.setattr("os.sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else 10**6)
    return Machine(tmp_path)


def test_rates_are_of_the_time_between_two_readings(machine: Machine) -> None:
    reader = machine.reader()
    machine.now, machine.own_s = 110.0, 115.0
    # 400 ticks more: 100 of programs, 60 of other virtual machines, 200 idle, 40 wait for a disk.
    machine.write("proc/stat", "cpu  150 0 150 1000 40 0 0 60 0 0\n")
    usage = reader.read()
    assert usage.memory_bytes == 4 * MIB
    assert usage.cpu_s == 115.0
    assert usage.cores == 1.5
    assert usage.machine_cpus == 4
    assert usage.machine_cores == 4 * 100 / 400
    assert usage.steal == 60 / 400


def test_an_answer_is_given_again_within_a_second(machine: Machine) -> None:
    reader = machine.reader()
    machine.now += 5
    first = reader.read()
    machine.now += 0.9
    machine.write("proc/self/statm", "1 1")
    assert reader.read() is first
    machine.now += 0.2
    assert reader.read().memory_bytes == 4096


def test_the_nearest_limit_counts_and_cached_files_are_free(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "1:name=systemd:/\n0::/jobs/train\n")
    machine.write("cgroup/jobs/train/memory.max", "max")
    machine.write("cgroup/jobs/train/memory.current", str(MIB))
    machine.write("cgroup/jobs/memory.max", str(10 * MIB))
    machine.write("cgroup/jobs/memory.current", str(9 * MIB))
    machine.write("cgroup/jobs/memory.stat", f"anon 1\ninactive_file {2 * MIB}\n")
    usage = machine.reader().read()
    assert usage.memory_limit_bytes == 10 * MIB
    assert usage.memory_left_bytes == 3 * MIB
    machine.write("proc/meminfo", "MemAvailable: 1024 kB\n")  # the machine is full before
    assert machine.reader().read().memory_left_bytes == MIB


def test_a_container_sees_its_own_limit(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "0::/\n")
    machine.write("cgroup/memory.max", str(2 * MIB))
    assert machine.reader().read().memory_limit_bytes == 2 * MIB


def test_pressure_is_of_the_last_minute(machine: Machine) -> None:
    machine.write("proc/pressure/cpu", PRESSURE)
    usage = machine.reader().read()
    assert usage.cpu_pressure == pytest.approx(0.345)
    assert usage.memory_pressure == 0.0  # the system does not say


def test_tasks_of_a_machine_have_its_name_until_it_starts_again(machine: Machine) -> None:
    assert machine.reader().read().machine == ""
    machine.write("proc/sys/kernel/random/boot_id", "0f-1\n")
    name = machine.reader().read().machine
    assert name == machine.reader().read().machine
    machine.write("proc/sys/kernel/random/boot_id", "0f-2\n")
    assert machine.reader().read().machine not in ("", name)


def test_a_system_that_says_nothing_is_no_error(tmp_path: Path) -> None:
    usage = UsageReader(tmp_path / "no", tmp_path / "none").read()
    assert usage.memory_bytes == usage.memory_left_bytes == 0
    assert usage.steal == usage.machine_cores == 0.0


def test_this_process_has_memory_and_time() -> None:
    usage = UsageReader().read()
    assert 10 * MIB < usage.memory_bytes < usage.memory_limit_bytes
    assert usage.memory_left_bytes > 0
    assert usage.cpu_s > 0


# -- GPUs, by a module with the names of nvidia-ml-py -------------------------------------------


@dataclass(frozen=True)
class Gpu:
    uuid: str
    busy: int | None
    used: int
    processes: tuple[tuple[int, int | None], ...] = ()


@dataclass(frozen=True)
class _Answer:
    gpu: int = 0
    used: int = 0
    total: int = 80 * MIB
    pid: int = 0
    usedGpuMemory: int | None = None  # noqa: N815 - NVML's name


class Nvml:
    """NVML of a machine with these GPUs."""

    class NVMLError(Exception):
        """What it raises."""

    def __init__(self, *gpus: Gpu) -> None:
        self.gpus = gpus

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if index >= len(self.gpus):
            raise self.NVMLError
        return self.gpus[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        return next(gpu for gpu in self.gpus if gpu.uuid == uuid)

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetMemoryInfo(self, gpu: Gpu) -> _Answer:
        return _Answer(used=gpu.used)

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> _Answer:
        if gpu.busy is None:  # a part of one
            raise self.NVMLError
        return _Answer(gpu=gpu.busy)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[_Answer]:
        return [_Answer(pid=pid, usedGpuMemory=used) for pid, used in gpu.processes]


A = Gpu("GPU-a", 80, 30 * MIB, ((7, 20 * MIB), (8, 10 * MIB)))
B = Gpu("GPU-b", 0, 5 * MIB, ((8, None),))
C = Gpu("MIG-c", None, 5 * MIB)


@pytest.mark.parametrize(
    ("visible", "pid", "names"),
    [
        ("", 7, ["GPU-a"]),
        ("", 9, ["GPU-a", "GPU-b", "MIG-c"]),  # in a container the driver knows other numbers
        ("1", 9, ["GPU-b"]),
        ("MIG-c,GPU-a", 9, ["MIG-c", "GPU-a"]),
        ("5", 9, []),
        ("-1", 9, []),
    ],
    ids=["by-process", "all", "by-index", "by-name", "none-of-that-number", "hidden"],
)
def test_gpus_of_a_process_are_those_it_computes_on_or_may_use(
    visible: str, pid: int, names: list[str]
) -> None:
    assert [each.name for each in read_gpus(Nvml(A, B, C), visible, pid)] == names


def test_a_gpu_says_how_busy_and_how_full_it_is() -> None:
    assert read_gpus(Nvml(A), "", 7) == (GpuUsage("GPU-a", 0.8, 20 * MIB, 30 * MIB, 80 * MIB),)
    assert read_gpus(Nvml(C), "", 7) == (GpuUsage("MIG-c", -1.0, 0, 5 * MIB, 80 * MIB),)


def test_nvml_is_not_loaded_without_a_driver(tmp_path: Path) -> None:
    import sys

    from ropewalk.core.process import gpu_usage

    find: Any = gpu_usage._driver.__wrapped__
    assert find(tmp_path / "version") is None
    assert "pynvml" not in sys.modules
