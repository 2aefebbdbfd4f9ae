"""Taking cuts: what the chief does when a worker stands still, a ps refuses, or all is well."""

import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from helpers.clock import ManualClock
from ropewalk.annexes.moments.chief_part import JobCuts
from ropewalk.annexes.moments.taking_moments import Cutter
from ropewalk.client.ps.control import CutOrder, PsControl
from ropewalk.cluster.job.job import Job
from ropewalk.core.errors import CutVoidError, PeerLostError, PermissionDeniedError
from ropewalk.core.report import TaskEnd, TaskReport
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, Outcome, TaskId
from ropewalk.core.wire.cut_marks import CutMark, Marks
from ropewalk.server.chief.servicer import LockedJob

CHIEF = TaskId("chief", 0)
READER = Incarnation(TaskId("reader", 5), 1)


class FakePs:
    """Takes cuts once all workers were told to mark, or fails."""

    def __init__(self, index: int, locked_job: LockedJob, fails: list[str]) -> None:
        self.task = TaskId("ps", index)
        self._cuts = locked_job.part(JobCuts)
        self._fails = fails
        self._workers: frozenset[Incarnation] = frozenset()
        self.ended: list[int] = []

    def begin_cut(self, _: Incarnation, share: int, order: CutOrder, *, timeout_s: float) -> None:
        assert share == self.task.index
        assert timeout_s > order.hold_s
        self._workers = order.workers
        if self._fails and self._fails[0] == "begin":
            self._fails.pop(0)
            raise PeerLostError("it does not answer")

    def finish_cut(
        self, _: Incarnation, share: int, number: int, *, timeout_s: float
    ) -> tuple[int, Marks]:
        assert share == self.task.index
        assert timeout_s > 0
        if self._fails and self._fails[0] == "finish":
            self._fails.pop(0)
            raise CutVoidError("no mark of worker:0 in time")
        assert all(self._cuts.join(number, who)[0] for who in self._workers)
        return 10 * number, {who: CutMark(share, 7) for who in self._workers}

    def end_cut(self, _: Incarnation, share: int, number: int, *, timeout_s: float) -> None:
        assert (share, timeout_s > 0) == (self.task.index, True)
        self.ended.append(number)


class Cut:
    """A job with two ps, of whose tasks some join."""

    def __init__(self, *fails: str, joins: bool = True) -> None:
        self.clock = ManualClock()
        self.job = Job([], chief=CHIEF, lease_s=10, now=0, name="")
        self.who = self.job.register(CHIEF, now=0)
        self.worker = self.job.register(TaskId("worker", 0), now=0)
        self.locked = LockedJob(self.job, self.clock)
        self.fails = list(fails)
        self.ps = [FakePs(index, self.locked, self.fails) for index in range(2)]
        led = [(each.task.index, cast(PsControl, each)) for each in self.ps]
        self.cutter = Cutter(self.locked, self.who, lambda: led, Settings())
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._join, args=(joins,))
        self._thread.start()

    def _join(self, joins: bool) -> None:
        while not self._over.wait(0.005):
            number = self.locked.part(JobCuts).number
            if number and joins:
                for who in (self.who, self.worker):
                    self.locked.part(JobCuts).join(number, who)
            if not joins:
                self.clock.advance(0.1)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture
def made() -> Iterator[list[Cut]]:
    all_of_them: list[Cut] = []
    yield all_of_them
    for each in all_of_them:
        each.close()


def _job(made: list[Cut], *fails: str, **changes: Any) -> Cut:
    made.append(Cut(*fails, **changes))
    return made[-1]


def test_a_cut_has_the_marks_of_all_shares(made: list[Cut]) -> None:
    job = _job(made)
    taken = job.cutter.take(with_slots=True)
    assert taken.number == job.who.generation + 1
    assert taken.global_step == 10 * taken.number
    record = taken.record()
    assert record.workers == {"/job:chief/task:0": 1, "/job:worker/task:0": 2}
    both = ("/job:chief/task:0", "/job:worker/task:0")
    assert record.shares == tuple(dict.fromkeys(both, (7, share)) for share in range(2))
    assert job.locked.part(JobCuts).number == 0
    job.cutter.release(taken)
    assert [each.ended for each in job.ps] == [[taken.number]] * 2


