"""A store that is followed by another in the same process, and workers that push to it."""

import threading
import time
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import numpy as np

from helpers.pushes import push_of
from ropewalk.annexes.replication.server.follower import Follower
from ropewalk.annexes.replication.server.joining import copy_store
from ropewalk.annexes.replication.server.leader_records import Replayer
from ropewalk.annexes.replication.server.posting import StoreRecords
from ropewalk.annexes.replication.server.record_codec import RecordDecoder, RecordEncoder
from ropewalk.annexes.replication.server.records import Record
from ropewalk.core.arrays.dtypes import BFLOAT16, Array
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.closure_pushes import ClosureRun
from ropewalk.core.wire.steps import Encoding, LayoutEntry, Operation, PushResult
from ropewalk.engine.push_target import StepInfo
from ropewalk.proto.v1 import replication_pb2
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.store import Store

CHIEF = Incarnation(TaskId("chief", 0), 1)
FOLLOWER = TaskId("ps", 1)
TABLE_ROWS = 20_000  # with its slots, several tiles


class Link:
    """Sends records as bytes to a thread that replays them.

    Args:
        leader: Its stream hears of what was replayed.
        follower: Empty.
    """

    shares_memory = False

    def __init__(self, leader: Store, follower: Store) -> None:
        self._leader = leader
        self._replayer = Replayer(follower)
        self._encoder, self._decoder = RecordEncoder(), RecordDecoder()
        self._sent: SimpleQueue[tuple[bytes, bytes] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._replay, daemon=True)
        self._thread.start()
        self.failure: BaseException | None = None

    def send(self, position: int, record: Record) -> None:
        """See :class:`~ropewalk.annexes.replication.server.follower.FollowerLink`."""
        message, arrays = self._encoder.encode(position, record)
        payload = b"".join(array.tobytes() for array in arrays)
        self._sent.put((message.SerializeToString(), payload))

    def read(self, timeout_s: float) -> None:
        """Another thread acknowledges."""
        time.sleep(min(timeout_s, 0.001))

    def close(self) -> None:
        """Nothing is open."""

    def cancel(self) -> None:
        """Nothing waits here for long."""

    def lead_in(self, epoch: int) -> None:
        """See :class:`~ropewalk.annexes.replication.server.follower.FollowerLink`."""
        self._encoder.epoch = epoch

    def _replay(self) -> None:
        try:
            while (item := self._sent.get()) is not None:
                data, payload = item
                message = replication_pb2.Record.FromString(data)
                self._replayer.take(self._decoder.decode(message, memoryview(payload)))
                self._leader.part(StoreRecords).stream.acknowledge(self, message.position)
        except BaseException as error:
            self.failure = error
            raise

    def finish(self) -> None:
        """Wait until everything was replayed."""
        self._sent.put(None)
        self._thread.join(60)
        assert self.failure is None, self.failure


class SilentLink:
    """Takes records, and acknowledges nothing."""

    shares_memory = False

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.is_closed = False

    def send(self, position: int, record: Record) -> None:
        """See :class:`~ropewalk.annexes.replication.server.follower.FollowerLink`."""
        self.records.append(record)

    def read(self, timeout_s: float) -> None:
        """Nothing comes."""
        time.sleep(min(timeout_s, 0.001))

    def close(self) -> None:
        """Note it."""
        self.is_closed = True

    def cancel(self) -> None:
        """Nothing waits here for long."""

    def lead_in(self, epoch: int) -> None:
        """The epoch is of no interest."""


def make_store(rule: UpdateRule | None = None, index: int = 0, timeout_s: float = 60.0) -> Store:
    """A store; with a rule it has some variables that the rule updates."""
    store = Store(TaskId("ps", index), Settings(request_timeout_s=timeout_s))
    if rule is not None:
        fill(store, rule)
    return store


