"""Which task types there are, and who leads."""

import pytest

from ropewalk.cluster.spec import (
    ClusterSpec,
    canonical_spec,
    canonical_type,
    chief_of,
    ps_of,
    training_spec,
    workers_of,
)
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.task import TaskId

FULL = ClusterSpec(
    {"ps": ["p0:1", "p1:1"], "worker": ["w0:1"], "chief": ["c:1"], "evaluator": ["e:1"]}
)


@pytest.mark.parametrize(
    ("given", "canonical"), [("master", "chief"), ("chief", "chief"), ("worker", "worker")]
)
def test_master_is_an_old_name_of_chief(given: str, canonical: str) -> None:
    assert canonical_type(given) == canonical


def test_a_spec_with_a_master_gets_a_chief() -> None:
    spec = ClusterSpec({"master": ["m:1"], "worker": {1: "w:1"}})
    assert canonical_spec(spec).as_dict() == {"chief": ["m:1"], "worker": {1: "w:1"}}


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        pytest.param({"chief": ["a"], "master": ["b"]}, "both 'chief' and 'master'", id="both"),
        pytest.param({"wroker": ["a"]}, "a job 'wroker'; jobs are chief, worker, ps,", id="typo"),
        pytest.param({"chief": ["a", "b"]}, "2 tasks of job 'chief'; at most one", id="two chiefs"),
        pytest.param({"master": ["a", "b"]}, "2 tasks of job 'chief'", id="two masters"),
        pytest.param({"evaluator": ["a", "b"]}, "2 tasks of job 'evaluator'", id="two evaluators"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(cluster: dict[str, list[str]], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        canonical_spec(ClusterSpec(cluster))


def test_the_evaluator_is_not_part_of_the_training_cluster() -> None:
    assert training_spec(FULL).jobs == ["ps", "worker", "chief"]


@pytest.mark.parametrize(
    ("cluster", "chief"),
    [
        pytest.param({"chief": ["c"], "worker": ["w"]}, TaskId("chief", 0), id="the chief"),
        pytest.param({"ps": ["p"], "worker": ["w"]}, TaskId("worker", 0), id="or worker 0"),
        pytest.param({"chief": [], "worker": ["w"]}, TaskId("worker", 0), id="chief of no tasks"),
        pytest.param({"worker": {3: "w"}}, TaskId("worker", 0), id="even if it is not listed"),
    ],
)
def test_one_task_leads(cluster: dict[str, list[str]], chief: TaskId) -> None:
    assert chief_of(ClusterSpec(cluster)) == chief


def test_the_chief_trains_too_and_servers_come_by_index() -> None:
    assert workers_of(FULL) == [TaskId("worker", 0), TaskId("chief", 0)]
    assert ps_of(FULL) == [TaskId("ps", 0), TaskId("ps", 1)]