@pytest.mark.parametrize("fails", [["begin"], ["finish"], ["begin", "finish"]])
def test_a_void_cut_is_ended_everywhere_and_tried_again(made: list[Cut], fails: list[str]) -> None:
    job = _job(made, *fails)
    taken = job.cutter.take(with_slots=True)
    assert taken.number == job.who.generation + 1 + len(fails)
    tried = [job.who.generation + 1 + number for number in range(len(fails))]
    assert [each.ended for each in job.ps] == [tried] * 2
    counts = job.locked.part(JobCuts).counts
    assert (counts.taken, counts.void) == (1, len(fails))
    assert (
        counts.last_void == ("it does not answer", "no mark of worker:0 in time")["finish" in fails]
    )


def test_after_some_tries_it_says_why(made: list[Cut]) -> None:
    job = _job(made, *["finish"] * 6)
    with pytest.raises(CutVoidError, match="no mark of worker:0 in time"):
        job.cutter.take(with_slots=True)
    assert [len(each.ended) for each in job.ps] == [3, 3]
    assert (job.locked.part(JobCuts).counts.taken, job.locked.part(JobCuts).counts.void) == (0, 3)


def test_a_job_that_ends_tries_again_only_where_a_task_has_left_meanwhile(made: list[Cut]) -> None:
    job = _job(made, *["finish"] * 3)
    job.job.stop("SIGTERM")
    with pytest.raises(CutVoidError, match="no mark of worker:0 in time"):
        job.cutter.take(with_slots=True)
    assert job.locked.part(JobCuts).counts.void == 1

    left = _job(made)
    left.job.stop("SIGTERM")
    begin = left.ps[0].begin_cut

    def leave(*args: Any, **kwargs: Any) -> None:
        left.job.finish(left.worker, TaskEnd(Outcome.DONE), TaskReport(), now=0)
        begin(*args, **kwargs)

    left.ps[0].begin_cut = leave  # type: ignore[method-assign]
    assert list(left.cutter.take(with_slots=True).record().workers) == ["/job:chief/task:0"]
    assert left.locked.part(JobCuts).counts.last_void == "worker:0 came or left"


def test_a_worker_that_does_not_join_holds_up_nobody(made: list[Cut]) -> None:
    job = _job(made, joins=False)
    with pytest.raises(CutVoidError, match=r"chief:0, worker:0 did not join in 2 s"):
        job.cutter.take(with_slots=True)
    assert all(not each._workers for each in job.ps)


def test_one_reader_at_a_time(made: list[Cut]) -> None:
    job = _job(made)
    number, _, marks = job.cutter.take_for_reader(READER)
    assert {mark.pushes for mark in marks.values()} == {7}
    with pytest.raises(CutVoidError, match="being saved or read"):
        job.cutter.take_for_reader(READER)
    for other in (Incarnation(TaskId("reader", 4), 1), Incarnation(READER.task, 2)):
        with pytest.raises(PermissionDeniedError, match="taken for /job:reader/task:5"):
            job.cutter.release_number(number, other)
    with pytest.raises(CutVoidError, match="being saved or read"):
        job.cutter.take_for_reader(READER)
    for _ in range(2):
        job.cutter.release_number(number, READER)
    again, _, _ = job.cutter.take_for_reader(READER)
    job.clock.advance(61)  # that one says nothing any more
    assert job.cutter.take_for_reader(READER)[0] > again


def test_what_is_saved_is_not_given_up_for_a_reader(made: list[Cut]) -> None:
    job = _job(made)
    taken = job.cutter.take(with_slots=True)
    job.clock.advance(1000)
    with pytest.raises(CutVoidError, match="being saved or read"):
        job.cutter.take_for_reader(READER)
    with pytest.raises(PermissionDeniedError, match="taken for a checkpoint"):
        job.cutter.release_number(taken.number, READER)
    with pytest.raises(CutVoidError, match="being saved or read"):
        job.cutter.take_for_reader(READER)
    job.cutter.release(taken)
    job.cutter.take_for_reader(READER)
