"""SageMakerClusterResolver, from the environment of a training job's container.

The recording has the variables and values of ENVIRONMENT_VARIABLES.md in the SageMaker training
toolkit, for a job of three hosts.
"""

from typing import Any

import pytest

from ropewalk.cluster.resolvers.sagemaker import SageMakerClusterResolver
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError

CONTAINER = {
    "SM_CHANNELS": '["testing","training"]',
    "SM_CURRENT_HOST": "algo-2",
    "SM_HOSTS": '["algo-1","algo-2","algo-3"]',
    "SM_INPUT_CONFIG_DIR": "/opt/ml/input/config",
    "SM_LOG_LEVEL": "20",
    "SM_MODEL_DIR": "/opt/ml/model",
    "SM_NETWORK_INTERFACE_NAME": "eth0",
    "SM_NUM_CPUS": "4",
    "SM_NUM_GPUS": "0",
    "SM_RESOURCE_CONFIG": '{"current_host":"algo-2","hosts":["algo-1","algo-2","algo-3"]}',
    "TRAINING_JOB_NAME": "mnist-2026-11-20-10-00-00-000",
}


def of(**arguments: Any) -> SageMakerClusterResolver:
    return SageMakerClusterResolver(variables=CONTAINER, **arguments)


def test_every_host_is_a_worker() -> None:
    resolver = of()
    assert resolver.cluster_spec() == ClusterSpec(
        {"worker": ["algo-1:2223", "algo-2:2223", "algo-3:2223"]}
    )
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, None)
    assert (resolver.environment, resolver.master()) == ("", "algo-2:2223")
    assert resolver.master("worker", 0, "grpc") == "grpc://algo-1:2223"


def test_what_the_constructor_says_wins() -> None:
    resolver = of(port=9000, task_type="worker", task_id=0, rpc_layer="grpc", environment="cloud")
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert (resolver.environment, resolver.master()) == ("cloud", "grpc://algo-1:9000")


def test_hosts_can_be_divided_among_jobs() -> None:
    resolver = of(jobs={"worker": 1, "ps": 1, "chief": 1})
    assert resolver.cluster_spec().as_dict() == {
        "chief": ["algo-1:2223"],
        "ps": ["algo-2:2223"],
        "worker": ["algo-3:2223"],
    }
    assert (resolver.task_type, resolver.task_id) == ("ps", 0)


def test_hosts_are_ordered_by_name_as_sagemaker_orders_them() -> None:
    names = [f"algo-{number}" for number in range(1, 12)]
    hosts = ",".join(f'"{name}"' for name in names)
    resolver = SageMakerClusterResolver(variables={**CONTAINER, "SM_HOSTS": f"[{hosts}]"})
    assert resolver.cluster_spec().task_address("worker", 1) == "algo-10:2223"
    assert resolver.task_id == 3


def test_a_job_of_one_host_has_no_master() -> None:
    variables = {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"}
    assert SageMakerClusterResolver(variables=variables).master() == ""


def test_the_variables_are_read_anew_and_a_snapshot_keeps_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in CONTAINER.items():
        monkeypatch.setenv(name, value)
    resolver = SageMakerClusterResolver()
    before = resolver.snapshot()
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-3")
    assert (resolver.task_id, before.task_id) == (2, 1)


@pytest.mark.parametrize(
    ("variables", "arguments", "said"),
    [
        pytest.param({"SM_HOSTS": ""}, {}, "SM_HOSTS is not set", id="no hosts"),
        pytest.param({"SM_CURRENT_HOST": ""}, {}, "SM_CURRENT_HOST is not set", id="no name"),
        pytest.param({"SM_HOSTS": "algo-1,algo-2"}, {}, "SM_HOSTS='algo-1,algo-2' is not JSON",
                     id="no JSON"),
        pytest.param({"SM_HOSTS": '{"algo-1": 1}'}, {}, "must be a JSON list", id="an object"),
        pytest.param({"SM_HOSTS": "[1]"}, {}, "must be a JSON list", id="a number"),
        pytest.param({"SM_HOSTS": '["a","a"]'}, {}, "different host names", id="a host twice"),
        pytest.param({"SM_CURRENT_HOST": "algo-9"}, {}, "'algo-9', which SM_HOSTS does not list",
                     id="another host"),
        pytest.param({}, {"jobs": {"worker": 2}},
                     r"the jobs \(worker=2\) have 2 tasks, but the SageMaker job runs 3",
                     id="jobs of another size"),
    ],
)  # fmt: skip
def test_what_is_missing_or_malformed_is_said(
    variables: dict[str, str], arguments: dict[str, Any], said: str
) -> None:
    resolver = SageMakerClusterResolver(variables={**CONTAINER, **variables}, **arguments)
    with pytest.raises(ConfigurationError, match=said):
        resolver.cluster_spec()
