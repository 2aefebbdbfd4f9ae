"""What a Server is made of, and what it refuses."""

from typing import Any

import pytest

import ropewalk as rw
from helpers.calls import Calls
from helpers.waiting import scaled
from ropewalk.client.ps.control import PsControl
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.settings import Settings
from ropewalk.core.task import Phase, TaskId
from ropewalk.server.ps.server import PsServer

CLUSTER = {"chief": ["a:1"], "ps": ["b:1"], "worker": ["c:1", "d:1"]}


def server(**arguments: Any) -> rw.distribute.Server:
    return rw.distribute.Server(**{"server_or_cluster_def": CLUSTER, "start": False, **arguments})


def test_it_says_what_it_is() -> None:
    made = server(job_name="worker", task_index=1)
    assert made.target == "grpc://d:1"
    described = made.server_def
    assert (described.job_name, described.task_index, described.protocol) == ("worker", 1, "grpc")
    assert described.cluster.as_dict() == CLUSTER
    again = rw.distribute.Server(described, start=False)
    assert again.target == made.target


def test_what_there_is_one_of_need_not_be_named() -> None:
    assert server(job_name="ps").target == "grpc://b:1"
    assert rw.train.Server is rw.distribute.Server


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "job_name must be given: the cluster has the jobs"),
        ({"job_name": "worker"}, "task_index must be given: the job 'worker' has 2 tasks"),
        ({"job_name": "worker", "task_index": 2}, "task.index 2 is out of range"),
        ({"job_name": "chief"}, "a Server is a ps or a worker, not a chief"),
        (
            {
                "server_or_cluster_def": {"worker": ["c:1", "d:1"]},
                "job_name": "worker",
                "task_index": 0,
            },
            "names neither a chief, nor a ps that could be asked",
        ),
    ],
)
def test_mistakes_are_told(arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        server(**arguments)


def test_a_server_that_breaks_does_not_end_as_if_the_job_were_over(calls: Calls) -> None:
    calls.fail(PsServer, "wait", KeyError("a bug"))
    made = rw.distribute.Server.create_local_server()
    with pytest.raises(KeyError, match="a bug"):
        made.join()


def test_a_local_server_is_a_ps_that_answers() -> None:
    made = rw.distribute.Server.create_local_server()
    assert made.target.startswith("grpc://127.0.0.1:")
    address = made.target.removeprefix("grpc://")
    control = PsControl(TaskId("ps", 0), address, Settings(), Principal("chief", index=0))
    try:
        assert control.find_job(timeout_s=scaled(10)).chief_address == ""
        control.end_job(Phase.DONE, "", timeout_s=scaled(10))
        made.join()
    finally:
        control.close()
