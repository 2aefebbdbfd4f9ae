"""A store that follows another has the same bits, whatever is pushed while it is copied."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from helpers.calls import Calls
from helpers.digests import digest_of
from helpers.pushes import push_of
from helpers.replication.stores import (
    CHIEF,
    FOLLOWER,
    Link,
    SilentLink,
    Worker,
    follow,
    make_store,
    run_together,
)
from helpers.rules import SGD, Adagrad, Adam, Ftrl, Lamb
from helpers.waiting import wait_until
from ropewalk.annexes.replication.server.copying import copy_block, next_tile
from ropewalk.annexes.replication.server.follower import Follower
from ropewalk.annexes.replication.server.joining import copy_store
from ropewalk.annexes.replication.server.leader_records import Replayer
from ropewalk.annexes.replication.server.posting import StoreRecords
from ropewalk.annexes.replication.server.records import (
    BlockCopyBegun,
    BlockUpdated,
    Checked,
    CopyCompleted,
    HandedOver,
    Record,
    before,
)
from ropewalk.annexes.replication.server.share import ReplicatedShare
from ropewalk.cluster.replication.configuration import CopyTo, Lead
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import FencedError, MovedError, PeerLostError, RefusedError
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.closure_pushes import ClosureRun
from ropewalk.core.wire.steps import Encoding, LayoutEntry, Operation
from ropewalk.engine.push_target import Gradient, Range, StepInfo, UpdatePart
from ropewalk.net.shared_memory import SharedSegment
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.store import Store

RULES: list[UpdateRule] = [
    SGD(learning_rate=0.1),
    SGD(learning_rate=0.1, momentum=0.9, nesterov=True),
    Adagrad(learning_rate=0.1),
    Adam(learning_rate=0.01),
    Ftrl(learning_rate=0.1),
    Lamb(learning_rate=0.01),
]


def value_of(store: Store, variable: str) -> Array:
    [(block, entry)] = [
        (block, entry)
        for block in store.table.blocks()
        for entry, shard in enumerate(block.shards)
        if shard.variable.name == variable
    ]
    return block.view(entry)


def run_within(timeout_s: float, call: Callable[[], Any]) -> Any:
    """What a call returns, which must not wait for others."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(timeout_s)


def names(rule: UpdateRule) -> str:
    return f"{rule.name}{' with momentum' if getattr(rule, 'momentum', 0) else ''}"


@pytest.mark.parametrize("rule", RULES, ids=names)
def test_a_follower_that_joins_while_workers_push_has_the_same_bits(rule: UpdateRule) -> None:
    leader = make_store(rule)
    workers = [Worker(leader, index) for index in range(2)]
    for worker in workers:
        worker.push()
    joined = threading.Event()
    followers = []

    def join() -> None:
        followers.append(follow(leader))
        joined.set()

    def train(worker: Worker) -> None:
        after = 0
        while after < 3 and worker.pushes < 500:
            worker.push()
            after += joined.is_set()

    run_together(join, *(lambda each=each: train(each) for each in workers))
    [(follower, link)] = followers
    link.finish()
    assert digest_of(follower) == digest_of(leader)
    assert follower.global_step == sum(worker.pushes for worker in workers)
    assert follower.global_step > 5


def test_what_is_defined_bound_and_raised_later_is_followed() -> None:
    leader = make_store(SGD(learning_rate=0.1))
    follower, link = follow(leader)
    late = VariableDefinition("late", (200_000,), np.dtype("f4"))
    leader.table.define([ShardDefinition(late)], CHIEF)
    leader.table.bind(["late"], Adam(learning_rate=0.1), CHIEF)
    leader.raise_global_step(70)
    worker = Worker(leader, 0)
    gradient = np.linspace(-1, 1, 200_000, dtype="f4")
    entry = LayoutEntry("late", 0, Operation.APPLY, Encoding.DENSE)
    for number in (1, 2):
        worker.send([entry], [], [gradient], StepInfo(worker.who, number, 70))
    link.finish()
    assert digest_of(follower) == digest_of(leader)
    assert follower.global_step == 72
    held = follower.table.lookup([ShardDefinition(late)], CHIEF)
    assert held[0].shard.rule == Adam(learning_rate=0.1)


