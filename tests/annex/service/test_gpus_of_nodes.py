"""GPUs of a standing cluster: no two tasks have the same, a job that asks for none sees none."""

import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from helpers import processes
from helpers.waiting import scaled
from ropewalk.annexes.service.gpus import gpus_left_out, offered_gpus
from ropewalk.annexes.service.job import JobState, StandaloneJob, Submission
from ropewalk.annexes.service.nodes import Start
from ropewalk.annexes.service.table import ClusterLimits, JobTable
from ropewalk.core.errors import RefusedError
from ropewalk.core.task import TaskId
from ropewalk.net.this_machine import free_ports

CHIEF, PS, W0, W1, W2 = (
    TaskId("chief", 0),
    TaskId("ps", 0),
    TaskId("worker", 0),
    TaskId("worker", 1),
    TaskId("worker", 2),
)
Gpus = dict[TaskId, tuple[str, ...]]


class Machines:
    """A table whose nodes poll once; each has the host and the GPUs that are said."""

    def __init__(self, hosts: dict[TaskId, str], gpus: Gpus) -> None:
        self.table = JobTable(ClusterLimits())
        self.hosts, self.gpus = hosts, gpus
        self.poll()

    def poll(self) -> None:
        for index, (task, host) in enumerate(self.hosts.items()):
            ports = range(100 * index + 1000, 100 * index + 1008)
            self.table.node_polls(task, "a", host, ports, gpus=self.gpus.get(task, ()), now=0)

    def submit(self, job: str, workers: int, gpus: int, **fields: object) -> StandaloneJob:
        given = {"digest": "0" * 64, "program": ("train.py",), "ps": 1, **fields}
        return self.table.submit(
            Submission(job, workers=workers, gpus_per_worker=gpus, **given),  # type: ignore[arg-type]
            now=0,
        )

    def end(self, job: StandaloneJob) -> None:
        for task, placed in list(job.tasks.items()):
            self.table.task_ended(placed.node, job.id, task, 0, now=0)
        self.table.tick(now=0)


def one_machine_each(gpus: Iterable[TaskId] = (W0, W1, W2)) -> Machines:
    hosts = {task: f"host-{task.short}" for task in (CHIEF, PS, W0, W1, W2)}
    return Machines(hosts, {task: (f"GPU-{task.short}-a", f"GPU-{task.short}-b") for task in gpus})


def test_each_task_that_runs_the_program_has_its_own() -> None:
    machines = one_machine_each([CHIEF, W0, W1])
    job = machines.submit("j", 2, 1)
    assert {task.short: placed.gpus for task, placed in job.tasks.items()} == {
        "chief:0": ("GPU-chief:0-a",),
        "ps:0": (),
        "worker:0": ("GPU-worker:0-a",),
        "worker:1": ("GPU-worker:1-a",),
    }
    orders = [order for _, order in machines.table.nodes[W1].orders.waiting()]
    assert [order.gpus for order in orders if isinstance(order, Start)] == [("GPU-worker:1-a",)]


@pytest.mark.parametrize(
    ("fields", "seen"),
    [
        ({}, ("GPU-chief:0-a",)),
        ({"coordinator": True}, ()),
        ({"coordinator": True, "digest": "", "program": ()}, ()),
    ],
    ids=["runs the program", "coordinates", "is led from outside"],
)
def test_a_chief_has_some_where_it_computes(
    fields: dict[str, object], seen: tuple[str, ...]
) -> None:
    machines = one_machine_each([CHIEF, W0])
    assert machines.submit("j", 1, 1, **fields).tasks[CHIEF].gpus == seen


def test_a_chief_on_a_machine_without_any_has_none_and_waits_for_none() -> None:
    job = one_machine_each([W0]).submit("j", 1, 2)
    assert job.state is JobState.RUNNING
    assert (job.tasks[CHIEF].gpus, job.tasks[W0].gpus) == ((), ("GPU-worker:0-a", "GPU-worker:0-b"))


def test_jobs_that_run_at_once_share_none_and_one_waits_until_enough_are_free() -> None:
    machines = one_machine_each([W0])
    first, second = machines.submit("a", 1, 1), machines.submit("b", 1, 1)
    assert first.tasks[W0].gpus != second.tasks[W0].gpus
    third = machines.submit("c", 1, 1)
    assert not third.tasks
    assert third.reason == (
        "it waits for 1 nodes for worker with 1 free GPU each: 3 are registered, of which 0 have "
        "room"
    )
    machines.end(first)
    assert third.state is JobState.RUNNING
    assert third.tasks[W0].gpus == ("GPU-worker:0-a",)


def test_a_task_goes_where_they_are_free_though_another_node_has_fewer_tasks() -> None:
    machines = one_machine_each([W1])
    machines.submit("a", 1, 0)  # on W0, which comes first
    machines.submit("b", 1, 1)
    job = machines.submit("c", 1, 1)
    assert (job.tasks[W0].node, job.tasks[W0].gpus) == (W1, ("GPU-worker:1-b",))


