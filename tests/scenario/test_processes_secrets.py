"""Secrets of a job are nowhere but in their files and the memory of its tasks."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.waiting import scaled
from ropewalk.core.settings import Settings
from ropewalk.net.auth.proof import load_key

StartCli = Callable[..., tuple["subprocess.Popen[bytes]", Path]]

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]


@pytest.mark.real_start  # /proc shows the arguments of a process, not of a fork
def test_the_key_is_in_no_log_process_list_environment_or_checkpoint(
    start_cli: StartCli,
    write_program: Callable[..., str],
    live_pids: Callable[[], dict[int, dict[str, str]]],
    wait_until: Callable[..., None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    monkeypatch.setenv("ROPEWALK_LOG_LEVEL", "DEBUG")
    model = tmp_path / "model"
    process, output = start_cli(
        "local", "--plain", "--chief", "--workers", "1", "--ps", "1", "--evaluator",
        "--model-dir", str(model), write_program(), "60", "0.03",
    )  # fmt: skip
    wait_until(lambda: b"has done 5 steps" in output.read_bytes(), 60, "steps")
    shown = b"".join(
        Path(f"/proc/{pid}/{name}").read_bytes()
        for pid in live_pids()
        for name in ("cmdline", "environ")
    )
    assert b"TF_CONFIG" in shown
    assert process.wait(scaled(60)) == 0, output.read_text()
    said = output.read_bytes()
    assert b" DEBUG " in said
    kept = {str(path): path.read_bytes() for path in model.rglob("*") if path.is_file()}
    assert any("ckpt" in path for path in kept)

    key = load_key(Settings())
    assert str(state) in os.environ["XDG_STATE_HOME"]
    assert (state / "ropewalk" / "loopback.key").read_text().strip() == key.hex()
    places: dict[str, bytes] = {"processes": shown, "output": said, **kept}
    for place, data in places.items():
        for secret in (key, key.hex().encode(), key.hex().upper().encode(), b"mac="):
            assert secret not in data, place
