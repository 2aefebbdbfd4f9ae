"""The end of a job: whom the chief waits for, and for how long."""

import socket
import threading
from collections.abc import Callable, Sequence
from typing import cast

import pytest

from helpers.clock import ManualClock
from ropewalk.client.ps.control import PsAnswer, PsControl
from ropewalk.cluster.job.job import Job
from ropewalk.core.checkpoint.job_record import JobRecord
from ropewalk.core.errors import PeerLostError, PermissionDeniedError
from ropewalk.core.report import PsCounters, TaskEnd, TaskReport
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, Outcome, Phase, TaskId
from ropewalk.server.chief.servicer import LockedJob
from ropewalk.worker.lead.checkpointer import Checkpointer
from ropewalk.worker.lead.chief_loop import ChiefLoop
from ropewalk.worker.lead.companions import Companions
from ropewalk.worker.lead.job_saver import JobSaver
from ropewalk.worker.lead.leadership import OwnShares, ShareLeadership

CHIEF, W0, W1 = TaskId("chief", 0), TaskId("worker", 0), TaskId("worker", 1)
SETTINGS = Settings(leave_grace_s=5, join_timeout_s=120)


class Knowing:
    """A companion that knows whether another chief follows."""

    def __init__(self, why_none_follows: str | None) -> None:
        self._why = why_none_follows

    def start(self) -> None:
        pass

    def look(self, job: Job, now: float, *, is_last: bool) -> None:
        pass

    def act(self) -> None:
        pass

    def why_none_follows(self) -> str | None:
        return self._why

    def close(self) -> None:
        pass


def make_loop(
    locked_job: LockedJob,
    who: Incarnation,
    controls: Sequence[object],
    checkpointer: object = None,
    keeper: object = None,
    settings: Settings = SETTINGS,
    why_none_follows: str | None = None,
) -> ChiefLoop:
    saver = JobSaver(locked_job, cast(Checkpointer, checkpointer), settings, lambda record: record)
    return ChiefLoop(
        locked_job, who, "", cast(list[PsControl], controls), saver, settings,
        Companions([Knowing(why_none_follows)]),
        cast(ShareLeadership, keeper or OwnShares(locked_job, cast(list[PsControl], controls))),
    )  # fmt: skip


class Ending:
    """A job whose chief's program is over at ``now``."""

    def __init__(self, now: float) -> None:
        self.clock = ManualClock()
        self.job = Job([(t, "") for t in (CHIEF, W0, W1)], chief=CHIEF, lease_s=1000, now=0)
        self.who = self.come(CHIEF)
        self.clock.advance(now)
        self.told: list[str] = []

    def come(self, task: TaskId) -> Incarnation:
        return self.job.register(task, now=self.clock.now())

    def end(self) -> float:
        """Ends it; how long that took."""
        began = self.clock.now()
        locked_job = LockedJob(self.job, self.clock)
        loop = make_loop(locked_job, self.who, [])
        loop._wait_for_workers(self.on_wait)
        loop.close()
        return self.clock.now() - began

    def on_wait(self, names: str) -> None:
        self.told.append(names)


def test_workers_that_are_about_to_start_are_waited_for_until_the_leave_grace() -> None:
    ending = Ending(now=1)
    assert ending.end() == pytest.approx(5, abs=0.1)
    assert ending.told == ["worker:0, worker:1"]


def test_a_worker_that_comes_meanwhile_does_its_work() -> None:
    ending = Ending(now=1)
    first = ending.come(W0)

    def on_wait(names: str) -> None:
        ending.told.append(names)
        if len(ending.told) == 1:
            ending.come(W1)
            ending.job.finish(first, TaskEnd(Outcome.DONE), TaskReport(), now=ending.clock.now())
        else:
            ending.clock.advance(60)  # as long as it takes: it is here
            who = Incarnation(W1, ending.job.members[W1].generation)
            ending.job.finish(who, TaskEnd(Outcome.DONE), TaskReport(), now=ending.clock.now())

    ending.on_wait = on_wait  # type: ignore[method-assign]
    assert ending.end() > 60
    assert ending.told == ["worker:0, worker:1", "worker:1"]


