"""Which GPUs the tasks of a local cluster get, and what they are told of memory."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.annexes.jobfile.local import local_cluster
from ropewalk.annexes.jobfile.reading import read_job
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.task import TaskId
from ropewalk.launch.local.cluster import LocalRoles
from ropewalk.launch.local.gpus import describe_shares, divide_gpus, gpu_variables, visible_gpus

CHIEF, *WORKERS = TASKS = LocalRoles(workers=2, ps=2).tasks_with_program()
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def test_servers_and_a_coordinators_chief_need_no_gpu() -> None:
    assert [TaskId("chief", 0), TaskId("worker", 0), TaskId("worker", 1)] == TASKS
    assert LocalRoles(workers=2, coordinator=True).tasks_with_program() == WORKERS
    assert LocalRoles(workers=0, evaluator=True).tasks_with_program() == [
        CHIEF,
        TaskId("evaluator", 0),
    ]


@pytest.mark.parametrize(
    ("gpus", "shares", "told"),
    [
        ("", None, ""),
        ("0", [["0"]] * 3, "3 tasks share 1 GPU"),
        ("4,7", [["4"], ["7"], ["4"]], "3 tasks share 2 GPUs"),
        ("0,1,2", [["0"], ["1"], ["2"]], "3 tasks have 1 GPU each"),
        ("0,1,2,3,4,5,6,7", [["0"], ["1"], ["2"]], "3 tasks have 1 GPU each"),
    ],
    ids=["none", "one", "fewer than tasks", "as many", "more"],
)
def test_gpus_are_divided(gpus: str, shares: list[list[str]] | None, told: str) -> None:
    found = divide_gpus(TASKS, visible_gpus(gpus))
    assert found == (dict(zip(TASKS, shares, strict=True)) if shares else {})
    assert describe_shares(found) == told


def test_each_task_has_as_many_as_are_asked_for() -> None:
    shares = divide_gpus(TASKS, ["0", "1", "2", "3", "4", "5", "6"], 2)
    assert list(shares.values()) == [["0", "1"], ["2", "3"], ["4", "5"]]
    assert describe_shares(shares) == "3 tasks have 2 GPUs each"


def test_too_few_to_have_several_each_is_an_error_with_the_numbers() -> None:
    with pytest.raises(ConfigurationError, match=r"3 tasks .* 2 GPUs for each take 6 .* are 5"):
        divide_gpus(TASKS, ["0", "1", "2", "3", "4"], 2)


@pytest.mark.parametrize(
    ("named", "found"),
    [
        ("", []),
        ("-1", []),
        ("0,-1,1", ["0"]),
        ("2, 0", ["2", "0"]),
        ("GPU-8f3a,MIG-1", ["GPU-8f3a", "MIG-1"]),
    ],
)
def test_gpus_are_those_that_the_launcher_may_use(named: str, found: list[str]) -> None:
    assert visible_gpus(named) == found


def test_a_task_that_shares_its_gpu_leaves_memory_to_the_others() -> None:
    shares = {CHIEF: ["0"], WORKERS[0]: ["1"], WORKERS[1]: ["0"]}
    assert gpu_variables(CHIEF, shares, {}) == {"CUDA_VISIBLE_DEVICES": "0", **SHARED}
    assert gpu_variables(WORKERS[0], shares, {}) == {"CUDA_VISIBLE_DEVICES": "1"}
    assert gpu_variables(TaskId("ps", 0), shares, {}) == {}


def test_what_the_user_says_of_memory_counts() -> None:
    shares = {CHIEF: ["0"], WORKERS[0]: ["0"]}
    given = {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".4", "TF_FORCE_GPU_ALLOW_GROWTH": "false"}
    assert gpu_variables(CHIEF, shares, given) == {"CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize(
    ("worker", "chief", "each"), [("", "", 1), ("gpu: 2", "", 2), ("gpu: 1", "gpu: 3", 3)]
)
def test_a_job_file_says_how_many_each_task_has(
    tmp_path: Path, worker: str, chief: str, each: int
) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: a-job\nprogram: train.py\nroles:\n"
        f"  chief: {{count: 1, resources: {{{chief}}}}}\n"
        "  ps: {count: 1, resources: {gpu: 7}}\n"
        f"  worker: {{count: 2, resources: {{{worker}}}}}\n"
    )
    assert local_cluster(read_job(str(path))).gpus_each == each


@pytest.fixture
def eight_gpus(tmp_path: Path) -> str:
    """A PATH with an nvidia-smi that lists eight."""
    command = tmp_path / "bin" / "nvidia-smi"
    command.parent.mkdir()
    lines = "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n" for i in range(8))
    command.write_text(f"#!/bin/sh\ncat <<END\n{lines}END\n")
    command.chmod(0o755)
    return f"{command.parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("flags", "seen", "told"),
    [
        ([], ["0", "1", "2"], "3 tasks have 1 GPU each"),
        (["--gpus-per-worker", "2"], ["0,1", "2,3", "4,5"], "3 tasks have 2 GPUs each"),
    ],
    ids=["one each", "two each"],
)
def test_tasks_on_a_machine_with_many_gpus_have_one_unless_they_ask_for_more(
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
    tmp_path: Path,
    eight_gpus: str,
    flags: list[str],
    seen: list[str],
    told: str,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import os\nimport ropewalk as rw\n"
        "print('sees', os.environ['CUDA_VISIBLE_DEVICES'], 'alone', flush=True)\n"
    )
    done = run_cli("local", "--plain", "--workers", "2", *flags, str(program), PATH=eight_gpus)
    assert done.returncode == 0, done.stdout + done.stderr
    for gpus in seen:
        assert done.stdout.count(f"sees {gpus} alone") == 1, done.stdout + done.stderr
    assert told in done.stdout + done.stderr


def test_more_gpus_than_there_are_is_an_error_before_a_task_is_started(
    run_cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, eight_gpus: str
) -> None:
    (tmp_path / "train.py").write_text("import ropewalk as rw\nprint('started')\n")
    done = run_cli(
        "local", "--plain", "--workers", "2", "--gpus-per-worker", "3", "train.py", PATH=eight_gpus
    )
    assert done.returncode != 0
    assert "3 tasks that run the program and 3 GPUs for each take 9" in done.stdout + done.stderr
    assert "started" not in done.stdout


def test_gpus_of_a_job_file_are_not_said_by_a_flag(
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_cli("local", "--job", "job.yaml", "--gpus-per-worker", "2")
    assert done.returncode != 0
    assert "the job file says it: `resources.gpu`" in done.stdout + done.stderr


@pytest.mark.timeout(120)
def test_the_tasks_of_ropewalk_local_have_their_gpus(
    run_cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    command = tmp_path / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)'\n")
    command.chmod(0o755)
    program = tmp_path / "train.py"
    program.write_text(
        "import os\n"
        "import ropewalk as rw\n"
        "print('sees', os.environ['CUDA_VISIBLE_DEVICES'], os.environ[\n"
        "    'XLA_PYTHON_CLIENT_PREALLOCATE'], flush=True)\n"
    )
    path = f"{command.parent}:{os.environ['PATH']}"
    done = run_cli("local", "--plain", "--workers", "1", str(program), PATH=path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("sees 0 false") == 2, done.stdout + done.stderr
    assert "2 tasks share 1 GPU" in done.stdout + done.stderr
