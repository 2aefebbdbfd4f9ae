"""``ropewalk run`` and its roles as separate daemons, as a cluster manager starts them."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.waiting import scaled
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.net.this_machine import free_ports

RunCli = Callable[..., subprocess.CompletedProcess[str]]
StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]

QUICK = ["--heartbeat-s", "0.1", "--join-timeout-s", "40"]


def addresses(count: int) -> list[str]:
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


def tf_config(cluster: dict[str, Any], task_type: str, index: int = 0) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": task_type, "index": index}})


def test_without_tf_config_the_process_is_the_whole_cluster(
    write_program: Callable[..., str], run_cli: RunCli, tmp_path: Path
) -> None:
    result = run_cli("run", "--model-dir", "model", write_program(), "100", "0")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == ["chief:0 begins at 0", "chief:0 has done 5 steps"]
    saved = latest_checkpoint(str(tmp_path / "model"))
    assert saved is not None
    assert saved.global_step == 100  # alone, nobody else adds a step
    manifest = CheckpointReader(saved.path).manifest
    assert manifest.final
    assert sorted(manifest.variables) == ["b", "w"]


def test_without_a_model_directory_nothing_is_written(
    write_program: Callable[..., str], run_cli: RunCli, tmp_path: Path
) -> None:
    result = run_cli("run", write_program(), "20", "0")
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]


@pytest.mark.scenario
def test_daemons_find_each_other_whoever_is_late(
    write_program: Callable[..., str],
    start_cli: StartCli,
    run_cli: RunCli,
    wait_until: Callable[..., None],
) -> None:
    program = write_program()
    ps, chief, worker = addresses(3)
    cluster = {"ps": [ps], "chief": [chief], "worker": [worker]}
    arguments = ["run", *QUICK, "--model-dir", "model", program, "1000000", "0.01"]

    lead, lead_said = start_cli(*arguments, TF_CONFIG=tf_config(cluster, "chief"))
    work, work_said = start_cli(*arguments, TF_CONFIG=tf_config(cluster, "worker"))
    wait_until(lambda: "waits for /job:ps/task:0" in lead_said.read_text(), 20, "a word")
    wait_until(lambda: "waits for the chief at" in work_said.read_text(), 20, "a word")
    # The chief answers before the cluster has formed, and says who is missing.
    early = run_cli("status", chief)
    assert early.returncode == 0, early.stderr
    assert "missing" in next(line for line in early.stdout.splitlines() if "ps:0" in line)

    serve, serve_said = start_cli(
        "ps", "--heartbeat-s", "0.1", "--model-dir", "model", TF_CONFIG=tf_config(cluster, "ps")
    )
    wait_until(lambda: "has done 5 steps" in work_said.read_text(), 20, "the worker's steps")
    wait_until(lambda: "has done 5 steps" in lead_said.read_text(), 20, "the chief's steps")

    def rows() -> dict[str, str]:
        shown = run_cli("status", chief, COLUMNS="200")
        assert shown.returncode == 0, shown.stderr
        assert "job running" in shown.stdout
        lines = shown.stdout.splitlines()
        # The first line of a task: below there is where the time of its steps goes.
        return {line.split()[0]: line for line in reversed(lines) if line.split()}

    # What a worker reports reaches the chief with its next heartbeat.
    wait_until(lambda: "loss" in rows().get("worker:0", ""), 20, "the worker's report")
    last = rows()
    assert {"ps:0", "chief:0", "worker:0"} <= set(last)
    assert all("alive" in last[task] for task in ("ps:0", "chief:0", "worker:0"))
    assert ps in last["ps:0"]

    # SIGTERM at the chief, as a cluster manager ends a job: everybody leaves in order.
    lead.terminate()
    assert [process.wait(scaled(20)) for process in (lead, work, serve)] == [143, 143, 143]
    assert "saved model/ckpt-" in lead_said.read_text()
    assert "the job was stopped" in serve_said.read_text()


def test_a_dynamic_worker_finds_the_chief_through_the_ps(
    write_program: Callable[..., str], start_cli: StartCli
) -> None:
    program = write_program()
    ps, chief, worker = addresses(3)
    # The chief's TF_CONFIG is form D: the rest comes from flags. Nobody listed the worker.
    serve, served = start_cli(
        "run", *QUICK, TF_CONFIG=tf_config({"ps": [ps], "worker": {"0": worker}}, "ps")
    )
    work, worked = start_cli(
        "run", *QUICK, program, "200", "0.002",
        TF_CONFIG=tf_config({"ps": [ps], "worker": {"1": worker}}, "worker", 1),
    )  # fmt: skip
    lead, led = start_cli(
        "run", *QUICK, "--cluster", json.dumps({"chief": [chief], "ps": [ps]}),
        program, "200", "0.002", TF_CONFIG=tf_config({}, "chief"),
    )  # fmt: skip
    codes = [process.wait(scaled(40)) for process in (lead, work, serve)]
    text = "\n".join(path.read_text() for path in (led, worked, served))
    assert codes == [0, 0, 0], text
    assert "worker:1 has done 5 steps" in worked.read_text()


def test_nobody_at_the_address_is_said_in_one_line(run_cli: RunCli) -> None:
    (nobody,) = addresses(1)
    result = run_cli("status", nobody, "--timeout-s", "2")
    assert result.returncode == 138
    assert result.stderr.startswith(f"ropewalk: no chief answers at {nobody}")
    assert len(result.stderr.splitlines()) == 1
