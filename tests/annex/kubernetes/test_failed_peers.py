"""A chief finds out from Kubernetes that a task it waits for has failed for good."""

from typing import Any, cast

import pytest

from ropewalk.annexes.kubernetes.api import KubernetesApi
from ropewalk.annexes.kubernetes.chiefs_pod import FailedPeers
from ropewalk.core.errors import AccessError, PeerLostError
from ropewalk.core.report import PsCounters
from ropewalk.core.settings import Settings
from ropewalk.core.task import Phase, TaskId
from ropewalk.server.chief.servicer import LockedJob, new_chief

CHIEF, PS0, PS1, W0 = TaskId("chief", 0), TaskId("ps", 0), TaskId("ps", 1), TaskId("worker", 0)


def crashing(code: int, message: str = "", reason: str = "CrashLoopBackOff") -> dict[str, Any]:
    """A pod whose container has ended, and which the kubelet starts again after a wait."""
    container = {
        "name": "ropewalk",
        "state": {"waiting": {"reason": reason}},
        "lastState": {"terminated": {"exitCode": code, "message": message}},
    }
    return {"status": {"phase": "Running", "containerStatuses": [container]}}


class Account:
    """What the API server has, by name; an error is raised."""

    def __init__(self, **objects: Any) -> None:
        self.objects = objects
        self.asked: list[str] = []

    def get(self, kind: str, name: str) -> Any:
        assert kind == ("Job" if name == "digits-worker" else "Pod")
        self.asked.append(name)
        found = self.objects.get(name.replace("-", "_"))
        if isinstance(found, Exception):
            raise found
        return found


def looking(
    account: Account, *, asks_ps: bool = True, by_pods: bool = False
) -> tuple[LockedJob, FailedPeers]:
    expected = [(task, "") for task in (CHIEF, PS0, PS1, W0)]
    locked_job, _ = new_chief(CHIEF, expected, Settings(insecure=True), "digits")
    peers = FailedPeers(
        locked_job,
        lambda: cast(KubernetesApi, account),
        "digits",
        asks_ps=asks_ps,
        by_pods=by_pods,
        first_look_s=0.01,
    )
    with locked_job.open() as (job, now):
        job.register(CHIEF, now=now)
    return locked_job, peers


@pytest.mark.parametrize(
    ("objects", "reason"),
    [
        pytest.param(
            {"digits_ps_1": crashing(8, "ACCESS (8): there is no tls.crt\n")},
            "/job:ps/task:1 fails whenever it is started: exit code 8: ACCESS (8): there is no "
            "tls.crt",
            id="a ps",
        ),
        pytest.param(
            {"digits_ps_0": crashing(3)},
            "/job:ps/task:0 fails whenever it is started: exit code 3: the task's port is taken by "
            "another process",
            id="a ps without a word",
        ),
        pytest.param(
            {
                "digits_worker": {
                    "status": {
                        "conditions": [
                            {
                                "type": "FailureTarget",
                                "status": "True",
                                "reason": "MaxFailedIndexesExceeded",
                                "message": "Job has exceeded the specified maximal number of "
                                "failed indexes",
                            }
                        ]
                    }
                }
            },
            "the Job digits-worker has failed, and makes no worker any more: "
            "MaxFailedIndexesExceeded: Job has exceeded the specified maximal number of failed "
            "indexes",
            id="the workers",
        ),
    ],
)
def test_a_job_fails_with_the_reason_of_the_task_that_does_not_come(
    objects: dict[str, Any], reason: str
) -> None:
    locked_job, peers = looking(Account(**objects))
    peers._run()
    with locked_job.open() as (job, _):
        assert (job.phase, job.reason, job.has_failed_for_good) == (Phase.FAILED, reason, True)


@pytest.mark.parametrize(
    "objects",
    [
        pytest.param({}, id="no pods yet"),
        pytest.param({"digits_ps_0": crashing(137)}, id="worth a restart"),
        pytest.param({"digits_ps_0": crashing(8, reason="ContainerCreating")}, id="starting"),
        pytest.param({"digits_ps_0": PeerLostError("503")}, id="no answer"),
        pytest.param({"digits_worker": {"status": {"active": 1}}}, id="a Job that goes on"),
    ],
)
def test_what_may_still_come_is_waited_for(objects: dict[str, Any]) -> None:
    locked_job, peers = looking(Account(**objects))
    assert peers._look(), "it looks again"
    with locked_job.open() as (job, _):
        assert job.phase is Phase.RUNNING


def test_tasks_that_have_come_are_not_asked_for() -> None:
    account = Account(digits_ps_0=crashing(8))
    locked_job, peers = looking(account)
    with locked_job.open() as (job, now):
        job.ps_answered(PS0, 1, PsCounters(), now=now)
    assert peers._look()
    assert account.asked == ["digits-ps-1", "digits-worker"]
    with locked_job.open() as (job, now):
        job.ps_answered(PS1, 1, PsCounters(), now=now)
        job.register(W0, now=now)
    assert not peers._look(), "there is nothing more to look at"


def test_a_job_that_goes_on_without_a_ps_does_not_ask_for_it() -> None:
    account = Account(digits_ps_0=crashing(8))
    _, peers = looking(account, asks_ps=False)
    assert peers._look()
    assert account.asked == ["digits-worker"]


def test_an_account_that_may_not_look_asks_once() -> None:
    account = Account(digits_ps_0=AccessError("403"))
    _, peers = looking(account)
    peers._run()
    assert account.asked == ["digits-ps-0"]


def test_pods_of_workers_are_looked_at_where_a_stateful_set_makes_them() -> None:
    account = Account(digits_worker_0=crashing(1, "PROGRAM_FAILED (1): ValueError: no data"))
    locked_job, peers = looking(account, by_pods=True)
    assert not peers._look()
    assert account.asked == ["digits-ps-0", "digits-ps-1", "digits-worker-0"]
    with locked_job.open() as (job, _):
        assert "task:0 fails whenever it is started: exit code 1" in job.reason
