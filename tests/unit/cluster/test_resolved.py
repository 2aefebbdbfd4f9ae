"""From TF_CONFIG in its five forms to what a process can start with; DESIGN section 3."""

import json
from typing import Any

import pytest

from ropewalk.cluster.resolvers.resolved import ResolvedTask, resolve
from ropewalk.cluster.resolvers.resolver import SimpleClusterResolver, UnionClusterResolver
from ropewalk.cluster.resolvers.sagemaker import SageMakerClusterResolver
from ropewalk.cluster.resolvers.template import TemplateClusterResolver
from ropewalk.cluster.resolvers.tf_config import TFConfigClusterResolver
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError, TFConfigError
from ropewalk.core.task import TaskId

CHIEF, EVALUATOR = TaskId("chief", 0), TaskId("evaluator", 0)
WORKERS = [TaskId("worker", index) for index in range(3)]
FULL = {
    "chief": ["c:1"],
    "ps": ["p0:1", "p1:1"],
    "worker": ["w0:1", "w1:1"],
    "evaluator": ["e:1"],
}


def _task(kind: str, index: object) -> dict[str, object]:
    return {"type": kind, "index": index}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a process with this TF_CONFIG starts with."""

    def start(config: dict[str, Any] | str | None, **options: Any) -> ResolvedTask:
        monkeypatch.delenv("TF_CONFIG", raising=False)
        if config is not None:
            text = config if isinstance(config, str) else json.dumps(config)
            monkeypatch.setenv("TF_CONFIG", text)
        return resolve(TFConfigClusterResolver(), **options)

    return start


def test_form_a_lists_everybody(start: Any) -> None:
    found = start({"cluster": FULL, "task": _task("worker", 1), "environment": "cloud"})
    assert (found.task, found.address) == (WORKERS[1], "w1:1")
    assert (found.chief, found.chief_address) == (CHIEF, "c:1")
    assert (found.is_chief, found.is_local, found.dynamic) == (False, False, False)
    assert found.address_of(TaskId("ps", 1)) == "p1:1"


def test_form_b_a_dynamic_worker_sees_only_itself(start: Any) -> None:
    found = start(
        {"cluster": {"worker": {"1": "w1:1"}, "ps": ["p0:1", "p1:1"]}, "task": _task("worker", 1)}
    )
    assert (found.task, found.address, found.dynamic) == (WORKERS[1], "w1:1", True)
    # Who leads it cannot know: not itself.
    assert (found.is_chief, found.chief_address) == (False, "")
    assert found.address_of(TaskId("ps", 1)) == "p1:1"


def test_form_b_a_dynamic_ps_sees_only_itself_and_keeps_its_index(start: Any) -> None:
    found = start({"cluster": {"worker": {}, "ps": ["p1:1"]}, "task": _task("ps", 1)})
    assert (found.task, found.address) == (TaskId("ps", 1), "p1:1")
    assert (found.is_chief, found.is_local, found.dynamic) == (False, False, True)


@pytest.mark.parametrize("index", [0, 2])
def test_form_c_is_b_under_another_key(start: Any, index: int) -> None:
    cluster = {"worker": {str(index): "w:1"}, "ps": ["p0:1"]}
    task = _task("worker", index)
    assert start({"sparseCluster": cluster, "task": task}) == start(
        {"cluster": cluster, "task": task}
    )


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"sparseCluster": {}, "task": _task("chief", 0)}, id="nothing"),
        pytest.param(
            {"sparseCluster": {"worker": {}, "ps": []}, "task": _task("chief", 0)}, id="TFJob"
        ),
        pytest.param({"sparseCluster": {}, "task": _task("master", "0")}, id="master"),
    ],
)
def test_form_d_a_dynamic_chief_with_an_empty_cluster_leads(
    start: Any, config: dict[str, Any]
) -> None:
    found = start(config)
    assert (found.task, found.chief, found.is_chief) == (CHIEF, CHIEF, True)
    assert (found.address, found.chief_address) == ("", "")
    assert not found.is_local


@pytest.mark.parametrize(
    "config",
    [
        None,
        "",
        {},
        {"cluster": {}},
        {"task": {}},
        {"task": _task("worker", 0)},
        {"task": {"type": "worker"}, "cluster": {}},
    ],
    ids=repr,
)
def test_form_e_without_a_cluster_this_process_is_all_of_it(start: Any, config: Any) -> None:
    found = start(config)
    assert (found.task, found.chief, found.is_chief, found.is_local) == (CHIEF, CHIEF, True, True)
    assert found.spec == ClusterSpec({})
    assert "this process is the whole cluster" in found.sources["cluster"]


def test_a_master_is_the_chief(start: Any) -> None:
    found = start({"cluster": {"master": ["m:1"], "ps": ["p:1"]}, "task": _task("master", 0)})
    assert (found.task, found.is_chief, found.chief_address) == (CHIEF, True, "m:1")
    assert found.spec.jobs == ["chief", "ps"]


def test_without_a_chief_worker_0_leads_and_it_says_so(start: Any) -> None:
    cluster = {"worker": ["w0:1", "w1:1"], "ps": ["p:1"]}
    first = start({"cluster": cluster, "task": _task("worker", 0)})
    assert (first.is_chief, first.chief_address) == (True, "w0:1")
    assert first.sources["chief"] == "no chief listed: worker:0 leads"
    assert not start({"cluster": cluster, "task": _task("worker", 1)}).is_chief


def test_the_evaluator_is_outside_the_training_cluster_but_remembered(start: Any) -> None:
    found = start({"cluster": FULL, "task": _task("ps", 0)})
    assert found.spec.jobs == ["chief", "ps", "worker"]
    assert found.evaluator == "e:1"


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(FULL, id="listed"),
        pytest.param({job: FULL[job] for job in ("chief", "ps", "worker")}, id="not listed"),
    ],
)
def test_an_evaluator_may_or_may_not_be_in_the_cluster(
    start: Any, cluster: dict[str, list[str]]
) -> None:
    found = start({"cluster": cluster, "task": _task("evaluator", 0)})
    assert (found.task, found.is_chief, found.chief_address) == (EVALUATOR, False, "c:1")
    assert found.address == ("e:1" if "evaluator" in cluster else "")


def test_an_index_may_be_a_string_or_absent(start: Any) -> None:
    assert start({"cluster": FULL, "task": _task("worker", "1")}).task == WORKERS[1]
    assert start({"cluster": FULL, "task": {"type": "chief"}}).task == CHIEF


def test_a_chief_told_on_the_command_line_wins(start: Any) -> None:
    found = start(
        {"sparseCluster": {"worker": {"0": "w0:1"}, "ps": ["p:1"]}, "task": _task("worker", 0)},
        chief_address="c:9",
        overrides={"chief": "--chief"},
    )
    assert (found.chief, found.chief_address, found.is_chief) == (CHIEF, "c:9", False)
    assert found.sources["chief"] == "--chief"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        pytest.param({"cluster": FULL}, 'has a cluster but no task: add "task"', id="no task"),
        pytest.param({"cluster": FULL, "task": {"index": 1}}, "no task", id="no type"),
        pytest.param(
            {"cluster": FULL, "task": _task("worker", 5)},
            r"task.index 5 is out of range: job 'worker' has 2 tasks \(index 0, 1\)",
            id="out of range, with both numbers",
        ),
        pytest.param(
            {"cluster": {"worker": ["w:1"]}, "task": _task("worker", 1)},
            r"task.index 1 is out of range: job 'worker' has 1 task \(index 0\)",
            id="out of one",
        ),
        pytest.param(
            {"cluster": {"worker": ["w:1"]}, "task": _task("ps", 0)},
            "/job:ps/task:0, but the cluster has no job 'ps'; it has worker",
            id="job not listed",
        ),
        pytest.param(
            {"cluster": {}, "task": _task("chief", 0)},
            "this process is chief:0, and TF_CONFIG has no cluster: add one with the addresses",
            id="empty cluster of a job that is not dynamic",
        ),
        pytest.param(
            {"task": _task("chief", 0)}, "chief:0, and TF_CONFIG has no cluster", id="a task alone"
        ),
        pytest.param(
            {"task": _task("worker", 1)}, "worker:1, and TF_CONFIG has no", id="worker 1 alone"
        ),
        pytest.param({"task": {"index": 1}}, "worker:1, and TF_CONFIG has no", id="index alone"),
        pytest.param({"task": _task("ps", 0)}, "ps:0, and TF_CONFIG has no", id="a ps alone"),
        pytest.param(
            {"cluster": FULL, "task": {"type": "worker"}},
            'does not say which worker this process is; add its "index"',
            id="a worker without index",
        ),
        pytest.param(
            {"sparseCluster": {"ps": ["p:1"]}, "task": {"type": "ps"}},
            "does not say which ps this process is",
            id="a ps without index",
        ),
        pytest.param(
            {"cluster": FULL, "task": _task("evaluator", 1)},
            r"only be one `evaluator` task \(with index 0\), and this process is evaluator 1",
            id="a second evaluator",
        ),
        pytest.param(
            {"cluster": FULL, "task": _task("Worker", 0)},
            "task.type is 'Worker'; it must be one of chief, worker, ps, evaluator",
            id="unknown type",
        ),
        pytest.param(
            {"cluster": {"worker": ["h:1", "g:1"], "ps": ["h:1"]}, "task": _task("ps", 0)},
            "/job:worker/task:0 and /job:ps/task:0 have the same address 'h:1'",
            id="one address, both tasks named",
        ),
        pytest.param(
            {"cluster": {"ps": ["h:1"], "evaluator": ["h:1"]}, "task": _task("ps", 0)},
            "/job:ps/task:0 and /job:evaluator/task:0 have the same address",
            id="an evaluator needs its own address too",
        ),
    ],
)
def test_a_task_that_has_no_place_is_told_why(start: Any, config: Any, said: str) -> None:
    with pytest.raises(TFConfigError, match=said):
        start(config)


@pytest.mark.parametrize(
    "address",
    ["", "host", "host:", ":2222", "host:http", "host:0", "host:65536", "host:-1", "host:²"],
    ids=repr,
)
def test_an_address_that_is_no_host_and_port_is_shown_with_its_task(
    start: Any, address: str
) -> None:
    with pytest.raises(TFConfigError) as caught:
        start({"cluster": {"ps": ["p:1"], "worker": [address]}, "task": _task("ps", 0)})
    assert f"address {address!r} of /job:worker/task:0 does not read" in caught.value.message


SLIPS = {
    "grpc://ps-0:2222": "write 'ps-0:2222' (an address has no protocol; TensorFlow's `rpc_layer`",
    " ps-0:2222": "write 'ps-0:2222' (there are blanks around it)",
    "::1:2222": "write '[::1]:2222' (an IPv6 address stands in brackets)",
}


@pytest.mark.parametrize("slip", SLIPS)
@pytest.mark.parametrize(
    "resolver",
    [
        lambda slip: SimpleClusterResolver(
            ClusterSpec({"ps": [slip], "worker": ["w:1"]}), task_type="worker", task_id=0
        ),
        lambda slip: TemplateClusterResolver("ps", 0, {"ps": 1}, slip.replace("0", "{index}", 1)),
        lambda slip: UnionClusterResolver(
            SimpleClusterResolver(ClusterSpec({"worker": ["w:1"]}), task_type="worker", task_id=0),
            SimpleClusterResolver(ClusterSpec({"ps": [slip]})),
        ),
    ],
    ids=["Simple", "template", "union"],
)
def test_a_slip_in_an_address_is_refused_with_what_to_write(resolver: Any, slip: str) -> None:
    with pytest.raises(ConfigurationError, match="does not read as host:port: ") as caught:
        resolve(resolver(slip))
    assert SLIPS[slip] in caught.value.message


def test_a_launchers_hosts_are_read_as_strictly() -> None:
    hosts = {"SM_HOSTS": '["grpc://algo-1"]', "SM_CURRENT_HOST": "grpc://algo-1"}
    with pytest.raises(ConfigurationError, match="write 'algo-1:2223'"):
        resolve(SageMakerClusterResolver(variables=hosts))


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_in_tf_config_is_refused_at_the_task_that_has_it(start: Any, slip: str) -> None:
    cluster = {"cluster": {"worker": ["w:1"], "ps": [slip]}, "task": _task("worker", 0)}
    with pytest.raises(TFConfigError, match="of /job:ps/task:0 does not read") as caught:
        start(cluster)
    assert SLIPS[slip] in caught.value.message
    assert caught.value.fields["address"] == slip


@pytest.mark.parametrize("slip", SLIPS)
def test_a_slip_in_the_address_of_the_chief_is_refused(start: Any, slip: str) -> None:
    cluster = {"cluster": {"worker": ["w:1"], "ps": ["p:1"]}, "task": _task("worker", 0)}
    with pytest.raises(ConfigurationError, match="--chief: address") as caught:
        start(cluster, chief_address=slip)
    assert SLIPS[slip] in caught.value.message


@pytest.mark.parametrize("address", ["10.0.0.1:1", "[::1]:2222", "ps-0.svc.cluster.local:65535"])
def test_addresses_may_be_names_or_numbers(start: Any, address: str) -> None:
    assert start({"cluster": {"ps": [address]}, "task": _task("ps", 0)}).address == address


def test_a_wrong_job_and_a_second_chief_are_configuration_errors(start: Any) -> None:
    for cluster in ({"wroker": ["w:1"]}, {"chief": ["a:1", "b:1"]}):
        with pytest.raises(ConfigurationError, match=r"jobs are chief|at most one"):
            start({"cluster": cluster, "task": _task("worker", 0)})


def test_flags_are_blamed_when_flags_are_wrong() -> None:
    resolver = SimpleClusterResolver(ClusterSpec({"ps": ["p:1"]}), task_type="ps", task_id=3)
    with pytest.raises(ConfigurationError, match=r"^flags: task.index 3") as caught:
        resolve(resolver, source="flags")
    assert not isinstance(caught.value, TFConfigError)
    assert caught.value.fields == {"index": "3", "tasks": "1"}


@pytest.mark.parametrize(
    "config",
    [
        pytest.param({"cluster": FULL, "task": _task("worker", 1)}, id="A"),
        pytest.param({"cluster": FULL, "task": _task("evaluator", 0)}, id="A, evaluator"),
        pytest.param({"cluster": {"master": ["m:1"]}, "task": _task("master", 0)}, id="master"),
        pytest.param(
            {"cluster": {"worker": {"1": "w:1"}, "ps": ["p:1"]}, "task": _task("worker", 1)},
            id="B, worker 1",
        ),
        pytest.param(
            {"cluster": {"worker": {"0": "w:1"}, "ps": ["p:1"]}, "task": _task("worker", 0)},
            id="B, worker 0",
        ),
        pytest.param(
            {"cluster": {"worker": {}, "ps": ["p:1"]}, "task": _task("ps", 1)}, id="B, ps 1"
        ),
        pytest.param({"sparseCluster": {"ps": ["p:1"]}, "task": _task("ps", 0)}, id="C, ps 0"),
        pytest.param({"sparseCluster": {}, "task": _task("chief", 0)}, id="D"),
        pytest.param(None, id="E"),
    ],
)
def test_what_it_prints_as_tf_config_resolves_to_the_same(start: Any, config: Any) -> None:
    found = start(config)
    again = start(found.tf_config() if found.spec or found.dynamic else None)
    assert "\n" not in found.tf_config()
    for field in ("task", "spec", "chief", "chief_address", "address", "evaluator", "dynamic"):
        assert getattr(again, field) == getattr(found, field), field
