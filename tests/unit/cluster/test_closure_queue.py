"""The coordinator's queue: every history of events keeps its promises."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ropewalk.cluster.job.closure_queue import (
    Cancel,
    ClosureQueue,
    Decision,
    Expire,
    GiveUp,
    LeaveWorker,
    Run,
)


def queue(**options: Any) -> ClosureQueue:
    return ClosureQueue(**{"in_flight": 1, **options})


def given(decisions: list[Decision]) -> list[tuple[int, int, int]]:
    """(worker, closure, attempt) of each."""
    runs = [each for each in decisions if isinstance(each, Run)]
    assert len(runs) == len(decisions), decisions
    return [(run.worker, run.closure, run.attempt) for run in runs]


def test_closures_wait_for_a_worker_and_then_for_a_free_one() -> None:
    waiting = queue()
    assert waiting.schedule(0) == waiting.schedule(1) == []
    assert given(waiting.worker_ready(3)) == [(3, 0, 1)]
    assert waiting.schedule(2) == []
    assert waiting.depths == (2, 1)
    assert given(waiting.worker_ready(0)) == [(0, 1, 1)]
    assert given(waiting.finished(0, 1).decisions) == [(3, 2, 1)]
    assert waiting.finished(1, 1) == waiting.finished(2, 1) == (True, [])
    assert waiting.is_idle


def test_the_worker_with_the_least_to_do_is_next() -> None:
    waiting = queue(in_flight=2)
    waiting.worker_ready(0)
    waiting.worker_ready(1)
    runs = [given(waiting.schedule(number)) for number in range(5)]
    assert runs == [[(0, 0, 1)], [(1, 1, 1)], [(0, 2, 1)], [(1, 3, 1)], []]
    assert given(waiting.finished(1, 1).decisions) == [(1, 4, 1)]


def test_idle_workers_take_turns() -> None:
    waiting = queue()
    for worker in range(3):
        waiting.worker_ready(worker)
    for number in range(6):
        assert given(waiting.schedule(number)) == [(number % 3, number, 1)]
        waiting.finished(number, 1)


def test_what_a_lost_worker_had_is_run_elsewhere_first_and_its_late_answer_counts_for_nothing() -> (
    None
):
    waiting = queue()
    waiting.worker_ready(0)
    waiting.worker_ready(1)
    for number in range(3):
        waiting.schedule(number)
    assert waiting.worker_lost(0) == []
    assert waiting.finished(0, 1) == (False, [])
    (again,) = waiting.finished(1, 1).decisions
    assert again == Run(1, 0, 2, lane=0, turn=1, oldest_attempt=2)
    assert given(waiting.worker_ready(0)) == [(0, 2, 1)]
    assert waiting.finished(0, 2) == (True, [])


def test_a_closure_keeps_its_lane_until_it_is_over() -> None:
    waiting = queue(in_flight=2)
    waiting.worker_ready(0)
    first, second = (waiting.schedule(number)[0] for number in range(2))
    assert (first, second) == (Run(0, 0, 1, 0, 1, 1), Run(0, 1, 1, 1, 2, 1))
    waiting.finished(0, 1)
    assert waiting.schedule(2) == [Run(0, 2, 1, 0, 3, 1)]


def test_after_an_error_what_waits_is_cancelled_and_what_is_under_way_may_end() -> None:
    waiting = queue()
    waiting.worker_ready(0)
    waiting.worker_ready(1)
    for number in range(4):
        waiting.schedule(number)
    error = ValueError("bad")
    assert waiting.failed(0, 1, error) == (True, [Cancel(2), Cancel(3)])
    assert (waiting.has_error, waiting.is_settled) == (True, False)
    assert waiting.finished(1, 1) == (True, [])
    assert (waiting.has_error, waiting.is_settled) == (True, True)
    assert waiting.take_error() is error
    assert waiting.take_error() is None
    assert given(waiting.schedule(4)) == [(0, 4, 1)]


def test_only_the_first_error_is_told_and_what_a_worker_loses_after_it_is_cancelled() -> None:
    waiting = queue()
    for worker in range(3):
        waiting.worker_ready(worker)
        waiting.schedule(worker)
    first = ValueError("first")
    waiting.failed(0, 1, first)
    assert waiting.failed(1, 1, ValueError("second")) == (True, [])
    assert waiting.worker_lost(2) == [Cancel(2)]
    assert waiting.take_error() is first


def test_a_closure_that_loses_every_worker_is_given_up() -> None:
    waiting = queue(max_attempts=2)
    waiting.worker_ready(0)
    waiting.schedule(0)
    waiting.worker_lost(0)
    assert given(waiting.worker_ready(1)) == [(1, 0, 2)]
    assert waiting.worker_lost(1) == [GiveUp(0, (0, 1))]
    assert waiting.is_idle
    waiting.failed(0, 0, RuntimeError("it ends its workers"))
    assert waiting.has_error


def test_only_the_closure_that_a_worker_ran_can_have_ended_it() -> None:
    """The one behind it had not begun."""
    waiting = queue(in_flight=2, max_attempts=1)
    waiting.worker_ready(0)
    waiting.schedule(0)
    waiting.schedule(1)
    assert waiting.worker_lost(0) == [GiveUp(0, (0,))]
    assert given(waiting.worker_ready(0)) == [(0, 1, 2)]


def test_it_is_full_of_what_waits() -> None:
    waiting = queue(max_queued=2)
    waiting.worker_ready(0)
    for number in range(3):
        assert not waiting.is_full
        waiting.schedule(number)
    assert waiting.is_full
    waiting.finished(0, 1)
    assert not waiting.is_full


def test_a_closure_is_over_at_its_deadline_and_its_worker_a_while_later() -> None:
    waiting = queue(in_flight=2, grace_s=3)
    waiting.worker_ready(0)
    waiting.schedule(0, deadline_s=10, now=0)
    waiting.schedule(1, deadline_s=10, now=0)
    waiting.began(0, 1, now=5)
    assert waiting.tick(now=14.9) == []
    assert waiting.tick(now=15) == [Expire(0, 1, 0, 10)]
    assert waiting.expired(0, TimeoutError("too long")) == (True, [])
    assert waiting.tick(now=17.9) == []
    assert waiting.tick(now=18) == [LeaveWorker(0)]
    assert waiting.worker_lost(0) == [Cancel(1)]
    assert waiting.is_settled


def test_a_late_answer_keeps_its_worker_and_counts_for_nothing() -> None:
    waiting = queue(grace_s=3)
    waiting.worker_ready(0)
    waiting.schedule(0, deadline_s=10, now=0)
    waiting.began(0, 1, now=0)
    waiting.tick(now=10)
    waiting.expired(0, TimeoutError("too long"))
    waiting.take_error()
    assert waiting.schedule(1) == []  # the worker still has the other one
    counts, decisions = waiting.finished(0, 1)
    assert not counts
    assert given(decisions) == [(0, 1, 1)]
    assert waiting.tick(now=100) == []


def test_the_time_before_a_closure_has_begun_does_not_count() -> None:
    """Its worker makes datasets, or runs another one."""
    waiting = queue()
    waiting.worker_ready(0)
    waiting.schedule(0, deadline_s=1, now=0)
    assert waiting.tick(now=100) == []


def test_what_takes_long_is_run_by_an_idle_worker_as_well_and_the_first_answer_counts() -> None:
    waiting = queue(redispatch_after_s=10)
    waiting.worker_ready(0)
    waiting.schedule(0, now=0)
    waiting.worker_ready(1)
    assert waiting.tick(now=9.9) == []
    # The pushes of the first attempt go on to count.
    assert waiting.tick(now=10) == [Run(1, 0, 2, lane=0, turn=1, oldest_attempt=1)]
    waiting.worker_ready(2)
    assert waiting.tick(now=100) == []
    assert waiting.finished(0, 2) == (True, [])
    assert waiting.is_idle
    assert waiting.finished(0, 1) == (False, [])


def test_a_worker_that_is_lost_with_one_of_two_runs_is_not_waited_for() -> None:
    waiting = queue(redispatch_after_s=10)
    waiting.worker_ready(0)
    waiting.schedule(0, now=0)
    waiting.worker_ready(1)
    waiting.tick(now=10)
    assert waiting.worker_lost(0) == []
    assert waiting.worker_ready(0, now=10) == []
    assert waiting.finished(0, 2) == (True, [])


def test_nothing_is_run_twice_while_something_waits() -> None:
    waiting = queue(redispatch_after_s=10)
    waiting.worker_ready(0)
    waiting.schedule(0, now=0)
    waiting.schedule(1, now=0)
    assert waiting.tick(now=100) == []
    assert given(waiting.worker_ready(1, now=100)) == [(1, 1, 1)]


@dataclass
class Seen:
    """What the world outside knows of a closure."""

    runs: list[Run] = field(default_factory=list)
    ended: str = ""
    blamed: list[int] = field(default_factory=list)


class Histories(RuleBasedStateMachine):
    """Any order of events: each closure ends once, none is forgotten, and what may push is clear.

    Workers answer in the order in which they were given closures.
    """

    def __init__(self) -> None:
        super().__init__()
        self.queue = ClosureQueue(
            max_queued=1000, in_flight=2, max_attempts=3, redispatch_after_s=5, grace_s=2
        )
        self.closures: list[Seen] = []
        self.deadlines: dict[int, float] = {}
        self.there: dict[int, list[Run]] = {}  # what workers have, in order
        self.turns = 0
        self.error: Exception | None = None
        self.now = 0.0

    def carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if isinstance(decision, LeaveWorker):
                assert self.closures[self.there[decision.worker][0].closure].ended
                self.lose(decision.worker)
                continue
            closure = self.closures[decision.closure]
            assert not closure.ended
            if isinstance(decision, Run):
                self.run_closure(decision, closure)
            elif isinstance(decision, Cancel):
                assert not self.having(decision.closure)
                closure.ended = "cancelled"
            elif isinstance(decision, Expire):
                assert self.there[decision.worker][0].closure == decision.closure
                closure.ended = "expired"
                self.fail(self.queue.expired(decision.closure, self.failure()))
            else:
                assert list(decision.workers) == closure.blamed
                closure.ended = "given up"
                self.fail(self.queue.failed(decision.closure, 0, self.failure()))

    def run_closure(self, run: Run, closure: Seen) -> None:
        assert len(self.there[run.worker]) < 2
        assert run.attempt == len(closure.runs) + 1
        assert self.error is None
        others = self.having(run.closure)
        assert len(others) < 2
        # Attempts that go on may push; when none does, those that were lost may not.
        assert run.oldest_attempt <= min((each.attempt for each in others), default=run.attempt)
        if not others:
            assert run.oldest_attempt == run.attempt
        if closure.runs:
            assert (run.lane, run.turn) == (closure.runs[0].lane, closure.runs[0].turn)
        else:
            assert run.turn > self.turns
            self.turns = run.turn
            open_runs = [c.runs[0].lane for c in self.closures if c.runs and not c.ended]
            assert run.lane not in open_runs, "two closures that are not over have one lane"
            assert run.lane < 2 * 3, "lanes are as many as workers can have closures"
        closure.runs.append(run)
        self.there[run.worker].append(run)

    def having(self, closure: int) -> list[Run]:
        return [run for has in self.there.values() for run in has if run.closure == closure]

    def failure(self) -> Exception:
        failure = RuntimeError("a failure")
        self.error = self.error or failure
        return failure

    def fail(self, outcome: tuple[bool, list[Decision]]) -> None:
        counts, decisions = outcome
        assert counts
        self.carry_out(decisions)

    @rule(deadline=st.sampled_from([4.0, float("inf")]))
    def schedule(self, deadline: float) -> None:
        number = len(self.closures)
        self.closures.append(Seen())
        self.deadlines[number] = deadline
        self.carry_out(self.queue.schedule(number, deadline_s=deadline, now=self.now))

    @rule(worker=st.integers(0, 2))
    def ready(self, worker: int) -> None:
        self.there.setdefault(worker, [])
        self.carry_out(self.queue.worker_ready(worker, self.now))

    @rule(worker=st.integers(0, 2))
    def lose(self, worker: int) -> None:
        has = self.there.pop(worker, [])
        if has and not self.closures[has[0].closure].ended:
            self.closures[has[0].closure].blamed.append(worker)
        self.carry_out(self.queue.worker_lost(worker, self.now))

    @precondition(lambda self: any(self.there.values()))
    @rule(data=st.data(), fails=st.booleans())
    def answer(self, data: st.DataObject, fails: bool) -> None:
        busy = sorted(worker for worker, has in self.there.items() if has)
        run = self.there[data.draw(st.sampled_from(busy))].pop(0)
        closure = self.closures[run.closure]
        expected = not closure.ended
        closure.ended = closure.ended or ("failed" if fails else "done")
        if fails:
            failure = self.failure() if expected else RuntimeError("late")
            counts, decisions = self.queue.failed(run.closure, run.attempt, failure, self.now)
        else:
            counts, decisions = self.queue.finished(run.closure, run.attempt, self.now)
        assert counts == expected
        self.carry_out(decisions)

    @precondition(lambda self: any(self.there.values()))
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        busy = sorted(worker for worker, has in self.there.items() if has)
        run = self.there[data.draw(st.sampled_from(busy))][0]
        self.queue.began(run.closure, run.attempt, self.now)

    @rule(seconds=st.integers(1, 6))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.carry_out(self.queue.tick(self.now))

    @precondition(lambda self: any(closure.runs for closure in self.closures))
    @rule(data=st.data())
    def late_answer(self, data: st.DataObject) -> None:
        """Of a worker that was lost meanwhile."""
        has = [run for runs in self.there.values() for run in runs]
        old = [run for closure in self.closures for run in closure.runs if run not in has]
        if old:
            run = data.draw(st.sampled_from(old))
            assert self.queue.finished(run.closure, run.attempt, self.now) == (False, [])

    @rule()
    def tell(self) -> None:
        if self.queue.is_settled:
            assert self.queue.take_error() is self.error
            self.error = None

    @invariant()
    def nothing_is_forgotten(self) -> None:
        open_closures = [n for n, closure in enumerate(self.closures) if not closure.ended]
        under_way = [n for n in open_closures if self.having(n)]
        assert self.queue.is_idle == (not open_closures)
        assert self.queue.is_settled == (not under_way)
        assert self.queue.has_error == (self.error is not None)
        if self.error is None and sum(map(len, self.there.values())) < 2 * len(self.there):
            assert open_closures == under_way, "a worker is free, and something waits"


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