def fill(store: Store, rule: UpdateRule) -> None:
    """Define some variables, which a rule updates."""
    shapes = {"table": (TABLE_ROWS, 16), "w": (30, 4), "b": (5,), "half": (9, 2), "brain": (9, 2)}
    dtypes = {"half": np.dtype("f2"), "brain": BFLOAT16}
    variables = [
        VariableDefinition(name, shape, dtypes.get(name, np.dtype("f4")))
        for name, shape in shapes.items()
    ]
    count = VariableDefinition("count", (3,), np.dtype("i8"))
    store.table.define([ShardDefinition(each) for each in (*variables, count)], CHIEF)
    store.table.bind([each.name for each in variables], rule, CHIEF)


class Worker:
    """Pushes random steps to a store.

    Args:
        store: The leader's.
        index: The worker's index, on which its random numbers depend.
    """

    def __init__(self, store: Store, index: int) -> None:
        self.store = store
        self.who = Incarnation(TaskId("worker", index), 1)
        self.random = np.random.default_rng(index)
        self.pushes = 0
        store.register_incarnation(self.who)

    def push(self, closure: ClosureRun | None = None, number: int = 0) -> PushResult:
        """One step: rows and elements of some variables, whole gradients of others."""
        entries: list[LayoutEntry] = []
        rows: list[Array] = []
        values: list[Array] = []

        def add(name: str, operation: Operation, encoding: Encoding, array: Array) -> None:
            entries.append(LayoutEntry(name, 0, operation, encoding))
            values.append(array)

        draw = self.random
        if draw.random() < 0.8:
            chosen = np.unique(draw.integers(0, TABLE_ROWS, 500))
            rows.append(chosen)
            gradient = draw.normal(size=(chosen.size, 16)).astype("f4")
            add("table", Operation.APPLY, Encoding.ROWS, gradient)
        else:
            whole = draw.normal(size=(TABLE_ROWS, 16)).astype("f4")
            add("table", Operation.APPLY, Encoding.DENSE, whole)
        add("w", Operation.APPLY, Encoding.DENSE, draw.normal(size=(30, 4)).astype("f4"))
        if draw.random() < 0.5:
            add("half", Operation.APPLY, Encoding.DENSE, draw.normal(size=(9, 2)).astype("f2"))
            add("brain", Operation.APPLY, Encoding.DENSE, draw.normal(size=(9, 2)).astype(BFLOAT16))
        chosen = np.unique(draw.integers(0, 5, 3))
        rows.append(chosen)
        add("b", Operation.APPLY, Encoding.ELEMENTS, draw.normal(size=chosen.size).astype("f4"))
        add("count", Operation.ASSIGN_ADD, Encoding.DENSE, np.ones(3, np.int64))
        self.pushes += 1 if closure is None else 0
        info = StepInfo(
            self.who,
            self.pushes if closure is None else number,
            self.store.global_step,
            gradient_scale=0.5,
            closure=closure,
        )
        return self.send(entries, rows, values, info)

    def send(
        self,
        entries: Sequence[LayoutEntry],
        rows: Sequence[Array],
        values: Sequence[Array],
        info: StepInfo,
    ) -> PushResult:
        """Push what is given."""
        payload = memoryview(b"".join(array.tobytes() for array in values))
        start = 0

        def fetch(size: int) -> memoryview:
            nonlocal start
            start += size
            return payload[start - size : start]

        layout = compile_layout(self.store.table, entries)
        return self.store.push(push_of(layout, tuple(rows), info, 1), fetch)


def follow(leader: Store) -> tuple[Store, Link]:
    """A store that has everything of the leader's, and follows it."""
    follower = make_store(index=1)
    link = Link(leader, follower)
    copy_store(leader, Follower(FOLLOWER, link))
    return follower, link


def run_together(*work: Any) -> None:
    """Call functions in threads; all of them have returned without an exception."""
    failures: list[BaseException] = []

    def guarded(each: Any) -> None:
        try:
            each()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not failures, failures
