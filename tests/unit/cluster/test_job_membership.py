"""The state of a job, as plain histories: who is there, who is lost, and how it ends."""

import pytest

from ropewalk.cluster.job.job import Job
from ropewalk.cluster.liveness import Evidence
from ropewalk.core.errors import FencedError, RefusedError, TooManyWorkersError
from ropewalk.core.report import PsCounters, TaskEnd, TaskReport
from ropewalk.core.task import LONGEST_FIRST_STEP_S, Incarnation, Outcome, Phase, State, TaskId
from ropewalk.core.wire.bounds import MAX_GENERATION

CHIEF, EVALUATOR = TaskId("chief", 0), TaskId("evaluator", 0)
PS = TaskId("ps", 0)
W0, W1 = TaskId("worker", 0), TaskId("worker", 1)
TASKS = (CHIEF, PS, W0, W1, EVALUATOR)
REPORT = TaskReport()
THERE = Evidence.THERE
LEASE = 10.0


def _job(*tasks: TaskId, after: int | None = None) -> tuple[Job, dict[TaskId, Incarnation]]:
    """A job of ``tasks`` (all by default) that registered at time 0."""
    job = Job(
        [(task, f"{task.type}{task.index}:1") for task in TASKS], chief=CHIEF, lease_s=LEASE, now=0
    )
    if after is not None:
        job.identify("digits", after=after)
    lives = {}
    for task in tasks or TASKS:
        if task.type == "ps":
            job.ps_answered(task, 7, PsCounters(), now=0)
        else:
            lives[task] = job.register(task, now=0)
    return job, lives


def _beat(job: Job, *lives: Incarnation, now: float) -> None:
    for who in lives:
        job.heartbeat(who, REPORT, now=now)


def test_everybody_is_missing_until_they_come() -> None:
    job, _ = _job(CHIEF, W0)
    missing = [task for task, member in job.members.items() if member.state is State.MISSING]
    assert missing == [PS, W1, EVALUATOR]
    job.register(W1, now=13.0)
    assert (job.members[W1].state, job.members[W1].since) == (State.ALIVE, 13.0)


def test_each_registration_has_a_higher_generation_than_all_before() -> None:
    job, lives = _job()
    given = [who.generation for who in lives.values()]
    given += [job.register(W0, now=1).generation for _ in range(3)]
    assert given == sorted(set(given))


def test_a_restarted_chief_repeats_no_generation_though_some_were_shown_to_nobody_else() -> None:
    _, lives = _job(CHIEF, W0, W1, after=0)
    known = lives[CHIEF].generation  # to a ps; the workers' are not
    later, again = _job(CHIEF, after=known)
    assert again[CHIEF].generation > max(who.generation for who in lives.values())
    assert later.register(W0, now=0).generation > again[CHIEF].generation


def test_an_older_generation_of_a_task_is_fenced_by_both_numbers() -> None:
    job, lives = _job()
    newer = job.register(W0, now=1)
    with pytest.raises(FencedError) as caught:
        job.heartbeat(lives[W0], REPORT, now=2)
    assert caught.value.fields == {
        "task": str(W0),
        "generation": str(lives[W0].generation),
        "current": str(newer.generation),
    }
    with pytest.raises(FencedError, match=f"superseded by generation {newer.generation}"):
        job.finish(lives[W0], TaskEnd(Outcome.DONE), REPORT, now=2)
    assert job.heartbeat(newer, REPORT, now=2) is Phase.RUNNING


def test_a_new_generation_starts_with_a_clean_report_at_its_new_address() -> None:
    job, lives = _job()
    job.heartbeat(lives[W0], TaskReport(steps=5), now=1)
    job.register(W0, now=2, host="node-2", pid=42, is_gone=True)
    member = job.members[W0]
    assert (member.report, member.host, member.pid) == (REPORT, "node-2", 42)
    assert member.address == "worker0:1"
    job.register(W0, now=3, address="w:9", is_gone=True)
    assert member.address == "w:9"