def test_a_follower_knows_what_was_applied_when_it_leads() -> None:
    """A push that was answered is a duplicate there, and the next one is taken."""
    leader = make_store(SGD(learning_rate=0.1))
    first = Worker(leader, 0)
    first.push()
    follower, link = follow(leader)
    first.push()
    run = ClosureRun(coordinator=3, lane=0, turn=1)
    first.push(run, 1)
    link.finish()
    before = digest_of(follower)
    again = Worker(follower, 0)
    again.pushes = 1
    assert again.push().duplicate
    assert again.push(run, 1).duplicate
    assert digest_of(follower) == before
    assert not again.push().duplicate
    newer = Incarnation(first.who.task, 2)
    leader.register_incarnation(newer)
    with pytest.raises(FencedError):
        first.push()


def test_a_leader_applies_a_push_once_that_was_half_applied_before_it_followed() -> None:
    """Blocks remember the push, on the follower as on the leader."""
    leader = make_store(SGD(learning_rate=1.0))
    worker = Worker(leader, 0)
    entries = [
        LayoutEntry("w", 0, Operation.APPLY, Encoding.DENSE),
        LayoutEntry("count", 0, Operation.ASSIGN_ADD, Encoding.DENSE),
    ]
    values = [np.ones((30, 4), "f4"), np.ones(3, np.int64)]
    layout = compile_layout(leader.table, entries)

    def breaks(size: int) -> memoryview:
        if size == 24:
            raise ConnectionError("the worker's connection broke")
        return memoryview(values[0].tobytes())

    info = StepInfo(worker.who, 1, 0)
    with pytest.raises(ConnectionError):
        leader.push(push_of(layout, (), info, 1), breaks)
    follower, link = follow(leader)
    link.finish()
    assert digest_of(follower) == digest_of(leader)
    again = Worker(follower, 0)
    assert not again.send(entries, [], values, info).duplicate
    leader_again = Worker(leader, 0)
    leader_again.send(entries, [], values, info)
    for store in (leader, follower):
        assert value_of(store, "count").tolist() == [1, 1, 1]
    assert (value_of(follower, "w") == value_of(leader, "w")).all()


