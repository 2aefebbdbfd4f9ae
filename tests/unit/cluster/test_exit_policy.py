"""What a launcher does when one of its tasks ends."""

import pytest

from windlass.cluster.exit_policy import Seen, Verdict, on_exit, whom_to_kill
from windlass.core.exit_codes import ExitCode
from windlass.core.task import TaskId

CHIEF = TaskId("chief", 0)
PS = TaskId("ps", 1)
WORKER = TaskId("worker", 0)
EVALUATOR = TaskId("evaluator", 0)

GOES_ON = "goes on"
ENDS = "ends"


@pytest.mark.parametrize("task", [CHIEF, PS, WORKER, EVALUATOR], ids=lambda task: task.short)
def test_a_task_that_is_done_ends_nothing(task: TaskId) -> None:
    assert on_exit(task, 0, chief=CHIEF, stopping=False) == Verdict()


@pytest.mark.parametrize("code", [1, 138, 143, -9, -15])
@pytest.mark.parametrize("task", [CHIEF, PS, WORKER, EVALUATOR], ids=lambda task: task.short)
def test_ends_of_a_job_that_stops_are_expected(task: TaskId, code: int) -> None:
    assert on_exit(task, code, chief=CHIEF, stopping=True) == Verdict()


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
        pytest.param(PS, ExitCode.ADDRESS_IN_USE, ENDS, id="ps without a port"),
        pytest.param(CHIEF, -9, ENDS, id="chief killed"),
        pytest.param(CHIEF, ExitCode.CHECKPOINT_UNUSABLE, ENDS, id="chief cannot resume"),
    ],
)
def test_nobody_goes_on_without_ps_or_chief(task: TaskId, code: int, outcome: str) -> None:
    verdict = on_exit(task, code, chief=CHIEF, stopping=False)
    assert (verdict.job_ends, verdict.failed) == ((outcome == ENDS,) * 2)
    assert task.short in verdict.message
    if outcome == ENDS:
        assert "the job goes on" not in verdict.message


@pytest.mark.parametrize("task", [WORKER, EVALUATOR], ids=lambda task: task.short)
def test_it_is_said_that_the_job_goes_on_without_a_killed_task(task: TaskId) -> None:
    message = on_exit(task, -9, chief=CHIEF, stopping=False).message
    assert message.endswith("the job goes on without it")


def test_a_worker_that_leads_counts_as_the_chief() -> None:
    verdict = on_exit(WORKER, -9, chief=WORKER, stopping=False)
    assert verdict.job_ends
    assert verdict.failed


@pytest.mark.parametrize(
    ("code", "words"),
    [
        pytest.param(-9, ["signal 9", "SIGKILL"], id="signal"),
        pytest.param(3, ["ended with 3", "port"], id="code of ours"),
        pytest.param(77, ["ended with 77", "not Windlass's"], id="foreign code"),
    ],
)
def test_the_message_tells_the_code_and_what_it_means(code: int, words: list[str]) -> None:
    message = on_exit(PS, code, chief=CHIEF, stopping=False).message
    assert all(word in message for word in words)


def test_an_evaluator_that_failed_is_the_jobs_failure_but_does_not_end_training() -> None:
    verdict = on_exit(EVALUATOR, 1, chief=CHIEF, stopping=False)
    assert verdict.failed
    assert not verdict.job_ends
    assert verdict.message.startswith("evaluator:0 ended with 1")


@pytest.mark.parametrize("code", [1, 77, 128, -9, ExitCode.DRAINED, ExitCode.PEER_LOST])
def test_in_sync_nobody_goes_on_without_another(code: int) -> None:
    verdict = on_exit(WORKER, code, chief=CHIEF, stopping=False, synchronous=True)
    assert verdict.job_ends
    assert verdict.failed


@pytest.mark.parametrize("code", [-9, 1])
def test_in_sync_too_training_goes_on_without_the_evaluator(code: int) -> None:
    verdict = on_exit(EVALUATOR, code, chief=CHIEF, stopping=False, synchronous=True)
    assert not verdict.job_ends
    assert verdict.failed == (code == 1)


# -- hanging ---------------------------------------------------------------------------------

W1 = TaskId("worker", 1)
RUNS = Seen()


