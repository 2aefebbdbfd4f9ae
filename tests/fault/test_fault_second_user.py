"""Another user of the machine, and another network of it, beside a live job: nothing is reached."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.callers import UNKNOWN
from helpers.clusters import HandStarted, tf_configs
from helpers.live_jobs import TRAIN, Live
from helpers.processes import ROOT
from helpers.stranger import USER, unix_sockets
from helpers.waiting import scaled, wait_until
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings
from ropewalk.net.auth.proof import load_key

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.scenario,
    pytest.mark.needs("root"),  # which can become another user
]


def stranger(command: str, *before: str, **arguments: Any) -> list[str]:
    program = [sys.executable, "-m", "helpers.stranger", command, json.dumps(arguments)]
    return [*before, *program]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}"}


def run(command: Sequence[str]) -> dict[str, Any]:
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=scaled(60), check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def key_file() -> Iterator[Path]:
    """A key in a folder that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="ropewalk-key-"))
    folder.chmod(0o755)
    load_key(Settings(key_file=str(folder / "key")))
    yield folder / "key"
    shutil.rmtree(folder)


@pytest.fixture
def live(tmp_path: Path, no_process_left: str, key_file: Path) -> Iterator[Live]:
    made = Live(tmp_path, ROPEWALK_KEY_FILE=str(key_file))
    wait_until(lambda: all(made.steps()), 60, "the jobs to begin")
    yield made
    made.kill()


def ports_of(live: Live) -> list[tuple[str, int, int]]:
    return [(port.role, port.port, port.pid) for port in live.ports]


def test_another_user_reaches_nothing_of_a_live_job(live: Live, key_file: Path) -> None:
    found = run(stranger("look", key_file=str(key_file), ports=ports_of(live)))
    assert found.pop("sockets") >= len(live.ports)
    assert set(found.pop("unix")) <= {"closed", "refused"}  # refused: those of other tests
    assert found == {
        "user": USER,
        "key": "PermissionError",
        "key link": "PermissionError",
        "calls": [UNKNOWN],
        "greetings": [UNKNOWN],
        "processes": ["PermissionError"],
        "shared memory": [],
    }
    live.goes_on()
    live.end()


def test_another_user_reaches_nothing_of_ropewalk_local(
    start_cli: Callable[..., tuple["subprocess.Popen[bytes]", Path]],
    write_program: Callable[..., str],
    live_pids: Callable[[], dict[int, dict[str, str]]],
    key_file: Path,
) -> None:
    cluster = ["--plain", "--chief", "--workers", "1", "--ps", "1"]
    process, output = start_cli(
        "local", *cluster, write_program(), "1000000", "0.05", ROPEWALK_KEY_FILE=str(key_file)
    )
    wait_until(lambda: b"has done 5 steps" in output.read_bytes(), 60, "steps")
    ports = []
    for pid, given in live_pids().items():
        config = json.loads(given.get("TF_CONFIG", "{}"))
        if config and (role := config["task"]["type"]) in ("chief", "ps"):
            port = config["cluster"][role][0].rpartition(":")[2]
            ports.append((role, int(port), pid))
    assert {role for role, _, _ in ports} == {"chief", "ps"}
    found = run(stranger("look", key_file=str(key_file), ports=ports))
    assert (found["calls"], found["greetings"]) == ([UNKNOWN], [UNKNOWN])
    assert (found["key"], found["processes"]) == ("PermissionError", ["PermissionError"])
    assert set(found["unix"]) <= {"closed", "refused"}
    assert process.poll() is None, output.read_text()
    process.send_signal(signal.SIGTERM)
    assert process.wait(scaled(60)) == ExitCode.DRAINED, output.read_text()


def test_another_user_cannot_stop_or_fill_up_a_live_job(live: Live) -> None:
    process = subprocess.Popen(
        stranger("flood", ports=ports_of(live)),
        env=environment(), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    while process.poll() is None:
        live.goes_on()
    said, _ = process.communicate()
    assert set(json.loads(said)) == {UNKNOWN}
    live.goes_on()
    live.end()


@pytest.mark.needs("a network namespace")
def test_another_network_of_the_machine_reaches_nothing(live: Live) -> None:
    ours = unix_sockets()
    assert ours
    command = stranger("elsewhere", "unshare", "-n", ports=ports_of(live), names=ours)
    found = run(command)
    assert found["seen"] == []
    assert all(not said.startswith("done") for said in found["tcp"] + found["unix"]), found
    live.end()


# -- the port of a task ----------------------------------------------------------------------------


@contextmanager
def impostor(port: int, *, lies: bool) -> Iterator[dict[str, int]]:
    """Has the port; what it heard is told at the end."""
    heard: dict[str, int] = {}
    process = subprocess.Popen(
        stranger("impostor", port=port, lies=lies),
        env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    try:
        yield heard
    finally:
        said, _ = process.communicate("", timeout=scaled(10))
        heard.update(json.loads(said))


@pytest.mark.parametrize(
    ("place", "lies"),
    [
        pytest.param("ps:0", True, id="ps:0-lies"),
        pytest.param("chief:0", False, id="chief:0-answers"),
        pytest.param("ps:0", False, id="ps:0-answers", marks=pytest.mark.soak),
        pytest.param("chief:0", True, id="chief:0-lies", marks=pytest.mark.soak),
    ],
)
def test_who_takes_the_port_of_a_task_first_is_not_believed(
    tmp_path: Path, no_process_left: str, key_file: Path, place: str, lies: bool
) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    configs = tf_configs(chief=1, worker=1, ps=1)
    config = json.loads(configs.pop(place))
    address = config["cluster"][config["task"]["type"]][0]
    if place == "chief:0":
        del configs["ps:0"]  # it would wait for a chief for long
    with impostor(int(address.rpartition(":")[2]), lies=lies) as heard:
        command = ["ropewalk", "run", "train.py"]
        job = HandStarted(
            command,
            configs,
            tmp_path,
            ROPEWALK_KEY_FILE=str(key_file),
            ROPEWALK_JOIN_TIMEOUT_S="5",
            ROPEWALK_RECONNECT_TIMEOUT_S="5",
        )
        ended = job.wait(60)
    worker = ended["worker:0"]
    assert worker.code not in (0, -9), worker
    assert "did not show that it belongs to this user" in "".join(e.text for e in ended.values())
    assert "more after a greeting" not in heard
    assert heard
