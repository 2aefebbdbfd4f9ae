"""The variables of one ps: defining them, and carrying out steps on them.

Knows neither grpc nor messages: sessions of all connections use it, the in-process one too. The
store has no global lock: definitions have one, the push log has one, and every block has its own.
"""

import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TypeVar

import numpy as np

from ...core.arrays import Array, DType, is_float, narrow, row_shape, size_of
from ...core.checkpoint import CheckpointReader
from ...core.definitions import ShardDefinition, ShardKey
from ...core.errors import (
    CheckpointError,
    DefinitionMismatchError,
    LimitExceededError,
    RefusedError,
    ShapeMismatchError,
    UnknownVariableError,
)
from ...core.report import PsCounters
from ...core.settings import Settings
from ...core.steps import Encoding, HeldShard, LayoutEntry, Operation, PushResult
from ...core.task import Incarnation, TaskId
from ...core.update_rules import UpdateRule, rule_from_dict
from ...engine.arena import Arena, Slab
from ...engine.block import Block, Gradient, StepInfo, warm_up
from ...engine.library import library
from ...engine.rows import gather_rows
from ...net.shared_memory import SharedSegment, unavailable
from .dedup import PushLog
from .layout import Layout, LayoutRange, join_ranges

_OWN_BLOCK_BYTES = 256 * 1024  # a shard of this size or more gets its own block and lock
_LABELS = 8  # shards named in the status
_SHARED_BLOCK_BYTES = 1024 * 1024  # small shards share blocks of about this size


@dataclass(frozen=True, slots=True)
class PushRequest:
    """A push and its row numbers; its values are fetched while it is applied.

    Attributes:
        rows: Per numbered range its rows or elements, strictly ascending int64.
    """

    layout: Layout
    rows: tuple[Array, ...]
    info: StepInfo
    step_increment: int = 0


@dataclass(slots=True)
class _Held:
    block: Block
    entry: int
    defined_by: Incarnation
    restored_from: str = ""
    bound_by: Incarnation | None = None


@dataclass(slots=True)
class _Tally:
    lock: threading.Lock = field(default_factory=threading.Lock)
    pushes: int = 0
    duplicates: int = 0
    refused: int = 0
    pulls: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


_Taken = TypeVar("_Taken")

Fetch = Callable[[int], memoryview]
"""``fetch(n)``: the next n bytes of the payload, valid until the next call."""