def test_a_task_not_in_the_spec_may_join() -> None:
    job, _ = _job()
    who = job.register(TaskId("worker", 9), now=1, address="w9:1")
    assert job.heartbeat(who, REPORT, now=2) is Phase.RUNNING
    assert who.task in job.members.waited_for()


def test_evaluators_keep_no_worker_out() -> None:
    job = Job([(CHIEF, "c:1")], chief=CHIEF, lease_s=LEASE, now=0, max_dynamic=16)
    for index in range(2):
        job.register(TaskId("evaluator", index), now=0)
    with pytest.raises(TooManyWorkersError, match="run fewer evaluators"):
        job.register(TaskId("evaluator", 2), now=0)
    for index in range(14):
        job.register(TaskId("worker", index), now=0)
    with pytest.raises(TooManyWorkersError, match="run fewer workers"):
        job.register(TaskId("worker", 14), now=0)


def test_a_task_is_lost_only_after_its_whole_lease() -> None:
    job, lives = _job()
    everybody_else = [who for task, who in lives.items() if task != W0]
    _beat(job, *everybody_else, now=LEASE)
    job.ps_answered(PS, 7, PsCounters(), now=LEASE)
    assert job.expire(now=LEASE) == []
    assert job.expire(now=LEASE + 0.1) == [W0]
    assert job.expire(now=LEASE + 0.2) == []  # told once
    assert job.members[W0].state is State.LOST
    assert job.members[W0].detail == "no sign of life for 10.1 s"
    assert job.members[W0].since == pytest.approx(LEASE + 0.1)


def test_a_silent_task_whose_process_is_there_is_late_and_not_lost() -> None:
    job, lives = _job(CHIEF, W0, W1)
    _beat(job, lives[CHIEF], lives[W1], now=11)
    assert [member.task for member in job.silent(now=12)] == [W0]
    assert job.expire(now=12, evidence={W0: THERE}, late_s=300) == []
    member = job.members[W0]
    assert (member.state, member.is_late) == (State.ALIVE, True)
    assert member.detail == "no sign of life for 12.0 s, but its process is there"
    assert W0 in job.members.waited_for()
    _beat(job, lives[W0], now=38)
    assert (member.state, member.detail, member.is_late) == (State.ALIVE, "", False)
    assert job.expire(now=38 + LEASE + 0.1, evidence={}) == [CHIEF, W0, W1]


def test_a_task_is_late_for_a_bounded_time_and_not_at_all_if_it_only_serves() -> None:
    job, _ = _job(CHIEF)
    job.register(W0, now=0)
    job.register(W1, now=0, serves=True)
    assert job.expire(now=11, evidence=dict.fromkeys((CHIEF, W0, W1), THERE), late_s=300) == [W1]
    there = dict.fromkeys((CHIEF, W0), THERE)
    assert job.expire(now=301, evidence=there, late_s=300) == [CHIEF, W0]


@pytest.mark.parametrize("evidence", [each for each in Evidence if each.says_gone])
def test_a_task_that_is_known_to_be_gone_is_lost_before_its_lease(evidence: Evidence) -> None:
    job = Job([(CHIEF, "c:1"), (W0, "w:1")], chief=CHIEF, lease_s=LEASE, now=0, shortest_lease_s=1)
    who = job.register(W0, now=0)
    for beat in range(1, 13):
        _beat(job, who, now=beat / 2)
    assert job.expire(now=6.9, evidence={W0: evidence}) == []
    assert job.expire(now=7.1) == []  # nothing says that it is gone
    assert job.expire(now=7.1, evidence={W0: evidence}) == [W0]
    assert job.members[W0].detail == f"no sign of life for 1.1 s, and {evidence}"
    _beat(job, who, now=8)  # a process that a signal had stopped goes on
    assert (job.members[W0].state, job.members[W0].detail) == (State.ALIVE, "came back")


