"""SimpleClusterResolver and UnionClusterResolver."""

from collections.abc import Callable
from typing import Any

import pytest

from ropewalk.cluster.resolvers.resolved import resolve
from ropewalk.cluster.resolvers.resolver import (
    ClusterResolver,
    SimpleClusterResolver,
    UnionClusterResolver,
    format_master_url,
)
from ropewalk.cluster.spec import ClusterSpec


def _of(cluster: dict[str, Any], **options: Any) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec(cluster), **options)


@pytest.mark.parametrize(
    ("layer", "url"), [("grpc", "grpc://a:1"), ("", "a:1"), (None, "a:1")], ids=repr
)
def test_a_master_url_has_a_layer_if_there_is_one(layer: str | None, url: str) -> None:
    assert format_master_url("a:1", layer) == url


def test_a_resolver_must_say_where_the_cluster_is() -> None:
    with pytest.raises(TypeError, match="abstract"):
        ClusterResolver()  # type: ignore[abstract]


def test_a_simple_resolver_returns_what_it_was_given() -> None:
    spec = ClusterSpec({"worker": ["a:1"]})
    resolver = SimpleClusterResolver(
        spec, "m:1", "worker", 0, "cloud", num_accelerators={"GPU": 2}, rpc_layer="grpc"
    )
    assert resolver.cluster_spec() is spec
    assert (resolver.task_type, resolver.task_id) == ("worker", 0)
    assert resolver.environment == "cloud"
    assert resolver.num_accelerators() == {"GPU": 2}
    assert resolver.rpc_layer == "grpc"
    assert resolver.master() == "grpc://m:1"


def test_a_simple_resolver_is_nobody_unless_told() -> None:
    resolver = _of({"worker": ["a:1"]})
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == (None, None, None)
    assert (resolver.environment, resolver.master()) == ("", "")


def test_type_id_and_layer_can_be_set_later() -> None:
    resolver = _of({"worker": ["a:1", "b:1"]})
    resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "grpc"
    assert (resolver.task_type, resolver.task_id, resolver.rpc_layer) == ("worker", 1, "grpc")


@pytest.mark.parametrize(
    ("arguments", "master"),
    [
        pytest.param(("worker", 1), "grpc://b:1", id="both select an address"),
        pytest.param(("worker", 1, "http"), "http://b:1", id="a layer given here wins"),
        pytest.param(("worker", None), "grpc://m:1", id="a type alone selects nothing"),
        pytest.param((None, 0), "grpc://m:1", id="an id alone selects nothing"),
        pytest.param((), "grpc://m:1", id="the constructor's own task is not used"),
    ],
)
def test_only_arguments_of_the_call_select_a_master(
    arguments: tuple[Any, ...], master: str
) -> None:
    resolver = _of(
        {"worker": ["a:1", "b:1"]}, master="m:1", task_type="worker", task_id=0, rpc_layer="grpc"
    )
    assert resolver.master(*arguments) == master


def test_an_empty_master_stays_empty_whatever_the_layer() -> None:
    assert _of({}, rpc_layer="grpc").master() == ""


def test_accelerators_are_counted_unless_given(machine_has_gpus: Callable[[int], None]) -> None:
    machine_has_gpus(3)
    assert _of({}).num_accelerators() == {"GPU": 3}
    assert _of({}, num_accelerators={}).num_accelerators() == {}


def test_a_simple_resolver_refuses_what_is_no_cluster_or_no_address() -> None:
    with pytest.raises(TypeError, match="must be a ClusterSpec"):
        SimpleClusterResolver({"worker": ["a:1"]})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="master must be a string"):
        SimpleClusterResolver(ClusterSpec({}), 3)  # type: ignore[arg-type]


def _union(*clusters: dict[str, Any], **options: Any) -> UnionClusterResolver:
    return UnionClusterResolver(*(_of(cluster) for cluster in clusters), **options)


@pytest.mark.parametrize(
    ("parts", "whole"),
    [
        pytest.param(
            [{"worker": ["a", "b"]}, {"worker": ["c"], "ps": ["p"]}],
            {"worker": ["a", "b", "c"], "ps": ["p"]},
            id="lists are joined in order",
        ),
        pytest.param(
            [{"worker": ["a"]}, {"worker": {1: "b", 3: "d"}}],
            {"worker": {0: "a", 1: "b", 3: "d"}},
            id="a list beside a mapping counts from 0",
        ),
        pytest.param(
            [{"worker": {2: "c"}}, {"worker": {0: "a"}}, {"worker": {1: "b"}}],
            {"worker": ["a", "b", "c"]},
            id="mappings merge by index",
        ),
        pytest.param([{}, {"ps": ["p"]}], {"ps": ["p"]}, id="nothing adds nothing"),
    ],
)
def test_a_union_is_all_its_clusters(parts: list[dict[str, Any]], whole: dict[str, Any]) -> None:
    assert _union(*parts).cluster_spec() == ClusterSpec(whole)


