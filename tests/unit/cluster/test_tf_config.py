"""TFConfigClusterResolver: TensorFlow's facts, from the environment as it is at each call."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from helpers.calls import Calls
from ropewalk.cluster.resolvers.resolved import resolve
from ropewalk.cluster.resolvers.resolver import UnionClusterResolver
from ropewalk.cluster.resolvers.tf_config import TFConfigClusterResolver, read_tf_config, task_of
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import TFConfigError

CLUSTER = {"worker": ["w0:1", "w1:1"], "ps": ["p0:1"]}

SetConfig = Callable[[object], None]


@pytest.fixture
def set_config(monkeypatch: pytest.MonkeyPatch) -> SetConfig:
    """Sets TF_CONFIG: text as it is, anything else as JSON, None not at all."""

    def put(value: object) -> None:
        if value is None:
            monkeypatch.delenv("TF_CONFIG", raising=False)
        else:
            monkeypatch.setenv("TF_CONFIG", value if isinstance(value, str) else json.dumps(value))

    put(None)
    return put


@pytest.mark.parametrize("value", [None, "", "  \n", "{}"], ids=["absent", "empty", "blank", "{}"])
def test_without_tf_config_there_is_no_cluster_and_no_task(
    value: str | None, set_config: SetConfig
) -> None:
    set_config(value)
    resolver = TFConfigClusterResolver()
    assert resolver.cluster_spec() == ClusterSpec({})
    assert [resolver.task_type, resolver.task_id, resolver.rpc_layer] == [None, None, None]
    assert resolver.master() == ""


def test_cluster_and_task_are_read_from_the_environment(set_config: SetConfig) -> None:
    set_config({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"})
    resolver = TFConfigClusterResolver()
    assert resolver.cluster_spec() == ClusterSpec(CLUSTER)
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.rpc_layer == "grpc"
    assert resolver.master() == "grpc://w1:1"


def test_the_environment_is_read_again_at_every_call(set_config: SetConfig) -> None:
    resolver = TFConfigClusterResolver()
    assert resolver.cluster_spec() == ClusterSpec({})
    set_config({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}})
    assert (resolver.task_type, resolver.task_id) == ("ps", 0)
    assert resolver.master() == "p0:1"


def test_the_constructor_wins_over_the_environment_and_a_setter_over_both(
    set_config: SetConfig,
) -> None:
    set_config({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}, "rpc_layer": "env"})
    resolver = TFConfigClusterResolver("worker", 0, rpc_layer="ctor")
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 0, "ctor")
    assert resolver.master() == "ctor://w0:1"
    resolver.task_id = 1
    resolver.rpc_layer = "setter"
    assert resolver.master() == "setter://w1:1"
    resolver.task_type = "ps"
    resolver.task_id = 0
    assert resolver.master() == "setter://p0:1"


def test_arguments_of_master_win_over_everything(set_config: SetConfig) -> None:
    set_config({"cluster": CLUSTER, "task": {"type": "ps", "index": 0}, "rpc_layer": "env"})
    resolver = TFConfigClusterResolver("worker", 1, rpc_layer="ctor")
    assert resolver.master("worker", 0, "arg") == "arg://w0:1"
    assert resolver.master(task_id=0) == "ctor://w0:1"
    assert resolver.master("ps", 0) == "ctor://p0:1"


def test_type_and_index_of_the_constructor_may_be_of_either_type(set_config: SetConfig) -> None:
    set_config({"cluster": CLUSTER})
    resolver = TFConfigClusterResolver("worker", "1")  # type: ignore[arg-type]
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)


def test_a_session_master_is_used_as_it_is(set_config: SetConfig) -> None:
    set_config({"cluster": CLUSTER, "session_master": "anything://at all", "rpc_layer": "grpc"})
    assert TFConfigClusterResolver().master("worker", 0, "http") == "anything://at all"


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param({}, id="no cluster"),
        pytest.param({"worker": ["w0:1"]}, id="one job of one task"),
    ],
)
def test_a_cluster_of_at_most_one_task_has_no_master(
    cluster: dict[str, Any], set_config: SetConfig
) -> None:
    set_config({"cluster": cluster, "task": {"type": "worker", "index": 0}, "rpc_layer": "grpc"})
    assert TFConfigClusterResolver().master() == ""


def test_one_task_of_a_sparse_job_is_not_alone(set_config: SetConfig) -> None:
    set_config({"cluster": {"worker": {"3": "w3:1"}}, "task": {"type": "worker", "index": 3}})
    assert TFConfigClusterResolver().master() == "w3:1"


def test_an_unknown_task_is_a_value_error(set_config: SetConfig) -> None:
    set_config({"cluster": CLUSTER, "task": {"type": "worker", "index": 2}})
    with pytest.raises(ValueError, match="No task with index 2 in job 'worker'"):
        TFConfigClusterResolver().master()
    with pytest.raises(ValueError, match="No such job in cluster: 'chief'"):
        TFConfigClusterResolver().master("chief", 0)


def test_a_cluster_without_a_task_has_no_master_of_its_own(set_config: SetConfig) -> None:
    set_config({"cluster": CLUSTER})
    with pytest.raises(ValueError, match="no task type and index"):
        TFConfigClusterResolver().master()


def test_the_environment_of_a_resolver_is_only_its_constructors(set_config: SetConfig) -> None:
    set_config({"cluster": CLUSTER, "environment": "cloud"})
    assert TFConfigClusterResolver().environment == ""
    assert TFConfigClusterResolver(environment="google").environment == "google"


@pytest.mark.parametrize("gpus", [0, 2])
def test_accelerators_are_this_machines(gpus: int, machine_has_gpus: Callable[[int], None]) -> None:
    machine_has_gpus(gpus)
    assert TFConfigClusterResolver().num_accelerators() == ({"GPU": 2} if gpus else {})


def test_unknown_extra_keys_do_no_harm(set_config: SetConfig) -> None:
    config = {"cluster": CLUSTER, "task": {"type": "ps", "index": 0}, "model_dir": "/m", "x": [1]}
    set_config(config)
    assert read_tf_config() == config
    assert TFConfigClusterResolver().task_type == "ps"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("{'cluster': {}}", "not JSON: .* line 1, column 2 .*quote the", id="quotes"),
        pytest.param('{"a": 1,\n "b"}', "at line 2, column 5", id="where it stops being JSON"),
        pytest.param("[]", "must be a JSON object, got list", id="list"),
        pytest.param("null", "must be a JSON object, got NoneType", id="null"),
        pytest.param('{"cluster": ["a"]}', "'cluster' must be an object, got list", id="list of"),
        pytest.param('{"cluster": {"ps": "a"}}', "'cluster': the tasks of job 'ps'", id="text"),
        pytest.param('{"cluster": {"ps": {"x": "a"}}}', "'cluster': task indices", id="index"),
        pytest.param('{"sparseCluster": {"ps": 3}}', "'sparseCluster': the tasks of", id="sparse"),
    ],
)
def test_a_bad_tf_config_is_a_value_error_that_says_where(
    text: str, said: str, set_config: SetConfig
) -> None:
    set_config(text)
    with pytest.raises(TFConfigError, match=said) as caught:
        TFConfigClusterResolver().cluster_spec()
    assert isinstance(caught.value, ValueError)


HOSTILE = {
    "60,000 brackets": ("[" * 60_000, "nested more than 100 deep"),
    "900 brackets in an address": (
        '{"cluster": {"ps": [' + "[" * 900 + "]" * 900 + "]}}", "nested more than 100 deep",
    ),
    "an index of 5,000 digits": (
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": ' + "1" * 5000 + "}}",
        "digit",
    ),
    "an index of 4,000 digits": (
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": ' + "1" * 4000 + "}}",
        "at most 1000000",
    ),
    "text of 5,000 digits as an index": (
        '{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": "' + "1" * 5000 + '"}}',
        "a string of digits",
    ),
    "a key of 5,000 digits": (
        '{"cluster": {"ps": {"' + "1" * 5000 + '": "a:1"}}, "task": {"type": "ps"}}', "integers",
    ),
    "a key of twelve digits": (
        '{"cluster": {"ps": {"999999999999": "a:1"}}, "task": {"type": "ps"}}', "at most 1000000",
    ),
    "a NUL in an address": (
        '{"cluster": {"ps": ["a\\u0000:1"]}, "task": {"type": "ps", "index": 0}}', "host:port",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), HOSTILE.values(), ids=HOSTILE)
def test_what_nobody_has_written_by_hand_is_refused_in_a_few_words(
    text: str, said: str, set_config: SetConfig
) -> None:
    set_config(text)
    with pytest.raises(TFConfigError, match=said) as caught:
        resolve(TFConfigClusterResolver())
    assert len(caught.value.message) < 500


def test_a_long_tf_config_is_not_shown_whole(set_config: SetConfig) -> None:
    set_config("{" + "x" * 5000)
    with pytest.raises(TFConfigError) as caught:
        read_tf_config()
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(
    ("task", "said"),
    [
        pytest.param("worker", "'task' must be an object, got str", id="text"),
        pytest.param({"index": "one"}, "integer or a string of digits, got 'one'", id="word"),
        pytest.param({"index": True}, "got True", id="bool"),
        pytest.param({"index": [1]}, r"got \[1\]", id="list"),
        pytest.param({"index": 1.5}, "got 1.5", id="fraction"),
        pytest.param({"index": float("inf")}, "got inf", id="infinity"),
        pytest.param({"index": -1}, "must not be negative, got -1", id="negative"),
    ],
)
def test_a_bad_task_is_refused(task: object, said: str) -> None:
    with pytest.raises(TFConfigError, match=said):
        task_of({"task": task})


@pytest.mark.parametrize(
    ("config", "cluster", "dynamic"),
    [
        pytest.param({"cluster": CLUSTER}, CLUSTER, False, id="full"),
        pytest.param(
            {"cluster": {"worker": {"1": "w1:1"}, "ps": ["p0:1"]}},
            {"worker": {1: "w1:1"}, "ps": ["p0:1"]},
            True,
            id="a job as an object",
        ),
        pytest.param(
            {"sparseCluster": {"worker": {"1": "w1:1"}}}, {"worker": {1: "w1:1"}}, True, id="sparse"
        ),
        pytest.param(
            {
                "sparseCluster": {"worker": {}, "ps": ["p1:1"]},
                "task": {"type": "ps", "index": "1"},
            },
            {"worker": {}, "ps": {1: "p1:1"}},
            True,
            id="a ps that sees only itself keeps its index",
        ),
        pytest.param({"sparseCluster": {}}, {}, True, id="empty, dynamic"),
        pytest.param({"cluster": None}, {}, False, id="null"),
    ],
)
def test_the_dynamic_forms_are_told_from_the_full_one(
    config: dict[str, Any], cluster: dict[str, Any], dynamic: bool, set_config: SetConfig
) -> None:
    set_config(config)
    resolver = TFConfigClusterResolver()
    assert (resolver.cluster_spec(), resolver.dynamic) == (ClusterSpec(cluster), dynamic)


def test_a_snapshot_goes_on_saying_what_was_said(set_config: SetConfig) -> None:
    set_config({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}, "rpc_layer": "grpc"})
    resolver = TFConfigClusterResolver(task_id=0)
    snapshot = resolver.snapshot()
    set_config({"sparseCluster": {"worker": {"1": "w1:1"}}, "task": {"type": "ps", "index": 1}})
    assert (snapshot.cluster_spec(), snapshot.dynamic) == (ClusterSpec(CLUSTER), False)
    assert (snapshot.task_type, snapshot.task_id, snapshot.rpc_layer) == ("worker", 0, "grpc")
    assert snapshot.master() == "grpc://w0:1"
    assert (resolver.task_type, resolver.dynamic) == ("ps", True), "the resolver itself reads again"


@pytest.mark.parametrize(
    "call",
    [
        resolve,
        lambda resolver: resolve(UnionClusterResolver(resolver)),
        lambda resolver: resolver.master(),
    ],
    ids=["resolve", "resolve a union", "master"],
)
def test_one_resolution_reads_the_environment_once(
    call: Callable[[TFConfigClusterResolver], Any],
    set_config: SetConfig,
    calls: Calls,
) -> None:
    set_config({"cluster": CLUSTER, "task": {"type": "worker", "index": 1}})
    reads = calls.noted("ropewalk.cluster.resolvers.tf_config", "read_tf_config")
    call(TFConfigClusterResolver())
    assert len(reads) == 1
