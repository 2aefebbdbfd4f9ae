"""Clusters whose tasks know each other from their launcher, or by names that come late."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import processes
from helpers.clusters import HandStarted, as_command
from ropewalk.core.exit_codes import ExitCode
from ropewalk.net.this_machine import free_ports

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]
QUICK = {"ROPEWALK_HEARTBEAT_S": "0.1", "ROPEWALK_JOIN_TIMEOUT_S": "40"}
WriteProgram = Callable[..., str]
WaitUntil = Callable[..., None]

IN_SYNC = """\
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy()
total = strategy.reduce("SUM", strategy.run(lambda: np.ones(3)), axis=None)
print("the sum is", int(total[0]), "on", strategy.cluster_resolver.task_id, flush=True)
"""


def step_of(hosts: int, **more: str) -> dict[str, dict[str, str]]:
    """What ``srun --nodes=N --ntasks-per-node=1`` sets in each task; hosts are 127.0.0.x."""
    return {
        f"rank:{rank}": {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": "0",
            "SLURM_STEP_NODELIST": f"127.0.0.[1-{hosts}]",
            "SLURM_STEP_NUM_TASKS": str(hosts),
            "SLURM_STEP_TASKS_PER_NODE": f"1(x{hosts})",
            "CUDA_VISIBLE_DEVICES": "",
            **more,
        }
        for rank in range(hosts)
    }


@pytest.mark.parametrize("launcher", ["python", "ropewalk"])
def test_the_tasks_of_srun_train_together(
    launcher: str, write_program: WriteProgram, tmp_path: Path
) -> None:
    (port,) = free_ports(1)
    program, roles = write_program(), "chief=1,ps=1,worker=2"
    if launcher == "python":
        command = ["python", program, "100", "0.002"]
        said = {"ROPEWALK_REPLICAS": roles, "ROPEWALK_PORT": str(port)}
    else:
        flags = ["--replicas", roles, "--port", str(port)]
        command, said = ["ropewalk", "run", *flags, program, "100", "0.002"], {}
    said |= {"ROPEWALK_MODEL_DIR": str(tmp_path / "model"), "ROPEWALK_WAIT_FOR_WORKERS": "2"}
    started = HandStarted(command, step_of(4), tmp_path, **QUICK, **said)
    ended = started.wait()
    assert {task: end.code for task, end in ended.items()} == dict.fromkeys(ended, 0), ended
    assert "chief:0 has done 5 steps" in ended["rank:0"].text
    assert "begins" not in ended["rank:1"].text  # a ps runs no step
    assert "worker:2 has done 5 steps" in ended["rank:3"].text


@pytest.mark.annex("ring")
def test_the_hosts_of_a_sagemaker_job_are_in_sync(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    (tmp_path / "sync.py").write_text(IN_SYNC)
    hosts = ["127.0.0.1", "127.0.0.2"]
    containers = {host: {"SM_HOSTS": json.dumps(hosts), "SM_CURRENT_HOST": host} for host in hosts}
    started = HandStarted(
        ["python", "sync.py"], containers, tmp_path, **QUICK, ROPEWALK_PORT=str(port)
    )
    ended = started.wait()
    assert {end.code for end in ended.values()} == {0}, ended
    assert "the sum is 2 on 0" in ended["127.0.0.1"].text
    assert "the sum is 2 on 1" in ended["127.0.0.2"].text


@pytest.mark.annex("ring")
def test_a_step_that_does_not_fit_ends_every_task_with_a_line(tmp_path: Path) -> None:
    (tmp_path / "sync.py").write_text(IN_SYNC)
    started = HandStarted(
        ["python", "sync.py"],
        step_of(2, ROPEWALK_REPLICAS="ps=1,worker=3"),
        tmp_path,
        **QUICK,
    )
    for end in started.wait().values():
        assert end.code == ExitCode.USAGE
        assert "the jobs (ps=1, worker=3) have 4 tasks, but the Slurm step runs 2" in end.text


@pytest.mark.annex("ring")
def test_workers_alone_are_told_how_to_have_a_ps(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    # The other worker may find worker 0 gone already, and waits for it.
    quick = {**QUICK, "ROPEWALK_JOIN_TIMEOUT_S": "5"}
    started = HandStarted(["python", write_program(), "100", "0"], step_of(2), tmp_path, **quick)
    first = started.wait()["rank:0"]
    assert first.code == ExitCode.USAGE
    assert "the cluster has no ps" in first.text
    assert "Slurm does not say who is a ps: --replicas ps=1,worker=3" in first.text


# -- late names ----------------------------------------------------------------------------------


def _with_hosts(path: Path) -> list[str]:
    """A command in front of another, whose ``/etc/hosts`` is this file."""
    script = 'mount --bind "$0" /etc/hosts && exec "$@"'
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, str(path)]


@pytest.mark.needs("mounts and host names of its own")
@pytest.mark.real_start  # below a program that is not python
def test_names_that_come_late_are_waited_for(
    write_program: WriteProgram, tmp_path: Path, wait_until: WaitUntil
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 localhost\n")
    prefix = _with_hosts(hosts)
    names = {role: f"{role}-0.mnist.train.svc" for role in ("chief", "ps", "worker")}
    ports = dict(zip(names, free_ports(3), strict=True))
    cluster = {role: [f"{name}:{ports[role]}"] for role, name in names.items()}
    command = as_command(["ropewalk", "run", "--insecure", write_program(), "100", "0.002"])
    running, files = {}, {}
    for role in names:
        files[role] = tmp_path / f"{role}.txt"
        config = {"cluster": cluster, "task": {"type": role, "index": 0}}
        with files[role].open("wb") as output:
            running[role] = processes.start(
                [*prefix, *command],
                cwd=tmp_path,
                env={
                    **os.environ,
                    **QUICK,
                    "TF_CONFIG": json.dumps(config),
                    "ROPEWALK_MODEL_DIR": str(tmp_path / "model"),
                },
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
    try:
        wait_until(lambda: "waits for /job:ps/task:0" in files["chief"].read_text(), 30, "a word")
        wait_until(lambda: "waits for" in files["worker"].read_text(), 30, "a word")
        with hosts.open("a") as known:  # in place: the mount is of this file
            known.writelines(f"127.0.0.1 {name}\n" for name in names.values())
        for role, process in running.items():
            assert process.wait(60) == 0, (role, files[role].read_text())
    finally:
        for process in running.values():
            process.kill()
            process.wait(10)
