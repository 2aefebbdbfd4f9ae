"""Which launcher a process was started by, when nobody told it about its cluster.

The environments are those of ``test_slurm.py``, ``test_sagemaker.py`` and ``test_volcano.py``, cut
to what decides.
"""

from typing import Any

import pytest

from ropewalk.cluster.resolvers.launchers import (
    environment_resolver,
    launcher_resolver,
    launchers_of,
)
from ropewalk.cluster.resolvers.resolver import ClusterResolver
from ropewalk.cluster.resolvers.sagemaker import SageMakerClusterResolver
from ropewalk.cluster.resolvers.slurm import SlurmClusterResolver
from ropewalk.cluster.resolvers.tf_config import TFConfigClusterResolver
from ropewalk.cluster.resolvers.volcano import VolcanoClusterResolver
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError

SLURM = {
    "SLURM_PROCID": "1",
    "SLURM_STEP_NODELIST": "n[1-2]",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
}
SAGEMAKER = {"SM_CURRENT_HOST": "algo-1", "SM_HOSTS": '["algo-1","algo-2"]'}
VOLCANO = {"VC_PS_HOSTS": "j-ps-0.j", "VC_WORKER_HOSTS": "j-worker-0.j", "VC_TASK_INDEX": "0"}
# Of sbatch's own script, which is no step: srun(1) has not run yet.
BATCH = {
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
INDEXED_JOB = {"JOB_COMPLETION_INDEX": "1", "KUBERNETES_SERVICE_HOST": "10.96.0.1"}


def spec_of(variables: dict[str, str], **arguments: Any) -> ClusterSpec:
    resolver = launcher_resolver(variables, **arguments)
    assert resolver is not None
    return resolver.cluster_spec()


@pytest.mark.parametrize(
    ("variables", "kind"),
    [
        pytest.param(SLURM, SlurmClusterResolver, id="Slurm"),
        pytest.param(SAGEMAKER, SageMakerClusterResolver, id="SageMaker"),
        pytest.param(VOLCANO, VolcanoClusterResolver, id="Volcano"),
    ],
)
def test_a_task_among_several_is_found(variables: dict[str, str], kind: type) -> None:
    resolver = launcher_resolver(variables, hostname="j-worker-0")
    assert isinstance(resolver, kind)
    assert isinstance(resolver, ClusterResolver)
    assert resolver.from_launcher


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param({}, id="nothing"),
        pytest.param(BATCH, id="a batch script"),
        pytest.param({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, id="a step of one task"),
        pytest.param({**SAGEMAKER, "SM_HOSTS": '["algo-1"]'}, id="a training job of one host"),
        pytest.param({"VC_WORKER_HOSTS": "j-worker-0.j", "VC_TASK_INDEX": "0"}, id="a job of one"),
        pytest.param({"VC_TASK_INDEX": "0"}, id="Volcano without its svc plugin"),
        pytest.param(INDEXED_JOB, id="an Indexed Job, which names no other pod"),
        pytest.param({**SLURM, "TF_CONFIG": "{}"}, id="TF_CONFIG goes first, if it is empty too"),
    ],
)
def test_no_launcher_is_guessed(variables: dict[str, str]) -> None:
    assert launcher_resolver(variables) is None


def test_two_launchers_at_once_are_an_error_that_names_both() -> None:
    both = {**SLURM, **SAGEMAKER}
    assert launchers_of(both) == ["Slurm", "SageMaker"]
    with pytest.raises(ConfigurationError, match="under Slurm and under SageMaker; say which"):
        launcher_resolver(both)


@pytest.mark.parametrize("variables", [SLURM, SAGEMAKER], ids=["Slurm", "SageMaker"])
def test_roles_and_the_port_come_from_variables_or_arguments(variables: dict[str, str]) -> None:
    said = {**variables, "ROPEWALK_REPLICAS": "ps=1,worker=1", "ROPEWALK_PORT": "7000"}
    assert spec_of(said).task_address("ps", 0).endswith(":7000")
    given = spec_of(said, replicas={"worker": 2}, port=8000)
    assert given.jobs == ["worker"]
    assert given.task_address("worker", 0).endswith(":8000")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        pytest.param(
            {**SLURM, "ROPEWALK_PORT": "http"}, "ROPEWALK_PORT='http' is no port", id="port"
        ),
        pytest.param({**SLURM, "ROPEWALK_REPLICAS": "ps"}, "ROPEWALK_REPLICAS 'ps'", id="replicas"),
        pytest.param({**VOLCANO, "ROPEWALK_REPLICAS": "ps=1"}, "named and counted", id="Volcano"),
        pytest.param(
            {**SAGEMAKER, "SM_HOSTS": "algo"}, "SM_HOSTS='algo' is not JSON", id="no JSON"
        ),
    ],
)
def test_what_does_not_read_is_said(variables: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        spec_of(variables)


def test_the_environment_of_this_process_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(environment_resolver(), TFConfigClusterResolver)
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert isinstance(environment_resolver(), SlurmClusterResolver)
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
    resolver = environment_resolver(task_type="worker", task_id=0)
    assert (resolver.task_type, resolver.cluster_spec().jobs) == ("worker", ["worker"])