@pytest.mark.parametrize(
    "parts",
    [
        pytest.param([{"ps": {1: "a", 3: "b"}}, {"ps": {3: "c"}}], id="two mappings"),
        pytest.param([{"ps": ["a", "b"]}, {"ps": {1: "c", 5: "d"}}], id="list and mapping"),
    ],
)
def test_an_index_given_twice_is_a_clash(parts: list[dict[str, Any]]) -> None:
    with pytest.raises(KeyError, match="'ps' has a clash of task index"):
        _union(*parts).cluster_spec()


def test_a_union_follows_its_parts() -> None:
    class Growing(SimpleClusterResolver):
        workers = 1

        def cluster_spec(self) -> ClusterSpec:
            return ClusterSpec({"worker": [f"w{i}" for i in range(self.workers)]})

    part = Growing(ClusterSpec({}))
    union = UnionClusterResolver(part)
    part.workers = 3
    assert union.cluster_spec().num_tasks("worker") == 3


def test_a_union_is_its_first_resolver_unless_told_otherwise() -> None:
    first = _of(
        {"worker": ["a:1"]},
        master="m:1",
        task_type="worker",
        task_id=7,
        environment="cloud",
        num_accelerators={"GPU": 1},
        rpc_layer="grpc",
    )
    union = UnionClusterResolver(first, _of({"ps": ["p:1"]}, task_type="ps", task_id=1))
    assert (union.task_type, union.task_id, union.rpc_layer) == ("worker", 7, "grpc")
    assert (union.environment, union.num_accelerators()) == ("cloud", {"GPU": 1})
    assert union.master() == "grpc://m:1"
    assert union.master(rpc_layer="http") == "http://m:1"
    union.task_type, union.task_id, union.rpc_layer = "ps", 0, "http"
    assert (union.task_type, union.task_id, union.rpc_layer) == ("ps", 0, "http")


def test_task_zero_is_kept() -> None:
    first = _of({"worker": ["a:1", "b:1"]}, task_type="worker", task_id=1)
    assert UnionClusterResolver(first, task_type="worker", task_id=0).task_id == 0


@pytest.mark.parametrize(
    ("first", "second", "index"),
    [
        pytest.param({"worker": ["a:1", "b:1"]}, {"worker": ["c:1", "d:1"]}, 3, id="joined"),
        pytest.param({"ps": ["a:1"]}, {"worker": ["c:1", "d:1"]}, 1, id="another job"),
        pytest.param({"worker": {0: "a:1"}}, {"worker": {1: "d:1"}}, 1, id="merged by index"),
    ],
)
def test_a_union_knows_its_task_from_the_first_that_knows_it(
    first: dict[str, Any], second: dict[str, Any], index: int
) -> None:
    union = UnionClusterResolver(_of(first), _of(second, task_type="worker", task_id=1))
    assert (union.task_type, union.task_id) == ("worker", index)
    assert union.cluster_spec().task_address("worker", index) == "d:1"
    assert resolve(union).address == "d:1"


def test_a_chosen_master_of_a_union_has_only_the_unions_layer() -> None:
    first = _of({"worker": ["a:1"]}, rpc_layer="grpc")
    assert UnionClusterResolver(first).master("worker", 0) == "a:1"
    assert UnionClusterResolver(first, rpc_layer="http").master("worker", 0) == "http://a:1"


def test_a_union_of_nothing_or_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="At least one"):
        UnionClusterResolver()
    with pytest.raises(ValueError, match=r"Unexpected keyword arguments: \['environment'\]"):
        UnionClusterResolver(_of({}), environment="cloud")
    with pytest.raises(TypeError, match="must be ClusterResolvers"):
        UnionClusterResolver(ClusterSpec({}))  # type: ignore[arg-type]


def test_a_cluster_given_in_code_is_whole_unless_it_is_said_to_be_dynamic() -> None:
    spec = ClusterSpec({"worker": {1: "w1:1"}})
    assert not SimpleClusterResolver(spec).dynamic
    assert SimpleClusterResolver(spec, dynamic=True).dynamic


@pytest.mark.parametrize("kinds", [(False, False), (False, True), (True, False)], ids=str)
def test_a_union_is_dynamic_if_any_of_its_resolvers_is(kinds: tuple[bool, bool]) -> None:
    parts = [
        SimpleClusterResolver(ClusterSpec({job: ["h:1"]}), dynamic=dynamic)
        for job, dynamic in zip(("ps", "worker"), kinds, strict=True)
    ]
    assert UnionClusterResolver(*parts).dynamic is any(kinds)


def test_accelerators_are_those_of_the_task_that_is_asked_for(
    machine_has_gpus: Callable[[int], None],
) -> None:
    machine_has_gpus(3)
    mine = _of({"worker": ["a:1", "b:1"]}, task_type="worker", task_id=0)
    for resolver in (mine, UnionClusterResolver(mine)):
        assert resolver.num_accelerators("worker", 0) == {"GPU": 3}
        assert resolver.num_accelerators("worker", 1) == {}
        assert resolver.num_accelerators("worker") == {"GPU": 3}
        with pytest.raises(ValueError, match="No task with index 2 in job 'worker'"):
            resolver.num_accelerators("worker", 2)
    assert _of({"worker": ["a:1"]}).num_accelerators("worker", 0) == {}
