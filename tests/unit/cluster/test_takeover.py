"""A place that is taken: a restart has it back, a second job does not get it."""

import pytest

from ropewalk.cluster.job.job import Job
from ropewalk.core.errors import OtherJobError, PeerLostError
from ropewalk.core.report import TaskReport
from ropewalk.core.task import Incarnation, TaskId

CHIEF, W0 = TaskId("chief", 0), TaskId("worker", 0)
LEASE_S = 10.0


def job_with_worker(name: str = "a") -> tuple[Job, Incarnation]:
    job = Job([(CHIEF, "c:1"), (W0, "w:1")], chief=CHIEF, lease_s=LEASE_S, now=0.0, name=name)
    return job, job.register(W0, now=0.0, host="here", pid=1)


def ask(of: Job, now: float, **more: object) -> Incarnation:
    return of.register(W0, now=now, **({"host": "there", "pid": 2} | more))  # type: ignore[arg-type]


def test_a_second_process_of_a_task_that_is_at_work_is_refused_with_both_named() -> None:
    job, first = job_with_worker()
    now = 1.0
    for _ in range(10):
        with pytest.raises(PeerLostError, match="has it if the other is silent"):
            ask(job, now)
        now += 1.0
        job.heartbeat(first, TaskReport(), now=now)
    with pytest.raises(OtherJobError) as caught:
        ask(job, now + 0.2)
    words = (
        "process 1 on here runs as /job:worker/task:0 already and was heard of 0.2 s ago; process 2"
    )
    assert caught.value.message.startswith(words)
    assert caught.value.exit_code == 5
    job.heartbeat(first, TaskReport(), now=now)  # it still has its place


def test_a_restarted_task_has_its_place_once_the_other_process_is_silent() -> None:
    job, first = job_with_worker()
    with pytest.raises(PeerLostError):
        ask(job, 1.0)
    with pytest.raises(PeerLostError):
        ask(job, 3.4)
    again = ask(job, 3.5)
    assert again.generation > first.generation


@pytest.mark.parametrize(
    "more",
    [{"is_gone": True}, {"host": "here", "pid": 1}],
    ids=["its process is known to be gone", "the same process"],
)
def test_a_restart_that_is_known_to_be_one_does_not_wait(more: dict[str, object]) -> None:
    job, first = job_with_worker()
    assert ask(job, 0.1, **more).generation > first.generation


@pytest.mark.parametrize(
    ("given", "refused"), [("", False), ("a", False), ("b", True)], ids=["none", "same", "other"]
)
def test_a_task_of_another_job_is_refused_at_once(given: str, refused: bool) -> None:
    job, first = job_with_worker("a")
    if not refused:
        assert ask(job, 0.1, is_gone=True, job=given).job == "a"
        return
    with pytest.raises(OtherJobError, match=r"belongs to job 'b', /job:chief/task:0 leads job 'a'"):
        ask(job, 0.1, is_gone=True, job=given)
    with pytest.raises(OtherJobError):
        job.heartbeat(Incarnation(W0, first.generation, given), TaskReport(), now=0.2)


def test_nobody_registers_before_the_chief_knows_its_job() -> None:
    job = Job([(W0, "w:1")], chief=CHIEF, lease_s=LEASE_S, now=0.0, name=None)
    with pytest.raises(PeerLostError, match="which job it leads"):
        job.register(W0, now=0.0)
