"""Two jobs with one TF_CONFIG, as their users see it: the second is refused, the first goes on."""

import json
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from helpers.waiting import scaled
from ropewalk.cluster.access import Principal
from ropewalk.net.this_machine import free_ports

RunCli = Callable[..., subprocess.CompletedProcess[str]]
StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]

PROGRAM = """
import pathlib, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(2, np.float32), name="w")
steps = 0
while not pathlib.Path("stop").exists():
    strategy.run(lambda: w.assign_add(np.ones(2, np.float32)))
    steps += 1
    if steps == 1:
        print("has begun", flush=True)
    time.sleep(0.05)
print("all", "done", *w.numpy().tolist(), strategy.global_step, flush=True)
"""
QUICK = ["--heartbeat-s", "0.1", "--lease-s", "3", "--join-timeout-s", "40"]


class Job:
    """A chief, a ps and a worker, each a process with its TF_CONFIG."""

    def __init__(self, start: StartCli, folder: Path, *flags: str) -> None:
        chief, ps, worker = (f"127.0.0.1:{port}" for port in free_ports(3))
        self.cluster = {"chief": [chief], "ps": [ps], "worker": [worker]}
        self.program = folder / "train.py"
        self.program.write_text(PROGRAM)
        self.stop = folder / "stop"
        self.flags = [*QUICK, *flags]
        self.tasks = {
            role: start(*self.command(), TF_CONFIG=self.config(role))
            for role in ("ps", "chief", "worker")
        }

    def command(self) -> list[str]:
        return ["run", *self.flags, str(self.program)]

    def config(self, role: str, **changes: list[str]) -> str:
        return json.dumps({"cluster": self.cluster | changes, "task": {"type": role, "index": 0}})

    def said(self, role: str) -> str:
        return self.tasks[role][1].read_text()

    def end(self) -> dict[str, int]:
        self.stop.touch()
        return {role: process.wait(scaled(30)) for role, (process, _) in self.tasks.items()}


@pytest.fixture
def job(start_cli: StartCli, tmp_path: Path, wait_until: Callable[..., None]) -> Iterator[Job]:
    made = Job(start_cli, tmp_path)
    wait_until(lambda: _steps(made) > 0, 30)
    yield made
    for role, (process, _) in made.tasks.items():  # shown if the test fails
        print(f"== {role}, exit code {process.poll()}\n{made.said(role)}")


def _steps(job: Job) -> int:
    """Steps of the worker, from the chief's status."""
    from ropewalk.client.chief.calls import ChiefClient
    from ropewalk.core.errors import RopewalkError
    from ropewalk.core.settings import Settings

    client = ChiefClient(job.cluster["chief"][0], Settings(), Principal("worker", index=0))
    try:
        status = client.status(timeout_s=2)
    except RopewalkError:
        return 0
    finally:
        client.close()
    return {item.task.short: item.report.steps for item in status.tasks}.get("worker:0", 0)


def test_a_second_worker_with_the_same_tf_config_is_refused_and_the_first_goes_on(
    job: Job, run_cli: RunCli
) -> None:
    second = run_cli(*job.command(), TF_CONFIG=job.config("worker"))
    assert second.returncode == 5, second.stderr
    assert "runs as /job:worker/task:0 already and was heard of" in second.stderr
    assert "Two jobs have the same TF_CONFIG" in second.stderr
    assert len(second.stderr.splitlines()) <= 5, second.stderr
    assert job.end() == {"ps": 0, "chief": 0, "worker": 0}
    assert "refused: process" in job.said("chief")
    assert "all done" in job.said("worker")


def test_a_second_chief_of_the_same_ps_is_refused_and_the_first_goes_on(
    job: Job, run_cli: RunCli
) -> None:
    [port] = free_ports(1)
    config = job.config("chief", chief=[f"127.0.0.1:{port}"])
    second = run_cli(*job.command(), TF_CONFIG=config)
    assert second.returncode == 5, second.stderr
    assert "serves job '" in second.stderr
    assert f"of the chief at {job.cluster['chief'][0]}, heard of" in second.stderr
    assert len(second.stderr.splitlines()) <= 5, second.stderr
    assert job.end() == {"ps": 0, "chief": 0, "worker": 0}


def test_a_worker_that_was_killed_comes_back_without_any_setting(
    job: Job, start_cli: StartCli, wait_until: Callable[..., None]
) -> None:
    job.tasks["worker"][0].kill()
    job.tasks["worker"] = start_cli(*job.command(), TF_CONFIG=job.config("worker"))
    # The status knows the steps of the one before.
    wait_until(lambda: "has begun" in job.said("worker"), 20)
    assert job.end() == {"ps": 0, "chief": 0, "worker": 0}


def test_a_task_that_names_another_job_is_refused_at_once(job: Job, run_cli: RunCli) -> None:
    second = run_cli(*job.command(), TF_CONFIG=job.config("worker"), ROPEWALK_JOB_ID="mine")
    assert second.returncode == 5, second.stderr
    assert "worker:0 of job mine does not: Register is refused" in second.stderr
    assert job.end() == {"ps": 0, "chief": 0, "worker": 0}


def test_a_chief_that_was_killed_goes_on_with_its_job_from_the_ps(
    job: Job, start_cli: StartCli, wait_until: Callable[..., None]
) -> None:
    job.tasks["chief"][0].kill()
    job.tasks["chief"] = start_cli(*job.command(), TF_CONFIG=job.config("chief"))
    wait_until(lambda: _steps(job) > 0, 20, "the worker's steps")
    assert job.end() == {"ps": 0, "chief": 0, "worker": 0}
    assert re.search(
        r"goes on with job \w+, which /job:ps/task:0 serves; its chief at \S+ has been silent for",
        job.said("chief"),
    ), job.said("chief")
    # One variable, which both chiefs and the worker have added to: none of it was lost.
    [values] = {re.search(r"all done (.*)", job.said(role))[1] for role in ("chief", "worker")}  # type: ignore[index]
    first, second, step = (float(number) for number in values.split())
    assert first == second == step


def test_a_chief_that_restarts_while_its_ps_hangs_waits_for_it_and_keeps_its_workers(
    job: Job, start_cli: StartCli, wait_until: Callable[..., None]
) -> None:
    job.tasks["chief"][0].kill()
    ps = job.tasks["ps"][0]
    ps.send_signal(signal.SIGSTOP)
    try:
        job.tasks["chief"] = start_cli(*job.command(), TF_CONFIG=job.config("chief"))
        waits = r"/job:chief/task:0 waits for /job:ps/task:0 since .* \(join_timeout_s 40 s\)"
        wait_until(lambda: re.search(waits, job.said("chief")), 20)
    finally:
        ps.send_signal(signal.SIGCONT)
    wait_until(lambda: _steps(job) > 0, 20, "the worker's steps")
    assert job.end() == {"ps": 0, "chief": 0, "worker": 0}
    assert "goes on with job" in job.said("chief")


def test_a_chief_that_restarts_without_its_ps_says_whom_it_lacks(job: Job, run_cli: RunCli) -> None:
    for role in ("chief", "ps", "worker"):
        job.tasks[role][0].kill()
    *flags, program = job.command()
    quick = [*flags, "--join-timeout-s", "4", program]
    again = run_cli(*quick, TF_CONFIG=job.config("chief"))
    assert again.returncode == 140, again.stderr
    assert "/job:chief/task:0 waited 4 s (join_timeout_s) for /job:ps/task:0" in again.stderr
    assert len(again.stderr.splitlines()) <= 5, again.stderr