class BrokenLink(SilentLink):
    """Takes some records, and then breaks."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def send(self, position: int, record: Record) -> None:
        if position > self._most or isinstance(record, CopyCompleted):
            raise BrokenPipeError("gone")


@pytest.mark.parametrize("most", [1, 3, 100_000])
def test_a_link_that_breaks_during_the_copy_ends_it_and_no_push(most: int) -> None:
    leader = make_store(Adam(learning_rate=0.1), timeout_s=0.5)
    worker = Worker(leader, 0)
    with pytest.raises(PeerLostError, match="task:1"):
        copy_store(leader, Follower(FOLLOWER, BrokenLink(most)))
    assert not worker.push().duplicate
    leader.part(StoreRecords).stream.confirm()  # nobody needs it
    leader.part(StoreRecords).stream.detach(FOLLOWER)
    follower, link = follow(leader)
    worker.push()
    link.finish()
    assert digest_of(follower) == digest_of(leader)


def test_answers_wait_for_those_that_are_needed_alone() -> None:
    leader = make_store(SGD(learning_rate=0.1))
    silent = SilentLink()
    follower = Follower(FOLLOWER, silent)
    leader.part(StoreRecords).attach(follower)
    leader.part(StoreRecords).stream.confirm()
    leader.part(StoreRecords).stream.need([FOLLOWER])
    confirmed = threading.Event()

    def confirm() -> None:
        leader.part(StoreRecords).stream.confirm()
        confirmed.set()

    thread = threading.Thread(target=confirm)
    thread.start()
    assert not confirmed.wait(0.05)
    leader.part(StoreRecords).stream.acknowledge(silent, len(silent.records) - 1)
    assert not confirmed.wait(0.05)
    leader.part(StoreRecords).stream.acknowledge(silent, len(silent.records))
    thread.join(10)
    assert confirmed.is_set()
    worker = Worker(leader, 0)
    worker.push()
    leader.part(StoreRecords).stream.close(FencedError("another ps leads"))
    with pytest.raises(FencedError, match="another ps leads"):
        leader.part(StoreRecords).stream.confirm()


def test_a_push_waits_for_no_longer_than_its_timeout() -> None:
    leader = make_store(SGD(learning_rate=0.1), timeout_s=0.05)

    leader.part(StoreRecords).attach(Follower(FOLLOWER, SilentLink()))
    leader.part(StoreRecords).stream.need([FOLLOWER])
    with pytest.raises(PeerLostError, match="0 of 1 records"):
        leader.part(StoreRecords).stream.confirm()


@pytest.mark.parametrize("was_attached", [True, False])
def test_answers_wait_for_a_follower_without_a_link_until_the_chief_gives_it_up(
    *, was_attached: bool
) -> None:
    """The chief may make it leader at any time."""
    leader = make_store(SGD(learning_rate=0.1), timeout_s=0.05)
    if was_attached:
        leader.part(StoreRecords).attach(Follower(FOLLOWER, SilentLink()))
    leader.part(StoreRecords).stream.need([FOLLOWER])
    leader.part(StoreRecords).stream.detach(FOLLOWER)
    with pytest.raises(PeerLostError, match="has no link to it"):
        leader.part(StoreRecords).stream.confirm()
    leader.part(StoreRecords).stream.need([])
    leader.part(StoreRecords).stream.confirm()


def test_a_push_waits_a_moment_for_a_ps_that_reads_it_and_is_not_needed_yet() -> None:
    """It may stand still, and then the worker may write over the push: its copy is given up."""
    leader = make_store(SGD(learning_rate=0.1), timeout_s=0.2)
    follower = Follower(FOLLOWER, SilentLink())
    leader.part(StoreRecords).attach(follower)
    leader.part(StoreRecords).stream.confirm()
    assert follower.broken is None
    follower.blocks.add(0)
    info = StepInfo(Incarnation(TaskId("worker", 0), 1), 1, 0)
    leader.part(StoreRecords).stream.post(BlockUpdated(0, info, (), SharedSegment.create(1)))
    began = time.monotonic()
    leader.part(StoreRecords).stream.confirm()
    assert time.monotonic() - began > 0.15
    assert isinstance(follower.broken, TimeoutError)


@pytest.mark.parametrize("by_rows", [False, True], ids=["dense", "rows"])
def test_a_ps_that_has_part_of_a_block_gets_that_part_of_an_update(by_rows: bool) -> None:
    rows = np.array([0, 3, 4, 7]) if by_rows else None
    values = np.arange(8, dtype="f4") if by_rows else np.arange(16, dtype="f4")
    part = UpdatePart(Range(0, 1, 0, 16), Operation.ASSIGN, None, Gradient(values, rows))
    segment = SharedSegment.create(1)
    info = StepInfo(Incarnation(TaskId("worker", 0), 1), 1, 0)
    update = BlockUpdated(0, info, (part,), segment, completes=1)
    nothing, some, everything = (before(update, stop) for stop in (0, 8, 16))
    assert nothing.parts[0].gradient.values.size == 0
    assert (nothing.segment, nothing.completes) == (None, 1)
    assert some.parts[0].gradient.values.tolist() == ([0, 1, 2, 3] if by_rows else [*range(8)])
    assert some.segment is segment
    if (kept := some.parts[0].gradient.rows) is not None:
        assert kept.tolist() == [0, 3]
    assert everything.parts[0].gradient.values.tolist() == values.tolist()


def test_a_rule_that_fails_leaves_the_same_on_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule without a kernel is the user's, or NumPy's: what it has made is sent, not the push."""
    leader = make_store(Lamb(learning_rate=0.01))
    follower, link = follow(leader)
    worker = Worker(leader, 0)
    worker.push()

    def fail(numpy: object, rule: object, value: Array, *_: object, **__: object) -> None:
        value[...] = 7
        raise ArithmeticError("half done")

    with monkeypatch.context() as patched:
        patched.setattr("ropewalk.engine.block.apply_formula", fail)
        with pytest.raises(ArithmeticError):
            worker.push()
    worker.pushes -= 1
    worker.push()
    link.finish()
    assert digest_of(follower) == digest_of(leader)