def test_a_new_process_has_no_rhythm_yet_and_its_whole_lease() -> None:
    job = Job([(CHIEF, "c:1"), (W0, "w:1")], chief=CHIEF, lease_s=LEASE, now=0, shortest_lease_s=1)
    for beat in range(12):
        _beat(job, job.register(W0, now=beat / 2), now=beat / 2)
    assert job.expire(now=12, evidence={W0: Evidence.ENDED}) == []


def test_nobody_was_silent_while_the_chief_did_not_run() -> None:
    job, lives = _job(CHIEF, W0, PS)
    _beat(job, lives[W0], now=599)
    job.skip(600, now=601)
    assert job.members[W0].heard == 601  # and not a moment that is to come
    assert job.expire(now=610) == []
    assert set(job.expire(now=611.5)) == {CHIEF, W0, PS}


def test_a_lost_worker_does_not_fail_the_job_and_may_come_back() -> None:
    job, lives = _job(CHIEF, W0, W1)
    job.expire(now=11)
    assert job.phase is Phase.RUNNING
    assert job.heartbeat(lives[W0], REPORT, now=12) is Phase.RUNNING
    member = job.members[W0]
    assert (member.state, member.detail, member.since) == (State.ALIVE, "came back", 12)


def test_a_lost_ps_fails_the_job_by_name_and_address() -> None:
    job, _ = _job(PS)
    assert job.expire(now=11.0) == [PS]
    assert job.phase is Phase.FAILED
    assert job.reason == (
        "/job:ps/task:0 (ps0:1) was lost: no sign of life for 11.0 s. "
        "Lost since the last checkpoint: what was pushed"
    )


def test_a_ps_that_answers_is_kept() -> None:
    job, _ = _job(PS)
    counters = PsCounters(pushes=3)
    for now in (5, 14, 23):
        job.ps_answered(PS, 7, counters, now=now)
        assert job.expire(now=now) == []
    assert (job.phase, job.members[PS].counters) == (Phase.RUNNING, counters)


def test_a_ps_that_restarted_lost_its_variables_and_fails_the_job() -> None:
    job, _ = _job(PS)
    job.ps_answered(PS, 8, PsCounters(), now=1)
    assert (job.phase, job.reason) == (
        Phase.FAILED,
        "/job:ps/task:0 restarted and lost its variables. Lost since the last checkpoint: what was "
        "pushed",
    )


def test_a_ps_that_restarted_stays_lost_however_often_it_answers() -> None:
    """Else the job's last checkpoint would be made without its variables."""
    job, _ = _job(PS)
    for now in (1, 2):
        job.ps_answered(PS, 8, PsCounters(pushes=1), now=now)
        assert job.members.in_state(State.LOST) == {PS}
    assert job.members.processes == {PS: 7}


def test_a_job_that_loses_variables_says_how_many_steps_are_lost() -> None:
    job, _ = _job(PS)
    job.ps_answered(PS, 7, PsCounters(pushes=50, global_step=50), now=1)
    job.saved_step = 19
    job.expire(now=12.0)
    lost = "no sign of life for 11.0 s. Lost since the last checkpoint: 31 steps"
    assert job.reason.endswith(lost)


def test_it_says_so_once_and_also_if_a_program_has_noticed_it_first() -> None:
    job, lives = _job(CHIEF, PS)
    job.ps_answered(PS, 7, PsCounters(pushes=50, global_step=50), now=1)
    job.finish(lives[CHIEF], TaskEnd(Outcome.LEFT, "ps:0 restarted"), REPORT, now=1)
    for now in (2, 3):
        job.ps_answered(PS, 8, PsCounters(), now=now)
    assert job.reason == (
        "/job:chief/task:0 left before the work was complete: ps:0 restarted. "
        "Lost since the last checkpoint: 50 steps"
    )


