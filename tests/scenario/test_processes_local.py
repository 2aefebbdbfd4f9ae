"""A whole cluster as processes of this machine, started by ``ropewalk local``."""

import os
import pty
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import processes
from helpers.waiting import scaled
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.core.task import Phase, State, TaskId
from ropewalk.testing import run_script
from ropewalk.training import read_evaluations

RunCli = Callable[..., subprocess.CompletedProcess[str]]
StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]

pytestmark = pytest.mark.usefixtures("no_process_left")
DIGITS = str(Path(__file__).resolve().parents[2] / "examples" / "digits" / "train.py")


_COMPILERS = "sorted({'numba', 'llvmlite'} & set(sys.modules))"


@pytest.mark.real_start
def test_no_task_with_a_program_loads_the_compiler_to_take_its_steps(
    run_cli: RunCli, write_program: Callable[..., str]
) -> None:
    hook = f'if count == 5:\n    print("loaded", {_COMPILERS})'
    done = run_cli(
        "local", "--plain", "--workers", "0", "--ps", "1", write_program(hook), "40", "0.02"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("| loaded []") == 1


_SLOW_WORKERS = """
import json, os, time
if json.loads(os.environ.get("TF_CONFIG", "{}")).get("task", {}).get("type") == "worker":
    time.sleep(1.5)
"""


@pytest.mark.scenario
def test_a_job_shorter_than_the_start_of_its_workers_ends_in_order(
    write_program: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The chief's step is over before a worker has loaded what it needs to look for its peers.
    (tmp_path / "sitecustomize.py").write_text(_SLOW_WORKERS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ["PYTHONPATH"])))
    result = run_script(
        write_program(), "1", "0", model_dir=str(tmp_path / "model"), workers=3, ps=1
    )
    assert result.exit_code == 0, result.text
    assert set(result.exits.values()) == {0}, result.text
    assert "SIGTERM" not in result.text


def test_what_a_task_has_detached_ends_with_it(tmp_path: Path) -> None:
    program = tmp_path / "detach.py"
    program.write_text(
        "import subprocess\n"
        "import ropewalk as rw\n"
        "child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "print('detached', child.pid)\n"
        "child.returncode = 0  # it is not waited for\n"
    )
    result = run_script(str(program), model_dir=str(tmp_path / "model"), workers=0, ps=0)
    assert result.exit_code == 0, result.text
    [pid] = re.findall(r"detached (\d+)", result.text)
    stat = Path(f"/proc/{pid}/stat")
    assert not stat.exists() or ") Z" in stat.read_text()


@pytest.mark.scenario
def test_a_job_of_every_role_ends_by_itself(
    write_program: Callable[..., str], tmp_path: Path
) -> None:
    result = run_script(
        # Paced so that a task that starts seconds later still finds steps to take.
        write_program(), "300", "0.02",
        model_dir=str(tmp_path / "model"), workers=2, ps=2, evaluator=True,
    )  # fmt: skip
    assert result.exit_code == 0, result.text
    assert result.first_failure is None
    assert {task.short: code for task, code in result.exits.items()} == dict.fromkeys(
        ["ps:0", "ps:1", "chief:0", "worker:0", "worker:1", "evaluator:0"], 0
    )
    for pid in result.pids.values():
        assert not Path(f"/proc/{pid}").exists()

    # The last checkpoint is final and holds the answer; the evaluator saw that one.
    last = latest_checkpoint(result.model_dir)
    assert last is not None
    reader = CheckpointReader(last.path)
    assert reader.manifest.final
    assert last.global_step >= 300
    evaluation = read_evaluations(result.model_dir)[-1]
    assert evaluation.final
    assert evaluation.checkpoint == last.path
    assert result.metrics == evaluation.metrics
    # 300 steps of noiseless least squares at rate 0.05 contract the error by about exp(-30).
    assert evaluation.metrics["error"] < 1e-3

    status = result.status
    assert status is not None
    assert (status.phase, status.reason) == (Phase.DONE, "")
    assert status.global_step == last.global_step == status.last_checkpoint_step
    assert status.total_steps == 300
    tasks = {item.task: item for item in status.tasks}
    trainers = [TaskId("chief", 0), TaskId("worker", 0), TaskId("worker", 1)]
    assert sum(tasks[task].report.steps for task in trainers) == status.global_step
    for task in trainers:
        report = tasks[task].report
        assert tasks[task].state is State.DONE
        assert report.pushes == report.steps > 0
        # A push or pull moves five float32, w and b.
        assert report.bytes_pushed >= 20 * report.pushes
        assert report.bytes_pulled >= 20 * report.pushes
        assert report.metrics["loss"] >= 0
        assert report.transports == ("ps:0 shm", "ps:1 shm")
    servers = [tasks[TaskId("ps", i)].counters for i in range(2)]
    labels: list[str] = []
    for counters in servers:
        assert counters is not None
        assert counters.pushes >= status.global_step
        assert counters.shards == 1
        labels += counters.labels
    assert sorted(labels) == ["b", "w"]


