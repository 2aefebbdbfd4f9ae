"""Which steps are traced: a share at random, and those that somebody asks for."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from typing import Any, cast

import pytest

from ropewalk.annexes.traces import heartbeat_part
from ropewalk.annexes.traces import task_answers as answers
from ropewalk.annexes.traces.sampling import Sampler
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.settings import Settings
from ropewalk.core.spans import Context, new_context, recent
from ropewalk.core.step_times import DATA, StepClock
from ropewalk.core.step_trace import StepTrace
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.worker.joining import JoinedTask


class Chief:
    sampled_step: Context | None = None


def joined(**settings: Any) -> JoinedTask:
    who, chief = Incarnation(TaskId("worker", 0), 1), cast("Any", Chief())
    return JoinedTask(who, chief, lambda: None, Settings(**settings), StepClock())


@pytest.fixture
def task() -> Iterator[heartbeat_part.TracedTask]:
    made = heartbeat_part.TracedTask(joined())
    yield made
    made.close()


class Step:
    context = new_context()


def sampled(sampler: Sampler, steps: int) -> int:
    return sum(sampler.next_is_sampled() for _ in range(steps))


def test_the_share_is_kept_and_not_by_every_so_manieth() -> None:
    sampler = Sampler("worker:0", 0.01, random_=random.Random(3).random)
    steps = [number for number in range(100_000) if sampler.next_is_sampled()]
    assert len(steps) == pytest.approx(1000, rel=0.1)  # three standard deviations
    gaps = {after - before for before, after in itertools.pairwise(steps)}
    assert min(gaps) < 10
    assert max(gaps) > 300


@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (1.0, 50)])
def test_none_and_all(share: float, count: int) -> None:
    assert sampled(Sampler("worker:0", share), 50) == count


def test_as_many_steps_as_are_asked_for_are_traced_and_no_more() -> None:
    told = list[Context]()
    sampler = Sampler("worker:0", 0.0, told.append)
    asked, other = sampler.ask(2), sampler.ask(1)
    for number in range(4):
        assert sampler.next_is_sampled() is (number < 2)
        if number < 2:
            sampler.ended(cast("StepTrace", Step()))
    assert asked.wait(0) == [Step.context] * 2
    assert other.wait(0) == [Step.context]
    assert told == [Step.context] * 2


def test_what_is_asked_for_no_more_is_not_traced() -> None:
    sampler = Sampler("worker:0", 0.0)
    sampler.forget(sampler.ask(5))
    assert not sampler.next_is_sampled()


def test_a_task_has_no_sampler_until_it_is_needed() -> None:
    for share, has_one in ((0.0, False), (0.5, True)):
        about = joined(trace=share)
        task = heartbeat_part.TracedTask(about)
        assert (about.clock.sampler is not None) is has_one
        task.close()


def test_the_next_steps_are_traced_when_they_are_asked_for(
    task: heartbeat_part.TracedTask,
) -> None:
    clock = task._joined.clock

    def steps() -> None:
        for _ in range(2000):
            clock.end(DATA, clock.begin())
            clock.step_ended()
            time.sleep(0.001)
            if clock.sampler is not None and clock.times().count > 20 and not clock.trace:
                return

    thread = threading.Thread(target=steps)
    thread.start()
    answer = answers.ANSWERS["trace-steps"]("3/20", Settings(), 1000)
    thread.join()
    assert len(set(answer["traces"])) == 3
    told = answers.ANSWERS["trace-spans"]("", Settings(), 500_000)["spans"]
    assert {row[1] for row in told if row[0] == "step"} >= set(answer["traces"])
    chief = task._joined.chief
    assert chief.sampled_step is not None
    assert chief.sampled_step.trace.hex() == answer["traces"][-1]


def test_a_program_that_makes_no_step_is_waited_for_so_long(
    task: heartbeat_part.TracedTask,
) -> None:
    assert answers.ANSWERS["trace-steps"]("3/0", Settings(), 1000) == {"traces": []}
    assert not task._sampler.next_is_sampled()


@pytest.mark.parametrize("argument", ["", "0/1", "101/1", "3/26", "3", "x/y"])
def test_what_cannot_be_asked_is_said(argument: str) -> None:
    with pytest.raises(ConfigurationError, match="from 1 to 100 steps within 25 s"):
        answers.ANSWERS["trace-steps"](argument, Settings(), 1000)


def test_the_last_spans_that_fit_are_told() -> None:
    clock = StepClock()
    clock.step_ended()
    clock.sampler = Sampler("worker:0", 1.0)
    for _ in range(300):
        clock.end(DATA, clock.begin())
        clock.step_ended()
    told = answers.ANSWERS["trace-spans"]("", Settings(), 10_000)["spans"]
    assert 20 < len(told) < 100
    assert told == [answers.as_row(span) for span in recent()[-len(told) :]]
