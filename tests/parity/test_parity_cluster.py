"""ClusterSpec and the resolvers say what TensorFlow's say."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from helpers.parity import TWO, Both, Side, alike, differ, outcomes

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]

CLUSTERS: list[Any] = [
    {},
    {"worker": ["a:1", "b:2"], "ps": ["c:3"]},
    {"worker": ("a:1",)},
    {"worker": {1: "b:2"}, "ps": {0: "c:3", 1: "d:4"}},
    {"worker": {"1": "b:2"}},
    {"worker": "a:1"},
    {"worker": 1},
    {"worker": [1]},
    {"worker": None},
    {1: ["a:1"]},
    ["a:1"],
    None,
    "a:1",
]  # fmt: skip


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
@alike()
def test_cluster_specs_are_the_same(side: Side, cluster: Any) -> Any:
    spec = side.cluster_spec(cluster)
    again = side.cluster_spec(spec)
    calls: list[Callable[[], Any]] = [
        spec.as_dict, lambda: list(spec.jobs), lambda: bool(spec),
        lambda: again == spec, lambda: spec == side.cluster_spec({"x": ["y:1"]}),
    ]  # fmt: skip
    for job in ("worker", "ps", "chief"):
        calls += [partial(f, job) for f in (spec.num_tasks, spec.task_indices, spec.job_tasks)]
        calls += [partial(spec.task_address, job, index) for index in (0, 1, 2, -1)]
    return outcomes(side, *calls)


@pytest.mark.parametrize("tasks", [[], {}], ids=repr)
@differ(theirs="ValueError", ours=[])
def test_a_job_without_tasks_has_none(side: Side, tasks: Any) -> Any:
    """TensorFlow's ``job_tasks`` fails by the ValueError of ``max()``."""
    return side.cluster_spec({"worker": tasks}).job_tasks("worker")


@pytest.mark.parametrize(
    ("index", "kind"), [("first", "TypeError"), (-1, "ValueError")], ids=["word", "negative"]
)
def test_what_is_no_index_of_a_task_is_refused_at_once(both: Both, index: Any, kind: str) -> None:
    """TensorFlow raises a ValueError about a word, and fails on a negative number when it counts
    them.
    """
    theirs, ours = both(
        lambda side: side.cluster_spec({"worker": {index: "a:1"}}).job_tasks("worker")
    )
    assert theirs["error"] in ("ValueError", "IndexError")
    assert ours["error"] == kind


TF_CONFIGS: list[Any] = [
    None,
    {},
    {"cluster": TWO, "task": {"type": "worker", "index": 1}},
    {"cluster": TWO, "task": {"type": "worker", "index": "1"}},
    {"cluster": TWO, "task": {"type": "ps", "index": 0}, "rpc_layer": "grpc"},
    {"cluster": TWO, "task": {"type": "ps", "index": 7}},
    {"cluster": TWO, "task": {"type": "chief", "index": 0}},
    {"cluster": TWO},
    {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}},
    {"cluster": TWO, "task": {"type": "worker", "index": 0}, "session_master": "grpc://x:9"},
    {"cluster": {"worker": {"1": "b:2"}, "ps": ["c:3"]}, "task": {"type": "worker", "index": 1}},
    {"cluster": TWO, "task": {"type": "worker", "index": 0}, "environment": "cloud"},
    {"task": {"type": "worker", "index": 0}},
    "{",
]


def ask(side: Side, resolver: Any) -> list[Any]:
    """What a resolver says of everything."""
    return outcomes(
        side,
        lambda: resolver.cluster_spec().as_dict(),
        lambda: resolver.task_type,
        lambda: resolver.task_id,
        lambda: resolver.rpc_layer,
        lambda: resolver.environment or "",
        resolver.master,
        lambda: resolver.master("worker", 0),
        lambda: resolver.master("ps", 0, "grpc"),
        lambda: resolver.master("worker", 5),
        lambda: resolver.master(rpc_layer="grpc"),
    )


@pytest.mark.parametrize("config", TF_CONFIGS, ids=str)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"task_type": "worker", "task_id": 0},
        {"task_id": 1, "rpc_layer": "http", "environment": "cloud"},
        {"task_type": "ps", "task_id": 0, "rpc_layer": ""},
    ],
    ids=str,
)
@alike()
def test_tf_config_is_read_alike(
    side: Side, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], config: Any
) -> Any:
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        monkeypatch.setenv("TF_CONFIG", text)
    resolver = side.distribute.cluster_resolver.TFConfigClusterResolver(**arguments)
    told = ask(side, resolver)
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "quic"
    return [told, ask(side, resolver)]


@differ(theirs="ValueError", ours=[{}, None])
def test_an_empty_tf_config_is_none(side: Side, monkeypatch: pytest.MonkeyPatch) -> Any:
    """TensorFlow says that it is no JSON; templates leave an empty value where there is
    no cluster.
    """
    monkeypatch.setenv("TF_CONFIG", "")
    resolver = side.distribute.cluster_resolver.TFConfigClusterResolver()
    return [resolver.cluster_spec().as_dict(), resolver.task_type]


@differ(theirs=None, ours="")
def test_nobodys_environment_is_empty(side: Side) -> Any:
    """TensorFlow's base class promises an empty string, its TFConfigClusterResolver gives None."""
    return side.distribute.cluster_resolver.TFConfigClusterResolver().environment


@pytest.mark.parametrize(
    "arguments",
    [
        {"master": "m:1"},
        {"master": "m:1", "task_type": "worker", "task_id": 1, "rpc_layer": "grpc"},
        {"master": "m:1", "environment": "google", "num_accelerators": {"GPU": 3}},
        {"master": 1},
        {"cluster_spec": {"worker": ["a:1"]}},
    ],
    ids=str,
)
@alike()
def test_simple_resolvers_are_the_same(side: Side, arguments: dict[str, Any]) -> Any:
    given = {"cluster_spec": side.cluster_spec(TWO), **arguments}
    resolver = side.distribute.cluster_resolver.SimpleClusterResolver(**given)
    counted = resolver.num_accelerators() if "num_accelerators" in arguments else None
    return [*ask(side, resolver), counted]


@differ(theirs="grpc://", ours="")
def test_an_empty_master_stays_empty(side: Side) -> Any:
    """TensorFlow puts the rpc layer even before nothing."""
    resolvers = side.distribute.cluster_resolver
    return resolvers.SimpleClusterResolver(side.cluster_spec(TWO)).master(rpc_layer="grpc")


UNIONS: list[Any] = [
    [TWO],
    [TWO, {"worker": ["d:4"], "chief": ["e:5"]}],
    [{"worker": ["a:1"]}, {"worker": {1: "b:2"}}],
    [{"worker": ["a:1"]}, {"worker": {0: "b:2"}}],
    [{"worker": {3: "a:1"}}, {"worker": {1: "b:2"}}],
    [],
]


@pytest.mark.parametrize("clusters", UNIONS, ids=str)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"task_type": "ps", "task_id": 1, "rpc_layer": "grpc"}, {"nonsense": 1}],
    ids=str,
)
@alike()
def test_unions_of_resolvers_are_the_same(
    side: Side, arguments: dict[str, Any], clusters: list[Any]
) -> Any:
    resolvers = side.distribute.cluster_resolver
    parts = [
        resolvers.SimpleClusterResolver(
            side.cluster_spec(cluster), f"m{i}:1", task_type="worker", task_id=i + 1
        )
        for i, cluster in enumerate(clusters)
    ]
    return ask(side, resolvers.UnionResolver(*parts, **arguments))
