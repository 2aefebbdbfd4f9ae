"""What a node has to tell: in order, until it is confirmed."""

import threading

from ropewalk.annexes.service.node import Events
from ropewalk.core.task import TaskId
from ropewalk.core.wire import codec
from ropewalk.proto.v1 import gateway_pb2

W0 = TaskId("worker", 0)


def line(text: str) -> gateway_pb2.TaskEvent:
    said = gateway_pb2.LogLine(task=codec.task_to_wire(W0), text=text)
    return gateway_pb2.TaskEvent(job="j", task=codec.task_to_wire(W0), line=said)


def test_what_is_confirmed_goes_and_an_end_counts_until_then() -> None:
    changed = threading.Condition()
    with changed:
        events = Events(changed)
        for each in (line("a"), line("b")):
            events.add(each)
        assert events.ends() == set()
        end = gateway_pb2.TaskEvent(job="j", task=codec.task_to_wire(W0), exit_code=0)
        events.add(end)
        assert events.ends() == {("j", W0)}
        events.confirm(1)
        assert [event.line.text for event in events.batch()] == ["b", ""]
        assert events.first == 2
        events.confirm(1)
        events.confirm(3)
        assert (events.first, bool(events), events.ends()) == (4, False, set())
        events.add(line("c"))
        events.begin_anew()
        assert (events.first, events.batch()) == (1, [])


def test_a_batch_is_bounded_in_number_and_in_bytes() -> None:
    changed = threading.Condition()
    with changed:
        events = Events(changed)
        for _ in range(1500):
            events.add(line("x"))
        assert len(events.batch()) == 1000
        events.confirm(1500)
        for _ in range(3):
            events.add(line("y" * 700_000))
        assert len(events.batch()) == 1
