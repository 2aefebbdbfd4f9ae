"""SlurmClusterResolver, from what srun puts into a task's environment.

The recordings have the variables of srun(1), "OUTPUT ENVIRONMENT VARIABLES", and of the manual's
GRES page for GPUs, with the values that ``srun --nodes=… --ntasks=…`` gives; three are the cases of
TensorFlow's slurm_cluster_resolver_test.py, whose answers are the same here. :data:`PLACED` was
seen on Slurm 22.05.8 as Debian packages it.
"""

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.cluster.resolvers.slurm import RankPlace, SlurmClusterResolver, places_of_ranks
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError

# srun --nodes=3 --ntasks=5 --ntasks-per-node=2, in the step's third task
STEP = {
    "SLURM_CLUSTER_NAME": "hpc",
    "SLURM_DISTRIBUTION": "block",
    "SLURM_GTIDS": "2,3",
    "SLURM_JOB_ID": "8123",
    "SLURM_JOB_NODELIST": "node[09-11]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_LAUNCH_NODE_IPADDR": "10.1.0.9",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "3",
    "SLURM_NODEID": "1",
    "SLURM_NODELIST": "node[09-11]",
    "SLURM_NPROCS": "5",
    "SLURM_NTASKS": "5",
    "SLURM_PROCID": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "node[09-11]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_TASKS_PER_NODE": "2(x2),1",
    "SLURMD_NODENAME": "node10",
}


def task(rank: int, node: str, local: int, **changes: str) -> dict[str, str]:
    """The environment of another task of :data:`STEP`."""
    own = {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": node, "SLURM_LOCALID": str(local)}
    return {**STEP, **own, **changes}


def of(variables: dict[str, str] | None = None, **arguments: Any) -> SlurmClusterResolver:
    arguments.setdefault("gpus_per_node", 0)
    return SlurmClusterResolver(variables=STEP if variables is None else variables, **arguments)


def test_all_tasks_of_a_step_are_workers_unless_told_otherwise() -> None:
    resolver = of()
    assert resolver.cluster_spec() == ClusterSpec(
        {"worker": ["node09:8888", "node09:8889", "node10:8888", "node10:8889", "node11:8888"]}
    )
    assert (resolver.task_type, resolver.task_id) == ("worker", 2)
    assert resolver.get_task_info() == ("worker", 2)
    assert resolver.environment == ""
    assert resolver.master() == "grpc://node10:8888"
    assert resolver.master("worker", 4, "http") == "http://node11:8888"


@pytest.mark.parametrize(
    ("variables", "who"),
    [
        pytest.param(task(0, "node09", 0), ("chief", 0), id="0"),
        pytest.param(task(1, "node09", 1), ("ps", 0), id="1"),
        pytest.param(task(2, "node10", 0), ("worker", 0), id="2"),
        pytest.param(task(3, "node10", 1), ("worker", 1), id="3"),
        pytest.param(task(4, "node11", 0), ("worker", 2), id="4"),
    ],
)
def test_jobs_get_ranks_in_the_order_of_their_names(
    variables: dict[str, str], who: tuple[str, int]
) -> None:
    resolver = of(variables, jobs={"worker": 3, "chief": 1, "ps": 1}, port_base=3000)
    assert resolver.cluster_spec().as_dict() == {
        "chief": ["node09:3000"],
        "ps": ["node09:3001"],
        "worker": ["node10:3000", "node10:3001", "node11:3000"],
    }
    assert resolver.get_task_info() == who
    assert list(resolver.cluster_spec().jobs) == ["chief", "ps", "worker"]


def test_what_a_program_sets_wins() -> None:
    resolver = of(jobs={"ps": 1, "worker": 4})
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 0, "ab"
    assert resolver.master() == "ab://node09:8889"
    assert resolver.master("ps", 0, rpc_layer="test") == "test://node09:8888"


def test_hosts_keep_slurms_order_which_is_not_that_of_strings() -> None:
    variables = task(9, "n10", 0, SLURM_STEP_NODELIST="n[1-12]", SLURM_STEP_NUM_TASKS="12")
    resolver = of({**variables, "SLURM_STEP_TASKS_PER_NODE": "1(x12)"})
    assert resolver.master() == "grpc://n10:8888"  # TensorFlow: n7, by "n1", "n10", "n11", "n12"


# -- TensorFlow's own cases ----------------------------------------------------------------------

TENSORFLOWS = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NUM_TASKS": "5",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2),1",
    "SLURM_STEP_NODELIST": "t02n13,t02n41,t02n43",
    "CUDA_VISIBLE_DEVICES": "",
}