def test_a_worker_later_than_the_join_timeout_is_not_on_its_way() -> None:
    ending = Ending(now=121)
    assert ending.end() == 0
    assert ending.told == []


def test_what_a_program_changes_last_comes_after_all_others_and_before_the_last_save() -> None:
    ending = Ending(now=1)
    order: list[str] = []

    def on_wait(names: str) -> None:
        order.append(names)

    loop = make_loop(LockedJob(ending.job, ending.clock), ending.who, [])
    loop.start()
    phase = loop.end(global_step=0, on_wait=on_wait, change_last=lambda: order.append("changed"))
    loop.close()
    assert order == ["worker:0, worker:1", "changed"]
    assert phase is Phase.DONE


def test_last_values_that_cannot_be_written_fail_the_job_and_of_a_failed_one_none_are() -> None:
    ending = Ending(now=1)

    def change() -> None:
        ending.told.append("changed")
        raise PeerLostError("ps:0 was lost", task=TaskId("ps", 0))

    loop = make_loop(LockedJob(ending.job, ending.clock), ending.who, [])
    loop._change_last(change)
    assert ending.job.phase is Phase.FAILED
    assert "last values could not be written: ps:0 was lost" in ending.job.reason
    loop._change_last(change)
    assert ending.told == ["changed"]
    loop.close()


class Refusing:
    """A ps that does not let this task lead."""

    task = TaskId("ps", 0)

    def attach(self, *_: object, **__: object) -> None:
        raise PermissionDeniedError("ps:0: worker:0 may not Attach; chief:0 leads this one")

    end_job = attach


def test_whoever_may_not_lead_fails_its_job_at_once_and_says_why() -> None:
    clock = ManualClock()
    job = Job([(task, "") for task in (CHIEF, Refusing.task)], chief=CHIEF, lease_s=1000, now=0)
    locked_job, who = LockedJob(job, clock), job.register(CHIEF, now=0)
    loop = make_loop(locked_job, who, [Refusing()])
    loop._attach()
    loop.close()
    assert job.phase is Phase.FAILED
    assert "chief:0 leads this one" in job.reason
    assert isinstance(loop.failure, PermissionDeniedError)


def test_nobody_is_waited_for_once_the_job_has_failed() -> None:
    ending = Ending(now=1)
    ending.job.fail("no")
    assert ending.end() == 0
    assert ending.job.phase is Phase.FAILED


class Starting:
    """A ps that answers the call of this number first, since it has just been started again."""

    task = TaskId("ps", 0)

    def __init__(self, answers: int) -> None:
        self.answers, self.calls = answers, 0

    def end_job(self, *_: object, **__: object) -> None:
        self.calls += 1
        if self.calls < self.answers:
            raise PeerLostError("ps:0 does not answer")


class Keeper:
    """All shares have a leader, or one was lost."""

    def __init__(self, *, has_all: bool) -> None:
        self._has_all = has_all

    def takes_ps(self) -> bool:
        return True

    def has_lost_values(self) -> bool:
        return not self._has_all

    def may_leave(self, task: TaskId) -> bool:
        return False

    def replicated_process(self, task: TaskId) -> int:
        return 0

    def close(self) -> None:
        """Nothing runs."""


