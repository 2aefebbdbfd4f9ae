"""VolcanoClusterResolver, from the environment of a Volcano Job's pod.

The recording is the one of ``env | grep VC`` in Volcano's how_to_use_svc_plugin.md, with the index
of how_to_use_env_plugin.md.
"""

from typing import Any

import pytest

from ropewalk.cluster.resolvers.volcano import VolcanoClusterResolver
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError

JOB = "tensorflow-dist-mnist"
POD = {
    "VC_PS_NUM": "1",
    "VC_PS_HOSTS": f"{JOB}-ps-0.{JOB}",
    "VC_WORKER_NUM": "2",
    "VC_WORKER_HOSTS": f"{JOB}-worker-0.{JOB},{JOB}-worker-1.{JOB}",
    "VC_TASK_INDEX": "1",
    "VK_TASK_INDEX": "1",
}
# The same Job, whose tasks have other names, and a TensorBoard beside.
RENAMED = {
    "VC_MODEL_SERVERS_NUM": "1",
    "VC_MODEL_SERVERS_HOSTS": f"{JOB}-model-servers-0.{JOB}",
    "VC_TRAINERS_NUM": "1",
    "VC_TRAINERS_HOSTS": f"{JOB}-trainers-0.{JOB}",
    "VC_TENSORBOARD_NUM": "1",
    "VC_TENSORBOARD_HOSTS": f"{JOB}-tensorboard-0.{JOB}",
    "VC_TASK_INDEX": "0",
}


def of(
    variables: dict[str, str] | None = None, hostname: str = f"{JOB}-worker-1", **more: Any
) -> VolcanoClusterResolver:
    return VolcanoClusterResolver(variables=variables or POD, hostname=hostname, **more)


def test_tasks_that_are_named_as_jobs_are_the_cluster() -> None:
    resolver = of()
    assert resolver.cluster_spec() == ClusterSpec(
        {
            "ps": [f"{JOB}-ps-0.{JOB}:2222"],
            "worker": [f"{JOB}-worker-0.{JOB}:2222", f"{JOB}-worker-1.{JOB}:2222"],
        }
    )
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.master("ps", 0, "grpc") == f"grpc://{JOB}-ps-0.{JOB}:2222"


def test_the_pods_own_name_says_its_job() -> None:
    resolver = of({**POD, "VC_TASK_INDEX": "0"}, f"{JOB}-ps-0.{JOB}.default.svc.cluster.local")
    assert (resolver.task_type, resolver.task_id) == ("ps", 0)
    assert resolver.master() == f"{JOB}-ps-0.{JOB}:2222"


def test_other_names_and_another_port_can_be_given() -> None:
    tasks = {"ps": "model-servers", "worker": "trainers"}
    resolver = of(RENAMED, f"{JOB}-trainers-0", tasks=tasks, port=5000)
    assert resolver.cluster_spec().as_dict() == {
        "ps": [f"{JOB}-model-servers-0.{JOB}:5000"],
        "worker": [f"{JOB}-trainers-0.{JOB}:5000"],
    }
    assert resolver.sources["cluster"] == "VC_MODEL_SERVERS_HOSTS, VC_TRAINERS_HOSTS"


def test_a_pod_beside_the_cluster_is_no_task_of_it_unless_it_says_which() -> None:
    resolver = of({**POD, **RENAMED}, f"{JOB}-tensorboard-0")
    assert (resolver.task_type, resolver.task_id, resolver.master()) == (None, None, "")
    told = of(hostname="other", task_type="worker", task_id=0)
    assert told.master() == f"{JOB}-worker-0.{JOB}:2222"


@pytest.mark.parametrize(
    ("variables", "arguments", "said"),
    [
        pytest.param({"VC_TASK_INDEX": "0"}, {}, "no pod of a Volcano Job.*there are no VC_…_HOSTS",
                     id="no svc plugin"),
        pytest.param(RENAMED, {}, "tasks have other names.*VC_TRAINERS_HOSTS", id="other names"),
        pytest.param(POD, {"tasks": {"worker": "trainers"}},
                     "VC_TRAINERS_HOSTS is not set: the Volcano Job has no task 'trainers'.*"
                     "there are VC_PS_HOSTS, VC_WORKER_HOSTS", id="a task that is not there"),
        pytest.param({**POD, "VC_WORKER_NUM": "3"}, {},
                     "VC_WORKER_HOSTS has 2 hosts, but VC_WORKER_NUM is 3", id="another number"),
        pytest.param({**POD, "VC_TASK_INDEX": "0"}, {},
                     "VC_TASK_INDEX is '0', but .*-worker-1' is number 1", id="another index"),
    ],
)  # fmt: skip
def test_what_is_missing_or_contradicts_itself_is_said(
    variables: dict[str, str], arguments: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        of(variables, **arguments)