@pytest.mark.parametrize(("per_node", "per_task", "own"), [(2, 1, ["1"]), (4, 2, ["2", "3"])])
def test_gpus_of_a_node_are_divided_among_its_tasks(
    per_node: int, per_task: int, own: list[str]
) -> None:
    resolver = of(
        TENSORFLOWS, jobs={"ps": 1, "worker": 4}, gpus_per_node=per_node, gpus_per_task=per_task
    )
    assert resolver.cluster_spec().as_dict() == {
        "ps": ["t02n13:8888"],
        "worker": ["t02n13:8889", "t02n41:8888", "t02n41:8889", "t02n43:8888"],
    }
    assert resolver.gpus == own
    assert resolver.num_accelerators() == {"GPU": per_task}


@pytest.mark.parametrize("tasks_per_node", [1, {"t02n43": 1, "t02n13": 1, "t02n41": 1}], ids=repr)
def test_tasks_per_node_can_be_given(tasks_per_node: Any) -> None:
    three = {key: TENSORFLOWS[key] for key in ("SLURM_PROCID", "SLURM_STEP_NODELIST")}
    resolver = of(three, jobs={"ps": 1, "worker": 2}, tasks_per_node=tasks_per_node)
    assert resolver.cluster_spec().as_dict() == {
        "ps": ["t02n13:8888"],
        "worker": ["t02n41:8888", "t02n43:8888"],
    }


# -- GPUs ----------------------------------------------------------------------------------------


def test_the_gpus_that_slurm_lets_the_job_see_are_divided() -> None:
    resolver = of({**STEP, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}, gpus_per_node=None)
    assert resolver.gpus == ["4", "5"]
    assert of(task(3, "node10", 1, CUDA_VISIBLE_DEVICES="4,5"), gpus_per_node=None).gpus == ["5"]


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        pytest.param({"SLURM_GPUS_ON_NODE": "2"}, ["0"], id="counted by Slurm"),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, [], id="none to be seen"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "0"}, [], id="fewer than tasks"),
        pytest.param({"SLURM_GPUS_PER_TASK": "1", "CUDA_VISIBLE_DEVICES": "0"}, [], id="bound"),
    ],
)
def test_gpus_come_from_slurm_and_no_gpu_is_no_error(
    variables: dict[str, str], gpus: list[str]
) -> None:
    resolver = of({**STEP, **variables}, gpus_per_node=None)
    assert resolver.gpus == gpus
    bound = "SLURM_GPUS_PER_TASK" in variables
    assert resolver.num_accelerators() == ({"GPU": 1} if gpus or bound else {})


def test_the_process_sees_its_own_gpus_once_the_cluster_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in {**STEP, "CUDA_VISIBLE_DEVICES": "4,5,6,7"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ROPEWALK_GPUS_OF_NODE", "")
    resolver = SlurmClusterResolver()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    resolver.cluster_spec()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"
    again = SlurmClusterResolver()  # divides the node's, not what is left of them
    again.cluster_spec()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_gpus_are_left_alone_if_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**STEP, "CUDA_VISIBLE_DEVICES": "4,5"}.items():
        monkeypatch.setenv(name, value)
    SlurmClusterResolver(auto_set_gpu=False).cluster_spec()
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "4,5"


# -- placing -------------------------------------------------------------------------------------


def test_a_cyclic_distribution_deals_ranks_out() -> None:
    variables = task(2, "node11", 0, SLURM_DISTRIBUTION="cyclic")
    resolver = of(variables)
    assert resolver.cluster_spec().as_dict()["worker"] == [
        "node09:8888", "node10:8888", "node11:8888", "node09:8889", "node10:8889",
    ]  # fmt: skip


# (SLURM_STEP_TASKS_PER_NODE, SLURM_DISTRIBUTION, node and SLURM_LOCALID by rank)
PLACED = [
    pytest.param(
        "4,1(x2)", None, ["n09 0", "n09 1", "n09 2", "n09 3", "n10 0", "n11 0"],
        id="srun -N3 -n6",
    ),
    pytest.param(
        "4,2,1", "cyclic", ["n09 0", "n10 0", "n11 0", "n09 1", "n10 1", "n09 2", "n09 3"],
        id="srun -N3 -n7 -m cyclic",
    ),
    pytest.param(
        "1(x3)", "cyclic", ["n09 0", "n10 0", "n11 0"], id="srun -n3 in salloc -N3 -n3"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("counts", "distribution", "places"), PLACED)
def test_ranks_are_where_slurm_places_them(
    counts: str, distribution: str | None, places: list[str]
) -> None:
    for rank, place in enumerate(places):
        node, local = place.split()
        variables = {
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": local,
            "SLURMD_NODENAME": node,
            "SLURM_STEP_NODELIST": "n[09-11]",
            "SLURM_STEP_NUM_TASKS": str(len(places)),
            "SLURM_STEP_TASKS_PER_NODE": counts,
        }
        if distribution:
            variables["SLURM_DISTRIBUTION"] = distribution
        assert of(variables).master() == f"grpc://{node}:{8888 + int(local)}"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.sampled_from(["", "cyclic:block"]))