def test_a_restarted_chief_knows_that_a_ps_has_restarted_meanwhile() -> None:
    job, _ = _job(CHIEF)
    job.expect_processes({PS: 7})
    job.ps_answered(PS, 8, PsCounters(), now=1)
    assert (job.phase, job.members.in_state(State.LOST)) == (Phase.FAILED, {PS})


@pytest.mark.parametrize(
    ("now", "lost"),
    [
        pytest.param([7, 17], [], id="all have kept them"),
        pytest.param([8, 18], [], id="all are new: from the last checkpoint"),
        pytest.param([7, 18], [1], id="the second is new"),
        pytest.param([8, 17], [0], id="the first is new"),
    ],
)
def test_a_restarted_chief_that_no_ps_had_answered_in_time_mixes_no_variables(
    now: list[int], lost: list[int]
) -> None:
    servers = [TaskId("ps", index) for index in range(2)]
    job = Job([(task, "") for task in (CHIEF, *servers)], chief=CHIEF, lease_s=LEASE, now=0)
    job.expect_processes(dict(zip(servers, (7, 17), strict=True)), if_one_answers=True)
    for when in (1, 2):
        for ps, process in zip(servers, now, strict=True):
            job.ps_answered(ps, process, PsCounters(), now=when)
    assert job.phase is (Phase.FAILED if lost else Phase.RUNNING)
    assert job.members.in_state(State.LOST) == {servers[index] for index in lost}


def test_a_ps_that_refuses_fails_the_job_with_its_reason() -> None:
    job, _ = _job()
    job.ps_refused(PS, "another chief holds it", now=1)
    assert (job.phase, job.reason) == (Phase.FAILED, "/job:ps/task:0: another chief holds it")
    member = job.members[PS]
    assert (member.state, member.detail) == (State.FAILED, "another chief holds it")


def test_a_worker_that_fails_fails_the_job_by_name() -> None:
    job, lives = _job()
    phase = job.finish(lives[W1], TaskEnd(Outcome.FAILED, "KeyError: 'x'"), REPORT, now=3)
    assert phase is job.phase is Phase.FAILED
    assert job.reason == "/job:worker/task:1 failed: KeyError: 'x'"
    assert job.members[W1].state is State.FAILED


@pytest.mark.parametrize(
    ("task", "outcome", "code", "for_good"),
    [
        (W1, Outcome.FAILED, 1, True),
        (W1, Outcome.FAILED, 0, True),
        (W1, Outcome.FAILED, 200, False),
        (W1, Outcome.LEFT, 138, False),
        (EVALUATOR, Outcome.FAILED, 1, False),
    ],
    ids=["by itself", "does not say", "asks for a restart", "lost a peer", "the evaluator"],
)
def test_a_job_has_failed_for_good_by_a_task_that_would_fail_again(
    task: TaskId, outcome: Outcome, code: int, *, for_good: bool
) -> None:
    job, lives = _job()
    job.finish(lives[task], TaskEnd(outcome, "why", code), REPORT, now=3)
    assert job.has_failed_for_good is for_good


def test_an_evaluator_that_fails_does_not() -> None:
    job, lives = _job()
    assert (
        job.finish(lives[EVALUATOR], TaskEnd(Outcome.FAILED, "oops"), REPORT, now=3)
        is Phase.RUNNING
    )
    assert job.members[EVALUATOR].state is State.FAILED


def test_what_a_job_lacks_is_its_reason_while_it_runs_and_waits_for_nothing() -> None:
    job, _ = _job()
    job.caveat = "nothing is kept"
    job.wait_for("waiting for worker:1")
    assert job.reason == "waiting for worker:1"
    job.wait_for("")
    assert job.reason == "nothing is kept"
    job.complete()
    assert job.reason == ""


def test_the_first_reason_stays() -> None:
    job, lives = _job()
    job.fail("first")
    job.fail("second")
    job.finish(lives[W0], TaskEnd(Outcome.FAILED, "third"), REPORT, now=3)
    job.stop("fourth")
    job.complete()
    assert (job.phase, job.reason) == (Phase.FAILED, "first")