class Store:
    """Shards of variables. Thread-safe.

    Args:
        task: The ps, for messages.
        settings: For the bounds.
    """

    def __init__(self, task: TaskId, settings: Settings) -> None:
        self.task = task
        self.settings = settings
        # Serializes definitions, which may take long: lookups and counters only take
        # `_definitions`.
        self._defining = threading.Lock()
        self._definitions = threading.Lock()
        self._held: dict[ShardKey, _Held] = {}
        self._parts: dict[str, list[int]] = {}
        self._blocks: list[Block] = []
        library.use_folder(settings.kernel_cache)
        shares = settings.shared_memory and not unavailable()
        self._arena = Arena(_create_slab if shares else None)
        self._log_lock = threading.Lock()
        self._log = PushLog()
        self._global_step = 0
        self._step_marks: dict[TaskId, tuple[int, int]] = {}
        self._tally = _Tally()

    # -- definitions -------------------------------------------------------------------------

    def define(
        self, shards: Sequence[ShardDefinition], who: Incarnation, *, restore_from: str = ""
    ) -> list[HeldShard]:
        """Create shards that do not exist; repeating a definition is a no-op.

        Args:
            shards: Of this ps.
            who: Named in errors about later, different definitions.
            restore_from: Checkpoint with the values of new shards; those it lacks are initialized.

        Raises:
            DefinitionMismatchError: One exists, here or in the checkpoint, with another shape,
                dtype or cut.
            LimitExceededError: Too many shards.
            CheckpointError: The checkpoint cannot be read.
        """
        with self._defining:
            missing: dict[ShardKey, ShardDefinition] = {}
            for shard in shards:
                held = self._held.get(shard.key) or self._any_part(shard.variable.name)
                if held is not None:
                    self._check_same(shard, held, who)
                if shard.key not in self._held:
                    missing.setdefault(shard.key, shard)
            new = list(missing.values())
            if len(self._held) + len(new) > self.settings.max_variables:
                raise LimitExceededError(
                    f"{self.task} would hold {len(self._held) + len(new)} shards, more than "
                    f"max_variables={self.settings.max_variables}; raise WINDLASS_MAX_VARIABLES on "
                    "the ps",
                    task=self.task,
                    limit="max_variables",
                )
            # Blocks are filled before they are published, so a failed restore leaves nothing
            # behind.
            reader = CheckpointReader(restore_from) if restore_from and new else None
            created: list[tuple[Block, list[str]]] = []
            for group in _group(new):
                block = Block(group, self._arena)
                sources = [self._initialize(block, entry, reader) for entry in range(len(group))]
                created.append((block, sources))
            with self._definitions:
                for block, sources in created:
                    self._blocks.append(block)
                    for entry, (shard, source) in enumerate(
                        zip(block.shards, sources, strict=True)
                    ):
                        self._held[shard.key] = _Held(block, entry, who, source)
                        self._parts.setdefault(shard.variable.name, []).append(shard.part)
            if reader is not None:
                with self._log_lock:
                    self._global_step = max(self._global_step, reader.manifest.global_step)
            return [self._describe(self._held[shard.key]) for shard in shards]

    def lookup(self, wanted: Iterable[ShardDefinition], who: Incarnation) -> list[HeldShard]:
        """All shards held here of the wanted variables.

        Raises:
            DefinitionMismatchError: One has another shape or dtype.
        """
        with self._definitions:
            found = []
            for shard in wanted:
                for part in self._parts.get(shard.variable.name, ()):
                    held = self._held[shard.variable.name, part]
                    self._check_same_variable(shard, held, who)
                    found.append(self._describe(held))
            return found

    def bind(self, variables: Iterable[str], rule: UpdateRule, who: Incarnation) -> None:
        """Give every shard of these variables held here an update rule; it cannot be changed.

        Raises:
            DefinitionMismatchError: One has another rule.
            RefusedError: One is not of a float dtype.
        """
        readers: dict[str, CheckpointReader] = {}
        names = list(variables)
        for dtype in self._float_dtypes(names):
            warm_up(rule, dtype)
        with self._defining:
            for name in names:
                for part in self._parts.get(name, ()):
                    self._bind_one(self._held[name, part], rule, who, readers)

    def _float_dtypes(self, names: Iterable[str]) -> set[DType]:
        with self._definitions:
            blocks = [
                self._held[name, part].block for name in names for part in self._parts.get(name, ())
            ]
        return {block.dtype for block in blocks if is_float(block.dtype)}

    def _bind_one(
        self,
        held: _Held,
        rule: UpdateRule,
        who: Incarnation,
        readers: dict[str, CheckpointReader],
    ) -> None:
        block, entry = held.block, held.entry
        shard = block.shards[entry]
        bound = block.rules[entry]
        if bound == rule:
            return
        if bound is not None:
            raise DefinitionMismatchError(
                f"{self.task}: {who.task} wants to update {shard.label!r} by {rule!r}, but "
                f"{held.bound_by.task if held.bound_by else 'another task'} bound it to {bound!r}; "
                "all tasks must run the same program",
                variable=shard.variable.name,
                task=who.task,
            )
        if not is_float(block.dtype):
            raise RefusedError(
                f"{self.task}: {shard.label!r} is {block.dtype.name}; update rules need a float "
                "dtype. Use assign or assign_add, or trainable=False",
                variable=shard.variable.name,
            )
        slots: dict[str, Array] = {}
        updates = 0
        if held.restored_from:
            path = held.restored_from
            reader = readers[path] = readers.get(path) or CheckpointReader(path)
            slots, updates = self._restored_slots(reader, shard, rule)
        with block.lock:
            block.bind(entry, rule)
            for slot, rows in slots.items():
                block.view(entry, slot)[...] = rows
            block.updates[entry] = updates
        held.bound_by = who

    @staticmethod
    def _restored_slots(
        reader: CheckpointReader, shard: ShardDefinition, rule: UpdateRule
    ) -> tuple[dict[str, Array], int]:
        record = reader.variable(shard.variable.name)
        if record is None or record.rule is None or record.rule.get("name") != rule.name:
            return {}, 0  # saved with another optimizer, whose slots do not apply
        saved = reader.slots(shard.variable.name)
        start, stop = shard.row_offset, shard.row_offset + shard.rows
        had = rule_from_dict(record.rule).active_slots()
        wanted = [slot for slot in rule.active_slots() if slot in had]
        lost = [slot for slot in wanted if slot not in saved]
        if lost:
            raise CheckpointError(
                f"{reader.path} lacks the slot {lost[0]!r} of {shard.variable.name!r}, which its "
                f"rule {rule.name} had; the checkpoint is damaged",
                path=reader.path,
                variable=shard.variable.name,
            )
        return {
            slot: reader.read_rows(shard.variable.name, start, stop, slot) for slot in wanted
        }, record.updates

    def _initialize(self, block: Block, entry: int, reader: CheckpointReader | None) -> str:
        shard = block.shards[entry]
        variable = shard.variable
        start, stop = shard.row_offset, shard.row_offset + shard.rows
        record = reader.variable(variable.name) if reader is not None else None
        if reader is not None and record is not None:
            if tuple(record.shape) != variable.shape or record.dtype != variable.dtype.name:
                raise CheckpointError(
                    f"{reader.path} has {variable.name!r} as {record.dtype}{list(record.shape)}, "
                    f"the program defines {variable.dtype.name}{list(variable.shape)}; it was "
                    "saved by another model. Restore it with that program, or name another "
                    "model_dir",
                    variable=variable.name,
                    path=reader.path,
                )
            block.view(entry)[...] = reader.read_rows(variable.name, start, stop)
        elif variable.initializer is not None:
            variable.initializer.fill(block.view(entry), variable.shape, start)
        else:
            return ""  # the creating task assigns the value
        block.initialized[entry] = True
        return reader.path if reader is not None and record is not None else ""

    def _any_part(self, name: str) -> _Held | None:
        parts = self._parts.get(name)
        return self._held[name, parts[0]] if parts else None

    def _check_same(self, shard: ShardDefinition, held: _Held, who: Incarnation) -> None:
        self._check_same_variable(shard, held, who)
        mine = held.block.shards[held.entry]
        same_part = shard.part != mine.part or (shard.row_offset, shard.rows) == (
            mine.row_offset,
            mine.rows,
        )
        if shard.num_parts != mine.num_parts or not same_part:
            raise DefinitionMismatchError(
                f"{self.task}: {who.task} cuts {shard.variable.name!r} in {shard.num_parts} parts, "
                f"{held.defined_by.task} cut it in {mine.num_parts}; all tasks must use the same "
                "variable_partitioner",
                variable=shard.variable.name,
                task=who.task,
            )

    def _check_same_variable(self, shard: ShardDefinition, held: _Held, who: Incarnation) -> None:
        mine, theirs = held.block.shards[held.entry].variable, shard.variable
        if mine.shape == theirs.shape and mine.dtype == theirs.dtype:
            return
        raise DefinitionMismatchError(
            f"{self.task}: {who.task} defines {mine.name!r} as {theirs.dtype.name}"
            f"{list(theirs.shape)}, {held.defined_by.task} defined it as {mine.dtype.name}"
            f"{list(mine.shape)}; all tasks must run the same program",
            variable=mine.name,
            task=who.task,
            other=held.defined_by.task,
        )

    @staticmethod
    def _describe(held: _Held) -> HeldShard:
        block, entry = held.block, held.entry
        shard = replace(block.shards[entry], rule=block.rules[entry])
        memory = block.memory.location(block.offsets[entry])
        return HeldShard(shard, bool(block.initialized[entry]), bool(held.restored_from), memory)

    # -- steps -------------------------------------------------------------------------------

    def compile(self, entries: Sequence[LayoutEntry]) -> Layout:
        """Turn a layout into ranges of memory; adjacent ones are joined.

        Raises:
            UnknownVariableError: A shard is not held here.
            RefusedError: An APPLY to a variable without an update rule.
        """
        with self._definitions:
            return join_ranges([self._range(item) for item in entries])

    def _range(self, item: LayoutEntry) -> LayoutRange:
        held = self._held.get((item.variable, item.part))
        if held is None:
            raise UnknownVariableError(
                f"{self.task} holds no part {item.part} of a variable {item.variable!r}; it holds "
                f"{len(self._held)} shards. Define the variable in strategy.scope() first",
                task=self.task,
                variable=item.variable,
            )
        block, entry = held.block, held.entry
        rule = block.rules[entry]
        if item.operation is Operation.APPLY and rule is None:
            raise RefusedError(
                f"{self.task}: {item.variable!r} has no update rule; apply gradients through an "
                "optimizer, or use assign_add",
                task=self.task,
                variable=item.variable,
            )
        width = size_of(row_shape(block.shards[entry].shape))
        dtype = item.dtype or block.dtype
        if dtype != block.dtype and not (is_float(dtype) and is_float(block.dtype)):
            raise RefusedError(
                f"{self.task}: {item.variable!r} is {block.dtype.name} and cannot travel as "
                f"{dtype.name}",
                task=self.task,
                variable=item.variable,
            )
        if item.encoding is Encoding.ELEMENTS and item.operation is not Operation.APPLY:
            raise RefusedError(f"{self.task}: single elements are for gradients", task=self.task)
        applied = rule if item.operation is Operation.APPLY else None
        where = block.range_of(entry)
        return LayoutRange(block, where, item.operation, applied, item.encoding, dtype, width)

    def register_incarnation(self, who: Incarnation) -> None:
        """Register an incarnation that opens a session; older ones of its task are fenced.

        Raises:
            FencedError: A newer incarnation has registered.
        """
        with self._log_lock:
            self._log.register_incarnation(who)

    def slab(self, number: int) -> Slab:
        """The slab of shared memory with this number.

        Raises:
            RefusedError: There is no such slab.
        """
        with self._definitions:
            slabs = self._arena.slabs
            if not 0 <= number < len(slabs):
                raise RefusedError(
                    f"{self.task} has no slab {number}, only {len(slabs)}", task=self.task
                )
            return slabs[number]

    def check_rows(self, layout: Layout, rows: Sequence[Array]) -> None:
        """Check row and element numbers before anything is applied.

        Raises:
            ShapeMismatchError: One is out of range, or they do not ascend.
        """
        given = iter(rows)
        for part in layout.ranges:
            if part.encoding is Encoding.DENSE:
                continue
            indices, what = next(given), part.encoding.removesuffix("s")
            if indices.size == 0:
                continue
            label = part.block.shards[part.where.first].label
            low, high = int(indices.min()), int(indices.max())
            if low < 0 or high >= part.numbered:
                raise ShapeMismatchError(
                    f"{self.task}: {what} {low if low < 0 else high} of {label!r} is out of range: "
                    f"the shard has {part.numbered} {part.encoding}",
                    task=self.task,
                    variable=label,
                )
            writes = part.operation is not Operation.PULL
            if writes and indices.size > 1 and not bool((indices[1:] > indices[:-1]).all()):
                raise ShapeMismatchError(
                    f"{self.task}: {what} numbers pushed to {label!r} must ascend without "
                    "repeating; combine repeated rows first (IndexedSlices.combined)",
                    task=self.task,
                    variable=label,
                )

    def push(
        self, push: PushRequest, fetch: Fetch, applied: Callable[[], None] = lambda: None
    ) -> PushResult:
        """Apply a push whose row numbers were checked, reading its values from ``fetch``.

        ``applied`` is called after each block, when no fetched data is in use any more.

        A push is applied at most once per (task, generation, sequence); a repeat is read to its end
        and answered as a duplicate. If ``fetch`` fails halfway, the push may be repeated: blocks
        that have it skip it. Thread-safe.

        Raises:
            FencedError: A newer incarnation of the task has registered.
            SequenceError: An earlier push has not arrived.
        """
        run = self.applying(push, fetch)
        while True:
            try:
                next(run)
            except StopIteration as end:
                result: PushResult = end.value
                return result
            applied()

    def applying(self, push: PushRequest, fetch: Fetch) -> Generator[Block, None, PushResult]:
        """As :meth:`push`, block by block: yields each updated block, returns the result.

        Blocks of a repeated push are not yielded.
        """
        info = push.info
        with self._log_lock:
            fresh = self._log.is_new(info.who, info.sequence)
            if self._global_step > info.global_step:
                info = replace(info, global_step=self._global_step)
        rows = iter(push.rows)
        waiting: dict[int, list[tuple[LayoutRange, Gradient]]] = {}
        for part, pending in zip(push.layout.ranges, push.layout.pending, strict=True):
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
            work.append((part, gradient))
            if not pending:
                self._apply(part.block, work, info)
                del waiting[id(part.block)]
                yield part.block
        return self._finish(push, info, fresh)

    @staticmethod
    def _apply(block: Block, work: list[tuple[LayoutRange, Gradient]], info: StepInfo) -> None:
        with block.writing():
            if block.has_applied(info):
                return
            for part, gradient in work:
                if part.rule is not None:
                    block.apply(part.where, gradient, part.rule, info)
                elif part.operation is Operation.ASSIGN:
                    block.assign(part.where, gradient)
                else:
                    block.assign_add(part.where, gradient)
            block.mark_applied(info)

    def _finish(self, push: PushRequest, info: StepInfo, fresh: bool) -> PushResult:
        seen = push.info.global_step
        with self._log_lock:
            self._log.register_incarnation(info.who)
            # The same push may have been counted already, through a session that broke off.
            counted = self._step_marks.get(info.who.task, (0, 0))
            mark = (info.who.generation, info.sequence)
            fresh = fresh and counted < mark
            # A repeated push is already counted in the global step.
            staleness = self._global_step - seen - (0 if fresh else push.step_increment)
            if fresh:
                self._step_marks[info.who.task] = mark
                self._log.applied(info.who, info.sequence)
                self._global_step = max(self._global_step, seen) + push.step_increment
            step = self._global_step
        with self._tally.lock:
            self._tally.pushes += fresh
            self._tally.duplicates += not fresh
        return PushResult(step, max(0, staleness), not fresh)

    def visit(
        self,
        layout: Layout,
        rows: Sequence[Array],
        copy: Callable[[Array, Array | None], _Taken],
        versions: Array | None = None,
    ) -> Iterator[_Taken]:
        """Call ``copy`` with the values of each range of a pull; yields its results.

        ``copy(values, rows)`` gets the block's memory, flat or as rows with the wanted row numbers,
        and runs under the block's lock, so that each shard is consistent; results are yielded
        without the lock. ``versions`` (int64, per entry) is set to the versions of the values.
        Thread-safe.
        """
        given, entry = iter(rows), 0
        for part in layout.ranges:
            numbers = next(given) if part.encoding is not Encoding.DENSE else None
            where, block = part.where, part.block
            with block.lock:
                value = block.value[where.start : where.stop]
                if numbers is not None:
                    value = value.reshape(part.numbered, part.width)
                if part.dtype != value.dtype:
                    if numbers is not None:
                        value, numbers = gather_rows(value, numbers).reshape(-1), None
                    value = narrow(value, part.dtype)
                taken = copy(value, numbers)
                if versions is not None:
                    versions[entry : entry + where.last - where.first] = block.versions[
                        where.first : where.last
                    ]
            entry += where.last - where.first
            yield taken

    def read(self, layout: Layout, rows: Sequence[Array]) -> list[Array]:
        """Flat copies of the ranges of a pull."""
        self.count_pull(0)
        return list(self.visit(layout, rows, _copy))

    @property
    def global_step(self) -> int:
        """Worker steps applied, as far as this ps knows."""
        with self._log_lock:
            return self._global_step

    # -- counters ----------------------------------------------------------------------------

    def count_bytes(self, *, received: int = 0, sent: int = 0) -> None:
        """Add payload bytes to the counters."""
        with self._tally.lock:
            self._tally.bytes_in += received
            self._tally.bytes_out += sent

    def count_pull(self, sent: int) -> None:
        """Count a pull, and its bytes that the worker reads from shared memory itself."""
        with self._tally.lock:
            self._tally.pulls += 1
            self._tally.bytes_out += sent

    def count_refused(self) -> None:
        """Count a refused step."""
        with self._tally.lock:
            self._tally.refused += 1

    def counters(self, sessions: int = 0) -> PsCounters:
        """All counters, as of now."""
        with self._definitions:
            shards, variables = len(self._held), len(self._parts)
            values = sum(block.value.nbytes for block in self._blocks)
            slots = sum(block.slot_bytes for block in self._blocks)
            first = list(islice(self._held.values(), _LABELS))
            labels = tuple(held.block.shards[held.entry].label for held in first)
        tally = self._tally
        with tally.lock:
            return PsCounters(
                pushes=tally.pushes,
                duplicates=tally.duplicates,
                refused=tally.refused,
                pulls=tally.pulls,
                bytes_in=tally.bytes_in,
                bytes_out=tally.bytes_out,
                variables=variables,
                shards=shards,
                value_bytes=values,
                slot_bytes=slots,
                sessions=sessions,
                labels=labels,
            )

    def held_bytes(self) -> int:
        """Bytes of all values, for placement."""
        with self._definitions:
            return sum(block.value.nbytes for block in self._blocks)

    def blocks(self) -> list[Block]:
        """Every block, in the order of creation."""
        with self._definitions:
            return list(self._blocks)


