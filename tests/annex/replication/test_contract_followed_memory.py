"""A ps that another one follows, and a worker that shares memory with it."""

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from helpers.calls import Calls
from helpers.digests import digest_of
from helpers.ps_peers import Ps, open_session, vector
from helpers.waiting import wait_until
from ropewalk.annexes.replication.server.follower import Follower, SegmentsReceived
from ropewalk.annexes.replication.server.leader_records import Replayer
from ropewalk.annexes.replication.server.posting import StoreRecords
from ropewalk.annexes.replication.server.records import BlockUpdated, CopiedTile, Record
from ropewalk.annexes.replication.server.share import ReplicatedShare
from ropewalk.annexes.replication.server.shares import PsShares
from ropewalk.client.ps.direct_pull import MemoryReading
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.cluster.replication.configuration import CopyTo, Lead
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.rules.built_in.adam import Adam
from ropewalk.core.task import TaskId
from ropewalk.core.wire.steps import Operation
from ropewalk.net.connection import Connection
from ropewalk.net.shared_memory import unavailable

pytestmark = pytest.mark.skipif(bool(unavailable()), reason=unavailable())

LEADER, FOLLOWER = TaskId("ps", 0), TaskId("ps", 1)
SMALL, LARGE = (16, 16), (300, 1000)


class Pair:
    """A leader and an empty ps, and a worker's session with the leader."""

    def __init__(self) -> None:
        self.leader, self.follower = (Ps("shm", index, ps_replicas=2) for index in range(2))
        self.share.lead(Lead(0, 1, LEADER))
        self.session = open_session(self.leader)

    @property
    def share(self) -> ReplicatedShare:
        """The share at the leader."""
        return share_of(self.leader)

    def define(self, **shapes: tuple[int, ...]) -> None:
        """Variables of zeros, which Adam updates."""
        start = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        variables = [vector(name, *shape) for name, shape in shapes.items()]
        self.session.define(variables, start, create=True)
        self.session.bind(list(shapes), Adam(learning_rate=0.1))

    def follow(self) -> None:
        """Copy the share, and count on the follower."""
        assert self.leader.server is not None
        shares = self.leader.server.shares
        assert isinstance(shares, PsShares)
        shares.copy(CopyTo(0, 1, LEADER, FOLLOWER), self.follower.address)
        wait_until(lambda: any(each.has_joined for each in self.share.state.followers), 20)
        self.share.lead(Lead(0, 2, LEADER, (FOLLOWER,)))

    def are_equal(self) -> bool:
        """Whether both have the same to the last bit."""
        return digest_of(share_of(self.follower).store) == digest_of(self.share.store)

    def close(self) -> None:
        """End both."""
        self.session.close()
        self.leader.close()
        self.follower.close()


def share_of(ps: Ps) -> ReplicatedShare:
    """Share 0 at a ps."""
    assert ps.server is not None
    share = ps.server.shares.at(0)
    assert isinstance(share, ReplicatedShare)
    return share


@pytest.fixture
def slow_follower(calls: Calls) -> None:
    """It carries out pushes a moment after it has got them."""

    def wait(replayer: Replayer, record: Record) -> None:
        if isinstance(record, BlockUpdated):
            time.sleep(0.02)

    calls.before(Replayer, "take", wait)


@pytest.fixture
def pair() -> Iterator[Pair]:
    both = Pair()
    yield both
    both.close()


def step(
    session: ParameterSession, random: np.random.Generator, names: Mapping[str, tuple[int, ...]]
) -> dict[str, Array]:
    """Push other gradients in every step, and pull all."""
    gradients = {name: random.standard_normal(shape, np.float32) for name, shape in names.items()}
    return dict(
        session.step(Step([Write(Operation.APPLY, gradients)], list(names), increment=1)).values
    )


@pytest.mark.usefixtures("slow_follower")
def test_large_pushes_are_read_where_the_worker_left_them(pair: Pair, calls: Calls) -> None:
    shapes = {"small": SMALL, "large": LARGE}
    pair.define(**shapes)
    pair.follow()
    sent: list[int] = []

    def note(
        connection: Connection,
        messages: Sequence[bytes],
        parts: Sequence[memoryview] = (),
        payload_bytes: int = 0,
    ) -> None:
        sent.append(payload_bytes)

    calls.before(Connection, "send", note)
    random = np.random.default_rng(0)
    for _ in range(10):
        values = step(pair.session, random, shapes)
    assert max(sent) < np.prod(LARGE) * 4
    wait_until(pair.are_equal, 10)
    held = share_of(pair.follower).store.table.blocks()
    assert sum(block.value.size for block in held) == 256 + 300_000
    np.testing.assert_array_equal(
        values["large"], pair.session.step(Step(reads=["large"])).values["large"]
    )


def test_a_larger_segment_replaces_the_one_before_at_the_follower_too(
    pair: Pair, calls: Calls
) -> None:
    dropped: list[int] = []
    calls.before(SegmentsReceived, "drop", lambda _, numbers: dropped.extend(numbers))
    pair.define(large=LARGE)
    pair.follow()
    random = np.random.default_rng(1)
    step(pair.session, random, {"large": LARGE})
    pair.define(larger=(900, 1000))
    for _ in range(3):  # a worker has two segments, and what is gone is said with the next record
        step(pair.session, random, {"large": LARGE, "larger": (900, 1000)})
    wait_until(pair.are_equal, 10)
    # Two had the pushes to "large", two more the tiles of the copy.
    wait_until(lambda: sorted(dropped) == [1, 2, 3, 4], 10)


