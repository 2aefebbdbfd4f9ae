"""The coordinator's program beside a cluster of servers that does not name it."""

from typing import Any

import pytest

from ropewalk.cluster.resolvers.resolved import (
    coordinator_of,
    resolve,
    served_by_coordinator,
    servers_to_coordinate,
)
from ropewalk.cluster.resolvers.resolver import SimpleClusterResolver
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.task import TaskId

SERVERS = {"ps": ["b:1"], "worker": ["c:1", "d:1"]}
CHIEF = TaskId("chief", 0)


def resolver(cluster: dict[str, Any] = SERVERS, **task: Any) -> SimpleClusterResolver:
    return SimpleClusterResolver(ClusterSpec(cluster), **task)


def test_it_is_the_chief_at_a_port_of_its_own() -> None:
    spec = servers_to_coordinate(resolver())
    assert spec is not None
    task = coordinator_of(spec, "10.0.0.7")
    assert (task.task, task.is_chief, task.address) == (CHIEF, True, "10.0.0.7:0")
    assert task.spec.as_dict() == {**SERVERS, "chief": ["10.0.0.7:0"]}
    assert not task.is_local


@pytest.mark.parametrize(
    "given",
    [
        resolver(task_type="worker", task_id=0),
        resolver({**SERVERS, "chief": ["a:1"]}),
        resolver({"worker": ["c:1"]}),
        resolver({"ps": ["b:1"]}),
        resolver({}),
    ],
    ids=["a task is named", "a chief is listed", "no ps", "no worker", "nobody"],
)
def test_whoever_is_a_task_or_has_no_servers_does_not_coordinate(
    given: SimpleClusterResolver,
) -> None:
    assert servers_to_coordinate(given) is None


def test_mistakes_in_the_cluster_are_told() -> None:
    spec = servers_to_coordinate(resolver({"ps": ["b:1"], "worker": ["b:1"]}))
    assert spec is not None
    with pytest.raises(ConfigurationError, match="have the same address"):
        coordinator_of(spec, "a")


def test_a_worker_asks_a_ps_who_the_chief_is() -> None:
    worker = resolve(resolver(task_type="worker", task_id=0), source="Server")
    assert worker.is_chief
    served = served_by_coordinator(worker)
    assert (served.chief, served.chief_address, served.is_chief) == (CHIEF, "", False)


def test_a_chief_that_is_listed_is_it() -> None:
    worker = resolve(resolver({**SERVERS, "chief": ["a:1"]}, task_type="worker", task_id=1))
    assert served_by_coordinator(worker) is worker