def test_a_finish_that_is_repeated_changes_nothing() -> None:
    job, lives = _job()
    job.finish(lives[W0], TaskEnd(Outcome.DONE, "all steps"), REPORT, now=3)
    job.finish(lives[W0], TaskEnd(Outcome.DONE, "all steps"), REPORT, now=9)
    member = job.members[W0]
    assert (member.state, member.since, member.detail) == (State.DONE, 3, "all steps")


def test_the_last_checkpoint_waits_for_workers_that_still_work_and_nobody_else() -> None:
    job, lives = _job()
    assert job.members.waited_for() == [W0, W1]  # not the chief, the ps, the evaluator
    job.finish(lives[W1], TaskEnd(Outcome.DONE), REPORT, now=1)
    assert job.members.waited_for() == [W0]
    _beat(job, lives[W0], now=5)
    job.ps_answered(PS, 7, PsCounters(), now=5)
    job.expire(now=15.5)
    assert job.members.waited_for() == []  # lost
    _beat(job, lives[W0], now=16)
    assert job.members.waited_for() == [W0]
    job.finish(lives[W0], TaskEnd(Outcome.LEFT, "drained"), REPORT, now=17)
    assert job.members.waited_for() == []


def test_workers_that_never_came_are_not_waited_for() -> None:
    job, _ = _job(CHIEF, W1)
    assert job.members.waited_for() == [W1]


def test_workers_that_have_not_come_are_told_from_those_that_left() -> None:
    job, lives = _job(CHIEF, W1)
    assert job.members.not_registered() == [W0]  # not the ps nor the evaluator
    job.expire(now=100)
    assert job.members.not_registered() == [W0]
    job.register(W0, now=101)
    assert job.members.not_registered() == []
    job.finish(lives[W1], TaskEnd(Outcome.DONE), REPORT, now=102)
    assert job.members.not_registered() == []


def test_a_job_that_runs_to_its_end_is_done() -> None:
    job, _ = _job()
    job.complete()
    assert (job.phase, job.reason) == (Phase.DONE, "")


@pytest.mark.parametrize(
    ("ends", "steps", "done"),
    [
        pytest.param({}, 5, False, id="none came, as after a long absence of the chief"),
        pytest.param({W0: None, W1: None}, 5, False, id="all are lost"),
        pytest.param({W0: (Outcome.LEFT, 137), W1: None}, 5, False, id="killed, and lost"),
        pytest.param({W0: (Outcome.LEFT, 138)}, 5, False, id="one gave up the chief"),
        pytest.param({W0: (Outcome.LEFT, 143)}, 5, True, id="one was asked to leave"),
        pytest.param({W0: (Outcome.DONE, 0), W1: None}, 5, True, id="one is done"),
        pytest.param({}, 0, True, id="the chief has made no step either"),
    ],
)
def test_a_chief_that_has_made_its_steps_without_any_worker_has_not_done_the_job(
    ends: dict[TaskId, tuple[Outcome, int] | None], steps: int, *, done: bool
) -> None:
    job, lives = _job(CHIEF, *ends)
    job.heartbeat(lives[CHIEF], TaskReport(steps=steps), now=LEASE)
    for task, end in ends.items():
        if end is not None:
            job.finish(lives[task], TaskEnd(end[0], "why", end[1]), REPORT, now=LEASE)
    job.expire(now=LEASE + 1)
    why = job.why_not_done()
    assert bool(why) is not done
    assert done or "none of 2 workers is left to have a part in it: worker:0" in why


def test_a_job_that_is_asked_to_stop_needs_no_worker_any_more() -> None:
    job, lives = _job(CHIEF, W0)
    job.heartbeat(lives[CHIEF], TaskReport(steps=1), now=1)
    job.stop("enough")
    job.finish(lives[W0], TaskEnd(Outcome.LEFT, "the job is stopping", 138), REPORT, now=1)
    assert not job.why_not_done()


