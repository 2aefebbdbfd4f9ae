"""The chief's decisions about a cut."""

from ropewalk.annexes.moments import decisions
from ropewalk.annexes.moments.decisions import CutPhase, JobCut
from ropewalk.cluster.job.job import Job
from ropewalk.core.report import TaskEnd, TaskReport
from ropewalk.core.task import Incarnation, Outcome, TaskId

CHIEF, W0, W1 = (
    Incarnation(TaskId("chief", 0), 1),
    Incarnation(TaskId("worker", 0), 2),
    Incarnation(TaskId("worker", 1), 3),
)
WORKERS = frozenset({CHIEF, W0})


def _joined() -> JobCut:
    cut = decisions.announced(7, WORKERS, [0, 1])
    for who in WORKERS:
        assert cut.phase is CutPhase.JOINING
        cut = decisions.joined(cut, who)
    return cut


def test_a_cut_goes_through_its_steps_in_order() -> None:
    cut = _joined()
    assert cut.phase is CutPhase.BEGINNING
    cut = decisions.began(cut, 0, WORKERS)
    assert cut.phase is CutPhase.BEGINNING
    assert decisions.missing(cut) == "share 1"
    cut = decisions.began(cut, 1, WORKERS)
    assert cut.phase is CutPhase.MARKING
    cut = decisions.taken(decisions.taken(cut, 1), 0)
    assert cut.phase is CutPhase.TAKEN


def test_it_names_the_workers_that_have_not_joined() -> None:
    cut = decisions.joined(decisions.announced(7, WORKERS, [0]), W0)
    assert decisions.missing(cut) == "chief:0"


def test_a_worker_that_came_or_left_makes_it_void() -> None:
    came = decisions.began(_joined(), 0, WORKERS | {W1})
    assert (came.phase, came.void_because) == (CutPhase.VOID, "worker:1 came or left")
    left = decisions.still_of(_joined(), frozenset({CHIEF}))
    assert left.void_because == "worker:0 came or left"
    restarted = decisions.still_of(_joined(), frozenset({CHIEF, Incarnation(W0.task, 9)}))
    assert restarted.phase is CutPhase.VOID


def test_without_workers_the_ps_begin_at_once() -> None:
    assert decisions.announced(7, frozenset(), [0]).phase is CutPhase.BEGINNING


def test_what_comes_late_changes_nothing() -> None:
    void = decisions.voided(_joined(), "why")
    assert decisions.joined(void, W1) == void
    assert decisions.began(void, 0, WORKERS) == void
    assert decisions.taken(void, 0) == void
    assert decisions.voided(void, "another reason") == void


def test_those_push_that_are_alive_and_run_the_program() -> None:
    job = Job([(TaskId("ps", 0), "")], chief=CHIEF.task, lease_s=10, now=0, name="")
    lives = [job.register(task, now=0) for task in (CHIEF.task, W0.task, TaskId("evaluator", 0))]
    assert decisions.pushing(job) == frozenset(lives[:2])
    job.finish(lives[1], TaskEnd(Outcome.DONE), TaskReport(), now=1)
    assert decisions.pushing(job) == frozenset(lives[:1])
