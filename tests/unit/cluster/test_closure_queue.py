"""The coordinator's queue: every history of events keeps its promises."""

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from windlass.cluster.closure_queue import Cancel, ClosureQueue, Decision, GiveUp, Run


def queue(**options: int) -> ClosureQueue:
    return ClosureQueue(**{"in_flight": 1, **options})


def test_closures_wait_for_a_worker_and_then_for_a_free_one() -> None:
    waiting = queue()
    assert waiting.schedule(0) == waiting.schedule(1) == []
    assert waiting.worker_ready(3) == [Run(3, 0, 1)]
    assert waiting.schedule(2) == []
    assert waiting.worker_ready(0) == [Run(0, 1, 1)]
    assert waiting.finished(0, 1) == [Run(3, 2, 1)]
    assert waiting.finished(1, 1) == waiting.finished(2, 1) == []
    assert waiting.is_idle


def test_the_worker_with_the_least_to_do_is_next() -> None:
    waiting = queue(in_flight=2)
    waiting.worker_ready(0)
    waiting.worker_ready(1)
    runs = [waiting.schedule(number) for number in range(5)]
    assert runs == [[Run(0, 0, 1)], [Run(1, 1, 1)], [Run(0, 2, 1)], [Run(1, 3, 1)], []]
    assert waiting.finished(3, 1) == [Run(1, 4, 1)]


def test_idle_workers_take_turns() -> None:
    waiting = queue()
    for worker in range(3):
        waiting.worker_ready(worker)
    for number in range(6):
        assert waiting.schedule(number) == [Run(number % 3, number, 1)]
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
    assert waiting.finished(0, 1) is None
    assert waiting.finished(1, 1) == [Run(1, 0, 2)]
    assert waiting.worker_ready(0) == [Run(0, 2, 1)]
    assert waiting.finished(0, 2) == []


def test_after_an_error_what_waits_is_cancelled_and_what_is_under_way_may_end() -> None:
    waiting = queue()
    waiting.worker_ready(0)
    waiting.worker_ready(1)
    for number in range(4):
        waiting.schedule(number)
    error = ValueError("bad")
    assert waiting.failed(0, 1, error) == [Cancel(2), Cancel(3)]
    assert (waiting.has_error, waiting.is_settled) == (True, False)
    assert waiting.finished(1, 1) == []
    assert (waiting.has_error, waiting.is_settled) == (True, True)
    assert waiting.take_error() is error
    assert waiting.take_error() is None
    assert waiting.schedule(4) == [Run(0, 4, 1)]


def test_only_the_first_error_is_told_and_what_a_worker_loses_after_it_is_cancelled() -> None:
    waiting = queue()
    for worker in range(3):
        waiting.worker_ready(worker)
        waiting.schedule(worker)
    first = ValueError("first")
    waiting.failed(0, 1, first)
    assert waiting.failed(1, 1, ValueError("second")) == []
    assert waiting.worker_lost(2) == [Cancel(2)]
    assert waiting.take_error() is first


def test_a_closure_that_loses_every_worker_is_given_up() -> None:
    waiting = queue(max_attempts=2)
    waiting.worker_ready(0)
    waiting.schedule(0)
    waiting.worker_lost(0)
    assert waiting.worker_ready(1) == [Run(1, 0, 2)]
    assert waiting.worker_lost(1) == [GiveUp(0, (0, 1))]
    assert waiting.is_idle
    waiting.failed(0, 0, RuntimeError("it ends its workers"))
    assert waiting.has_error


def test_it_is_full_of_what_waits() -> None:
    waiting = queue(max_queued=2)
    waiting.worker_ready(0)
    for number in range(3):
        assert not waiting.is_full
        waiting.schedule(number)
    assert waiting.is_full
    waiting.finished(0, 1)
    assert not waiting.is_full


@dataclass
class Seen:
    """What the world outside knows of a closure."""

    runs: list[Run] = field(default_factory=list)
    ended: str = ""


class Histories(RuleBasedStateMachine):
    """Any order of events: each closure ends once, and none is forgotten or runs twice at once."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = ClosureQueue(max_queued=1000, in_flight=2, max_attempts=3)
        self.closures: list[Seen] = []
        self.there: set[int] = set()
        self.running: dict[int, Run] = {}
        self.error: Exception | None = None

    def carry_out(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            closure = self.closures[decision.closure]
            assert not closure.ended
            if isinstance(decision, Run):
                assert decision.worker in self.there
                assert decision.closure not in self.running
                assert decision.attempt == len(closure.runs) + 1
                assert self.error is None
                closure.runs.append(decision)
                self.running[decision.closure] = decision
            elif isinstance(decision, Cancel):
                closure.ended = "cancelled"
            else:
                assert list(decision.workers) == [run.worker for run in closure.runs]
                closure.ended = "given up"
                failure = RuntimeError(str(decision.closure))
                self.error = self.error or failure
                more = self.queue.failed(decision.closure, 0, failure)
                assert more is not None
                self.carry_out(more)

    @rule()
    def schedule(self) -> None:
        self.closures.append(Seen())
        self.carry_out(self.queue.schedule(len(self.closures) - 1))

    @rule(worker=st.integers(0, 2))
    def ready(self, worker: int) -> None:
        self.there.add(worker)
        self.carry_out(self.queue.worker_ready(worker))

    @rule(worker=st.integers(0, 2))
    def lose(self, worker: int) -> None:
        self.there.discard(worker)
        for run in [run for run in self.running.values() if run.worker == worker]:
            del self.running[run.closure]
        self.carry_out(self.queue.worker_lost(worker))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), fails=st.booleans())
    def end(self, data: st.DataObject, fails: bool) -> None:
        run = data.draw(st.sampled_from(sorted(self.running.values(), key=lambda run: run.closure)))
        del self.running[run.closure]
        self.closures[run.closure].ended = "failed" if fails else "done"
        if fails:
            failure = ValueError(str(run.closure))
            self.error = self.error or failure
            more = self.queue.failed(run.closure, run.attempt, failure)
        else:
            more = self.queue.finished(run.closure, run.attempt)
        assert more is not None
        self.carry_out(more)

    @precondition(lambda self: any(closure.runs for closure in self.closures))
    @rule(data=st.data())
    def late_answer(self, data: st.DataObject) -> None:
        old = [
            run
            for closure in self.closures
            for run in closure.runs
            if self.running.get(run.closure) != run
        ]
        if old:
            run = data.draw(st.sampled_from(old))
            assert self.queue.finished(run.closure, run.attempt) is None

    @rule()
    def tell(self) -> None:
        if self.queue.is_settled:
            assert self.queue.take_error() is self.error
            self.error = None

    @invariant()
    def nothing_is_forgotten(self) -> None:
        open_closures = sum(not closure.ended for closure in self.closures)
        assert self.queue.is_idle == (open_closures == 0)
        assert self.queue.is_settled == (not self.running)
        assert self.queue.has_error == (self.error is not None)
        if self.error is None and len(self.running) < 2 * len(self.there):
            assert open_closures == len(self.running), "a worker is free, and something waits"


TestHistories = Histories.TestCase