def test_a_worker_that_comes_back_has_a_part_in_the_job_again() -> None:
    job, lives = _job(CHIEF, W0)
    job.heartbeat(lives[CHIEF], TaskReport(steps=1), now=1)
    job.finish(lives[W0], TaskEnd(Outcome.LEFT, "killed", 137), REPORT, now=1)
    assert job.why_not_done()
    job.register(W0, now=2)
    assert not job.why_not_done()


def test_a_job_whose_worker_leads_needs_no_other() -> None:
    job = Job([(W0, "a:1"), (W1, "b:1")], chief=W0, lease_s=LEASE, now=0)
    job.heartbeat(job.register(W0, now=0), TaskReport(steps=1), now=1)
    assert not job.why_not_done()


def test_a_job_that_was_asked_to_stop_ends_stopped_with_the_reason() -> None:
    job, lives = _job()
    job.stop("ropewalk stop")
    assert job.heartbeat(lives[W0], REPORT, now=4) is Phase.STOPPING
    job.stop("again")
    job.complete()
    assert (job.phase, job.reason) == (Phase.STOPPED, "ropewalk stop")


def test_a_job_that_is_stopping_may_still_fail() -> None:
    job, _ = _job()
    job.stop("ropewalk stop")
    job.fail("a ps was lost")
    assert (job.phase, job.reason) == (Phase.FAILED, "a ps was lost")


def test_everybody_alive_hears_of_the_end_before_the_chief_leaves() -> None:
    job, lives = _job()
    job.finish(lives[W1], TaskEnd(Outcome.DONE), REPORT, now=1)
    job.complete()
    assert job.uninformed() == [W0, W1, EVALUATOR]
    assert job.heartbeat(lives[W1], REPORT, now=3) is Phase.DONE
    assert job.uninformed() == [W0, W1, EVALUATOR], "an answer may be lost on its way"
    for task in (W1, EVALUATOR):
        job.heartbeat(lives[task], REPORT, now=3, knows=Phase.DONE)
    assert job.uninformed() == [W0]
    job.finish(lives[W0], TaskEnd(Outcome.LEFT), REPORT, now=4)
    assert job.uninformed() == []


def test_nobody_waits_for_the_lost_to_hear_of_the_end() -> None:
    job, _ = _job(CHIEF, W0)
    job.expire(now=11)
    job.complete()
    assert job.uninformed() == []


def test_the_steps_of_a_job_are_the_furthest_reported() -> None:
    job, lives = _job(CHIEF, W0, W1)
    job.heartbeat(lives[W0], TaskReport(global_step=7, total_steps=100), now=1)
    job.heartbeat(lives[W1], TaskReport(global_step=9), now=1)
    assert (job.members.global_step, job.members.total_steps) == (9, 100)
    job.ps_answered(PS, 7, PsCounters(global_step=8), now=2)  # who counts them knows best
    assert job.members.global_step == 8
    empty = Job([], chief=CHIEF, lease_s=LEASE, now=0)
    assert (empty.members.global_step, empty.members.total_steps) == (0, 0)


def test_a_restarted_chief_takes_back_a_task_that_was_there_before() -> None:
    job, _ = _job(CHIEF)
    who = Incarnation(W0, 1234)
    assert job.heartbeat(who, TaskReport(steps=8), now=30) is Phase.RUNNING
    member = job.members[W0]
    assert (member.state, member.generation, member.report.steps) == (State.ALIVE, 1234, 8)
    assert job.members.waited_for() == [W0]
    # And the next generation is newer still.
    assert job.register(W0, now=31).generation > 1234


def test_a_task_taken_back_is_alive_since_it_was_heard_of() -> None:
    job, _ = _job(CHIEF)
    job.heartbeat(Incarnation(W0, 1234), REPORT, now=30)
    assert job.members[W0].since == 30


