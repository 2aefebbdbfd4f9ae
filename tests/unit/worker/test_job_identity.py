"""For whom a chief waits that finds its ps led."""

import logging
from typing import Any, cast

import pytest

from helpers.clock import ManualClock
from ropewalk.client.ps.control import JobOnPs, PsControl
from ropewalk.core.errors import OtherJobError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.worker.lead.job_identity import find_job

CHIEF, W0 = TaskId("chief", 0), TaskId("worker", 0)


class Ps:
    """Says the same of its job each time."""

    task = TaskId("ps", 0)
    address = "ps:1"

    def __init__(self, **fields: Any) -> None:
        self.job = JobOnPs(**{"job": "a", "chief_address": "worker:1", "silent_s": 0.0, **fields})

    def find_job(self, *, timeout_s: float) -> JobOnPs:
        return self.job


def found(ps: Ps, who: TaskId, job_id: str = "") -> str:
    settings = Settings(job_id=job_id, lease_s=10.0)
    return find_job([cast(PsControl, ps)], who, settings, clock=ManualClock()).job


@pytest.mark.parametrize("job_id", ["", "a"])
def test_a_chief_does_not_wait_for_worker_0(job_id: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert found(Ps(gives_way=True), CHIEF, job_id) == "a"
    assert "waits for" not in caplog.text


@pytest.mark.parametrize(
    ("ps", "who", "job_id"),
    [
        pytest.param(Ps(), CHIEF, "", id="another chief leads"),
        pytest.param(Ps(gives_way=True), W0, "", id="worker 0 gives way to a chief alone"),
        pytest.param(Ps(gives_way=True), CHIEF, "b", id="the job is another one"),
    ],
)
def test_others_are_waited_for_and_then_named(ps: Ps, who: TaskId, job_id: str) -> None:
    with pytest.raises(OtherJobError, match="serves job 'a' of the chief at worker:1"):
        found(ps, who, job_id)