def test_nodes_of_one_machine_offer_the_same_and_give_each_once() -> None:
    gpus = ("GPU-a", "GPU-b")
    hosts = {CHIEF: "here", PS: "here", W0: "here", W1: "here.example", W2: "there"}
    machines = Machines(hosts, {W0: gpus, W1: gpus, W2: ("GPU-c", "GPU-d")})
    job = machines.submit("j", 2, 2)  # both on W0 and W1 would be four of two
    assert {placed.node: placed.gpus for placed in job.tasks.values() if placed.gpus} == {
        W0: gpus,
        W2: ("GPU-c", "GPU-d"),
    }


def test_a_number_is_another_gpu_on_another_host_and_the_same_on_this_one() -> None:
    hosts = {CHIEF: "a", PS: "a", W0: "a", W1: "a", W2: "b"}
    machines = Machines(hosts, {W0: ("0",), W1: ("0",), W2: ("0",)})
    job = machines.submit("j", 2, 1)
    assert {placed.node for placed in job.tasks.values() if placed.gpus} == {W0, W2}


def test_a_task_that_is_started_again_keeps_its_own() -> None:
    machines = one_machine_each([W0])
    job = machines.submit("j", 1, 1)
    machines.table.nodes[W0].orders.taken(10)
    machines.table.task_ended(W0, "j", W0, -9, now=0)
    machines.table.tick(now=5)
    again = [o for _, o in machines.table.nodes[W0].orders.waiting() if isinstance(o, Start)]
    assert [(order.attempt, order.gpus) for order in again] == [(1, ("GPU-worker:0-a",))]
    assert machines.submit("k", 1, 1).tasks[W0].gpus == ("GPU-worker:0-b",)
    assert job.state is JobState.RUNNING


def test_a_job_that_asks_for_none_is_told_of_those_that_are_there() -> None:
    nodes = one_machine_each([W0]).table.nodes.values()
    asked = Submission("j", digest="0" * 64, program=("train.py",))
    assert "GPUs (2), which the tasks of this job do not see" in gpus_left_out(asked, nodes)
    assert gpus_left_out(asked, one_machine_each([]).table.nodes.values()) == ""


def test_too_many_are_refused() -> None:
    with pytest.raises(RefusedError, match="65 GPUs for each worker; there can be 0 to 64"):
        one_machine_each().submit("j", 1, 65)


@pytest.fixture
def two_gpus(tmp_path: Path) -> str:
    """A PATH with an nvidia-smi that lists two."""
    command = tmp_path / "bin" / "nvidia-smi"
    command.parent.mkdir()
    command.write_text(
        "#!/bin/sh\n"
        "echo 'GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-a)'\n"
        "echo 'GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-b)'\n"
    )
    command.chmod(0o755)
    return f"{command.parent}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("visible", "offered"),
    [(None, ("GPU-a", "GPU-b")), ("1", ("GPU-b",)), ("GPU-a", ("GPU-a",)), ("", ()), ("7", ("7",))],
)
def test_a_node_offers_what_its_daemon_may_use(
    two_gpus: str, visible: str | None, offered: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", two_gpus)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert offered_gpus("worker") == offered
    assert offered_gpus("ps") == ()


@pytest.mark.scenario
@pytest.mark.usefixtures("no_process_left")
def test_tasks_of_a_submitted_job_see_their_own_gpus(
    start_cli: Callable[..., tuple["subprocess.Popen[bytes]", Path]],
    tmp_path: Path,
    two_gpus: str,
    wait_until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [port] = free_ports(1)
    monkeypatch.setenv("PATH", two_gpus)
    process, output = start_cli("local", "--standalone", "--workers", "1", "--port", str(port))
    wait_until(lambda: "the cluster is at" in output.read_text(), 30, "the cluster")
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(
        "import os\n"
        "import ropewalk as rw\n"
        "rw.distribute.ParameterServerStrategy()\n"
        "print('sees', repr(os.environ['CUDA_VISIBLE_DEVICES']), flush=True)\n"
    )
    command = [*processes.ROPEWALK, "submit", "train.py", "--cluster", f"127.0.0.1:{port}"]
    command += ["--workers", "1", "--ps", "1", "--plain"]
    for gpus, seen in ((["--gpus-per-worker", "1"], ["'GPU-a'", "'GPU-b'"]), ([], ["''", "''"])):
        code, shown, errors = processes.run(
            [*command, *gpus], timeout_s=scaled(60), cwd=project, env=os.environ
        )
        assert code == 0, shown + errors
        lines = [line.rpartition("sees ")[2] for line in shown.splitlines() if "sees" in line]
        assert sorted(lines) == seen
        assert ("do not see" in errors) is not bool(gpus)
    process.terminate()
    process.wait(scaled(20))
