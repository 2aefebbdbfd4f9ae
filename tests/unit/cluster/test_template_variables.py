"""The cluster of pods whose manifests count tasks and name hosts by a pattern, in variables."""

from typing import Any

import pytest

from ropewalk.cluster.resolvers.launchers import environment_resolver, launcher_resolver
from ropewalk.cluster.resolvers.resolved import ResolvedTask, resolve
from ropewalk.cluster.resolvers.template import VariablesClusterResolver
from ropewalk.core.errors import ConfigurationError
from ropewalk.launch.options import TaskFlags, resolve_task

POD = {
    "ROPEWALK_ROLE": "worker",
    "ROPEWALK_REPLICAS": "chief=1,ps=2,worker=2",
    "ROPEWALK_HOST_TEMPLATE": "mnist-{role}-{index}.mnist-tasks.train.svc:2222",
    "JOB_COMPLETION_INDEX": "1",
}


def task_of(hostname: str = "pod", **variables: str) -> ResolvedTask:
    said = {name: value for name, value in (POD | variables).items() if value}
    return resolve(VariablesClusterResolver(said, hostname=hostname))


def test_every_pod_computes_the_same_cluster_and_its_own_place() -> None:
    worker = task_of()
    ps = task_of("mnist-ps-1", ROPEWALK_ROLE="ps", JOB_COMPLETION_INDEX="")
    assert worker.spec == ps.spec
    assert worker.spec.as_dict() == {
        "chief": ["mnist-chief-0.mnist-tasks.train.svc:2222"],
        "ps": [f"mnist-ps-{index}.mnist-tasks.train.svc:2222" for index in (0, 1)],
        "worker": [f"mnist-worker-{index}.mnist-tasks.train.svc:2222" for index in (0, 1)],
    }
    assert (str(worker.task), str(ps.task)) == ("/job:worker/task:1", "/job:ps/task:1")
    assert worker.chief_address == "mnist-chief-0.mnist-tasks.train.svc:2222"
    assert worker.sources["task.index"] == "JOB_COMPLETION_INDEX"
    assert ps.sources["task.index"] == "host name mnist-ps-1"


def test_an_evaluator_need_not_be_counted_and_a_single_task_needs_no_index() -> None:
    evaluator = task_of(ROPEWALK_ROLE="evaluator", JOB_COMPLETION_INDEX="0")
    assert str(evaluator.task) == "/job:evaluator/task:0"
    assert str(task_of(ROPEWALK_ROLE="master", JOB_COMPLETION_INDEX="").task) == (
        "/job:chief/task:0"
    )


def test_a_worker_beyond_those_counted_is_one_more_and_knows_the_others() -> None:
    worker = task_of(JOB_COMPLETION_INDEX="7")
    assert worker.task.index == 7
    assert worker.address == "mnist-worker-7.mnist-tasks.train.svc:2222"
    assert worker.spec.task_indices("worker") == [0, 1, 7]
    assert task_of(JOB_COMPLETION_INDEX="0").spec.task_indices("worker") == [0, 1]


def test_a_ps_beyond_those_counted_comes_too_if_shares_move() -> None:
    pod = {"ROPEWALK_ROLE": "ps", "JOB_COMPLETION_INDEX": ""}
    ps = task_of("mnist-ps-3", **pod, ROPEWALK_PS_SHARES="8")
    assert ps.address == "mnist-ps-3.mnist-tasks.train.svc:2222"
    assert ps.chief_address == "mnist-chief-0.mnist-tasks.train.svc:2222"
    assert ps.spec.task_indices("ps") == [0, 1, 3]


def test_nobody_joins_a_ring_or_the_ps_uncounted() -> None:
    with pytest.raises(ConfigurationError, match=r"task\.index 7 is out of range"):
        task_of(ROPEWALK_REPLICAS="worker=2", JOB_COMPLETION_INDEX="7")
    with pytest.raises(ConfigurationError, match=r"task\.index 2 is out of range"):
        task_of(ROPEWALK_ROLE="ps", JOB_COMPLETION_INDEX="2")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        pytest.param({"ROPEWALK_ROLE": ""}, "ROPEWALK_ROLE='' is no role", id="no role"),
        pytest.param({"ROPEWALK_ROLE": "job"}, "ROPEWALK_ROLE='job' is no role", id="not a role"),
        pytest.param({"ROPEWALK_REPLICAS": ""}, "ROPEWALK_REPLICAS is not", id="no counts"),
        pytest.param({"ROPEWALK_REPLICAS": "ps"}, "ROPEWALK_REPLICAS 'ps'", id="not counts"),
        pytest.param({"JOB_COMPLETION_INDEX": ""}, "which worker is this", id="no index"),
        pytest.param({"ROPEWALK_HOST_TEMPLATE": "{pod}:1"}, "unknown field {pod}", id="pattern"),
    ],
)
def test_what_is_missing_or_does_not_read_is_named(changed: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        task_of(**changed)


def test_tf_config_goes_before_and_a_flag_says_the_counts_instead() -> None:
    assert launcher_resolver({**POD, "TF_CONFIG": "{}"}) is None
    found = launcher_resolver(POD, replicas={"ps": 1, "worker": 2})
    assert found is not None
    assert found.from_launcher
    assert found.cluster_spec().jobs == ["ps", "worker"]


def test_programs_and_the_command_read_them_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in POD.items():
        monkeypatch.setenv(name, value)
    program, command = resolve(environment_resolver()), resolve_task(TaskFlags())
    assert program.task == command.task
    assert program.spec == command.spec
    given: dict[str, Any] = {"role": "ps"}
    with pytest.raises(ConfigurationError, match="the role is ps, but ROPEWALK_HOST_TEMPLATE says"):
        resolve_task(TaskFlags(**given))