@pytest.mark.scenario
@pytest.mark.soak  # by its job file and by docker compose it learns in every run
def test_the_digits_example_learns(tmp_path: Path) -> None:
    result = run_script(DIGITS, model_dir=str(tmp_path / "model"), workers=2, ps=2, evaluator=True)
    assert result.exit_code == 0, result.text
    assert result.metrics["accuracy"] >= 0.95
    said = "\n".join(result.output[TaskId("chief", 0)])
    found = re.search(r"accuracy of the chief's last values: ([\d.]+)", said)
    assert found is not None
    assert float(found[1]) >= 0.95


def test_without_a_chief_worker_0_leads_and_a_second_run_resumes(
    write_program: Callable[..., str], tmp_path: Path
) -> None:
    program, model_dir = write_program(), str(tmp_path / "model")
    first = run_script(program, "100", "0", model_dir=model_dir, workers=2, chief=False)
    assert first.exit_code == 0, first.text
    assert sorted(task.short for task in first.exits) == ["ps:0", "worker:0", "worker:1"]
    assert any("(final)" in line for line in first.output[TaskId("worker", 0)])
    saved = latest_checkpoint(model_dir)
    assert saved is not None

    # What a killed job would leave unfinished is not resumed from.
    unfinished = tmp_path / "model" / "ckpt-0000009999"
    unfinished.mkdir()
    (unfinished / "ps-0.safetensors").write_bytes(b"half")

    second = run_script(program, "200", "0", model_dir=model_dir, workers=1, ps=2, chief=False)
    assert second.exit_code == 0, second.text
    said = "\n".join(second.output[TaskId("worker", 0)])
    assert f"removed {unfinished}: an incomplete checkpoint" in said
    assert f"resuming from {saved.path} (global step {saved.global_step})" in said
    assert "restored 2 variables" in said
    assert f"worker:0 begins at {saved.global_step}\n" in said
    assert second.status is not None
    assert second.status.global_step >= 200
    # The ps count the global step; what the tasks report of their own may be a heartbeat old.
    steps = sum(item.report.steps for item in second.status.tasks)
    assert 0 < steps <= second.status.global_step - saved.global_step