def test_a_leader_whose_kernel_fails_answers_no_more(
    calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its followers have the push, and go on without it."""
    leader = make_store(SGD(learning_rate=0.1))
    follower, link = follow(leader)
    worker = Worker(leader, 0)
    for block in leader.table.blocks():
        calls.fail(block, "run", MemoryError())
    with pytest.raises(MovedError, match="failed on this ps that its followers have: MemoryError"):
        worker.push()
    link.finish()
    assert leader.part(StoreRecords).stream.is_closed
    with pytest.raises(MovedError):
        leader.part(StoreRecords).stream.confirm()
    monkeypatch.undo()
    again = Worker(follower, 0)
    assert not again.push().duplicate, "half of it was there"


def test_a_read_asks_followers_that_have_said_nothing_for_a_while() -> None:
    """Another ps may lead, of which a leader that was cut off has not heard."""
    leader = make_store(SGD(learning_rate=0.1), timeout_s=0.2)
    link = SilentLink()
    follower = Follower(FOLLOWER, link)
    leader.part(StoreRecords).attach(follower)
    leader.part(StoreRecords).stream.need([FOLLOWER])
    leader.part(StoreRecords).stream.acknowledge(link, follower.position)
    leader.part(StoreRecords).stream.confirm()
    with pytest.raises(PeerLostError):
        leader.part(StoreRecords).stream.confirm_read()
    leader.part(StoreRecords).stream.acknowledge(link, follower.position)
    sent = len(link.records)
    leader.part(StoreRecords).stream.confirm_read()
    assert len(link.records) == sent, "it has just been asked"


def test_a_push_that_ends_before_its_last_block_is_copied_is_complete_at_the_follower() -> None:
    leader = make_store(SGD(learning_rate=0.1))
    worker = Worker(leader, 0)
    worker.push()
    store = make_store(index=1)
    link = Link(leader, store)
    follower = Follower(FOLLOWER, link)

    def attach() -> None:
        leader.part(StoreRecords).attach(follower)
        worker.push()

    copy_store(leader, follower, attach)
    link.finish()
    assert store.global_step == leader.global_step == 2
    assert digest_of(store) == digest_of(leader)
    again = Worker(store, 0)
    again.pushes = worker.pushes
    assert not again.push().duplicate


@pytest.mark.parametrize("rule", [SGD(learning_rate=0.1), Lamb(learning_rate=0.01)])
def test_a_push_of_a_worker_that_is_fenced_meanwhile_leaves_the_same_on_both(
    rule: UpdateRule,
) -> None:
    leader = make_store(rule)
    store, link = follow(leader)
    leader.part(StoreRecords).stream.need([FOLLOWER])
    worker = Worker(leader, 0)
    layout = compile_layout(leader.table, [LayoutEntry("w", 0, Operation.APPLY, Encoding.DENSE)])

    def fetch(size: int) -> memoryview:
        leader.register_incarnation(Incarnation(worker.who.task, 2))
        return memoryview(np.ones(size // 4, np.float32).tobytes())

    with pytest.raises(FencedError):
        leader.push(push_of(layout, (), StepInfo(worker.who, 1, 0), 1), fetch)
    leader.part(StoreRecords).stream.confirm()
    link.finish()
    assert digest_of(store) == digest_of(leader)


def test_an_acknowledgement_that_lay_unread_shows_that_a_follower_is_there() -> None:
    class Answering(SilentLink):
        def read(self, timeout_s: float) -> None:
            leader.part(StoreRecords).stream.acknowledge(self, len(self.records))

    leader = make_store(SGD(learning_rate=0.1))
    follower = Follower(FOLLOWER, Answering())
    leader.part(StoreRecords).stream.attach(follower)
    leader.part(StoreRecords).stream.check()
    assert follower.checked is not None
    follower.checked = (follower.checked[0], follower.checked[1] - 3600)  # the next check is late
    leader.part(StoreRecords).stream.check()
    assert follower.broken is None


def test_the_last_record_is_not_waited_for_longer_than_it_may_take() -> None:
    """The ps that is to lead may stand still: then it is for the chief to decide."""
    leader, links = make_store(SGD(learning_rate=0.1)), [SilentLink(), SilentLink()]
    other = TaskId("ps", 2)
    for task, link in zip((FOLLOWER, other), links, strict=True):
        leader.part(StoreRecords).attach(Follower(task, link))
    said = HandedOver(3, CHIEF, "ps0:1")
    run_within(10, lambda: leader.part(StoreRecords).stream.pass_on(said, other, 0.05))
    assert [each for link in links for each in link.records if each == said] == [said]
    assert links[1].records[-1] == said


def test_a_follower_whose_record_could_not_be_carried_out_does_not_lead(calls: Calls) -> None:
    """Not even if the order to lead waits for the record."""
    share = ReplicatedShare(0, FOLLOWER, Settings())
    records = share.follow(TaskId("ps", 0), 1, lambda: None)
    records.take(1, 1, CopyCompleted)

    calls.fail(Replayer, "take", MemoryError("no room"))
    records.end()
    with pytest.raises(RefusedError, match="could not be carried out"):
        records.take(1, 2, Checked)
    with pytest.raises(FencedError, match="without all of its contents"):
        share.lead(Lead(0, 2, FOLLOWER))


def test_a_leader_says_what_it_is_while_a_record_cannot_be_sent() -> None:
    """Else the chief would take it for lost, and the follower that takes nothing for the one."""
    stuck, is_over = threading.Event(), threading.Event()

    class Stuck(SilentLink):
        def send(self, position: int, record: Record) -> None:
            stuck.set()
            is_over.wait(60)

    leader = make_store(SGD(learning_rate=0.1))
    worker = Worker(leader, 0)
    follower = Follower(FOLLOWER, Stuck())
    leader.part(StoreRecords).stream.attach(follower)
    pushing = threading.Thread(target=worker.push)
    pushing.start()
    try:
        assert stuck.wait(10)
        assert run_within(10, leader.counters).pushes >= 0
        run_within(10, leader.part(StoreRecords).stream.check)
        assert follower.checked is not None  # so that its silence is noticed
    finally:
        is_over.set()
        pushing.join(20)


def test_a_copy_that_begins_as_its_ps_ends_leaves_no_link() -> None:
    leader = TaskId("ps", 0)
    share = ReplicatedShare(0, leader, Settings(request_timeout_s=3600.0))
    share.lead(Lead(0, 1, leader))
    opening, closed, link = threading.Event(), threading.Event(), SilentLink()

    def open_link(*_: object) -> SilentLink:
        opening.set()
        closed.wait(10)
        return link

    share.copy_to(CopyTo(0, 1, leader, FOLLOWER), "ps:1", open_link)
    assert opening.wait(10)
    share.close()
    closed.set()
    wait_until(lambda: link.is_closed, 10, "the link to be closed")
    assert share.store.part(StoreRecords).stream.followers == ()


def test_tiles_of_a_copy_become_as_large_as_the_link_is_fast() -> None:
    sizes = [512 * 1024]
    for took_s in (0.001, 0.001, 0.001, 0.001, 0.003, 0.006, 0.1, 0.1, 0.1):
        sizes.append(next_tile(sizes[-1], took_s))
    assert [size >> 19 for size in sizes] == [1, 2, 4, 8, 8, 8, 4, 2, 1, 1]


def test_no_push_is_held_up_while_a_follower_makes_room_for_a_large_block() -> None:
    leader, link = make_store(SGD(learning_rate=0.1), timeout_s=0.2), SilentLink()
    large = max(leader.table.blocks(), key=lambda block: block.value.nbytes)
    follower = Follower(FOLLOWER, link)
    leader.part(StoreRecords).attach(follower)
    with pytest.raises(PeerLostError, match="task:1"):
        copy_block(leader.part(StoreRecords).stream, large, leader.table.held_of(large), follower)
    assert [type(each) for each in link.records[-1:]] == [BlockCopyBegun]
