"""ClusterSpec: TensorFlow's, dense and sparse."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.strategies import text_of
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.task import TaskId

SPEC = ClusterSpec({"worker": ["a:1", "b:1", "c:1"], "ps": {3: "q:1", 1: "p:1"}})

# What addresses are made of, what JSON has to escape, and letters of two to four bytes.
_addresses = text_of('abz019.:-_[]/ "\\\n\0é–漢🙂', max_size=5)
_jobs = st.dictionaries(
    st.sampled_from(["chief", "worker", "ps", "evaluator"]),
    st.lists(_addresses, max_size=4) | st.dictionaries(st.integers(0, 9), _addresses, max_size=4),
)


def test_a_job_is_a_list_or_says_which_indices_it_knows() -> None:
    assert SPEC.jobs == ["worker", "ps"]
    assert (SPEC.num_tasks("worker"), SPEC.num_tasks("ps")) == (3, 2)
    assert SPEC.task_indices("worker") == [0, 1, 2]
    assert SPEC.task_indices("ps") == [1, 3]
    assert SPEC.task_address("worker", 2) == "c:1"
    assert SPEC.task_address("ps", 3) == "q:1"


def test_a_sparse_job_has_none_where_nothing_is_known() -> None:
    assert SPEC.job_tasks("ps") == [None, "p:1", None, "q:1"]
    assert SPEC.job_tasks("worker") == ["a:1", "b:1", "c:1"]


def test_tasks_come_job_by_job_with_ascending_indices() -> None:
    assert [task.short for task in SPEC.tasks()] == [
        "worker:0",
        "worker:1",
        "worker:2",
        "ps:1",
        "ps:3",
    ]
    assert next(SPEC.tasks()) == TaskId("worker", 0)


@pytest.mark.parametrize(
    ("tasks", "shown"),
    [
        pytest.param(["a", "b"], ["a", "b"], id="list"),
        pytest.param(("a", "b"), ["a", "b"], id="tuple"),
        pytest.param({0: "a", 1: "b"}, ["a", "b"], id="complete mapping is a list"),
        pytest.param({1: "b"}, {1: "b"}, id="sparse stays a mapping"),
        pytest.param({"1": "b", "0": "a"}, ["a", "b"], id="JSON's keys are numbers"),
        pytest.param([], {}, id="empty job, as TensorFlow shows it"),
    ],
)
def test_as_dict_shows_lists_where_no_index_is_missing(tasks: object, shown: object) -> None:
    assert ClusterSpec({"ps": tasks}).as_dict() == {"ps": shown}  # type: ignore[dict-item]


@given(_jobs)
def test_a_spec_comes_back_from_its_dictionary_and_from_json(
    jobs: dict[str, list[str] | dict[int, str]],
) -> None:
    spec = ClusterSpec(jobs)
    assert ClusterSpec(spec) == spec
    assert ClusterSpec(spec.as_dict()) == spec
    assert ClusterSpec(json.loads(json.dumps(spec.as_dict()))) == spec
    assert hash(ClusterSpec(spec.as_dict())) == hash(spec)


def test_equality_is_that_of_the_clusters_not_of_how_they_were_written() -> None:
    assert ClusterSpec({"ps": ["a"], "worker": {0: "b"}}) == ClusterSpec(
        {"worker": ["b"], "ps": {"0": "a"}}
    )
    assert ClusterSpec({"ps": ["a"]}) != ClusterSpec({"ps": {1: "a"}})
    assert ClusterSpec({}) != {}


def test_an_empty_cluster_is_falsy_and_a_job_makes_it_truthy() -> None:
    assert not ClusterSpec({})
    assert ClusterSpec({"worker": []})


def test_a_spec_does_not_follow_later_changes_of_what_it_was_made_from() -> None:
    workers = ["a"]
    spec = ClusterSpec({"worker": workers})
    workers.append("b")
    assert spec.num_tasks("worker") == 1
    shown = spec.as_dict()["worker"]
    assert isinstance(shown, list)
    shown.append("b")
    assert spec.num_tasks("worker") == 1


def test_a_spec_shows_itself() -> None:
    assert repr(ClusterSpec({"ps": {1: "a"}})) == "ClusterSpec({'ps': {1: 'a'}})"


@pytest.mark.parametrize("method", ["num_tasks", "task_indices", "job_tasks"])
def test_an_unknown_job_is_named(method: str) -> None:
    with pytest.raises(ValueError, match="No such job in cluster: 'evaluator'"):
        getattr(SPEC, method)("evaluator")


@pytest.mark.parametrize(
    ("job", "index", "said"),
    [
        pytest.param("worker", 3, "No task with index 3 in job 'worker'", id="beyond the list"),
        pytest.param("ps", 0, "No task with index 0 in job 'ps'", id="hole in a sparse job"),
        pytest.param("chief", 0, "No such job in cluster: 'chief'", id="unknown job"),
    ],
)
def test_an_unknown_task_is_named(job: str, index: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SPEC.task_address(job, index)


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        pytest.param(["a:1"], "must be a dictionary .*; got list", id="a list for a cluster"),
        pytest.param(None, "got NoneType", id="none"),
        pytest.param({1: ["a:1"]}, "job names must be strings, got 1", id="job name"),
        pytest.param({"ps": "a:1"}, "job 'ps' must be a list or a dictionary, got str", id="text"),
        pytest.param({"ps": {"a:1"}}, "got set", id="set"),
        pytest.param({"ps": {"first": "a:1"}}, "indices of job 'ps' must be integers", id="word"),
        pytest.param({"ps": {True: "a:1"}}, "must be integers, got True", id="bool"),
        pytest.param({"ps": {"--1": "a:1"}}, "must be integers, got '--1'", id="two signs"),
        pytest.param({"ps": [1]}, "address of task 0 of job 'ps' must be a string: 1", id="number"),
        pytest.param({"ps": {2: None}}, "address of task 2 of job 'ps' must be", id="no address"),
    ],
)
def test_the_wrong_type_is_a_type_error_that_says_where(cluster: object, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        ClusterSpec(cluster)  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [-1, "-1"], ids=repr)
def test_a_negative_index_is_refused(index: int | str) -> None:
    with pytest.raises(ValueError, match="indices of job 'ps' must not be negative, got -1"):
        ClusterSpec({"ps": {index: "a:1"}})  # type: ignore[dict-item]