@pytest.mark.usefixtures("slow_follower")
def test_no_push_is_written_over_while_a_ps_that_is_being_copied_to_reads_it(pair: Pair) -> None:
    pair.define(large=LARGE)
    random, is_over = np.random.default_rng(2), threading.Event()

    def train() -> None:
        while not is_over.is_set():
            step(pair.session, random, {"large": LARGE})

    worker = threading.Thread(target=train)
    worker.start()
    try:
        pair.follow()
    finally:
        is_over.set()
        worker.join(30)
    wait_until(pair.are_equal, 10)


def test_no_lock_is_held_while_a_ps_that_is_being_copied_to_is_slow(
    pair: Pair, calls: Calls
) -> None:
    carried_out = threading.Event()

    def wait(replayer: Replayer, record: Record) -> None:
        if isinstance(record, CopiedTile):
            carried_out.wait(30)

    calls.before(Replayer, "take", wait)
    pair.define(large=(3000, 1000))
    [block] = pair.share.store.table.blocks()
    following = threading.Thread(target=pair.follow)
    following.start()
    try:
        wait_until(lambda: any(block.number in each.copied for each in followers(pair)), 10)
        [follower] = followers(pair)
        two_tiles = (512 + 1024) * 1024 // 12  # elements, each with two slots
        wait_until(lambda: follower.copied[block.number] > two_tiles * 0.9, 10, "two tiles")
        assert block.lock.acquire(timeout=5)
        block.lock.release()
    finally:
        carried_out.set()
        following.join(30)
    wait_until(pair.are_equal, 10)


def followers(pair: Pair) -> tuple[Follower, ...]:
    """Those that the leader sends records to."""
    return pair.share.store.part(StoreRecords).stream.followers


class Withholding:
    """A link to a follower that acknowledges while it may."""

    shares_memory = False

    def __init__(self, share: ReplicatedShare) -> None:
        self._records = share.store.part(StoreRecords).stream
        self._position = 0
        self.may_acknowledge = threading.Event()
        self.may_acknowledge.set()
        share.store.part(StoreRecords).attach(Follower(FOLLOWER, self))
        self._records.need([FOLLOWER])

    def send(self, position: int, record: Record) -> None:
        self._position = position

    def read(self, timeout_s: float) -> None:
        if self.may_acknowledge.wait(timeout_s):
            self._records.acknowledge(self, self._position)

    def cancel(self) -> None:
        pass

    def close(self) -> None:
        pass

    def lead_in(self, epoch: int) -> None:
        pass


@pytest.mark.parametrize("pushes", [False, True], ids=["a pull", "a push and a pull"])
def test_what_is_read_from_memory_counts_once_followers_have_it(
    pair: Pair, calls: Calls, pushes: bool
) -> None:
    """Another worker pushes as late as it can be: when the ps may have answered already."""
    pair.define(large=LARGE)
    random = np.random.default_rng(3)
    step(pair.session, random, {"large": LARGE})
    other = open_session(pair.leader, index=1)
    other.define([vector("large", *LARGE)], {}, create=False)
    link = Withholding(pair.share)
    [block] = pair.share.store.table.blocks()
    seen: list[Array] = []

    def push() -> None:
        gradient = np.ones(LARGE, np.float32)
        other.step(Step([Write(Operation.APPLY, {"large": gradient})], [], increment=1))

    pushing = threading.Thread(target=push)

    def wait(*_: Any, **__: Any) -> None:
        if not pushing.ident:
            assert not threading.Event().wait(0.1)
            link.may_acknowledge.clear()
            version = int(block.versions[0])
            pushing.start()
            wait_until(lambda: block.versions[0] > version and not block.lock.locked(), 10)

    def read() -> None:
        if pushes:
            seen.append(step(pair.session, random, {"large": LARGE})["large"])
        else:
            seen.append(pair.session.step(Step(reads=["large"])).values["large"])

    calls.before(MemoryReading, "go_on", wait)
    reading = threading.Thread(target=read)
    reading.start()
    wait_until(lambda: pushing.ident, 10)
    reading.join(0.3)
    assert not seen
    link.may_acknowledge.set()
    reading.join(20)
    pushing.join(20)
    np.testing.assert_array_equal(seen[0].reshape(-1), block.value)
    other.close()


def test_a_push_is_answered_before_the_follower_has_applied_it(pair: Pair, calls: Calls) -> None:
    pair.define(large=LARGE)
    pair.follow()
    may_go_on = threading.Event()

    def wait(replayer: Replayer, record: Record) -> None:
        if isinstance(record, BlockUpdated):
            may_go_on.wait(30)

    calls.before(Replayer, "take", wait)
    push = [Write(Operation.APPLY, {"large": np.ones(LARGE, np.float32)})]
    pair.session.step(Step(push, increment=1))
    next_one = threading.Thread(target=pair.session.step, args=(Step(push),))
    next_one.start()
    try:
        next_one.join(0.5)
        assert next_one.is_alive(), "its answer says that the first push is applied"
    finally:
        may_go_on.set()
        next_one.join(30)
    wait_until(pair.are_equal, 10)
