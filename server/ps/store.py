"""Steps on the variables of one ps.

Knows neither grpc nor messages: sessions of all connections use it, the in-process one too. The
store has no global lock: definitions have one, the push log has one, and every block has its own.
"""

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from ...core.arrays.dtypes import Array, narrow
from ...core.arrays.scaled_rows import SCALE_BYTES, first_bad_scale, pack_rows, unpack_rows
from ...core.errors import FencedError, RefusedError
from ...core.report import PsCounters
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...core.wire.steps import Encoding, PushResult
from ...engine.push_target import Gradient, PushTarget, RowsByKey, StepInfo, UpdatePart
from ...engine.rows import gather_rows
from .change_stream import BlockChange, ChangeStream, Push, Subscriber
from .layout import Layout, LayoutRange
from .limits import HeldBytes
from .once import Turns
from .push_marks import LogCopied, PushMarks
from .shard_table import ShardTable

_Taken = TypeVar("_Taken")
_Part = TypeVar("_Part")
_COUNTED_TABLES = 128  # in the status: each is a few numbers in every heartbeat
_NO_KEYS = np.empty(0, np.int64)

Fetch = Callable[[int], memoryview]
"""``fetch(n)``: the next n bytes of the payload, valid until the next call."""


class Store:
    """Carries out steps on the shards of one ps. Thread-safe.

    Args:
        task: The ps, for messages.
        settings: Settings, for the bounds.
        share: Number of the share that these shards are; None: the ps's own.
        beside: Counts what the ps holds in other stores.

    Attributes:
        contents: Identity of what is held here: followers take it over, and a worker that finds
            another one knows that its variables are gone.
        stream: Announces what happens here.
        table: The shards.
        beside: Counts what the ps holds in other stores.
    """

    def __init__(
        self,
        task: TaskId,
        settings: Settings,
        share: int | None = None,
        beside: Callable[[], HeldBytes] = HeldBytes,
    ) -> None:
        self.task = task
        self.settings = settings
        self.share = task.index if share is None else share
        self.contents = 1
        self.stream = ChangeStream()
        self.table = ShardTable(task, settings, self.raise_global_step, self.stream, beside)
        self.beside = beside
        self._parts: dict[object, Any] = {}
        self._parts_lock = threading.Lock()
        self._turns = Turns()
        self._marks_lock = threading.Lock()
        self._marks = PushMarks(task, settings.max_sessions)
        self._tally = PsCounters()  # of what happens; the rest is looked up
        self._tally_lock = threading.Lock()

    def part(self, kind: "Callable[[Store], _Part]") -> _Part:
        """Find the part of a kind that belongs to this store, as replication and cuts have one.

        Args:
            kind: Makes the part when it is asked for first.
        """
        with self._parts_lock:
            if kind not in self._parts:
                self._parts[kind] = kind(self)
            found: _Part = self._parts[kind]
            return found

    def check_contents(self, expected: int) -> None:
        """Refuse who means the variables of a process before this one.

        Args:
            expected: Identity that :attr:`contents` had; 0: any.

        Raises:
            FencedError: It is something else.
        """
        if expected not in (0, self.contents):
            raise FencedError(
                f"{self.task} restarted and lost its variables (generation {self.contents}, was "
                f"{expected}); restart the job to restore its last checkpoint",
                task=self.task,
            )

    # -- steps -------------------------------------------------------------------------------

    def raise_global_step(self, global_step: int) -> None:
        """Raise the global step to that of a checkpoint that was restored, at least."""
        with self._marks_lock:
            self._marks.global_step = max(self._marks.global_step, global_step)
            for each in self.stream.subscribers:
                each.step_raised(global_step)

    def register_incarnation(self, who: Incarnation) -> None:
        """Register an incarnation that opens a session; older ones of its task are fenced.

        Raises:
            FencedError: A newer incarnation has registered.
        """
        with self._marks_lock:
            self._marks.register_incarnation(who)
            for each in self.stream.subscribers:
                each.registered(who)

    def push(
        self, push: Push, fetch: Fetch, applied: Callable[[], None] = lambda: None
    ) -> PushResult:
        """Apply a push whose row numbers were checked, reading its values from ``fetch``.

        ``applied`` is called after each block, when no fetched data is in use any more.

        A push is applied at most once per (task, generation, sequence), or per closure and number
        in it; a repeat is read to its end and answered as a duplicate. If ``fetch`` fails halfway,
        the push may be repeated: blocks that have it skip it. Thread-safe.

        Raises:
            FencedError: A newer incarnation of the task has registered.
            SequenceError: An earlier push has not arrived.
            RefusedError: Its global step is not possible.
        """
        run = self.applying(push, fetch)
        while True:
            try:
                next(run)
            except StopIteration as end:
                result: PushResult = end.value
                return result
            applied()

    def applying(self, push: Push, fetch: Fetch) -> Generator[PushTarget, None, PushResult]:
        """Apply a push as :meth:`push` does, block by block: yields each updated block, returns the
        result.

        Blocks of a repeated push are not yielded; of one that advances a row, the last one alone,
        since all of it is read before any of it is applied.
        """
        for each in self.stream.subscribers:
            each.arrives(push.who)
        if push.advance is None:
            return (yield from self._applying(push, fetch))
        with self._turns.take(push, push.advance, fetch) as (allowed, taken):
            updated, result = _run(self._applying(allowed, taken))
        yield from updated[-1:]
        return result

    def _applying(self, push: Push, fetch: Fetch) -> Generator[PushTarget, None, PushResult]:
        with self._marks_lock:
            fresh = self._marks.is_new(push)
            info = push.at_least(self._marks.global_step)
        rows = iter(push.rows)
        waiting: dict[int, list[UpdatePart]] = {}
        result: PushResult | None = None
        last = len(push.layout.ranges) - 1
        ranges = zip(push.layout.ranges, push.layout.pending, strict=True)
        for index, (part, pending) in enumerate(ranges):
            numbers = next(rows) if part.encoding is not Encoding.DENSE else None
            size = part.num_bytes if numbers is None else part.numbered_bytes(numbers.size)
            data = fetch(size)
            if not fresh:
                continue
            work = waiting.setdefault(id(part.block), [])
            gradient = _decode(part, np.frombuffer(data, part.dtype), numbers)
            if pending and np.may_share_memory(gradient.values, np.frombuffer(data, np.uint8)):
                # The next fetch reuses the payload's memory; what waits for its block is copied.
                gradient = Gradient(gradient.values.copy(), gradient.rows)
            rule = push.changed.get(id(part.rule), part.rule) if push.changed else part.rule
            work.append(UpdatePart(part.where, part.operation, rule, gradient, part.decay))
            if not pending:
                result = self._apply(part.block, work, info, push, is_last=index == last)
                del waiting[id(part.block)]
                yield part.block
        return self._finish(push, fresh) if result is None else result

    def _apply(
        self,
        block: PushTarget,
        work: list[UpdatePart],
        info: StepInfo,
        push: Push,
        *,
        is_last: bool,
    ) -> PushResult | None:
        """Update a block; returns the push's result if it was counted with it."""
        locked = block.writing(work)
        with locked if push.trace is None else push.trace.changing(locked):
            if block.has_applied(info):
                return None
            subscribers = self.stream.subscribers
            if not subscribers:
                block.run(work, info)
                return None
            change = BlockChange(block, push, info, tuple(work), is_last)
            for each in subscribers:
                each.before(change)
            try:
                block.run(work, info)
            except BaseException as error:
                for each in subscribers:
                    each.failed(change, error)
                raise
            for each in subscribers:
                each.done(change)
            return change.result

    @contextmanager
    def completing(self, change: BlockChange) -> Iterator[None]:
        """Count the push of a change, which is complete with it; no other one is meanwhile."""
        with self._marks_lock:
            change.result = self._counted(change.push)
            yield

    def _finish(self, push: Push, fresh: bool) -> PushResult:
        """Complete a push all of whose blocks are updated."""
        with self._marks_lock:
            result = self._counted(push, fresh)
            if not result.duplicate:
                for each in self.stream.subscribers:
                    each.complete(push)
        return result

    def _counted(self, push: Push, fresh: bool = True) -> PushResult:
        """Count a push; the caller holds the lock."""
        before = self._marks.global_step
        fresh = fresh and self._marks.complete(push, push.step_increment)
        # A repeated push is already counted in the global step.
        staleness = before - push.global_step - (0 if fresh else push.step_increment)
        with self._tally_lock:
            self._tally.pushes += fresh
            self._tally.duplicates += not fresh
        return PushResult(self._marks.global_step, max(0, staleness), not fresh)

    def confirm(self) -> None:
        """Wait until an answer about a change may leave.

        Raises:
            RopewalkError: It may not.
        """
        for each in self.stream.subscribers:
            each.confirm()

    def confirm_read(self) -> None:
        """Wait until an answer that has changed nothing may leave.

        Raises:
            RopewalkError: It may not.
        """
        for each in self.stream.subscribers:
            each.confirm_read()

    def interrupt(self, why: str) -> None:
        """Tell all parts that what they keep or note of this store holds no longer."""
        with self._parts_lock:
            parts = [each for each in self._parts.values() if isinstance(each, Subscriber)]
        for each in parts:
            each.interrupted(why)

    # -- marks of pushes ---------------------------------------------------------------------

    def last_push(self, who: Incarnation) -> int:
        """Return the number of a worker's last complete push outside closures."""
        with self._marks_lock:
            return self._marks.last_push(who)

    @contextmanager
    def at_rest(self) -> Iterator[LogCopied]:
        """Let no push be completed and no block be added; yields a copy of the marks."""
        with self.table.publishing(), self._marks_lock:
            yield self._marks.copied(self.contents)

    def take_log(self, log: LogCopied) -> None:
        """Take over the marks of another ps that has the same."""
        with self._marks_lock:
            self._marks.take(log)
            self.contents = log.contents

    def complete(self, info: StepInfo, step_increment: int) -> None:
        """Note that a push is complete, as another ps counted it."""
        with self._marks_lock:
            self._marks.complete(info, step_increment)

    # -- reading -----------------------------------------------------------------------------

    def visit(
        self,
        layout: Layout,
        rows: Sequence[Array],
        copy: Callable[[Array, Array | None], _Taken],
        versions: Array | None = None,
        room: Callable[[int], Array | None] = lambda _: None,
    ) -> Iterator[_Taken]:
        """Call ``copy`` with the values of each range of a pull; yields its results.

        ``copy(values, rows)`` gets the block's memory, flat or as rows with the wanted row numbers,
        or rows of a table, flat; it runs under the block's lock, so that each shard is consistent;
        results are yielded without the lock. ``versions`` (int64, per entry) is set to the versions
        of the values. ``room`` gives memory for rows of a table, uint8 of so many bytes, in which
        ``copy`` then gets them. Thread-safe.
        """
        given, entry = iter(rows), 0
        for part in layout.ranges:
            numbers = next(given) if part.encoding is not Encoding.DENSE else None
            where, block = part.where, part.block
            with block.reading(numbers):
                value, numbers = _values(part, numbers, room)
                if part.dtype != value.dtype:
                    if numbers is not None:
                        value, numbers = gather_rows(value, numbers).reshape(-1), None
                    if part.is_scaled:
                        value = pack_rows(value.reshape(-1, part.width)).reshape(-1)
                    else:
                        value = narrow(value, part.dtype)
                taken = copy(value, numbers)
                if versions is not None:
                    versions[entry : entry + where.last - where.first] = block.versions[
                        where.first : where.last
                    ]
            entry += where.last - where.first
            yield taken

    def read(self, layout: Layout, rows: Sequence[Array]) -> list[Array]:
        """Copy the ranges of a pull, flat."""
        self.count_pull(0)
        return list(self.visit(layout, rows, _copy))

    @property
    def global_step(self) -> int:
        """Worker steps applied, as far as this ps knows."""
        with self._marks_lock:
            return self._marks.global_step

    # -- counters ----------------------------------------------------------------------------

    def count_bytes(self, *, received: int = 0, sent: int = 0) -> None:
        """Add payload bytes to the counters."""
        with self._tally_lock:
            self._tally.bytes_in += received
            self._tally.bytes_out += sent

    def count_push(self, step_increment: int) -> int:
        """Count a push that was applied without a session; returns the global step after it."""
        with self._tally_lock:
            self._tally.pushes += 1
        with self._marks_lock:
            self._marks.global_step += step_increment
            return self._marks.global_step

    def count_pull(self, sent: int) -> None:
        """Count a pull, and its bytes that the worker reads from shared memory itself."""
        with self._tally_lock:
            self._tally.pulls += 1
            self._tally.bytes_out += sent

    @property
    def pushes(self) -> int:
        """Number of pushes that were applied."""
        with self._tally_lock:
            return self._tally.pushes

    def count_refused(self) -> None:
        """Count a refused step."""
        with self._tally_lock:
            self._tally.refused += 1

    def counters(self, sessions: int = 0) -> PsCounters:
        """Read all counters, as of now."""
        shards, variables, values, slots, labels = self.table.summary()
        tables = tuple(block.counters for block in self.table.tables()[:_COUNTED_TABLES])
        # Without the lock, which a push holds while it sends its record: who asks whether this ps
        # is there must have its answer.
        global_step = self._marks.global_step
        with self._tally_lock:
            counted = replace(self._tally)
        return replace(
            counted,
            variables=variables,
            shards=shards,
            value_bytes=values,
            slot_bytes=slots,
            sessions=sessions,
            labels=labels,
            global_step=global_step,
            tables=tables,
            busiest=self.table.busiest(),
        )