@pytest.mark.parametrize(
    ("answers", "has_all", "silent_s", "calls", "took_s"),
    [
        pytest.param(1, True, 0, 1, 0, id="it answers"),
        pytest.param(21, True, 8, 21, 1, id="it starts again meanwhile"),
        pytest.param(10**6, True, 0, 101, 5, id="it does not come within leave_grace_s"),
        pytest.param(21, True, 1001, 1, 0, id="it was lost, or has left, long ago"),
        pytest.param(21, False, 0, 1, 0, id="the job has failed without it"),
    ],
)
def test_a_ps_that_is_started_again_as_its_job_ends_is_told(
    answers: int, has_all: bool, silent_s: float, calls: int, took_s: float
) -> None:
    clock, ps = ManualClock(), Starting(answers)
    job = Job([(task, "") for task in (CHIEF, ps.task)], chief=CHIEF, lease_s=1000, now=0)
    locked_job, who = LockedJob(job, clock), job.register(CHIEF, now=0)
    loop = make_loop(locked_job, who, [ps], keeper=Keeper(has_all=has_all))
    job.ps_answered(ps.task, 1, PsCounters(), now=0)
    clock.advance(silent_s)
    loop._dismiss(Phase.DONE, "")
    loop.close()
    assert ps.calls == pytest.approx(calls, abs=1)
    assert clock.now() - silent_s == pytest.approx(took_s, abs=0.06)


class Told:
    """A ps that answers as one process, and notes in which phase its job was over."""

    def __init__(self, index: int) -> None:
        self.task = TaskId("ps", index)
        self.process = 7
        self.ends: list[tuple[Phase, bool]] = []

    def attach(self, *_: object, **__: object) -> PsAnswer:
        return PsAnswer(self.process, PsCounters(), draining=False)

    def end_job(self, phase: Phase, *_: object, began_again: bool, **__: object) -> None:
        self.ends.append((phase, began_again))


@pytest.mark.parametrize("returns", [True, False], ids=["chief returns", "nobody comes"])
@pytest.mark.parametrize("phase", [Phase.FAILED, Phase.DONE], ids=str)
def test_a_ps_that_begins_again_hears_that_the_job_has_failed_for_the_one_before(
    phase: Phase, *, returns: bool
) -> None:
    """It would be started again once more, and all others would wait for it; unless there is nobody
    who starts the chief again, for whom it would wait.
    """
    ps = [Told(0), Told(1)]
    tasks = [(task, "") for task in (CHIEF, *(each.task for each in ps))]
    job = Job(tasks, chief=CHIEF, lease_s=9, now=0)
    settings = Settings(chief_returns=returns)
    loop = make_loop(
        LockedJob(job, ManualClock()), job.register(CHIEF, now=0), ps, settings=settings
    )
    loop._attach()
    ps[0].process = 8
    loop._attach()
    assert job.phase is Phase.FAILED
    loop._dismiss(phase, "")
    loop.close()
    assert ps[0].ends == [(phase, returns and phase is Phase.FAILED)]
    assert ps[1].ends == [(phase, False)]


