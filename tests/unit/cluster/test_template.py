"""Clusters from counts and a host name pattern, and where a task's index comes from."""

import pytest

from ropewalk.cluster.resolvers.template import TemplateClusterResolver, find_index, parse_replicas
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError


def test_replicas_read_as_role_and_count() -> None:
    assert parse_replicas("chief=1, ps=2,worker=30") == {"chief": 1, "ps": 2, "worker": 30}


@pytest.mark.parametrize(
    ("text", "item"),
    [
        pytest.param("", "''", id="nothing"),
        pytest.param("worker", "'worker'", id="no count"),
        pytest.param("worker=many", "'worker=many'", id="no number"),
        pytest.param("worker=-1", "'worker=-1'", id="negative"),
        pytest.param("worker=²", "'worker=²'", id="a digit that is no number"),
        pytest.param("gpu=1", "'gpu=1'", id="no such role"),
        pytest.param("ps=1,ps=2", "'ps=2'", id="twice"),
        pytest.param("ps=1,", "''", id="trailing comma"),
    ],
)
def test_replicas_that_do_not_read_so_are_shown_with_an_example(text: str, item: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_replicas(text)
    assert f"{item} does not read as ROLE=COUNT" in caught.value.message
    assert "chief=1,ps=2,worker=3" in caught.value.message


ALL = {"JOB_COMPLETION_INDEX": "1", "VC_TASK_INDEX": "2", "SLURM_PROCID": "3"}


@pytest.mark.parametrize(
    ("flag", "environment", "hostname", "found"),
    [
        pytest.param(0, ALL, "ps-4", (0, "--index"), id="the flag first, 0 too"),
        pytest.param(None, ALL, "ps-4", (1, "JOB_COMPLETION_INDEX"), id="then an Indexed Job"),
        pytest.param(
            None,
            {k: v for k, v in ALL.items() if k != "JOB_COMPLETION_INDEX"},
            "ps-4",
            (2, "VC_TASK_INDEX"),
            id="then Volcano",
        ),
        pytest.param(None, {"SLURM_PROCID": "3"}, "ps-4", (3, "SLURM_PROCID"), id="then Slurm"),
        pytest.param(None, {}, "ps-4", (4, "host name ps-4"), id="then the ordinal"),
        pytest.param(
            None,
            {},
            "ps-12.train.default.svc",
            (12, "host name ps-12.train.default.svc"),
            id="of a long host name",
        ),
        pytest.param(None, {"VC_TASK_INDEX": ""}, "laptop", None, id="nobody says"),
        pytest.param(None, {}, "node7", None, id="a digit is no ordinal without a dash"),
        pytest.param(None, {}, "node.rack-3", None, id="nor is one behind the first dot"),
    ],
)
def test_the_first_who_says_an_index_counts_and_is_named(
    flag: int | None,
    environment: dict[str, str],
    hostname: str,
    found: tuple[int, str] | None,
) -> None:
    assert find_index(flag, environment, hostname) == found


def test_a_template_gives_every_task_its_address() -> None:
    resolver = TemplateClusterResolver(
        "worker", 1, {"chief": 0, "ps": 1, "worker": 2}, "{role}-{index}.train:2222", "grpc"
    )
    assert resolver.cluster_spec() == ClusterSpec(
        {"ps": ["ps-0.train:2222"], "worker": ["worker-0.train:2222", "worker-1.train:2222"]}
    )
    assert (resolver.task_type, resolver.task_id) == ("worker", 1)
    assert resolver.environment == ""
    assert resolver.master() == "grpc://worker-1.train:2222"
    assert resolver.master("ps", 0, "http") == "http://ps-0.train:2222"


@pytest.mark.parametrize(
    ("template", "said"),
    [
        pytest.param("{role}-{pod}:1", r"unknown field \{pod\}", id="unknown field"),
        pytest.param("{role}-{}:1", r"unknown field \{\}", id="field without a name"),
        pytest.param("{role}-{index:1", "host-template", id="open brace"),
        pytest.param("{role}-{index}}:1", "host-template", id="closed twice"),
        pytest.param("{role}:1", "worker", id="two workers at one address"),
    ],
)
def test_a_template_that_cannot_work_is_refused(template: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        TemplateClusterResolver("worker", 0, {"ps": 1, "worker": 2}, template)


def test_a_task_of_no_type_has_no_master() -> None:
    resolver = TemplateClusterResolver("worker", 0, {"worker": 1}, "{role}-{index}:1")
    resolver.task_type = None
    with pytest.raises(ValueError, match="type and index of the task are not known"):
        resolver.master()
