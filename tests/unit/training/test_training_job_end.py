"""Whether a final checkpoint is the end of the job that an evaluator follows."""

import pytest

from ropewalk.core.checkpoint.job_record import JobRecord
from ropewalk.core.task import Phase
from ropewalk.training.evaluator import goes_on

NONE = JobRecord()
FIRST = JobRecord(job="first", phase=Phase.DONE, global_step=7)
BEGUN = JobRecord(job="second", phase=Phase.RUNNING, global_step=7)
SECOND = JobRecord(job="second", phase=Phase.DONE, global_step=7)
AGAIN = JobRecord(job="first", phase=Phase.DONE, global_step=7, last_generation=3)


def decide(
    before: JobRecord, record: JobRecord, job_id: str, waits_s: float = 9, *, old: bool = True
) -> str | None:
    return goes_on(before, record, job_id=job_id, old=old, waits_s=waits_s)


@pytest.mark.parametrize(
    ("before", "record", "job_id"),
    [
        pytest.param(FIRST, FIRST, "first", id="it-was-over-before-its-evaluator-began"),
        pytest.param(FIRST, SECOND, "second", id="the-next-job-has-ended-without-a-step"),
        pytest.param(FIRST, SECOND, "", id="a-job-has-ended-since"),
        pytest.param(FIRST, AGAIN, "", id="the-same-job-was-started-again-and-has-ended"),
        pytest.param(BEGUN, SECOND, "", id="the-job-that-ran-has-ended"),
    ],
)
def test_the_record_says_that_it_is_the_end(
    before: JobRecord, record: JobRecord, job_id: str
) -> None:
    assert decide(before, record, job_id) is None


@pytest.mark.parametrize(
    ("before", "job_id"),
    [
        pytest.param(FIRST, "second", id="of-another-job"),
        pytest.param(FIRST, "", id="of-a-job-that-may-be-another"),
        pytest.param(NONE, "second", id="nothing-is-recorded"),
    ],
)
def test_a_job_that_has_not_begun_is_waited_for_as_long_as_tasks_wait(
    before: JobRecord, job_id: str
) -> None:
    why = decide(before, before, job_id)
    assert why == "a job that goes on from it, 9 s more (join_timeout_s)"
    assert decide(before, before, job_id, waits_s=0) is None


@pytest.mark.parametrize("before", [FIRST, BEGUN])
def test_a_job_that_has_begun_is_waited_for(before: JobRecord) -> None:
    assert decide(before, BEGUN, "", waits_s=-1) == (
        "job 'second', which has begun, to go on from it"
    )


def test_a_checkpoint_that_was_written_since_is_the_end() -> None:
    assert decide(NONE, BEGUN, "second", old=False) is None
