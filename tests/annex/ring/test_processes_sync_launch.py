"""Synchronous workers, started by the command: the example equals one device; nobody goes on
without another.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers import processes
from helpers.waiting import scaled
from ropewalk.core.exit_codes import ExitCode

RunCli = Callable[..., subprocess.CompletedProcess[str]]
StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]
ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = str(ROOT / "examples" / "digits_in_sync" / "train.py")
IN_SYNC = ("--plain", "--ps", "0", "--no-chief")

# Goes round the ring until it is stopped. Argument: how many workers there are.
PROGRAM = """\
import sys
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy(
    communication_options=rw.distribute.CommunicationOptions(timeout_seconds=20))
assert strategy.num_replicas_in_sync == int(sys.argv[1])
for number in range(100_000):
    total = strategy.reduce("SUM", strategy.run(lambda: np.ones(3)), axis=None)
    assert total.tolist() == [float(sys.argv[1])] * 3
    if number == 10:
        print("ten rounds", flush=True)
"""


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLE, *arguments]
    return subprocess.CompletedProcess(command, *processes.run(command, timeout_s=scaled(60)))


def weights(file: Path) -> list[np.ndarray]:
    with np.load(file) as saved:
        return [saved[name] for name in saved.files]


@pytest.fixture(scope="module")
def one_device(tmp_path_factory: pytest.TempPathFactory) -> list[np.ndarray]:
    """What the example's weights are after training on one device."""
    file = tmp_path_factory.mktemp("one") / "weights.npz"
    done = run_python("--save", str(file))
    assert done.returncode == 0, done.stderr
    assert "1 replicas: 9" in done.stdout, "above 90 % of the held-out digits"
    return weights(file)


def assert_close(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    # 156 steps of Adam at 3e-3: sums in another order differ by 1e-7 per step, roots keep that
    # small.
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=5e-5)


def test_four_devices_train_the_digits_as_one_does(
    tmp_path: Path, one_device: list[np.ndarray]
) -> None:
    file = tmp_path / "weights.npz"
    done = run_python("--devices", "4", "--save", str(file))
    assert done.returncode == 0, done.stderr
    assert "4 replicas: 9" in done.stdout
    assert_close(weights(file), one_device)


@pytest.mark.parametrize("devices", [1, 2])
def test_three_workers_train_the_digits_as_one_device_does(
    run_cli: RunCli, tmp_path: Path, one_device: list[np.ndarray], devices: int
) -> None:
    file = tmp_path / "weights.npz"
    done = run_cli(
        "local", *IN_SYNC, "--workers", "3", EXAMPLE, "--devices", str(devices), "--save", str(file)
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{3 * devices} replicas: 9" in done.stdout
    assert "model directory" in done.stdout  # with the last status
    assert_close(weights(file), one_device)


def test_run_without_a_cluster_is_one_worker(
    run_cli: RunCli, tmp_path: Path, one_device: list[np.ndarray]
) -> None:
    file = tmp_path / "weights.npz"
    done = run_cli("run", EXAMPLE, "--save", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    for mine, theirs in zip(weights(file), one_device, strict=True):
        np.testing.assert_array_equal(mine, theirs)


# -- the end ---------------------------------------------------------------------------------


@pytest.fixture
def program(tmp_path: Path) -> str:
    file = tmp_path / "rounds.py"
    file.write_text(PROGRAM)
    return str(file)


def pid_of(task: str, running: dict[int, dict[str, str]]) -> int:
    """The process of a task, by its TF_CONFIG."""
    kind, index = task.split(":")
    wanted = f'"task": {{"type": "{kind}", "index": {index}}}'
    [found] = [pid for pid, given in running.items() if wanted in given.get("TF_CONFIG", "")]
    return found


def test_a_killed_worker_ends_the_job_and_is_named(
    program: str,
    start_cli: StartCli,
    live_pids: Callable[[], dict[int, dict[str, str]]],
    wait_until: Callable[..., None],
) -> None:
    launcher, output = start_cli("local", *IN_SYNC, "--workers", "3", program, "3")
    wait_until(lambda: output.read_text().count("ten rounds") == 3, 30, "the first rounds")
    os.kill(pid_of("worker:1", live_pids()), signal.SIGKILL)
    assert launcher.wait(scaled(20)) == ExitCode.KILLED
    assert "worker:1 failed first" in output.read_text()


def test_the_chief_of_a_cluster_without_ps_is_one_of_the_workers(
    program: str,
    start_cli: StartCli,
    wait_until: Callable[..., None],
) -> None:
    launcher, output = start_cli("local", "--plain", "--ps", "0", program, "2")
    wait_until(lambda: output.read_text().count("ten rounds") == 2, 30, "the first rounds")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(scaled(10)) == ExitCode.DRAINED
    text = output.read_text()
    assert "chief:0" in text
    assert "Traceback" not in text, text


def test_a_worker_that_is_asked_to_stop_is_named_as_the_reason(
    program: str,
    start_cli: StartCli,
    live_pids: Callable[[], dict[int, dict[str, str]]],
    wait_until: Callable[..., None],
) -> None:
    launcher, output = start_cli("local", *IN_SYNC, "--workers", "3", program, "3")
    wait_until(lambda: output.read_text().count("ten rounds") == 3, 30, "the first rounds")
    os.kill(pid_of("worker:2", live_pids()), signal.SIGTERM)
    launcher.wait(scaled(20))
    assert "/job:worker/task:2 was asked to stop by SIGTERM" in output.read_text()


def test_a_strategy_with_ps_says_that_there_are_none(run_cli: RunCli, tmp_path: Path) -> None:
    file = tmp_path / "ps.py"
    file.write_text("import ropewalk as rw\nrw.distribute.ParameterServerStrategy()\n")
    done = run_cli("local", *IN_SYNC, "--workers", "2", str(file))
    assert done.returncode == ExitCode.USAGE, done.stdout + done.stderr
    assert "the cluster has no ps; ParameterServerStrategy needs at least one" in done.stdout