def at(since: float, code: int | None = None) -> Seen:
    """A task that ended then, or without a code has been stopped since then."""
    return Seen(code, since)


@pytest.mark.parametrize(
    ("chief", "others", "answered", "killed_at"),
    [
        pytest.param(at(10.0), {}, 10.0, 25.0, id="chief stopped"),
        pytest.param(at(10.0), {WORKER: at(12.0, -9)}, 10.0, 25.0, id="chief stopped, worker gone"),
        pytest.param(RUNS, {WORKER: at(30.0, 138)}, 5.0, 45.0, id="silent chief lost by a worker"),
        pytest.param(RUNS, {PS: at(30.0, 138)}, 5.0, 45.0, id="silent chief lost by a ps"),
        pytest.param(RUNS, {WORKER: at(9.0, 140)}, 5.0, 24.0, id="never joined"),
        pytest.param(
            RUNS, {WORKER: at(30.0, 138), W1: at(33.0, 138)}, 5.0, 45.0, id="the first one counts"
        ),
        pytest.param(RUNS, {WORKER: at(9.0, 138)}, 30.0, 45.0, id="it answered meanwhile"),
        pytest.param(
            RUNS, {WORKER: at(9.0, -9), W1: at(11.0, 137)}, 5.0, 26.0, id="all workers killed"
        ),
    ],
)
def test_a_chief_that_hangs_is_killed_after_a_lease_and_a_grace(
    chief: Seen, others: dict[TaskId, Seen], answered: float, killed_at: float
) -> None:
    tasks = {PS: RUNS, CHIEF: chief, WORKER: RUNS, W1: RUNS, EVALUATOR: RUNS} | others

    def found(now: float) -> tuple[TaskId, str] | None:
        return whom_to_kill(tasks, chief=CHIEF, chief_answered=answered, patience_s=15.0, now=now)

    assert found(killed_at - 0.1) is None
    verdict = found(killed_at)
    assert verdict is not None
    assert verdict[0] == CHIEF
    assert "chief:0 has" in verdict[1]


@pytest.mark.parametrize(
    ("chief", "others"),
    [
        pytest.param(RUNS, {}, id="it only does not answer: it may compute"),
        pytest.param(RUNS, {WORKER: at(5.0, -9)}, id="a worker of two was killed"),
        pytest.param(RUNS, {WORKER: at(5.0, 0), W1: at(6.0, 0)}, id="all are done, it leaves"),
        pytest.param(RUNS, {EVALUATOR: at(5.0, 138)}, id="nobody needs the evaluator"),
        pytest.param(RUNS, {WORKER: at(5.0), PS: at(5.0)}, id="a chief notices who hangs"),
        pytest.param(RUNS, {EVALUATOR: at(5.0)}, id="an evaluator that is stopped meanwhile"),
    ],
)
def test_whom_the_chief_leads_and_a_chief_that_may_compute_are_left_alone(
    chief: Seen, others: dict[TaskId, Seen]
) -> None:
    tasks = {PS: RUNS, CHIEF: chief, WORKER: RUNS, W1: RUNS, EVALUATOR: RUNS} | others
    assert whom_to_kill(tasks, chief=CHIEF, chief_answered=0, patience_s=15, now=9999) is None


def test_after_the_chief_whoever_is_stopped_is_killed_and_who_works_is_not() -> None:
    tasks = {CHIEF: at(5.0, 0), WORKER: at(5.0, 0), EVALUATOR: RUNS}
    assert whom_to_kill(tasks, chief=CHIEF, chief_answered=4, patience_s=15, now=9999) is None
    tasks[EVALUATOR] = at(20.0)
    found = whom_to_kill(tasks, chief=CHIEF, chief_answered=4, patience_s=15, now=35.0)
    assert found == (EVALUATOR, "evaluator:0 has been stopped (SIGSTOP) for 15 s")


def test_a_worker_that_leads_and_hangs_is_killed_as_a_chief() -> None:
    tasks = {PS: RUNS, WORKER: RUNS, W1: at(30.0, 138)}
    found = whom_to_kill(tasks, chief=WORKER, chief_answered=5, patience_s=15, now=45)
    assert found is not None
    assert found[0] == WORKER
