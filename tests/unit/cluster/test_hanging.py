"""Which task hangs, so that its launcher must kill it."""

import pytest

from ropewalk.cluster.supervision.decisions import Seen, whom_to_kill
from ropewalk.core.task import TaskId

CHIEF = TaskId("chief", 0)
PS = TaskId("ps", 1)
WORKER = TaskId("worker", 0)
EVALUATOR = TaskId("evaluator", 0)
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