def _copy(values: Array, rows: Array | None) -> Array:
    return np.copy(values) if rows is None else gather_rows(values, rows).reshape(-1)


def _create_slab(num_bytes: int) -> SharedSegment:
    return SharedSegment.create(num_bytes, others_read_only=True)


def _decode(part: LayoutRange, values: Array, numbers: Array | None) -> Gradient:
    """A payload's values as a gradient of their block."""
    values = values.astype(part.block.dtype, copy=False)
    if part.encoding is not Encoding.ELEMENTS:
        return Gradient(values, numbers)
    whole = np.zeros(part.numbered, part.block.dtype)
    whole[numbers] = values
    return Gradient(whole)


def _group(shards: Sequence[ShardDefinition]) -> list[list[ShardDefinition]]:
    """Groups of shards that share a block: small ones of one dtype, in order."""
    groups: list[list[ShardDefinition]] = []
    open_groups: dict[DType, tuple[list[ShardDefinition], int]] = {}
    for shard in shards:
        if shard.num_bytes >= _OWN_BLOCK_BYTES:
            groups.append([shard])
            continue
        dtype = shard.variable.dtype
        group, filled = open_groups.get(dtype, ([], _SHARED_BLOCK_BYTES))
        if not group or filled + shard.num_bytes > _SHARED_BLOCK_BYTES:
            group, filled = [], 0
            groups.append(group)
        group.append(shard)
        open_groups[dtype] = (group, filled + shard.num_bytes)
    return groups