def test_a_generation_that_no_chief_gave_out_is_refused_and_uses_none_up() -> None:
    job, _ = _job(CHIEF, after=7)
    with pytest.raises(RefusedError, match="no chief of this job gave out that generation"):
        job.heartbeat(Incarnation(W0, MAX_GENERATION), REPORT, now=1)
    assert job.register(W0, now=2).generation < MAX_GENERATION


def test_a_restarted_chief_takes_back_a_dynamic_worker_that_no_spec_lists() -> None:
    job, _ = _job(CHIEF)
    who = Incarnation(TaskId("worker", 9), 1234)
    assert job.heartbeat(who, REPORT, now=30) is Phase.RUNNING
    assert who.task in job.members.waited_for()


def test_a_chief_that_leaves_before_the_end_has_not_completed_the_job() -> None:
    job, lives = _job()
    job.finish(lives[CHIEF], TaskEnd(Outcome.LEFT, "ps:1 did not answer"), REPORT, now=1)
    job.complete()
    assert job.phase is Phase.FAILED
    assert str(CHIEF) in job.reason
    assert "ps:1 did not answer" in job.reason


def test_a_chief_that_leaves_a_stopping_job_has_it_stopped() -> None:
    job, lives = _job()
    job.stop("SIGTERM")
    job.finish(lives[CHIEF], TaskEnd(Outcome.LEFT, "asked to stop"), REPORT, now=2)
    job.complete()
    assert job.phase is Phase.STOPPED


def _held(job: Job, lives: dict[TaskId, Incarnation], now: float = 1) -> list[TaskId]:
    return [task for task in (CHIEF, W0, W1) if job.is_held(lives[task], now)]


def test_a_job_that_begins_together_holds_who_has_made_a_step_until_all_have() -> None:
    job, lives = _job()
    assert not _held(job, lives), "unless it is said"
    job.holds_first_steps = True
    assert _held(job, lives) == [CHIEF, W0, W1]
    job.heartbeat(lives[CHIEF], TaskReport(steps=1), now=1)
    job.heartbeat(lives[W0], TaskReport(steps=1), now=1)
    assert job.yet_to_begin(CHIEF, 1) == [W1]
    assert _held(job, lives) == [CHIEF, W0]
    job.heartbeat(lives[W1], TaskReport(steps=1), now=1)
    assert not _held(job, lives)
    job.register(W1, now=2)  # started again: the others have begun, and need not wait twice
    assert not job.is_held(job.register(W1, now=2), 2)


def test_a_chief_that_never_makes_a_step_holds_no_worker_that_comes_after_a_minute() -> None:
    job, lives = _job()
    job.holds_first_steps = True
    for worker in (W0, W1):
        job.heartbeat(lives[worker], TaskReport(steps=1), now=1)
    assert _held(job, lives) == [W0, W1]
    late = 1 + LONGEST_FIRST_STEP_S
    lives[W1] = job.register(W1, now=late)
    assert not job.is_held(lives[W1], late)


def test_who_makes_no_step_of_its_own_holds_nobody() -> None:
    job, lives = _job()
    job.holds_first_steps = True
    job.heartbeat(lives[CHIEF], TaskReport(steps=1), now=1)
    job.heartbeat(lives[W0], TaskReport(serves=True), now=1)
    assert not job.is_held(lives[W0], 1)
    assert job.yet_to_begin(CHIEF, 1) == [W1]
    job.arrive(lives[W1], 1, now=1)
    assert not _held(job, lives), "one at a barrier may wait for the chief"
    job.arrive(lives[CHIEF], 1, now=1)
    job.arrive(lives[W0], 1, now=1)  # the barrier is over
    assert job.yet_to_begin(CHIEF, 1) == [W1]
    job.finish(lives[W1], TaskEnd(Outcome.DONE), TaskReport(), now=2)
    assert not _held(job, lives)
