"""Synchronous jobs as real processes are saved and resumed by the job, whatever ends them."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.clusters import HandStarted, tf_configs
from helpers.processes import marked
from helpers.waiting import scaled
from ropewalk.core.exit_codes import ExitCode
from ropewalk.training import read_evaluations

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]
RunCli = Callable[..., subprocess.CompletedProcess[str]]
StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]
WaitUntil = Callable[..., None]

# Two updates in each step, a metric, and the program's own checkpoints beside the job's.
# Arguments: until which step; seconds per step; with "metric": a value of all workers.
PROGRAM = """
import sys, time
import numpy as np
import ropewalk as rw

if rw.training.is_evaluator():
    rw.training.SidecarEvaluator(lambda values: {"w": values["w"][0]}).start()
    sys.exit()
if "mirrored" in sys.argv:
    rw.config.set_logical_cpu_devices(2)
    strategy = rw.distribute.MirroredStrategy()
else:
    strategy = rw.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(3, np.float32), name="w")
    seen = rw.metrics.Sum(name="seen") if "metric" in sys.argv else None
optimizer = rw.optimizers.Adam(0.1)
checkpoint = rw.train.Checkpoint(w=w)
manager = rw.train.CheckpointManager(checkpoint, "own", max_to_keep=1)
if "own" in sys.argv:
    manager.restore_or_initialize()
print(f"begins at {strategy.global_step} with {w.numpy()[0]:.6f}", flush=True)

def step():
    optimizer.apply_gradients([(w.read_value() - 5, w)])
    if seen is not None:
        seen.update_state(1.0)

while strategy.global_step < int(sys.argv[1]):
    strategy.run(step)
    time.sleep(float(sys.argv[2]))
    if strategy.global_step == 20:
        print("twenty steps", flush=True)
        if "own" in sys.argv:
            manager.save()