def test_plain_output_is_prefixed_lines_and_a_table(
    write_program: Callable[..., str], run_cli: RunCli, tmp_path: Path
) -> None:
    # Long enough for a launcher on a busy machine to have asked for the status in the meantime.
    steps = str(int(scaled(200)))
    result = run_cli(
        "local", "--plain", "--ps", "2", "--model-dir", "model", write_program(), steps, "0.02"
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stderr == ""
    lines = result.stdout.splitlines()
    assert " chief:0 | chief:0 begins at 0" in lines
    assert "worker:0 | worker:1 has done 5 steps" in lines
    assert any(re.fullmatch(r"    ps:1 \| ready at port \d+", line) for line in lines)
    assert any(re.match(r"running: step \d+", line) for line in lines)
    assert re.fullmatch(r"4 tasks; the chief is at 127\.0\.0\.1:\d+", lines[0])
    title = lines.index(next(line for line in lines if line.startswith("task ")))
    rows = [line.split()[:2] for line in lines[title + 2 : -1]]
    assert rows == [["ps:0", "0"], ["ps:1", "0"], ["chief:0", "0"], ["worker:0", "0"]]
    assert lines[-1] == "model directory: model"
    assert "\x1b" not in result.stdout
    assert (tmp_path / "model" / "status.json").is_file()
    assert not (tmp_path / "runs").exists()


def test_in_a_terminal_there_is_a_progress_bar(
    write_program: Callable[..., str], tmp_path: Path
) -> None:
    master, slave = pty.openpty()
    process = processes.start(
        [*processes.ROPEWALK, "local", write_program(), "150", "0.01"],
        cwd=tmp_path,
        # The rate is of two heartbeats: many fit into the job, however late its workers join.
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "ROPEWALK_HEARTBEAT_S": "0.1"},
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    seen: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(master, 65536):
                seen.append(data)
        except OSError:
            return  # Linux: the other side is closed

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        assert process.wait(60) == 0
        reader.join(10)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        os.close(master)
    text = b"".join(seen).decode()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert "\x1b[?25l" in text  # the cursor is hidden while the bar is there …
    assert "\x1b[?25h" in text  # … and back at the end
    # Line by line: over all of them at once this pattern takes minutes when it does not fit.
    pattern = re.compile(r"running .*━.* step \d+/150 · \d+ steps/s · loss [\d.]+")
    assert any(pattern.search(line) for line in re.split(r"[\r\n]+", plain))
    assert " chief:0 │ chief:0 begins at 0" in plain
    assert "model directory: runs/" in plain  # the default, below the working directory
    assert list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    ("said", "waits"), [((), "-1"), (("--wait-for-workers", "0"), "0")], ids=["default", "said"]
)
def test_the_chief_waits_for_all_workers_unless_it_is_told_otherwise(
    said: tuple[str, ...],
    waits: str,
    run_cli: RunCli,
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, ropewalk as rw\n"
        "print('waits', os.environ.get('ROPEWALK_WAIT_FOR_WORKERS', '0'))\n"
    )
    result = run_cli("local", *said, "--workers", "2", "train.py")
    assert result.returncode == 0, result.stderr
    assert f"chief:0 | waits {waits}" in result.stdout


def test_tasks_that_begin_late_take_part_from_their_first_step_on(
    run_cli: RunCli, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import time\n"
        "import numpy as np, ropewalk as rw\n"
        "strategy = rw.distribute.ParameterServerStrategy()\n"
        "resolver = strategy.cluster_resolver\n"
        "if resolver.task_type == 'worker':\n"
        "    time.sleep(1.0 + resolver.task_id)  # as long as a framework takes to compile\n"
        "with strategy.scope():\n"
        "    v = rw.Variable(np.zeros(4, np.float32), name='v')\n"
        "made = 0\n"
        "while strategy.global_step < 300:\n"
        "    strategy.run(lambda: v.assign_add(np.ones(4, np.float32)))\n"
        "    time.sleep(0.01)\n"
        "    made += 1\n"
        "    print('at', made) if made == 2 else None\n"
    )
    result = run_cli("local", "--plain", "--workers", "2", "--ps", "1", "train.py")
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("| at 2") == 3, result.stdout


def test_a_health_port_of_the_environment_is_not_for_every_task(
    write_program: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropewalk.net.this_machine import free_ports

    (port,) = free_ports(1)
    monkeypatch.setenv("ROPEWALK_HEALTH_PORT", str(port))
    result = run_script(write_program(), "30", "0", model_dir=str(tmp_path / "model"), workers=0)
    assert result.exit_code == 0, result.text
