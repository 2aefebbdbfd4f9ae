"""Pods as tasks: types and indices from labels and names, addresses, and why a task is waited for.

The listings are those of ``helpers/kubernetes/pod_listings.py``.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.kubernetes.pod_listings import (
    Listed,
    evicted,
    killed,
    of_indexed_job,
    of_job_set,
    of_stateful_set,
    of_tf_job,
    pod,
    pulling,
    running,
    unschedulable,
)
from ropewalk.annexes.kubernetes.pods import Pod, read_pod
from ropewalk.annexes.kubernetes.resolver import PodCluster, assemble, by_role
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.task import TaskId


def read(*listed: Listed) -> list[Pod]:
    return [read_pod(item) for item in listed]


def cluster(
    jobs: dict[str, list[list[Pod]]] | list[Pod], **arguments: Any
) -> dict[str, list[str] | dict[int, str]]:
    """The cluster of a listing in which nobody is waited for."""
    found = found_in(jobs, **arguments)
    assert found.waiting == {}
    return found.spec.as_dict()


def found_in(jobs: dict[str, list[list[Pod]]] | list[Pod], **arguments: Any) -> PodCluster:
    listed = {"worker": [jobs]} if isinstance(jobs, list) else jobs
    return assemble(listed, port=2222, **arguments)


def waiting(jobs: dict[str, list[list[Pod]]] | list[Pod], **arguments: Any) -> dict[str, str]:
    return {task.short: why for task, why in found_in(jobs, **arguments).waiting.items()}


# -- which pod is which task ---------------------------------------------------------------------


def test_an_indexed_job_has_its_indices_in_a_label_and_no_names_in_dns() -> None:
    pods = read(
        of_indexed_job("mnist", 1, running("10.244.0.11"), "aaaaa"),
        of_indexed_job("mnist", 0, running("10.244.0.12"), "zzzzz"),
    )
    assert cluster(pods) == {"worker": ["10.244.0.12:2222", "10.244.0.11:2222"]}


@pytest.mark.parametrize("labelled", [True, False], ids=["by label", "by ordinal"])
def test_a_stateful_set_has_ordinals_and_names_that_stay(labelled: bool) -> None:
    pods = read(
        *(of_stateful_set("ps", n, running(f"10.0.0.{n}"), labelled=labelled) for n in range(11))
    )
    addresses = cluster({"ps": [pods]})["ps"]
    assert addresses == [f"ps-{n}.ps.train.svc:2222" for n in range(11)]  # not 0, 1, 10, 2 …
    by_ip = cluster({"ps": [pods]}, addresses="ip")["ps"]
    assert by_ip == [f"10.0.0.{n}:2222" for n in range(11)]


def test_the_types_of_a_job_set_are_its_replicated_jobs() -> None:
    jobs = by_role(
        read(
            of_job_set("chief", 0, 0, running("10.0.0.1")),
            of_job_set("ps", 0, 0, running("10.0.0.2")),
            of_job_set("worker", 0, 1, running("10.0.0.4")),
            of_job_set("worker", 0, 0, running("10.0.0.3")),
            of_job_set("tensorboard", 0, 0, running("10.0.0.9")),
        )
    )
    assert cluster(jobs) == {
        "chief": ["mnist-chief-0-0.mnist.train.svc:2222"],
        "ps": ["mnist-ps-0-0.mnist.train.svc:2222"],
        "worker": [f"mnist-worker-0-{n}.mnist.train.svc:2222" for n in (0, 1)],
    }


def test_the_jobs_of_a_replicated_job_follow_each_other() -> None:
    pods = read(*(of_job_set("worker", j, i, running("10.0.0.1")) for j in (1, 0) for i in (0, 1)))
    names = [f"mnist-worker-{j}-{i}.mnist.train.svc:2222" for j in (0, 1) for i in (0, 1)]
    assert cluster(pods) == {"worker": names}


def test_the_types_of_a_tf_job_are_its_replica_types() -> None:
    jobs = by_role(
        read(
            of_tf_job("master", 0, running("10.0.0.1")),
            of_tf_job("worker", 0, running("10.0.0.2")),
            of_tf_job("ps", 0, running("10.0.0.3")),
        )
    )
    assert cluster(jobs) == {
        "master": ["10.0.0.1:2222"],
        "ps": ["10.0.0.3:2222"],
        "worker": ["10.0.0.2:2222"],
    }


def test_the_tasks_of_a_selector_follow_those_of_the_one_before() -> None:
    first = read(*(of_indexed_job("a", n, running(f"10.0.0.{n}")) for n in (0, 1)))
    second = read(of_indexed_job("b", 0, running("10.0.1.0")))
    assert cluster({"worker": [first, second]}) == {
        "worker": ["10.0.0.0:2222", "10.0.0.1:2222", "10.0.1.0:2222"]
    }


def test_pods_without_an_index_are_numbered_by_their_names() -> None:
    job = [{"kind": "Job", "controller": True}]
    names = ["mnist-10-b", "mnist-2-a", "mnist-1-00001"]
    pods = read(
        *(pod(name, running(f"10.0.0.{n}"), ownerReferences=job) for n, name in enumerate(names))
    )
    assert cluster(pods) == {"worker": ["10.0.0.2:2222", "10.0.0.1:2222", "10.0.0.0:2222"]}


def test_ordinals_of_bare_pods_that_do_not_begin_at_0_are_an_order_and_no_gap() -> None:
    names = {"tf-10": "10.0.0.10", "tf-2": "10.0.0.2", "tf-1": "10.0.0.1"}
    pods = read(*(pod(name, running(ip)) for name, ip in names.items()))
    assert cluster(pods) == {"worker": ["10.0.0.1:2222", "10.0.0.2:2222", "10.0.0.10:2222"]}
    first = read(pod("tf-0", running("10.0.0.9")))
    assert set(waiting([*first, *pods])) == {f"worker:{index}" for index in range(3, 10)}


def test_a_pod_without_an_ordinal_that_failed_gives_its_reason() -> None:
    good, bad = pod("tf-a", running("10.0.0.1")), pod("tf-b", killed())
    why = "pod tf-b is Failed: container tensorflow: OOMKilled: exit code 137"
    assert waiting(read(bad)) == {"worker:0": why}
    assert waiting(read(good, bad)) == {"worker:1": why}, "nothing replaces a bare pod"
    job = {"ownerReferences": [{"kind": "ReplicaSet", "controller": True}]}
    assert waiting(read(pod("tf-b", killed(), **job))) == {"worker:0": f"there is no pod; {why}"}
    replaced = read(pod("tf-a", running("10.0.0.1"), **job), pod("tf-b", killed(), **job))
    assert cluster(replaced) == {"worker": ["10.0.0.1:2222"]}
    assert waiting(replaced, replicas={"worker": 2}) == {"worker:1": f"there is no pod; {why}"}


def test_the_pod_that_took_over_counts_and_not_the_one_that_failed() -> None:
    old = of_indexed_job("mnist", 0, killed(), "aaaaa")
    new = of_indexed_job("mnist", 0, running("10.0.0.2"), "bbbbb")
    leaving = of_indexed_job("mnist", 0, running("10.0.0.1"), "ccccc")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-20T11:00:00Z"
    assert cluster(read(old, leaving, new)) == {"worker": ["10.0.0.2:2222"]}


def test_of_two_pods_that_run_the_newer_counts() -> None:
    pods = [of_indexed_job("mnist", 0, running(f"10.0.0.{n}"), f"aaaa{n}") for n in range(3)]
    for listed, time in zip(pods, ("10:00:00", "12:00:00", "11:00:00"), strict=True):
        listed["metadata"]["creationTimestamp"] = f"2026-11-20T{time}Z"
    assert cluster(read(*pods)) == {"worker": ["10.0.0.1:2222"]}


def test_an_ipv6_address_is_in_brackets() -> None:
    assert cluster(read(of_tf_job("worker", 0, running("fd00::1")))) == {
        "worker": ["[fd00::1]:2222"]
    }


def test_a_pod_knows_its_task_by_its_name_and_by_its_host_name() -> None:
    found = found_in(read(of_indexed_job("mnist", 1, running("10.0.0.1"), "aaaaa")))
    assert found.task_of("mnist-1") == found.task_of("mnist-1-aaaaa") == TaskId("worker", 1)
    assert found.task_of("") is found.task_of("mnist-2") is None


@given(st.permutations(range(6)), st.sets(st.integers(0, 5)))
def test_indices_depend_neither_on_the_order_nor_on_who_runs(
    order: list[int], gone: set[int]
) -> None:
    pods = read(
        *(
            of_indexed_job("mnist", n, killed() if n in gone else running(f"10.0.0.{n}"))
            for n in order
        )
    )
    found = found_in(pods)
    assert {task.index for task in found.waiting} == gone
    assert all(pod.name.startswith(f"mnist-{task.index}-") for task, pod in found.pods.items())
    if len(gone) < 6:
        for index in found.spec.task_indices("worker"):
            assert found.spec.task_address("worker", index) == f"10.0.0.{index}:2222"


# -- who is waited for, and why --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "why"),
    [
        pytest.param(
            unschedulable(),
            "Pending: not scheduled: Unschedulable: 0/3 nodes are available: 3 Insufficient "
            "nvidia.com/gpu.",
            id="not scheduled",
        ),
        pytest.param(
            pulling(),
            'Pending: container tensorflow: ImagePullBackOff: Back-off pulling image "train:typo"',
            id="no image",
        ),
        pytest.param(pulling("ContainerCreating"), "Pending: ContainerCreating", id="starting"),
        pytest.param(
            killed(), "Failed: container tensorflow: OOMKilled: exit code 137", id="no memory"
        ),
        pytest.param(
            evicted(), "Failed: Evicted: The node was low on resource: memory.", id="evicted"
        ),
        pytest.param({"phase": "Succeeded"}, "Succeeded", id="done"),
        pytest.param({"phase": "Running"}, "Running, without an address", id="no address yet"),
        pytest.param({}, "Unknown", id="nothing known"),
    ],
)
def test_a_pod_that_does_not_run_is_waited_for_with_its_reason(status: Listed, why: str) -> None:
    pods = read(of_tf_job("worker", 0, running("10.0.0.1")), of_tf_job("worker", 1, status))
    assert waiting(pods) == {"worker:1": f"pod mnist-worker-1 is {why}"}


def test_a_pod_that_is_being_deleted_is_waited_for() -> None:
    leaving = of_tf_job("worker", 0, running("10.0.0.1"))
    leaving["metadata"]["deletionTimestamp"] = "2026-11-20T11:00:00Z"
    assert waiting(read(leaving)) == {"worker:0": "pod mnist-worker-0 is being deleted"}


def test_a_gap_a_selector_without_pods_and_a_missing_job_are_waited_for() -> None:
    gap = read(
        of_tf_job("worker", 0, running("10.0.0.1")), of_tf_job("worker", 2, running("1.1.1.1"))
    )
    assert waiting(gap) == {"worker:1": "there is no pod"}
    assert waiting([]) == {"worker:0": "there is no pod"}
    one = read(of_tf_job("worker", 0, running("10.0.0.1")))
    assert waiting({"worker": [[], one]}) == {"worker:0": "there is no pod"}
    assert waiting(one, replicas={"worker": 2, "ps": 1}) == {
        "worker:1": "there is no pod",
        "ps:0": "there is no pod",
    }


def test_pods_beyond_the_replicas_are_no_tasks() -> None:
    pods = read(*(of_tf_job("worker", n, running(f"10.0.0.{n}")) for n in range(3)))
    assert cluster(pods, replicas={"worker": 2})["worker"] == ["10.0.0.0:2222", "10.0.0.1:2222"]


def test_nobody_waits_for_an_evaluator() -> None:
    jobs = {
        "evaluator": [read(of_tf_job("evaluator", 0, unschedulable()))],
        "worker": [read(of_tf_job("worker", 0, running("10.0.0.1")))],
    }
    assert cluster(jobs) == {"worker": ["10.0.0.1:2222"]}


# -- what cannot be ----------------------------------------------------------------------------


def test_a_pod_that_two_selectors_select_is_an_error() -> None:
    pods = read(of_tf_job("worker", 0, running("10.0.0.1")))
    with pytest.raises(
        ConfigurationError, match="mnist-worker-0 is selected by selector 1 of job "
    ):
        assemble({"ps": [pods], "worker": [pods]}, port=1)


def test_a_name_is_asked_of_a_pod_that_has_none() -> None:
    pods = read(of_tf_job("worker", 0, running("10.0.0.1")))
    with pytest.raises(ConfigurationError, match="has no name in DNS"):
        assemble({"worker": [pods]}, port=1, addresses="name")


def test_pods_whose_labels_say_no_type_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"w-0 \(no role\).*job_to_label_mapping"):
        by_role(read(pod("w-0", running("10.0.0.1"))))
    assert by_role([]) == {}