def test_every_distribution_has_every_place_once(counts: list[int], distribution: str) -> None:
    tasks = {f"n{number}": count for number, count in enumerate(counts)}
    places = places_of_ranks(tasks, distribution)
    wanted = [RankPlace(host, local) for host, count in tasks.items() for local in range(count)]
    assert sorted(places, key=str) == sorted(wanted, key=str)


@pytest.mark.parametrize(
    ("variables", "arguments", "said"),
    [
        pytest.param(
            {"SLURM_PROCID": None}, {}, "SLURM_PROCID is not set: .* Start every task by `srun`",
            id="no step",
        ),
        pytest.param(
            {"SLURM_STEP_NODELIST": ""}, {}, "SLURM_STEP_NODELIST is not set", id="no hosts"
        ),
        pytest.param(
            {"SLURM_STEP_TASKS_PER_NODE": None}, {}, "SLURM_STEP_TASKS_PER_NODE is not set",
            id="no tasks per node",
        ),
        pytest.param({"SLURM_PROCID": "two"}, {}, "SLURM_PROCID='two' is no number", id="a word"),
        pytest.param(
            {"SLURM_STEP_NODELIST": "node[09-1"}, {}, "SLURM_STEP_NODELIST='node", id="bad list"
        ),
        pytest.param(
            {"SLURM_STEP_NODELIST": "n1,n1,n2"}, {}, "has the host 'n1' twice", id="a host twice"
        ),
        pytest.param(
            {"SLURM_STEP_TASKS_PER_NODE": "2(x2)"}, {},
            "SLURM_STEP_NODELIST has 3 hosts .*, SLURM_STEP_TASKS_PER_NODE is of 2 nodes",
            id="lists of different lengths",
        ),
        pytest.param(
            {}, {"jobs": {"ps": 1, "worker": 5}},
            r"the jobs \(ps=1, worker=5\) have 6 tasks, but the Slurm step runs 5; start 6",
            id="more tasks than ranks",
        ),
        pytest.param({}, {"jobs": {"ps": -1, "worker": 6}}, "job 'ps' has -1", id="negative"),
        pytest.param(
            {}, {"tasks_per_node": 1}, "SLURM_STEP_NUM_TASKS is 5, but the hosts have 3",
            id="tasks per node that Slurm contradicts",
        ),
        pytest.param({}, {"tasks_per_node": 0}, "0 tasks on 'node09'", id="no task on a node"),
        pytest.param(
            {}, {"tasks_per_node": {"other": 5}}, "has the host 'other', SLURM_STEP_NODELIST",
            id="tasks on an unknown host",
        ),
        pytest.param({}, {"tasks_per_node": {}}, "has no host", id="tasks on no host"),
        pytest.param({"SLURM_PROCID": "5"}, {}, "SLURM_PROCID is 5, but the hosts have 5 tasks",
                     id="rank out of range"),
        pytest.param(
            {"SLURMD_NODENAME": "node09", "SLURM_LOCALID": "2"}, {},
            "rank 2 should be task 0 on node10, but Slurm runs it as task 2 on node09: "
            "tasks_per_node is wrong, .* --distribution=block",
            id="another place",
        ),
        pytest.param(
            {"SLURM_DISTRIBUTION": "plane"}, {},
            "SLURM_DISTRIBUTION='plane': only the places of block and cyclic",
            id="another distribution",
        ),
        pytest.param(
            {}, {"gpus_per_node": 2, "gpus_per_task": 2},
            "2 tasks on a node with 2 GPUs each need 4, and there are 2", id="too many GPUs",
        ),
        pytest.param({}, {"port_base": 65535}, "need the ports 65535 to 65536", id="last port"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_an_error_with_both_numbers(
    variables: dict[str, str | None], arguments: dict[str, Any], said: str
) -> None:
    changed = {**STEP, **variables}
    with pytest.raises(ConfigurationError, match=said):
        of({name: value for name, value in changed.items() if value is not None}, **arguments)