def _values(
    part: LayoutRange, numbers: Array | None, room: Callable[[int], Array | None]
) -> tuple[Array, Array | None]:
    """Read values of a range, and which rows of them are wanted. The caller holds the block's
    lock.
    """
    block, where = part.block, part.where
    if isinstance(block, RowsByKey):
        keys = _NO_KEYS if numbers is None else numbers
        if part.encoding is Encoding.STATES:
            return block.read_states(keys).reshape(-1), None
        own = room(part.numbered_bytes(keys.size)) if part.dtype == block.dtype else None
        return block.read(keys, own).reshape(-1), None
    value = part.array.value[where.start : where.stop]
    return (value if numbers is None else value.reshape(part.numbered, part.width)), numbers


def _run(
    applying: Generator[PushTarget, None, PushResult],
) -> tuple[list[PushTarget], PushResult]:
    """Apply a push to its end; returns the updated blocks, and the result."""
    updated: list[PushTarget] = []
    while True:
        try:
            updated.append(next(applying))
        except StopIteration as end:
            return updated, end.value


def _copy(values: Array, rows: Array | None) -> Array:
    return np.copy(values) if rows is None else gather_rows(values, rows).reshape(-1)


def _decode(part: LayoutRange, values: Array, numbers: Array | None) -> Gradient:
    """Decode a payload's values as a gradient of their block.

    Raises:
        RefusedError: The scale of a row is no number to multiply by.
    """
    if part.is_scaled:
        packed = values.view(np.uint8).reshape(-1, SCALE_BYTES + part.width)
        bad = first_bad_scale(packed)
        if bad is not None:
            raise RefusedError(
                f"rows of a gradient of {part.block.shards[0].label!r} came with a scale of {bad}"
            )
        return Gradient(unpack_rows(packed, part.block.dtype).reshape(-1), numbers)
    values = values.astype(part.block.dtype, copy=False)
    if part.encoding is not Encoding.ELEMENTS:
        return Gradient(values, numbers)
    whole = np.zeros(part.numbered, part.block.dtype)
    whole[numbers] = values
    return Gradient(whole)
