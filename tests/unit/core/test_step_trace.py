"""Sampled steps as spans of a task's clock; what is not sampled leaves none."""

from collections.abc import Iterator

import numpy as np
import pytest

from helpers.sessions import Cluster, create, variable
from ropewalk.client.ps.step import Step, Write
from ropewalk.core import spans
from ropewalk.core.spans import Context, Span, SpanRole, context_from_wire, new_context
from ropewalk.core.step_times import DATA, OTHERS, PUSH, StepClock, clock_here
from ropewalk.core.step_trace import MOST_SPANS, StepTrace
from ropewalk.core.wire import codec
from ropewalk.core.wire.steps import Operation, StepRequest


class Hand:
    """A clock's hand that a test moves. Unit: nanoseconds."""

    ns = 5

    def __call__(self) -> int:
        return self.ns


class Chosen:
    """A sampler that takes the steps with these numbers, from 1."""

    def __init__(self, *numbers: int) -> None:
        self.task, self.numbers = "worker:0", numbers
        self.count = 0
        self.traces = list[Context]()

    def next_is_sampled(self) -> bool:
        self.count += 1
        return self.count in self.numbers

    def ended(self, trace: StepTrace) -> None:
        self.traces.append(trace.context)


@pytest.fixture
def seen() -> Iterator[list[Span]]:
    """Spans that have ended since."""
    found = list[Span]()
    spans.listeners.append(found.append)
    yield found
    spans.listeners.remove(found.append)


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
def clock(hand: Hand) -> StepClock:
    begun = StepClock(hand)
    begun.step_ended()
    return begun


def part(clock: StepClock, hand: Hand, number: int, ns: int) -> None:
    began = clock.begin()
    hand.ns += ns
    clock.end(number, began)


def times(seen: list[Span]) -> dict[str, tuple[int, int]]:
    """Begin and end of each span, beside the beginning of the step."""
    zero = next(each for each in seen if each.name == "step").start_ns
    return {each.name: (each.start_ns - zero, each.end_ns - zero) for each in seen}


def test_a_sampled_step_is_a_span_of_each_part_and_one_of_all(
    clock: StepClock, hand: Hand, seen: list[Span]
) -> None:
    clock.sampler = sampler = Chosen(2)
    for _ in range(3):
        part(clock, hand, DATA, 10)
        hand.ns += 100
        part(clock, hand, PUSH, 20)
        clock.step_ended()
    part(clock, hand, DATA, 10)
    clock.step_ended()
    assert times(seen) == {"data": (0, 10), "push": (110, 130), "step": (0, 130)}
    assert {each.context.trace for each in seen} == {sampler.traces[0].trace}
    assert [each.parent for each in seen] == [sampler.traces[0].span] * 2 + [b""]
    assert {each.task for each in seen} == {"worker:0"}
    assert clock.times().count == 4
    assert clock.times().part("push").seconds == pytest.approx(60e-9)


def test_a_part_inside_another_does_not_move_its_beginning(
    clock: StepClock, hand: Hand, seen: list[Span]
) -> None:
    clock.sampler = Chosen(1)
    clock.step_ended()
    part(clock, hand, DATA, 7)
    outer = clock.begin()
    hand.ns += 10
    part(clock, hand, OTHERS, 5)
    hand.ns += 3
    part(clock, hand, OTHERS, 2)
    hand.ns += 1
    clock.end(PUSH, outer)
    clock.step_ended()
    assert times(seen)["push"] == (7, 7 + 10 + 5 + 3 + 2 + 1)
    assert times(seen)["data"] == (0, 7)


def test_spans_of_a_step_are_bounded_and_the_rest_is_counted(
    clock: StepClock, hand: Hand, seen: list[Span]
) -> None:
    clock.sampler = Chosen(1)
    clock.step_ended()
    for _ in range(MOST_SPANS + 3):
        part(clock, hand, DATA, 1)
    clock.step_ended()
    assert len(seen) == MOST_SPANS + 1
    assert seen[-1].fields == {"left_out": 3}


def test_a_step_that_is_not_sampled_has_no_byte_more() -> None:
    request = StepRequest(sequence=3, step_increment=1)
    message = codec.step_to_wire(request, 7, 0, early_reply=False)
    assert "trace" not in {field.name for field, _ in message.ListFields()}
    traced = StepRequest(sequence=3, step_increment=1, trace=new_context().to_wire())
    longer = codec.step_to_wire(traced, 7, 0, early_reply=False)
    assert longer.ByteSize() == message.ByteSize() + 24 + 3


def test_what_is_no_context_is_ignored() -> None:
    place = new_context()
    assert context_from_wire(place.to_wire()) == place
    assert context_from_wire(b"") is context_from_wire(b"x" * 23) is None


def test_a_ps_tells_the_wait_for_a_block_its_update_and_the_answer(seen: list[Span]) -> None:
    session = Cluster(2).session()
    create(session, variable("w", 4), parts=2)
    clock = StepClock()
    clock.sampler = sampler = Chosen(1)
    clock.step_ended()
    session.step(Step([Write(Operation.ASSIGN_ADD, {"w": np.ones(4, np.float32)})], ["w"]))
    clock.step_ended()
    assert clock_here() is clock
    assert {each.context.trace for each in seen} == {sampler.traces[0].trace}
    exchanges = {each.context.span: each for each in seen if each.kind is SpanRole.CLIENT}
    served = {each.context.span: each for each in seen if each.kind is SpanRole.SERVER}
    assert {each.fields["peer"] for each in exchanges.values()} == {"ps:0", "ps:1"}
    assert {each.task for each in served.values()} == {"ps:0", "ps:1"}
    for each in served.values():
        whole = exchanges[each.parent]
        assert whole.fields["peer"] == each.task
        assert whole.start_ns <= each.start_ns <= each.end_ns <= whole.end_ns
        assert each.name == whole.name == "push"
    for place, whole in served.items():
        parts = [each for each in seen if each.parent == place]
        assert [each.name for each in parts] == ["lock", "apply", "answer"]
        assert whole.start_ns <= parts[0].start_ns
        assert parts[-1].end_ns <= whole.end_ns


def test_a_step_without_a_sampler_has_no_span_on_either_side(seen: list[Span]) -> None:
    session = Cluster(1).session()
    create(session, variable("w", 4))
    clock = StepClock()
    clock.step_ended()
    session.step(Step([Write(Operation.ASSIGN_ADD, {"w": np.ones(4, np.float32)})], ["w"]))
    clock.step_ended()
    assert seen == []


def test_a_call_outside_any_trace_is_not_measured_and_one_that_fails_says_so(
    seen: list[Span],
) -> None:
    with spans.part_of(None, "heartbeat", "chief:0") as place:
        assert place == spans.current() == b""
    assert seen == []
    parent = new_context()
    with pytest.raises(OSError), spans.part_of(parent, "checkpoint", "ps:0") as place:  # noqa: PT011, PT012
        assert spans.current() == place
        raise OSError
    [span] = seen
    assert (span.name, span.task, span.kind) == ("checkpoint", "ps:0", SpanRole.SERVER)
    assert (span.context.trace, span.parent) == parent
    assert span.fields == {"error": "OSError"}
    assert spans.recent()[-1] == span