@pytest.mark.parametrize(
    ("listens", "silent_s", "took_s"),
    [
        pytest.param(False, 0, 1.5, id="its process has ended"),
        pytest.param(True, 0, 5, id="it is only slow"),
        pytest.param(False, 60, 0, id="it was silent before"),
    ],
)
def test_a_worker_in_sync_that_was_killed_keeps_the_chief_of_a_failed_job_no_longer_than_that(
    listens: bool, silent_s: float, took_s: float
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if not listens:
            server.close()
        clock = ManualClock()
        job = Job([(task, "") for task in (CHIEF, W0)], chief=CHIEF, lease_s=1000, now=0)
        locked_job, who = LockedJob(job, clock), job.register(CHIEF, now=0)
        job.register(W0, now=0, address=address)
        clock.advance(silent_s)
        job.fail("worker:0 closed the connection")
        loop = make_loop(locked_job, who, [])
        loop._dismiss(Phase.FAILED, "")
        loop.close()
    assert clock.now() - silent_s == pytest.approx(took_s, abs=0.1)


class Answering:
    """A ps that answers the chief, and was asked to stop after ``drains_s``."""

    task = TaskId("ps", 0)

    def __init__(self, clock: ManualClock, drains_s: float) -> None:
        self._clock, self._drains_s = clock, drains_s

    def attach(self, *_: object, **__: object) -> PsAnswer:
        return PsAnswer(1, PsCounters(), draining=self._clock.now() >= self._drains_s)


class Saved:
    """A checkpointer that has a checkpoint of step 5."""

    last = None
    saved_pushes = 0

    def __init__(self) -> None:
        self.did: list[object] = []

    def save(self, step: int, *, final: bool, changed: bool) -> str:
        self.did.append((step, final))
        return ""

    def record(self, record: JobRecord) -> None:
        self.did.append(record.phase)


@pytest.mark.parametrize(
    ("drains_s", "leaves_s", "why_none_follows", "reason"),
    [
        pytest.param(60, 60, "", "", id="alone"),
        pytest.param(2, 60, "", "/job:ps/task:0 was asked to stop", id="a ps, too"),
        pytest.param(60, 2, "", "/job:chief/task:0 and all workers were", id="all workers, too"),
        pytest.param(60, 60, "its Job was deleted", "its Job was deleted", id="none follows"),
    ],
)
def test_a_chief_leaves_its_job_to_the_next_one_unless_all_are_to_stop(
    drains_s: float, leaves_s: float, why_none_follows: str, reason: str
) -> None:
    clock = Watched()
    ps, saved = Answering(clock, drains_s), Saved()
    job = Job([(t, "") for t in (CHIEF, W0, W1, ps.task)], chief=CHIEF, lease_s=1000, now=0)
    locked_job, who = LockedJob(job, clock), job.register(CHIEF, now=0)
    loop = make_loop(locked_job, who, [ps], saved, why_none_follows=why_none_follows)
    worker = job.register(W0, now=0)

    def turn(now: float) -> None:
        loop._attach()
        if now >= leaves_s:
            job.finish(worker, TaskEnd(Outcome.LEFT, "was asked to stop"), TaskReport(), now=now)

    clock.turn = turn
    loop.start()
    left = loop.hand_over(global_step=7, watch_s=5)
    loop.close()
    assert left is not bool(reason)
    assert reason in job.reason
    assert job.phase is (Phase.STOPPING if reason else Phase.RUNNING)
    assert saved.did[0] == (7, False), "whoever ends in between has lost nothing"
    assert (saved.did[-1] is Phase.RUNNING) == left, "the next chief reads it"
    assert clock.now() == pytest.approx(2 if 2 in (drains_s, leaves_s) else 5, abs=0.1)


@pytest.mark.parametrize(
    ("serves", "follows", "drains_s", "leaves", "grace_s"),
    [
        pytest.param(False, "", 10, False, 45, id="others train meanwhile"),
        pytest.param(True, None, 10, True, 45, id="the others wait for a coordinator"),
        pytest.param(True, None, 2, False, 45, id="at once"),
        pytest.param(True, "", 2, True, 45, id="another chief is known to follow"),
        pytest.param(True, "", 0.5, False, 45, id="a ps of the same node is asked, too"),
        pytest.param(False, None, 13, True, 45, id="later"),
        pytest.param(False, None, 16, True, 2700, id="a drained node does not wait for minutes"),
    ],
)
def test_a_chief_looks_for_longer_where_nothing_stands_still_for_that(
    serves: bool, follows: str | None, drains_s: float, leaves: bool, grace_s: float
) -> None:
    clock = Watched()
    ps, saved = Answering(clock, drains_s), Saved()
    job = Job([(t, "") for t in (CHIEF, W0, ps.task)], chief=CHIEF, lease_s=1000, now=0)
    locked_job, who = LockedJob(job, clock), job.register(CHIEF, now=0)
    settings = Settings(leave_grace_s=grace_s)
    loop = make_loop(locked_job, who, [ps], saved, settings=settings, why_none_follows=follows)
    job.register(W0, now=0, serves=serves)
    clock.turn = lambda _: loop._attach()
    loop.start()
    assert loop.hand_over(global_step=7) is leaves
    loop.close()


class Watched(ManualClock):
    """A clock that has the job go on whenever it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.turn: Callable[[float], None] = lambda now: None

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        is_set = super().wait(event, timeout_s)
        self.turn(self.now())
        return is_set
