"""A standalone cluster as data: which jobs run where, and what the end of a task means."""

import json
import random
from collections.abc import Iterable

import pytest

from ropewalk.annexes.service.job import JobState, StandaloneJob, Submission
from ropewalk.annexes.service.nodes import TAKEOVER_S, Orders, Start, Stop
from ropewalk.annexes.service.table import NODE_LEASE_S, ClusterLimits, JobTable
from ropewalk.cluster.supervision.decisions import LOST
from ropewalk.core.errors import LimitExceededError, RefusedError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.task import TaskId

CHIEF, PS, W0, W1 = TaskId("chief", 0), TaskId("ps", 0), TaskId("worker", 0), TaskId("worker", 1)
NODES = (CHIEF, PS, W0, W1)
DIGEST = "0" * 64


class Cluster:
    """A table, and nodes that take every order at once."""

    def __init__(
        self,
        nodes: Iterable[TaskId] = NODES,
        limits: ClusterLimits | None = None,
        model_dir: str = "/models",
    ) -> None:
        self.table = JobTable(limits or ClusterLimits(), model_dir=model_dir)
        self.nodes = list(nodes)
        self.now = 0.0
        self.taken: list[tuple[TaskId, Start | Stop]] = []
        self.poll()

    def poll(self, *nodes: TaskId, instance: str = "a") -> list[tuple[TaskId, Start | Stop]]:
        """Every node polls; returns the new orders."""
        fresh: list[tuple[TaskId, Start | Stop]] = []
        for index, task in enumerate(nodes or self.nodes):
            ports = range(100 * index + 1000, 100 * index + 1008)
            node = self.table.node_polls(task, instance, f"host-{task.short}", ports, now=self.now)
            for number, order in node.orders.waiting():
                fresh.append((task, order))
                node.orders.taken(number)
        self.taken += fresh
        return fresh

    def submit(self, job: str = "j", **fields: object) -> StandaloneJob:
        given = {"digest": DIGEST, "program": ("train.py",), "workers": 2, "ps": 1, **fields}
        return self.table.submit(Submission(job, **given), now=self.now)  # type: ignore[arg-type]

    def end(self, job: str, codes: dict[TaskId, int]) -> None:
        for task, code in codes.items():
            node = self.table.jobs[job].tasks[task].node
            self.table.task_ended(node, job, task, code, now=self.now)

    def tick(self, seconds: float, *living: TaskId) -> None:
        """Time passes; the living nodes poll."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(self.now + 1.0, until)
            self.poll(*(living or self.nodes))
            for job in self.table.jobs.values():
                job.driver_heard = self.now
            self.table.tick(now=self.now)


def test_every_task_is_started_with_the_cluster_it_belongs_to() -> None:
    cluster = Cluster()
    job = cluster.submit(arguments=("--epochs", "3"))
    started = {order.task: order for _, order in cluster.poll() if isinstance(order, Start)}
    assert set(started) == set(NODES)
    assert job.state is JobState.RUNNING
    config = json.loads(started[W1].tf_config)
    assert config["task"] == {"type": "worker", "index": 1}
    assert {role: len(found) for role, found in config["cluster"].items()} == {
        "chief": 1,
        "ps": 1,
        "worker": 2,
    }
    assert config["cluster"]["ps"][0].startswith("host-ps:0:")
    assert started[CHIEF].command == ("run", "train.py", "--", "--epochs", "3")
    assert started[PS].command == ("run",)
    assert started[W0].settings["model_dir"] == "/models/j"
    assert started[W0].settings["job_id"] == "j"
    assert started[CHIEF].settings["wait_for_workers"] == "-1", "a job waits for its workers"


def test_with_a_coordinator_workers_run_no_program_and_without_one_here_a_leader_does() -> None:
    cluster = Cluster()
    cluster.submit("a", coordinator=True)
    commands = {o.task: o.command for _, o in cluster.poll() if isinstance(o, Start)}
    assert commands[W0] == ("run",)
    assert commands[CHIEF][:2] == ("run", "train.py")
    cluster.submit("b", coordinator=True, digest="", program=())
    commands = {o.task: o.command for _, o in cluster.poll() if isinstance(o, Start)}
    assert commands[CHIEF] == ("lead",)


def test_two_jobs_at_once_share_nodes_and_no_address() -> None:
    cluster = Cluster()
    first, second = cluster.submit("a"), cluster.submit("b")
    addresses = [each.address for job in (first, second) for each in job.tasks.values()]
    assert len(set(addresses)) == len(addresses) == 8


def test_nodes_of_one_machine_that_offer_the_same_port_get_different_ones() -> None:
    cluster = Cluster()
    for task in NODES:
        cluster.table.node_polls(task, "a", "one-host", range(1000, 1004), now=0)
    addresses = [each.address for each in cluster.submit().tasks.values()]
    assert sorted(addresses) == [f"one-host:{port}" for port in range(1000, 1004)]


def indexed(cluster: Cluster, *tasks: TaskId) -> None:
    """Nodes whose credentials are good for their own index alone."""
    for number, task in enumerate(tasks):
        ports = range(100 * number + 2000, 100 * number + 2008)
        cluster.table.node_polls(task, "a", "host", ports, has_own_index=True, now=0)


def test_a_node_with_credentials_of_one_index_runs_the_task_of_that_index() -> None:
    cluster = Cluster(nodes=())
    indexed(cluster, CHIEF, PS, W0, W1)
    first = cluster.submit("a", workers=1)
    assert first.tasks[W0].node == W0
    second = cluster.submit("b", workers=1)
    assert second.tasks[W0].node == W0, "though worker:1 has fewer tasks"
    assert {task: each.node for task, each in cluster.submit("c").tasks.items()} == {
        task: task for task in NODES
    }


def test_a_job_waits_for_the_node_of_the_index_if_no_other_one_may_be_it() -> None:
    cluster = Cluster(nodes=(CHIEF, PS), limits=ClusterLimits(tasks_per_node=1))
    indexed(cluster, W1)
    job = cluster.submit(workers=1)
    assert job.state is JobState.QUEUED
    assert job.reason == (
        "it waits for room at the node worker:0: the credentials of worker:1 and others are good "
        "for the task of their own index alone"
    )
    cluster.table.node_polls(TaskId("worker", 5), "a", "host", [3000], now=0)
    cluster.table.tick(now=0)
    assert job.tasks[W0].node == TaskId("worker", 5), "one whose credentials are good for any"
    both = cluster.submit("k", workers=1)
    cluster.table.node_polls(W0, "a", "host", [3001], has_own_index=True, now=0)
    cluster.table.node_polls(CHIEF, "b", "host", [3002], now=0)
    assert both.state is JobState.QUEUED


def test_a_job_is_done_when_all_its_tasks_are() -> None:
    cluster = Cluster()
    job = cluster.submit()
    cluster.end("j", {CHIEF: 0, W0: 0, W1: 0})
    assert job.state is JobState.RUNNING
    cluster.end("j", {PS: 0})
    assert (job.state, job.exit_code, job.reason) == (JobState.ENDED, 0, "")


def test_the_first_failure_is_the_jobs_and_who_only_followed_is_not_blamed() -> None:
    cluster = Cluster()
    job = cluster.submit()
    cluster.end("j", {PS: ExitCode.PEER_LOST, CHIEF: ExitCode.PEER_LOST, W0: 1, W1: 138})
    assert (job.state, job.exit_code) == (JobState.ENDED, 1)
    assert "worker:0 ended with 1" in job.reason


def test_a_worker_that_is_killed_is_started_again_at_its_address() -> None:
    cluster = Cluster()
    job = cluster.submit()
    [first] = [o for _, o in cluster.poll() if isinstance(o, Start) and o.task == W1]
    cluster.end("j", {W1: -9})
    [(node, again)] = cluster.poll()
    assert isinstance(again, Start)
    assert (node, again.task, again.attempt) == (job.tasks[W1].node, W1, 1)
    assert again.tf_config == first.tf_config


def test_a_ps_with_replicas_that_is_killed_is_started_again_and_one_without_ends_its_job() -> None:
    other = TaskId("ps", 1)
    cluster = Cluster([*NODES, other])
    job = cluster.submit(ps=2, settings={"ps_replicas": "2"})
    cluster.poll()
    cluster.end("j", {PS: -9})
    cluster.tick(2)
    again = [order for _, order in cluster.taken if isinstance(order, Start) and order.task == PS]
    assert len(again) == 2
    assert job.state is JobState.RUNNING
    alone = Cluster()
    lost = alone.submit()
    alone.poll()
    alone.end("j", {PS: -9, CHIEF: ExitCode.PEER_LOST, W0: 138, W1: 138})
    assert lost.state is JobState.ENDED
    assert "ps:0" in lost.reason


PS1, PS2 = TaskId("ps", 1), TaskId("ps", 2)


def scaled(cluster: Cluster, ps: int) -> dict[TaskId, type[Start | Stop]]:
    """What is ordered so that the job ``j`` has this many ps."""
    cluster.table.scale("j", ps)
    return {order.task: type(order) for _, order in cluster.poll()}


def starts_of(cluster: Cluster, task: TaskId) -> int:
    return sum(isinstance(o, Start) and o.task == task for _, o in cluster.taken)


def test_a_job_whose_shares_move_gets_more_ps_and_fewer() -> None:
    cluster = Cluster([*NODES, PS1, PS2])
    job = cluster.submit(settings={"ps_shares": "3"})
    cluster.poll()
    assert scaled(cluster, 3) == {PS1: Start, PS2: Start}
    assert len({job.tasks[task].node for task in (PS, PS1, PS2)}) == 3, "one on each node"
    started = {o.task: o for _, o in cluster.taken if isinstance(o, Start)}
    assert started[PS2].tf_config == json.dumps(
        {"cluster": job.cluster, "task": {"type": "ps", "index": 2}}
    ), "it finds the chief"
    assert scaled(cluster, 3) == {}, "asked twice"
    assert scaled(cluster, 1) == {PS1: Stop, PS2: Stop}
    assert scaled(cluster, 1) == {}
    with pytest.raises(RefusedError, match="ps:1 of job j is about to leave; ask again"):
        cluster.table.scale("j", 2)
    before = job.tasks[PS1]
    cluster.end("j", {PS1: 0, PS2: -9})
    assert job.state is JobState.RUNNING
    cluster.tick(2)
    assert starts_of(cluster, PS2) == 1, "it was sent away, and is not started again"
    assert scaled(cluster, 2) == {PS1: Start}
    again = job.tasks[PS1]
    assert (again.node, again.address) == (before.node, before.address), "where the chief knows it"
    assert again.attempt == before.attempt + 1
    cluster.end("j", {PS1: -9})
    cluster.tick(2)
    assert starts_of(cluster, PS1) == 3, "it was lost"


def test_a_job_is_not_scaled_where_that_cannot_be() -> None:
    cluster = Cluster([*NODES, PS1])
    cluster.submit(settings={"ps_shares": "4"})
    cluster.poll()
    with pytest.raises(RefusedError, match="3 nodes for ps: 1 are registered, of which 1 have"):
        cluster.table.scale("j", 4)
    assert scaled(cluster, 2) == {PS1: Start}, "nothing was changed before"
    cluster.end("j", {PS1: 0})
    cluster.tick(30, *NODES)
    with pytest.raises(RefusedError, match="the node ps:1, where ps:1 was before"):
        cluster.table.scale("j", 2)
    cluster.table.stop("j", "enough", now=cluster.now)
    with pytest.raises(RefusedError, match="job j is stopping"):
        cluster.table.scale("j", 1)
    other = Cluster()
    other.submit()
    other.poll()
    with pytest.raises(RefusedError, match="submit it with --set ps_shares=N"):
        other.table.scale("j", 2)


def test_a_worker_is_not_started_again_for_ever() -> None:
    cluster = Cluster()
    job = cluster.submit()
    for _ in range(30):
        cluster.end("j", {W1: -9})
    assert job.tasks[W1].code == -9
    assert job.tasks[W1].attempt == 10


def test_tasks_that_outlive_their_chief_are_asked_and_then_killed() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.end("j", {CHIEF: 0, W0: 0})
    cluster.taken.clear()
    cluster.tick(20)
    asked = [order for _, order in cluster.taken if isinstance(order, Stop)]
    assert {(order.task, order.kill) for order in asked} == {(PS, False), (W1, False)}
    cluster.taken.clear()
    cluster.tick(110)
    killed = [order for _, order in cluster.taken if isinstance(order, Stop)]
    assert {(order.task, order.kill) for order in killed} == {(PS, True), (W1, True)}


def test_stopping_asks_the_chief_which_saves() -> None:
    cluster = Cluster()
    job = cluster.submit()
    cluster.poll()
    cluster.table.stop("j", "enough", now=1)
    assert cluster.poll() == [(CHIEF, Stop("j", CHIEF))]
    cluster.end("j", dict.fromkeys(NODES, int(ExitCode.DRAINED)))
    assert (job.state, job.exit_code, job.reason) == (JobState.ENDED, 143, "enough")


def test_a_job_ends_when_its_driver_is_silent_for_too_long_and_a_detached_one_does_not() -> None:
    cluster = Cluster()
    driven, detached = cluster.submit("a", grace_s=5.0), cluster.submit("b", detached=True)
    for second in range(7):
        cluster.now = float(second)
        cluster.poll()
        cluster.table.tick(now=cluster.now)
    assert driven.state is JobState.STOPPING
    assert "driver was silent for 6 s" in driven.reason
    assert detached.state is JobState.RUNNING


def test_a_silent_node_has_lost_its_tasks() -> None:
    cluster = Cluster()
    job = cluster.submit()
    cluster.tick(NODE_LEASE_S + 2, CHIEF, W0, W1)
    assert job.tasks[PS].code == LOST
    assert job.reason == "ps:0 was lost with its node"


def test_a_node_that_was_silent_and_comes_back_ends_what_it_runs_and_takes_new_orders() -> None:
    cluster = Cluster()
    cluster.submit()
    cluster.poll()
    cluster.tick(NODE_LEASE_S + 2, CHIEF, PS, W0)
    assert cluster.table.nodes[W1].is_lost
    assert cluster.poll(W1) == [(W1, Stop("j", W1, kill=True))]
    cluster.submit("k", workers=1)
    [(number, order)] = cluster.table.nodes[W1].orders.waiting()
    assert isinstance(order, Start)
    assert number == 3, "the node ignores numbers that it has taken before"


def test_lost_nodes_make_room_for_others_and_are_forgotten_after_an_hour() -> None:
    cluster = Cluster(limits=ClusterLimits(nodes=4))
    other = TaskId("worker", 2)
    with pytest.raises(LimitExceededError, match="worker:2 cannot be a node: this cluster has 4"):
        cluster.poll(other)
    cluster.tick(NODE_LEASE_S + 2, CHIEF, PS)
    cluster.poll(other)
    assert len(cluster.table.nodes) == 4
    cluster.now += 4000
    cluster.poll(CHIEF)
    cluster.table.tick(now=cluster.now)
    cluster.table.tick(now=cluster.now)
    assert set(cluster.table.nodes) == {CHIEF}


def test_a_task_that_its_node_runs_no_longer_has_ended_and_the_job_with_it() -> None:
    cluster = Cluster()
    job = cluster.submit()
    numbers = {task: cluster.table.nodes[task].orders.waiting()[0][0] for task in NODES}
    cluster.table.node_runs(PS, [], numbers[PS] - 1, now=0)
    assert job.tasks[PS].code is None, "the node had not taken the order when it said so"
    cluster.table.node_runs(PS, [("j", PS)], numbers[PS], now=0)
    assert job.tasks[PS].code is None
    cluster.poll()
    cluster.table.node_runs(PS, [("other", PS)], numbers[PS], now=0)
    assert job.tasks[PS].code == LOST
    assert job.reason == "ps:0 was lost: its node ps:0 runs it no longer"
    assert not cluster.table.nodes[PS].running
    cluster.table.node_runs(W0, [], numbers[W0], now=0)
    [(node, again)] = cluster.poll()
    assert isinstance(again, Start)
    assert (node, again.task, again.attempt) == (W0, W0, 1), "a worker is started again"
    cluster.table.node_runs(W0, [], numbers[W0], now=0)
    assert job.tasks[W0].code is None, "what was said before the new order says nothing of it"


def test_a_job_whose_node_cannot_end_a_task_ends_without_it_and_the_node_keeps_its_place() -> None:
    cluster = Cluster()
    job = cluster.submit()
    cluster.table.stop("j", "enough", kill=True, now=0)
    cluster.end("j", {CHIEF: -9, PS: -9, W0: -9})
    cluster.tick(29)
    assert job.state is JobState.STOPPING
    cluster.tick(2)
    assert (job.state, job.tasks[W1].code) == (JobState.ENDED, LOST)
    assert set(cluster.table.nodes[W1].running) == {("j", W1)}
    cluster.end("j", {W1: -9})
    assert not cluster.table.nodes[W1].running


def test_a_node_that_was_forgotten_takes_new_orders() -> None:
    orders = Orders()
    orders.taken(7)
    orders.add(Stop("j", W0))
    assert [number for number, _ in orders.waiting()] == [8]


def test_a_node_that_restarts_has_lost_its_tasks_and_gets_new_ones() -> None:
    cluster = Cluster()
    job = cluster.submit()
    cluster.poll(W1, instance="b")
    assert job.tasks[TaskId("worker", 1)].code == LOST
    assert cluster.submit("k", workers=2).state is JobState.RUNNING


def why_wait(cluster: Cluster, instance: str) -> str:
    return cluster.table.why_wait(W0, instance, "other-host", now=cluster.now)


def test_a_second_process_of_a_node_is_refused_once_the_first_is_heard_again() -> None:
    cluster = Cluster()
    cluster.now = 10.0
    assert why_wait(cluster, "a") == ""
    assert why_wait(cluster, "b") == (
        "the process that was the node worker:0 on host-worker:0 to be silent"
    )
    cluster.now = 11.0
    assert why_wait(cluster, "b") != ""
    assert why_wait(cluster, "a") == ""
    with pytest.raises(RefusedError, match="two processes for the node worker:0: one on host-work"):
        why_wait(cluster, "b")


def test_a_process_that_restarts_is_the_node_once_the_one_before_was_silent() -> None:
    cluster = Cluster()
    assert why_wait(cluster, "a") == ""
    cluster.now = 1.0
    assert why_wait(cluster, "b") != ""
    cluster.now = 1.0 + TAKEOVER_S - 0.1
    assert why_wait(cluster, "b") != ""
    cluster.now = 1.0 + TAKEOVER_S
    assert why_wait(cluster, "b") == ""
    cluster.poll(W0, instance="b")
    assert cluster.table.nodes[W0].instance == "b"
    with pytest.raises(RefusedError, match=r"on host-worker:0, has become the node worker:0"):
        why_wait(cluster, "a")
    assert why_wait(cluster, "c") != "", "the next one waits as well"


def test_a_lost_node_keeps_nobody_waiting() -> None:
    cluster = Cluster()
    cluster.tick(NODE_LEASE_S + 2, CHIEF, PS, W1)
    assert why_wait(cluster, "b") == ""


def test_of_two_processes_that_wait_for_one_place_one_gets_it_and_the_other_ends() -> None:
    cluster = Cluster()
    refused: list[str] = []
    for second in range(12):
        cluster.now = float(second)
        for instance in {"b", "c"}.difference(refused):
            try:
                if not why_wait(cluster, instance):
                    cluster.poll(W0, instance=instance)
            except RefusedError:
                refused.append(instance)
    assert [cluster.table.nodes[W0].instance, *refused] in (["b", "c"], ["c", "b"])


def test_a_job_waits_for_nodes_and_says_for_which() -> None:
    cluster = Cluster(nodes=(CHIEF, PS, W0))
    job = cluster.submit()
    assert job.state is JobState.QUEUED
    assert "2 nodes for worker: 1 are registered" in job.reason
    cluster.nodes.append(W1)
    cluster.tick(2)
    assert job.state.value == "running"


def test_jobs_beyond_the_limit_wait_their_turn_and_beyond_the_queue_are_refused() -> None:
    cluster = Cluster(limits=ClusterLimits(jobs=1, queued=1))
    cluster.submit("a")
    waiting = cluster.submit("b")
    assert (waiting.state, waiting.reason) == (JobState.QUEUED, "1 jobs run, which is the limit")
    with pytest.raises(LimitExceededError, match="1 jobs wait already"):
        cluster.submit("c")
    cluster.end("a", dict.fromkeys(NODES, 0))
    cluster.table.tick(now=1)
    assert waiting.state.value == "running"


def test_one_driver_has_half_of_the_queue_and_the_others_have_the_rest() -> None:
    cluster = Cluster(limits=ClusterLimits(jobs=1, queued=4))
    cluster.submit("runs")
    for number in range(2):
        cluster.submit(f"a{number}", owner="driver of job a")
    with pytest.raises(LimitExceededError, match=r"2 of them of driver of job a .*ropewalk stop"):
        cluster.submit("a2", owner="driver of job a")
    for number in range(2):
        cluster.submit(f"b{number}", owner="driver of job b")
    with pytest.raises(LimitExceededError, match="4 jobs wait already"):
        cluster.submit("c", owner="driver of job c")


def test_the_driver_that_has_least_is_next() -> None:
    cluster = Cluster(nodes=(CHIEF, PS, W0, W1), limits=ClusterLimits(jobs=2))
    for name in ("a0", "a1", "a2", "a3", "b0", "a4", "b1"):
        cluster.submit(name, owner=name[0], workers=1)
    begun = ["a0", "a1"]
    while len(begun) < 7:
        cluster.end(begun[-2], dict.fromkeys(cluster.table.jobs[begun[-2]].tasks, 0))
        cluster.tick(1)
        running = {job.id for job in cluster.table.jobs.values() if job.state.value == "running"}
        begun += running - set(begun)
    assert begun == ["a0", "a1", "b0", "a2", "b1", "a3", "a4"]


def test_jobs_of_one_driver_that_have_ended_put_no_other_log_out() -> None:
    cluster = Cluster()
    cluster.submit("modest", owner="modest")
    cluster.table.stop("modest", "", kill=True, now=0)
    for number in range(150):
        cluster.submit(f"j{number}", owner="greedy", workers=99)
        cluster.table.stop(f"j{number}", "", now=0)
        cluster.table.tick(now=0)
    cluster.end("modest", dict.fromkeys(NODES, 0))
    cluster.table.tick(now=0)
    assert "modest" in cluster.table.jobs
    assert len(cluster.table.jobs) == 100


@pytest.mark.parametrize(
    "fields",
    [
        {"arguments": ("x" * 4000,) * 100},
        {"program": ("x",) * 3},
        {"settings": {"log_level": "x" * 5000}},
    ],
    ids=["words", "program", "settings"],
)
def test_what_is_kept_of_a_job_has_a_bound(fields: dict[str, object]) -> None:
    with pytest.raises(RefusedError):
        Cluster().submit(**fields)  # type: ignore[arg-type]


def test_a_job_has_no_more_workers_than_its_quota() -> None:
    cluster = Cluster(limits=ClusterLimits(workers=1))
    with pytest.raises(LimitExceededError, match="asks for 2 workers, and a job"):
        cluster.submit("a", workers=2)
    job = cluster.submit("b", workers=-1)
    assert [task for task in job.tasks if task.type == "worker"] == [W0]


def test_submitting_twice_begins_one_job_and_another_one_under_its_id_is_refused() -> None:
    cluster = Cluster()
    assert cluster.submit() is cluster.submit()
    with pytest.raises(RefusedError, match="job j exists already"):
        cluster.submit(arguments=("other",))


def test_a_model_has_one_writer_at_a_time() -> None:
    cluster = Cluster()
    cluster.submit("a", model="digits")
    [chief] = [o for _, o in cluster.poll() if isinstance(o, Start) and o.task == CHIEF]
    assert chief.settings["model_dir"] == "/models/digits"
    with pytest.raises(RefusedError, match="job a is writing the model digits"):
        cluster.submit("b", model="digits")
    cluster.end("a", dict.fromkeys(NODES, 0))
    assert cluster.submit("b", model="digits").state is JobState.RUNNING


def test_a_model_to_go_on_from_is_refused_where_nothing_is_saved() -> None:
    cluster = Cluster(model_dir="")
    with pytest.raises(RefusedError, match="the model digits, and this cluster saves none"):
        cluster.submit(model="digits")


def test_a_name_that_two_living_jobs_have_is_ambiguous() -> None:
    cluster = Cluster()
    cluster.submit("a", name="digits")
    assert cluster.table.find("digits").id == "a"
    cluster.submit("b", name="digits")
    with pytest.raises(RefusedError, match=r"several jobs are called 'digits': a, b"):
        cluster.table.find("digits")
    cluster.end("a", dict.fromkeys(NODES, 0))
    assert cluster.table.find("digits").id == "b"
    with pytest.raises(RefusedError, match="there is no job 'x'"):
        cluster.table.find("x")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"id": "../x"}, "id cannot be"),
        ({"id": "x" * 65}, "id cannot be"),
        ({"digest": "abc"}, "no SHA-256 digest"),
        ({"workers": -2}, "-2 workers"),
        ({"ps": 5000}, "5000 ps"),
        ({"digest": ""}, "no package"),
        ({"grace_s": 0.0}, "may be silent"),
        ({"grace_s": float("nan")}, "may be silent"),
        ({"program": (), "detached": True}, "cannot be detached"),
        ({"arguments": ("a\0b",)}, "command line"),
        ({"arguments": ("a",) * 1001}, "command line"),
        ({"model": "../x"}, "folder cannot be"),
        ({"settings": {"model_dir": "/etc"}}, "model_dir cannot be set by a job"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, object], words: str) -> None:
    given = {"id": "j", "digest": DIGEST, "program": ("a.py",), **fields}
    with pytest.raises(RefusedError, match=words):
        Submission(**given)  # type: ignore[arg-type]


def test_whatever_happens_jobs_end_and_nodes_are_free_again() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        cluster = Cluster(limits=ClusterLimits(jobs=3, queued=20, tasks_per_node=4))
        for number in range(6):
            cluster.submit(f"j{number}", workers=rng.choice([1, 2]), grace_s=1000.0)
        for _ in range(400):
            cluster.now += rng.random()
            alive = rng.sample(NODES, rng.randint(3, 4))
            cluster.poll(*alive, instance=rng.choice("aaaaaaaaaab"))
            cluster.table.tick(now=cluster.now)
            for node in cluster.table.nodes.values():
                assert len(node.running) <= 4
                for job, task in sorted(node.running):
                    if rng.random() < 0.1:
                        code = rng.choice([0, 0, 1, 138, 143, -9])
                        cluster.table.task_ended(node.task, job, task, code, now=cluster.now)
        for name in cluster.table.jobs:
            cluster.table.stop(name, "the end", kill=True, now=cluster.now)
        for _ in range(3):
            for node in cluster.table.nodes.values():
                for job, task in sorted(node.running):
                    cluster.table.task_ended(node.task, job, task, -9, now=cluster.now)
        assert all(each.has_ended for each in cluster.table.jobs.values()), seed
        assert not any(node.running for node in cluster.table.nodes.values())
