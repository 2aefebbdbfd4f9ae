"""Tasks started by hand with certificates on both sides: they train, outlive rotations, and end."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.tls_files import authority, issued, write
from helpers.waiting import scaled
from ropewalk.net.this_machine import free_ports

pytestmark = pytest.mark.scenario

RunCli = Callable[..., subprocess.CompletedProcess[str]]
StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]

JOB = "mnist"
TASKS = [("ps", 0), ("chief", 0), ("worker", 0), ("worker", 1)]
QUICK = [
    "--heartbeat-s", "0.1", "--join-timeout-s", "40", "--lease-s", "2", "--no-shared-memory",
]  # fmt: skip
IN_SYNC = """
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy()
total = 0.0
for number in range(20):
    ones = strategy.run(lambda: np.ones(100_000, np.float32))
    total += float(strategy.reduce("SUM", ones, axis=None).sum())
print("in sync:", total)
"""


class Job:
    """Tasks, each with files of its own."""

    def __init__(self, start: StartCli, folder: Path, tasks: list[tuple[str, int]]) -> None:
        ports = dict(zip(tasks, free_ports(len(tasks)), strict=True))
        roles = dict.fromkeys(role for role, _ in tasks)
        self.cluster = {
            role: [f"127.0.0.1:{port}" for (kind, _), port in ports.items() if kind == role]
            for role in roles
        }
        self._start = start
        self._folder = folder
        self._files = {
            task: write(folder / f"{task[0]}-{task[1]}", issued(*task, job=JOB)) for task in tasks
        }

    def credentials(self, task: tuple[str, int]) -> list[str]:
        files = self._files[task]
        given = [(f"--{key.replace('_', '-')}", files[key]) for key in files if key != "insecure"]
        return [each for pair in given for each in pair]

    def start(self, task: tuple[str, int], *arguments: str) -> tuple[subprocess.Popen[bytes], Path]:
        role, index = task
        config = {"cluster": self.cluster, "task": {"type": role, "index": index}}
        return self._start(
            "run", *QUICK, *self.credentials(task), *arguments, TF_CONFIG=json.dumps(config)
        )

    def rotate(self, ca: str = "test CA") -> None:
        """Give every task a new certificate."""
        for (role, index), files in self._files.items():
            made = write(self._folder / "next", issued(role, index, job=JOB, ca=ca))
            for name in ("tls_key", "tls_cert"):
                os.replace(made[name], files[name])

    def trust(self, *names: str) -> None:
        """Have every task trust these CAs."""
        for files in self._files.values():
            beside = Path(files["tls_ca"] + ".new")
            beside.write_bytes(b"".join(authority(name).pem for name in names))
            os.replace(beside, files["tls_ca"])


def steps_of(said: Path) -> int:
    return said.read_text().count("has done 5 steps")


def test_a_job_with_certificates_outlives_two_rotations_and_a_change_of_ca(
    write_program: Callable[..., str],
    start_cli: StartCli,
    run_cli: RunCli,
    wait_until: Callable[..., None],
    tmp_path: Path,
) -> None:
    job = Job(start_cli, tmp_path, TASKS)
    where = ["--model-dir", "model"]
    arguments = [*where, write_program(), "1000000", "0.01"]
    running = {task: job.start(task, *(arguments if task[0] != "ps" else where)) for task in TASKS}
    for task in TASKS[1:]:
        wait_until(lambda said=running[task][1]: steps_of(said), 30, f"steps of {task}")

    def replace_worker() -> None:
        """A new process has nothing but the files of now, and everybody must take it in."""
        process, _ = running[TASKS[3]]
        process.kill()
        process.wait(scaled(10))
        running[TASKS[3]] = job.start(TASKS[3], *arguments)
        said = running[TASKS[3]][1]
        wait_until(lambda: steps_of(said), 30, "steps of the new worker")

    job.rotate()
    replace_worker()
    job.trust("test CA", "new CA")
    job.rotate("new CA")
    job.trust("new CA")
    replace_worker()
    shown = run_cli("status", job.cluster["chief"][0], *job.credentials(TASKS[1]))
    assert shown.returncode == 0, shown.stderr
    assert "TLS with certificates on both sides" in shown.stdout
    running[TASKS[1]][0].terminate()
    codes = [process.wait(scaled(30)) for process, _ in running.values()]
    text = "\n".join(said.read_text() for _, said in running.values())
    assert codes == [143] * 4, text
    assert "saved model/ckpt-" in text


@pytest.mark.annex("ring")
def test_synchronous_workers_with_certificates(start_cli: StartCli, tmp_path: Path) -> None:
    tasks = [("worker", 0), ("worker", 1)]
    job = Job(start_cli, tmp_path, tasks)
    (tmp_path / "sync.py").write_text(IN_SYNC)
    running = [job.start(task, "sync.py") for task in tasks]
    codes = [process.wait(scaled(60)) for process, _ in running]
    text = "\n".join(said.read_text() for _, said in running)
    assert codes == [0, 0], text
    assert text.count("in sync: 4000000.0") == 2


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"ca": "other"}, "another CA"),
        ({"index": 5}, "each task needs credentials of its own"),
        ({"role": "reader", "index": None}, "reader of job mnist may not Register"),
        ({"job": "other"}, "belongs to job"),
    ],
    ids=["other CA", "other index", "other role", "other job"],
)
def test_a_worker_with_a_certificate_that_is_not_its_own_ends_with_8(
    write_program: Callable[..., str],
    start_cli: StartCli,
    wait_until: Callable[..., None],
    tmp_path: Path,
    changed: dict[str, Any],
    says: str,
) -> None:
    job = Job(start_cli, tmp_path, [("ps", 0), ("chief", 0), ("worker", 0)])
    program = write_program()
    job.start(("ps", 0))
    _, lead_said = job.start(("chief", 0), program, "1000000", "0.01")
    wait_until(lambda: steps_of(lead_said), 30, "the chief's steps")
    certificate = {"role": "worker", "index": 0, "job": JOB, **changed}
    write(tmp_path / "worker-0", issued(**certificate), certificate.get("ca", "test CA"))
    worker, said = job.start(("worker", 0), program, "100", "0.01")
    code = worker.wait(scaled(40))
    text = said.read_text()
    assert (code, says in text, "has done" in text) == (8, True, False), text


def test_a_ps_belongs_to_the_job_of_its_certificate_whoever_comes_first(
    write_program: Callable[..., str], start_cli: StartCli, tmp_path: Path
) -> None:
    job = Job(start_cli, tmp_path, [("ps", 0), ("chief", 0)])
    job.start(("ps", 0))
    write(tmp_path / "chief-0", issued("chief", 0, job="other"))
    chief, said = job.start(("chief", 0), write_program(), "100", "0.01")
    assert chief.wait(scaled(40)) == 8, said.read_text()
    assert "ps:0 of job mnist, and ps:0 of job other was dialled" in said.read_text()
