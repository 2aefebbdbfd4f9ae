"""A session of a ps, driven by a payload and an answer that note what is asked of them."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from helpers.waiting import wait_until
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import (
    LimitExceededError,
    RefusedError,
    RopewalkError,
    SegmentError,
    ShapeMismatchError,
)
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Encoding, LayoutEntry, Operation, StepReply
from ropewalk.proto.v1 import session_pb2
from ropewalk.server.ps.payload import BufferPayload
from ropewalk.server.ps.session import Session
from ropewalk.server.ps.store import Store

PULL, APPLY, ASSIGN, ADD, *_ROWS = Operation
WORKER = Incarnation(TaskId("worker", 0), 1)
FOLLOWER = TaskId("ps", 1)
F32 = np.dtype(np.float32)
LARGE = 100_000  # elements; a block of its own, and more than a pull that is sent whole


class Noting(BufferPayload):
    """Notes what is asked of it."""

    def __init__(self, *arrays: Array, log: list[str]) -> None:
        super().__init__([memoryview(array.tobytes()) for array in arrays])
        self._log = log

    def take(self, count: int) -> memoryview:
        self._log.append(f"take {count}")
        return super().take(count)

    def mark_applied(self) -> None:
        self._log.append("applied")

    def drain(self) -> None:
        self._log.append("drain")


@dataclass
class Noted:
    """An answer that keeps what it was given."""

    log: list[str] = field(default_factory=list)
    replies: list[StepReply] = field(default_factory=list)
    values: list[Array] = field(default_factory=list)

    def begin(self, reply: StepReply) -> None:
        self.log.append("begin")
        self.replies.append(reply)

    def room(self, num_bytes: int) -> Array | None:
        return None

    def copy(self, values: Array, rows: Array | None = None) -> Array:
        return values.copy() if rows is None else values[rows].reshape(-1)

    def write(self, part: Array) -> None:
        self.log.append(f"write {part.nbytes}")
        self.values.append(part)

    def finish(self) -> None:
        self.log.append("finish")


class Ps:
    """A store with some variables, and a session."""

    def __init__(self, **sizes: int) -> None:
        self.store = Store(TaskId("ps", 0), Settings(max_step_bytes=1024**2))
        definitions = [VariableDefinition(name, (n, 1), F32) for name, n in sizes.items()]
        self.store.table.define([ShardDefinition(each) for each in definitions], WORKER)
        self.session = Session(self.store, WORKER)
        self.sequence = 0

    def layout(self, layout_id: int, *entries: LayoutEntry) -> None:
        self.session.add_layout(layout_id, lambda: entries)

    def step(self, *arrays: Array, **fields: Any) -> Noted:
        answer = Noted()
        total = sum(array.nbytes for array in arrays)
        header = session_pb2.Step(**{"payload_bytes": total, "request_id": 1, **fields})
        self.session.step(header, lambda: Noting(*arrays, log=answer.log), answer)
        return answer

    def assign(self, name: str, values: Array) -> None:
        self.sequence += 1
        self.layout(99, LayoutEntry(name, 0, ASSIGN))
        assert self.step(values, push_layout=99, sequence=self.sequence).replies[0].error is None


def ones(count: int) -> Array:
    return np.ones(count, np.float32)


def test_a_push_is_taken_part_by_part_and_what_is_applied_is_marked() -> None:
    ps = Ps(a=LARGE, b=LARGE)
    ps.layout(1, LayoutEntry("a", 0, ASSIGN), LayoutEntry("b", 0, ASSIGN))
    answer = ps.step(ones(LARGE), ones(LARGE), push_layout=1, sequence=1, step_increment=1)
    size = 4 * LARGE
    assert answer.log == [f"take {size}", "applied", f"take {size}", "applied", "begin", "finish"]
    assert answer.replies == [StepReply(1, global_step=1)]


def test_row_numbers_are_taken_and_checked_before_any_value() -> None:
    ps = Ps(w=3, table=10)
    ps.layout(1, LayoutEntry("w", 0, ADD), LayoutEntry("table", 0, ADD, Encoding.ROWS))
    rows = np.array([3, 10])
    answer = ps.step(rows, ones(3), ones(2), push_layout=1, push_rows=[2], sequence=1)
    assert answer.log == ["take 16", "drain", "begin", "finish"]
    assert isinstance(answer.replies[0].error, ShapeMismatchError)
    assert ps.store.counters().refused == 1


def refusals() -> list[Any]:
    row = np.zeros(1, np.int64)
    cases: list[tuple[str, Sequence[Array], dict[str, Any], type[RopewalkError], str]] = [
        ("unknown-push", [ones(3)], {"push_layout": 9}, RefusedError, "layout 9 was not sent"),
        ("unknown-pull", [], {"pull_layout": 9, "sequence": 0}, RefusedError, "layout 9 was not"),
        ("too-few", [ones(1)], {"push_layout": 1}, ShapeMismatchError, "4 bytes for a push of 12"),
        ("for-nothing", [ones(3)], {}, ShapeMismatchError, "12 bytes for a push of 0"),
        ("no-counts", [], {"push_layout": 2}, ShapeMismatchError, "row counts for 0 pushed and 0"),
        ("counts-for-dense", [ones(3)], {"push_layout": 1, "push_rows": [1]},
         ShapeMismatchError, "row counts for 1 pushed and 0"),
        ("huge-count", [], {"push_layout": 2, "push_rows": [2**62]},
         ShapeMismatchError, "sent 0 bytes for a push of"),
        ("huge-pull", [row], {"pull_layout": 3, "pull_rows": [2**40], "sequence": 0},
         RopewalkError, "bytes"),
        ("unknown-variable", [], {"push_layout": 4}, RopewalkError, "'nowhere'"),
        ("no-rule", [ones(3)], {"push_layout": 5}, RefusedError, "no update rule"),
    ]  # fmt: skip
    return [pytest.param(*case, id=name) for name, *case in cases]


@pytest.mark.parametrize(("arrays", "fields", "error", "text"), refusals())
def test_a_step_that_cannot_be_is_answered_with_its_error_and_the_session_goes_on(
    arrays: Sequence[Array], fields: dict[str, Any], error: type[RopewalkError], text: str
) -> None:
    ps = Ps(w=3, table=4)
    ps.layout(1, LayoutEntry("w", 0, ADD))
    ps.layout(2, LayoutEntry("table", 0, ADD, Encoding.ROWS))
    ps.layout(3, LayoutEntry("table", 0, PULL, Encoding.ROWS))
    ps.layout(4, LayoutEntry("nowhere", 0, ADD))
    ps.layout(5, LayoutEntry("w", 0, APPLY))
    answer = ps.step(*arrays, **{"sequence": 1, **fields})
    [reply] = answer.replies
    assert isinstance(reply.error, error)
    assert text in reply.error.message
    assert reply.payload_bytes == 0
    assert "drain" in answer.log
    assert ps.step(ones(3), push_layout=1, sequence=1).replies[0].error is None
    counters = ps.store.counters()
    assert (counters.pushes, counters.refused) == (1, 1)


def test_a_step_over_the_limit_is_not_read_and_ends_the_session() -> None:
    with pytest.raises(LimitExceededError, match=r"1048577 bytes is over max_step_bytes=1048576"):
        Ps(w=3).step(payload_bytes=1024**2 + 1)


def test_a_payload_that_cannot_be_opened_is_neither_counted_nor_refused() -> None:
    ps, answer = Ps(w=3), Noted()
    ps.layout(1, LayoutEntry("w", 0, ADD))

    def refuse() -> BufferPayload:
        raise SegmentError("not mapped")

    before = ps.store.counters()
    header = session_pb2.Step(request_id=1, sequence=1, push_layout=1, payload_bytes=12)
    ps.session.step(header, refuse, answer)
    assert isinstance(answer.replies[0].error, SegmentError)
    assert ps.store.counters() == before


def test_a_payload_that_breaks_off_ends_the_session_and_the_step_may_be_repeated() -> None:
    ps = Ps(a=LARGE, b=LARGE)
    ps.layout(1, LayoutEntry("a", 0, ADD), LayoutEntry("b", 0, ADD), LayoutEntry("a", 0, ADD))
    ps.layout(2, LayoutEntry("a", 0, ADD), LayoutEntry("b", 0, ADD))
    ps.assign("a", ones(LARGE))
    ps.assign("b", ones(LARGE))

    class Breaking(Noting):
        def take(self, count: int) -> memoryview:
            if "applied" in answer.log:
                raise ConnectionError("cut")
            return super().take(count)

    answer = Noted()
    header = session_pb2.Step(request_id=1, sequence=3, push_layout=2, payload_bytes=8 * LARGE)
    with pytest.raises(ConnectionError, match="cut"):
        ps.session.step(header, lambda: Breaking(ones(LARGE), log=answer.log), answer)
    assert answer.replies == []
    again = ps.step(ones(LARGE), ones(LARGE), push_layout=2, sequence=3)
    assert not again.replies[0].duplicate
    assert {float(block.value[0]) for block in ps.store.table.blocks()} == {2.0}


def test_early_replies_bring_each_shard_when_it_is_applied_and_then_the_outcome() -> None:
    ps = Ps(a=LARGE, b=LARGE)
    entries = [("a", 0), ("b", 0)]
    ps.layout(1, *(LayoutEntry(name, part, ASSIGN) for name, part in entries))
    ps.layout(2, *(LayoutEntry(name, part, PULL, num_bytes=4 * LARGE) for name, part in entries))
    answer = ps.step(
        ones(LARGE), 2 * ones(LARGE),
        push_layout=1, pull_layout=2, sequence=1, step_increment=1, early_reply=True,
    )  # fmt: skip
    size = 4 * LARGE
    assert answer.log == [
        f"take {size}", "begin", f"write {size}", f"take {size}", f"write {size}", "finish",
        "begin", "finish",
    ]  # fmt: skip
    first, outcome = answer.replies
    assert (first.payload_bytes, first.outcome_follows) == (2 * size, True)
    assert (outcome.global_step, outcome.outcome_follows) == (1, False)
    assert [float(values[0]) for values in answer.values] == [1, 2]


def test_an_early_reply_that_is_refused_is_an_ordinary_one() -> None:
    ps = Ps(a=LARGE)
    ps.layout(1, LayoutEntry("a", 0, ASSIGN))
    ps.layout(2, LayoutEntry("a", 0, PULL, num_bytes=4 * LARGE))
    answer = ps.step(ones(LARGE), push_layout=1, pull_layout=2, sequence=5, early_reply=True)
    [reply] = answer.replies
    assert reply.error is not None
    assert not reply.outcome_follows


def test_what_is_known_of_a_layout_is_forgotten_with_it() -> None:
    ps = Ps(a=LARGE, b=LARGE)
    for name in ("a", "b"):
        ps.assign(name, ones(LARGE))
    ps.layout(1, LayoutEntry("a", 0, PULL))
    assert len(ps.step(pull_layout=1, request_id=7).values) == 1
    ps.layout(1, LayoutEntry("b", 0, PULL))
    assert len(ps.step(pull_layout=1, request_id=8, known_request=7).values) == 1


def test_only_entries_that_changed_since_the_known_request_follow() -> None:
    ps = Ps(a=LARGE, b=LARGE)
    for name in "ab":
        ps.assign(name, ones(LARGE))
    ps.layout(1, *(LayoutEntry(name, 0, PULL, num_bytes=4 * LARGE) for name in "ab"))
    whole = ps.step(pull_layout=1, request_id=7)
    assert (whole.replies[0].changed, len(whole.values)) == (b"", 2)
    ps.assign("b", 3 * ones(LARGE))
    some = ps.step(pull_layout=1, request_id=8, known_request=7)
    assert some.replies[0].changed == b"\x02"
    assert [float(values[0]) for values in some.values] == [3]
    # What another request brought is not known here, and neither is what a new layout brings.
    assert len(ps.step(pull_layout=1, request_id=9, known_request=7).values) == 2
    ps.layout(1, *(LayoutEntry(name, 0, PULL, num_bytes=4 * LARGE) for name in "ba"))
    assert len(ps.step(pull_layout=1, request_id=10, known_request=9).values) == 2


def test_layouts_have_a_bound_and_ids_may_be_used_again() -> None:
    ps = Ps(w=3)
    with pytest.raises(RefusedError, match="layout 0 stands for none"):
        ps.layout(0)
    for layout_id in range(1, 4097):
        ps.layout(layout_id, LayoutEntry("w", 0, ADD))
    ps.layout(4096, LayoutEntry("w", 0, ASSIGN))
    with pytest.raises(LimitExceededError, match="more than 4096 different sets"):
        ps.layout(4097)


class Silent:
    """A link to a follower that acknowledges when it is asked to."""

    shares_memory = False

    def __init__(self, store: Store) -> None:
        from ropewalk.annexes.replication.server.follower import Follower
        from ropewalk.annexes.replication.server.posting import StoreRecords

        self._records = store.part(StoreRecords)
        self._position = 0
        self._records.attach(Follower(FOLLOWER, self))
        self._records.stream.need([FOLLOWER])

    def lead_in(self, epoch: int) -> None:
        pass

    def send(self, position: int, record: Any) -> None:
        self._position = position

    def read(self, timeout_s: float) -> None:
        time.sleep(min(timeout_s, 0.001))

    def close(self) -> None:
        """Nothing is open."""

    def cancel(self) -> None:
        pass

    def acknowledge(self) -> None:
        self._records.stream.acknowledge(self, self._position)


@pytest.mark.annex("replication")
@pytest.mark.parametrize(
    ("pull", "before"),
    [((), []), (("a",), ["begin"]), (("large",), ["begin", f"write {4 * LARGE}"])],
    ids=["a push", "a push and a pull", "a push and a pull that overlap"],
)
def test_an_answer_is_whole_once_followers_have_what_it_is_about(
    pull: tuple[str, ...], before: list[str]
) -> None:
    ps = Ps(a=3, large=LARGE)
    link = Silent(ps.store)
    names = pull or ("a",)
    ps.session.add_layout(1, lambda: [LayoutEntry(name, 0, ADD) for name in names])
    ps.session.add_layout(2, lambda: [LayoutEntry(name, 0, PULL) for name in names])
    sizes = [LARGE if name == "large" else 3 for name in names]
    values = [np.ones(size, np.float32) for size in sizes]
    payload = BufferPayload([memoryview(each.tobytes()) for each in values])
    step = session_pb2.Step(
        request_id=1, push_layout=1, pull_layout=2 if pull else 0, sequence=1,
        payload_bytes=sum(each.nbytes for each in values), early_reply=pull == ("large",),
    )  # fmt: skip
    answer = Noted()
    done = threading.Event()

    def run() -> None:
        ps.session.step(step, lambda: payload, answer)
        done.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        wait_until(lambda: ps.store.counters().pushes == 1, 10)
        assert not done.wait(0.05)
        assert answer.log[: len(before)] == before
        assert len(answer.replies) < 2
        assert ("finish" in answer.log) is (pull == ("large",))
    finally:
        link.acknowledge()
        thread.join(10)
    assert done.is_set()
    assert answer.log[-1] == "finish"