total = "" if seen is None else f" and {int(seen.result())} seen"
print(f"ends at {strategy.global_step} with {w.numpy()[0]:.6f}{total}", flush=True)
"""
IN_SYNC = ("local", "--plain", "--ps", "0", "--no-chief", "--workers", "2", "--model-dir", "model")
QUICK = {"ROPEWALK_HEARTBEAT_S": "0.1", "ROPEWALK_JOIN_TIMEOUT_S": "20"}


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    return str(file)


def said(text: str, pattern: str) -> list[str]:
    return re.findall(pattern, text)


def kill(task: str, no_process_left: str, number: signal.Signals = signal.SIGKILL) -> None:
    kind, index = task.split(":")
    wanted = f'"task": {{"type": "{kind}", "index": {index}}}'
    running = marked(no_process_left)
    [pid] = [pid for pid, given in running.items() if wanted in given.get("TF_CONFIG", "")]
    os.kill(pid, number)


def test_a_job_whose_worker_was_killed_goes_on_where_it_was_saved(
    program: str,
    run_cli: RunCli,
    start_cli: StartCli,
    wait_until: WaitUntil,
    no_process_left: str,
    tmp_path: Path,
) -> None:
    launcher, output = start_cli(
        *IN_SYNC, "--save-every-s", "0.2", program, "100000", "0.01", "metric"
    )
    wait_until(
        lambda: len(list((tmp_path / "model").glob("ckpt-*/manifest.json"))) > 1, 30, "saves"
    )
    kill("worker:1", no_process_left)
    assert launcher.wait(scaled(20)) == ExitCode.KILLED
    assert "to resume: ropewalk local" in output.read_text()
    resumed = run_cli(*IN_SYNC, program, "600", "0", "metric")
    assert resumed.returncode == 0, resumed.stdout
    [saved] = said(resumed.stdout, r"resuming from model/ckpt-0*(\d+)\S* \(global step")
    assert int(saved) > 1
    assert said(resumed.stdout, r"begins at (\d+)") == [saved] * 2
    straight = run_cli(*IN_SYNC[:-1], "other", program, "600", "0", "metric")
    for words in (r"ends at 600 with (\S+)", r"and (1200) seen"):
        assert said(resumed.stdout, words) == said(straight.stdout, words) != []
    status = run_cli("status", "model").stdout
    assert "global step 600" in status
    assert re.search(r"checkpoint model/ckpt-0000000600", status), status


def test_plain_python_tasks_that_lose_one_ask_for_a_restart_and_resume(
    program: str, tmp_path: Path, wait_until: WaitUntil
) -> None:
    environment = {**QUICK, "ROPEWALK_MODEL_DIR": str(tmp_path / "model")}
    command = ["python", program, "400", "0.01"]
    first = HandStarted(command, tf_configs(chief=1, worker=2), tmp_path, **environment)
    wait_until(lambda: "twenty steps" in first.said("worker:1"), 30, "twenty steps")
    first.running["worker:1"].kill()
    ended = first.wait()
    for task in ("chief:0", "worker:0"):
        assert ended[task].code == ExitCode.PEER_LOST, ended
        assert "/job:worker/task:1" in ended[task].text
    [saved] = said(ended["chief:0"].text, r"saved \S+/ckpt-0*(\d+)")  # the last whole step
    configs = tf_configs(chief=1, worker=2)
    ended = HandStarted(command, configs, tmp_path, **environment).wait()
    assert {end.code for end in ended.values()} == {0}, ended
    assert f"(global step {saved})" in ended["chief:0"].text
    for end in ended.values():
        assert f"begins at {saved} with" in end.text
        assert "ends at 400 with" in end.text


@pytest.mark.parametrize(
    ("task", "number", "codes"),
    [
        pytest.param("worker:1", signal.SIGTERM, {138, 143}, id="a worker"),
        pytest.param("chief:0", signal.SIGTERM, {143}, id="the chief"),
    ],
)
def test_a_task_that_is_asked_to_stop_has_all_end_after_the_same_step_saved(
    program: str,
    tmp_path: Path,
    wait_until: WaitUntil,
    task: str,
    number: signal.Signals,
    codes: set[int],
) -> None:
    environment = {**QUICK, "ROPEWALK_MODEL_DIR": str(tmp_path / "model")}
    command = ["ropewalk", "run", program, "100000", "0.01", "metric"]
    started = HandStarted(command, tf_configs(chief=1, worker=2), tmp_path, **environment)
    wait_until(lambda: "twenty steps" in started.said("worker:1"), 30, "twenty steps")
    started.running[task].send_signal(number)
    ended = started.wait()
    assert {end.code for end in ended.values()} == codes, ended
    assert ended[task].code == ExitCode.DRAINED
    [saved] = said(ended["chief:0"].text, r"saved \S+/ckpt-0*(\d+)")
    status = json.loads((tmp_path / "model" / "status.json").read_text())
    assert {entry["report"]["global_step"] for entry in status["tasks"]} == {int(saved)}
    assert status["last_checkpoint_step"] == int(saved)


def test_an_evaluator_follows_a_synchronous_job_to_its_end(
    program: str, run_cli: RunCli, tmp_path: Path
) -> None:
    result = run_cli(*IN_SYNC, "--evaluator", "--save-every-s", "0.3", program, "200", "0.01")
    assert result.returncode == 0, result.stdout + result.stderr
    found = read_evaluations(str(tmp_path / "model"))
    assert len(found) > 1
    assert found[-1].final
    assert found[-1].global_step == 200
    assert re.search(r"evaluator:0 +0 ", result.stdout), result.stdout


def test_a_mirrored_program_alone_resumes(program: str, run_cli: RunCli) -> None:
    arguments = ("run", "--model-dir", "model", program)
    first = run_cli(*arguments, "30", "0", "mirrored", "metric")
    assert first.returncode == 0, first.stderr
    again = run_cli(*arguments, "50", "0", "mirrored", "metric")
    assert again.returncode == 0, again.stderr
    assert "begins at 30 with" in again.stdout
    assert "ends at 50 with" in again.stdout
    assert "and 100 seen" in again.stdout


def test_what_the_program_restores_itself_comes_later_and_wins(
    program: str, run_cli: RunCli
) -> None:
    assert run_cli(*IN_SYNC, program, "40", "0", "own").returncode == 0
    again = run_cli(*IN_SYNC, program, "41", "0", "own")
    assert again.returncode == 0, again.stdout
    [value] = set(said(again.stdout, r"begins at 40 with (\S+)"))
    twenty = run_cli(*IN_SYNC[:-1], "other", program, "20", "0")
    assert set(said(twenty.stdout, r"ends at 20 with (\S+)")) == {value}


def test_a_model_directory_that_cannot_be_written_is_found_before_the_program_begins(
    program: str, tmp_path: Path
) -> None:
    (tmp_path / "model").write_text("a file")
    configs = tf_configs(worker=2)
    environment = {**QUICK, "ROPEWALK_MODEL_DIR": str(tmp_path / "model")}
    environment["ROPEWALK_JOIN_TIMEOUT_S"] = "3"  # of the other worker, which waits in vain
    command = ["ropewalk", "run", program, "9", "0"]
    ended = HandStarted(command, configs, tmp_path, **environment)
    codes = {task: end.code for task, end in ended.wait().items()}
    assert codes["worker:0"] == ExitCode.STORAGE
    assert codes["worker:1"] in (ExitCode.PEER_LOST, ExitCode.JOIN_TIMEOUT)  # as it was in time
    assert "it is a file, not a folder" in ended.said("worker:0")
    assert "begins at" not in ended.said("worker:0")


def test_a_damaged_checkpoint_leads_to_the_one_before_and_to_a_word_on_lost_steps(
    program: str, run_cli: RunCli, tmp_path: Path
) -> None:
    # The last one alone is of the last step: the one before is due 8 steps, 0.4 s, earlier.
    arguments = ("--save-every-steps", "10", "--save-every-s", "0", program)
    first = run_cli(*IN_SYNC, *arguments, "38", "0.05", "metric")
    assert first.returncode == 0, first.stdout
    model_dir = tmp_path / "model"
    *_, before, newest = sorted(path.parent for path in model_dir.glob("ckpt-*/manifest.json"))
    assert os.stat(newest).st_mode & 0o777 == 0o700
    os.truncate(newest / "variables.safetensors", 100)
    step = int(before.name.split("-")[1])
    assert 0 < step < 38
    resumed = run_cli(*IN_SYNC, *arguments, "40", "0", "metric")
    told = resumed.stdout + resumed.stderr
    assert resumed.returncode == 0, told
    assert f"model/{newest.name} is damaged and is not used" in told
    assert f"Going back to model/{before.name}" in told
    assert f"resuming from model/{before.name} (global step {step})" in told
    assert f"{38 - step} acknowledged steps are lost: the job had reached global step 38" in told
    assert said(told, r"begins at (\d+)") == [str(step)] * 2
    assert (model_dir / f"{newest.name}.damaged").is_dir()
    assert said(told, r"and (\d+) seen") == ["80"] * 2
