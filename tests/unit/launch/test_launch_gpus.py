"""Which GPUs the tasks of a local cluster get, and what they are told of memory."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.core.errors import ConfigurationError
from ropewalk.core.process.accelerators import NodeGpu, node_gpus
from ropewalk.core.task import TaskId
from ropewalk.launch.local.cluster import LocalRoles
from ropewalk.launch.local.gpus import (
    describe_shares,
    divide_gpus,
    gpu_variables,
    visible_gpus,
    workers_for_gpus,
)

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


@pytest.mark.annex("jobfile")
@pytest.mark.parametrize(
    ("worker", "chief", "each"), [("", "", 1), ("gpu: 2", "", 2), ("gpu: 1", "gpu: 3", 3)]
)
def test_a_job_file_says_how_many_each_task_has(
    tmp_path: Path, worker: str, chief: str, each: int
) -> None:
    from ropewalk.annexes.jobfile.local import local_cluster
    from ropewalk.annexes.jobfile.reading import read_job

    path = tmp_path / "job.yaml"
    path.write_text(
        "name: a-job\nprogram: train.py\nroles:\n"
        f"  chief: {{count: 1, resources: {{{chief}}}}}\n"
        "  ps: {count: 1, resources: {gpu: 7}}\n"
        f"  worker: {{count: 2, resources: {{{worker}}}}}\n"
    )
    assert local_cluster(read_job(str(path))).gpus_each == each


# -- --workers auto --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("roles", "workers"),
    [
        (LocalRoles(chief=False), 4),
        (LocalRoles(), 3),
        (LocalRoles(evaluator=True), 2),
        (LocalRoles(coordinator=True), 4),
        (LocalRoles(chief=False, gpus_each=2), 2),
        (LocalRoles(gpus_each=4), 0),
    ],
    ids=["workers alone", "a chief trains too", "an evaluator too", "a coordinator does not",
         "two each", "the chief has all"],
)  # fmt: skip
def test_auto_is_as_many_workers_as_tasks_can_have_gpus_of_their_own(
    roles: LocalRoles, workers: int
) -> None:
    assert workers_for_gpus(roles, ["0", "1", "MIG-a", "MIG-b"]) == workers


@pytest.mark.parametrize(
    ("roles", "gpus", "said"),
    [
        (LocalRoles(), [], "this machine shows none .* --workers 2"),
        (LocalRoles(evaluator=True), ["0"], "there is 1 GPU, .*beside chief.*, evaluator"),
        (LocalRoles(chief=False, gpus_each=2), ["0"], "2 for each task; say how many"),
        (LocalRoles(coordinator=True, gpus_each=2), ["0"], "no GPU for a worker"),
    ],
    ids=["none", "too few for the others", "too few for one", "a coordinator without a worker"],
)
def test_auto_without_a_gpu_for_a_worker_is_an_error_that_says_what_to_write(
    roles: LocalRoles, gpus: list[str], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        workers_for_gpus(roles, gpus)


LISTED = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aa)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bb)
  MIG 3g.40gb     Device  0: (UUID: MIG-b1)
  MIG 3g.40gb     Device  1: (UUID: MIG-b2)
"""


def nvidia_smi(folder: Path, listed: str) -> str:
    """A PATH with an nvidia-smi that lists these GPUs."""
    command = folder / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\ncat <<END\n{listed}END\n")
    command.chmod(0o755)
    return f"{command.parent}:{os.environ['PATH']}"


def test_parts_of_a_gpu_count_as_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", nvidia_smi(tmp_path, LISTED))
    assert visible_gpus(None) == ["0", "MIG-b1", "MIG-b2"]
    assert node_gpus() == [NodeGpu("GPU-aa"), NodeGpu("GPU-bb", ("MIG-b1", "MIG-b2"))]


JOB = (
    "name: a-job\nprogram: train.py\nroles:\n  chief: {{count: 0}}\n  worker: {{count: {count}}}\n"
)


@pytest.mark.parametrize(
    "with_job_file",
    [False, pytest.param(True, marks=pytest.mark.annex("jobfile"))],
    ids=["program", "job file"],
)
def test_auto_starts_a_worker_for_each_gpu(
    run_cli: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, with_job_file: bool
) -> None:
    (tmp_path / "train.py").write_text(
        "import os\nimport ropewalk as rw\nprint('sees', os.environ['CUDA_VISIBLE_DEVICES'], '.')\n"
    )
    (tmp_path / "job.yaml").write_text(JOB.format(count=1))
    program = ["--job", "job.yaml"] if with_job_file else ["--no-chief", "train.py"]
    done = run_cli(
        "local", "--plain", "--workers", "auto", *program, PATH=nvidia_smi(tmp_path, LISTED)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for gpu in ("0", "MIG-b1", "MIG-b2"):
        assert done.stdout.count(f"sees {gpu} .") == 1, done.stdout + done.stderr


@pytest.mark.annex("jobfile")
def test_a_job_file_says_a_number_and_which_command_counts_gpus(tmp_path: Path) -> None:
    from ropewalk.annexes.jobfile.reading import read_job

    path = tmp_path / "job.yaml"
    path.write_text(JOB.format(count="auto"))
    with pytest.raises(ConfigurationError, match=r"how many tasks.*--workers auto"):
        read_job(str(path))


def test_a_standing_cluster_is_told_how_many_workers_it_has(
    run_cli: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_cli("local", "--standalone", "--workers", "auto")
    assert done.returncode != 0
    assert "divides no GPUs" in done.stderr


@pytest.fixture
def eight_gpus(tmp_path: Path) -> str:
    """A PATH with an nvidia-smi that lists eight."""
    lines = "".join(f"GPU {i}: NVIDIA H100 80GB HBM3 (UUID: GPU-{i})\n" for i in range(8))
    return nvidia_smi(tmp_path, lines)


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


@pytest.mark.annex("jobfile")
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
