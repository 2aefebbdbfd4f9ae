"""What a launcher does when one of its tasks ends."""

from itertools import product

import pytest

from helpers.rows import row
from ropewalk.cluster.supervision.policy import End, JobNeeds, Verdict, on_exit, whom_to_blame
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.task import TaskId

CHIEF = TaskId("chief", 0)
PS = TaskId("ps", 1)
WORKER = TaskId("worker", 0)
EVALUATOR = TaskId("evaluator", 0)

GOES_ON = "goes on"
ENDS = "ends"


@pytest.mark.parametrize("task", [CHIEF, PS, WORKER, EVALUATOR], ids=lambda task: task.short)
def test_a_task_that_is_done_ends_nothing(task: TaskId) -> None:
    assert on_exit(End(task, 0), JobNeeds(CHIEF), stopping=False) == Verdict()


def test_ends_of_a_job_that_stops_are_expected() -> None:
    for code, task in product([1, 138, 143, -9, -15], [CHIEF, PS, WORKER, EVALUATOR]):
        with row(code, task):
            assert on_exit(End(task, code), JobNeeds(CHIEF), stopping=True) == Verdict()


@pytest.mark.parametrize(
    ("task", "code", "outcome"),
    [
        pytest.param(WORKER, -9, GOES_ON, id="worker killed"),
        pytest.param(WORKER, -11, GOES_ON, id="worker crashed"),
        pytest.param(WORKER, 137, GOES_ON, id="worker killed, as a shell tells it"),
        pytest.param(WORKER, ExitCode.DRAINED, GOES_ON, id="worker asked to leave"),
        pytest.param(WORKER, ExitCode.PEER_LOST, GOES_ON, id="worker lost a peer"),
        pytest.param(WORKER, ExitCode.PROGRAM_FAILED, ENDS, id="worker's program raised"),
        pytest.param(WORKER, ExitCode.INCOMPATIBLE, ENDS, id="worker of another model"),
        pytest.param(WORKER, 127, ENDS, id="last permanent code"),
        pytest.param(WORKER, 128, GOES_ON, id="first retryable code"),
        pytest.param(EVALUATOR, -9, GOES_ON, id="evaluator killed"),
        pytest.param(PS, -9, ENDS, id="ps killed"),
        pytest.param(PS, ExitCode.DRAINED, ENDS, id="ps asked to leave"),
        pytest.param(PS, ExitCode.LEFT_EARLY, ENDS, id="ps left early"),
        pytest.param(PS, ExitCode.ADDRESS_IN_USE, ENDS, id="ps without a port"),
        pytest.param(CHIEF, -9, ENDS, id="chief killed"),
        pytest.param(CHIEF, ExitCode.CHECKPOINT_UNUSABLE, ENDS, id="chief cannot resume"),
    ],
)
def test_nobody_goes_on_without_ps_or_chief(task: TaskId, code: int, outcome: str) -> None:
    verdict = on_exit(End(task, code), JobNeeds(CHIEF), stopping=False)
    assert (verdict.job_ends, verdict.failed) == ((outcome == ENDS,) * 2)
    assert task.short in verdict.message
    if outcome == ENDS:
        assert "the job goes on" not in verdict.message


@pytest.mark.parametrize("task", [WORKER, EVALUATOR], ids=lambda task: task.short)
def test_it_is_said_that_the_job_goes_on_without_a_killed_task(task: TaskId) -> None:
    message = on_exit(End(task, -9), JobNeeds(CHIEF), stopping=False).message
    assert message.endswith("the job goes on without it")


def test_a_worker_that_leads_counts_as_the_chief() -> None:
    verdict = on_exit(End(WORKER, -9), JobNeeds(WORKER), stopping=False)
    assert verdict.job_ends
    assert verdict.failed


@pytest.mark.parametrize(
    ("code", "words"),
    [
        pytest.param(-9, ["signal 9", "SIGKILL"], id="signal"),
        pytest.param(3, ["ended with 3", "port"], id="code of ours"),
        pytest.param(77, ["ended with 77", "not Ropewalk's"], id="foreign code"),
    ],
)
def test_the_message_tells_the_code_and_what_it_means(code: int, words: list[str]) -> None:
    message = on_exit(End(PS, code), JobNeeds(CHIEF), stopping=False).message
    assert all(word in message for word in words)


def test_an_evaluator_that_failed_is_the_jobs_failure_but_does_not_end_training() -> None:
    verdict = on_exit(End(EVALUATOR, 1), JobNeeds(CHIEF), stopping=False)
    assert verdict.failed
    assert not verdict.job_ends
    assert verdict.message.startswith("evaluator:0 ended with 1")


@pytest.mark.parametrize("code", [1, 77, 128, -9, ExitCode.DRAINED, ExitCode.PEER_LOST])
def test_in_sync_nobody_goes_on_without_another(code: int) -> None:
    verdict = on_exit(End(WORKER, code), JobNeeds(CHIEF, synchronous=True), stopping=False)
    assert verdict.job_ends
    assert verdict.failed


@pytest.mark.parametrize("code", [-9, 1])
def test_in_sync_too_training_goes_on_without_the_evaluator(code: int) -> None:
    verdict = on_exit(End(EVALUATOR, code), JobNeeds(CHIEF, synchronous=True), stopping=False)
    assert not verdict.job_ends
    assert verdict.failed == (code == 1)


# -- blame -----------------------------------------------------------------------------------

LOST_PEER, ASKED = int(ExitCode.PEER_LOST), int(ExitCode.DRAINED)
OF_ANOTHER = int(ExitCode.JOB_FAILED)


@pytest.mark.parametrize(
    ("codes", "blamed"),
    [
        pytest.param([1, -9, 1], 0, id="the first one"),
        pytest.param([-9, 1], 0, id="the first one, though a signal killed it"),
        pytest.param([LOST_PEER, 1], 1, id="an error rather than a lost peer"),
        pytest.param([ASKED, 7], 1, id="an error rather than a request to stop"),
        pytest.param([LOST_PEER, -9], 1, id="a killed task rather than one that lost it"),
        pytest.param([LOST_PEER, 137], 1, id="a killed task, as a shell shows it"),
        pytest.param([LOST_PEER, -9, 1], 2, id="an error rather than a killed task"),
        pytest.param([OF_ANOTHER, LOST_PEER, 4], 2, id="the task for which the chief ended"),
        pytest.param([OF_ANOTHER, LOST_PEER], 0, id="the chief, if that task is not known"),
        pytest.param([LOST_PEER, ASKED], 0, id="the first of those that followed"),
    ],
)
def test_who_only_followed_is_blamed_if_no_other_task_failed(codes: list[int], blamed: int) -> None:
    ends = [End(TaskId("worker", index), code) for index, code in enumerate(codes)]
    assert whom_to_blame(ends) == ends[blamed]


def test_a_launcher_may_know_more_than_the_code_says() -> None:
    assert End(PS, -9, "ps:1 was lost with its node").sentence == "ps:1 was lost with its node"
    assert End(PS, -9).sentence == "ps:1 ended with signal 9: killed by SIGKILL"
