"""The shards of one ps: which are defined, and where each one is in memory."""

import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from types import MappingProxyType

from ...core.arrays.dtypes import Array, DType, is_float, row_shape, size_of
from ...core.checkpoint import CheckpointReader
from ...core.checkpoint.folder import Folder
from ...core.errors import (
    PeerLostError,
    UnknownVariableError,
)
from ...core.report import MOST_LABELS, ShardCounters, busiest
from ...core.rules.definitions import ShardDefinition, ShardKey
from ...core.rules.update_rules import UpdateRule
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...core.wire.steps import HeldShard, MemoryRegion
from ...engine.arena import Slab
from ...engine.block import Block, warm_up
from ...engine.library import library
from ...engine.push_target import PushTarget, RowsByKey
from ...engine.row_changes import RowChanges
from .change_stream import ChangeStream
from .definitions import Claims, check_rule, check_same, check_same_variable, is_bound
from .limits import HeldBytes, MemoryLimits
from .new_blocks import BlockMaker, Held, initialize, restored_slots, row_blocks


class ShardTable:
    """Shards by name, and the blocks they are in. Thread-safe.

    Args:
        task: The ps, for messages.
        settings: Settings, for the bounds.
        restored: Called with the global step of a checkpoint that new shards have values of.
        stream: Announces new blocks, and rules that are bound.
        beside: Counts what the ps holds in other stores.
    """

    def __init__(
        self,
        task: TaskId,
        settings: Settings,
        restored: Callable[[int], None],
        stream: ChangeStream,
        beside: Callable[[], HeldBytes] = HeldBytes,
    ) -> None:
        self.task = task
        self._stream = stream
        self._restored = restored
        # Serializes definitions, which may take long: lookups and counters only take
        # `_definitions`.
        self._defining = threading.Lock()
        self._definitions = threading.Lock()
        self._claims = Claims(self._defining)
        self._filling: list[PushTarget] = []  # their shards are being given their first values
        self._held: dict[ShardKey, Held] = {}
        self._parts: dict[str, list[int]] = {}
        self._blocks: list[PushTarget] = []
        library.use_folder(settings.kernel_cache)
        self._maker = BlockMaker(settings)
        self._arena = self._maker.arena
        self._limits = MemoryLimits(task, settings, beside)

    def define(
        self,
        shards: Sequence[ShardDefinition],
        who: Incarnation,
        *,
        restore_from: str | Folder | None = None,
        still_wanted: Callable[[], bool] = lambda: True,
    ) -> list[HeldShard]:
        """Create shards that do not exist; repeating a definition is a no-op.

        Args:
            shards: Shards of this ps.
            who: The task to name in errors about later, different definitions.
            restore_from: Checkpoint with the values of new shards, a path or its directory; those
                it lacks are initialized. It is read without a lock.
            still_wanted: Whether the caller still waits for the answer: memory must not be filled
                for one that has given up.

        Raises:
            DefinitionMismatchError: One exists, here or in the checkpoint, with another shape,
                dtype or cut.
            LimitExceededError: Too many shards, or too many bytes, in memory or on disk.
            ConfigurationError: Options of a table do not fit together, or this ps has no folder for
                a table that is larger than its memory.
            StorageError: It has one that cannot be used.
            PeerLostError: The caller gave up; nothing was defined.
            CheckpointError: The checkpoint cannot be read.
        """
        names = {shard.variable.name for shard in shards}
        _warm_up_tables(shards)
        with self._defining:
            self._claims.wait(names)
            new = self._missing(shards, who)
            self._limits.check_folder(new)
            self._limits.check_shards(new, [*self._blocks, *self._filling], who)
            before = self._arena.mark()
            blocks = self._maker.new(new)
            after = self._arena.mark()
            self._filling += blocks
            try:
                with self._claims.taken(names):
                    self._fill(blocks, new, restore_from, who, still_wanted)
            except BaseException:
                if self._arena.mark() == after:  # nobody has taken memory since
                    self._arena.release(before)
                raise
            finally:
                self._filling = [block for block in self._filling if block not in blocks]
            return [self._describe(self._held[shard.key]) for shard in shards]

    def _missing(
        self, shards: Sequence[ShardDefinition], who: Incarnation
    ) -> list[ShardDefinition]:
        """List the shards that do not exist."""
        missing: dict[ShardKey, ShardDefinition] = {}
        for shard in shards:
            held = self._held.get(shard.key) or self._any_part(shard.variable.name)
            if held is not None:
                check_same(self.task, shard, held, who)
            if shard.key not in self._held:
                missing.setdefault(shard.key, shard)
        filling = sum(len(block.shards) for block in self._filling)
        would_hold = len(self._held) + filling + len(missing)
        self._limits.check_count(would_hold)
        return list(missing.values())

    def _fill(
        self,
        blocks: Sequence[PushTarget],
        new: Sequence[ShardDefinition],
        restore_from: str | Folder | None,
        who: Incarnation,
        still_wanted: Callable[[], bool],
    ) -> None:
        """Give new blocks their first values, then publish them: a failure leaves nothing
        behind.
        """

        def check() -> None:
            if not still_wanted():
                raise PeerLostError(
                    f"{self.task}: {who.task} has given up a definition of {len(new)} shards, from "
                    f"{new[0].label!r} on; nothing was defined",
                    task=who.task,
                )

        reader = CheckpointReader(restore_from) if restore_from and new else None
        filled: list[Held] = []
        for block in blocks:
            for entry in range(len(block.shards)):
                check()
                source = _first_values(block, entry, reader, check)
                filled.append(Held(block, entry, who, source))
        while not self._publish(blocks, filled):
            for each in self._stream.subscribers:
                each.defined(blocks, filled)
        if reader is not None:
            self._restored(reader.manifest.global_step)

    def _publish(self, blocks: Sequence[PushTarget], filled: Sequence[Held]) -> bool:
        """Show new blocks to everybody, once every subscriber has them; whether it has."""
        with self._defining, self.publishing():
            if not all(each.has_all(blocks) for each in self._stream.subscribers):
                return False
            self._show(blocks, filled)
            return True

    def _show(self, blocks: Sequence[PushTarget], filled: Sequence[Held]) -> None:
        self._blocks += blocks
        for held in filled:
            shard = held.block.shards[held.entry]
            self._held[shard.key] = held
            self._parts.setdefault(shard.variable.name, []).append(shard.part)

    @contextmanager
    def publishing(self) -> Iterator[None]:
        """Add no block while this is held."""
        with self._definitions:
            yield

    def held_of(self, block: PushTarget) -> list[Held]:
        """List the shards of a block, in order."""
        with self._definitions:
            return [self._held[shard.key] for shard in block.shards]

    def install(
        self,
        shards: Sequence[ShardDefinition],
        number: int,
        who: Incarnation,
        held: Callable[[PushTarget], Sequence[Held]],
    ) -> None:
        """Add a block with the number that another ps gave it; its values come later.

        A part of a table is in memory where there is no folder for those that are larger.

        Args:
            shards: Shards of the block.
            number: Number of the block.
            who: Task to name in errors.
            held: Prepares the block, and describes its shards, before anybody sees it.

        Raises:
            LimitExceededError: It does not fit.
            ConfigurationError: A table is none.
        """
        _warm_up_tables(shards)
        with self._defining:
            self._limits.check_shards(shards, self._blocks, who)
            block = self._maker.numbered(shards, number)
            described = held(block)
            with self.publishing():
                self._show([block], described)

    def lookup(self, wanted: Iterable[ShardDefinition], who: Incarnation) -> list[HeldShard]:
        """List all shards held here of the wanted variables.

        Raises:
            DefinitionMismatchError: One has another shape or dtype.
        """
        with self._definitions:
            described = []
            for shard in wanted:
                for part in self._parts.get(shard.variable.name, ()):
                    held = self._held[shard.variable.name, part]
                    check_same_variable(self.task, shard, held, who)
                    described.append(self._describe(held))
            return described

    def named(self, names: Iterable[str]) -> list[HeldShard]:
        """List all shards held here of the variables of these names, whatever those are.

        Without the update rules of arrays: a program's own rule means nothing to another one.
        """
        with self._definitions:
            held = [self._held[name, part] for name in names for part in self._parts.get(name, ())]
            described = [self._describe(shard) for shard in held]
        return [replace(shard, shard=replace(shard.shard, rule=None)) for shard in described]

    def bind(self, variables: Iterable[str], rule: UpdateRule, who: Incarnation) -> None:
        """Give every shard of these variables held here an update rule; it cannot be changed.

        Raises:
            DefinitionMismatchError: One has another rule.
            ShapeMismatchError: One is not of a float dtype.
        """
        names = list(variables)
        check_rule(self.task, rule)
        for dtype in self._float_dtypes(names):
            warm_up(rule, dtype)
        with self._defining:
            self._claims.wait(set(names))
            self._limits.check_slots(names, rule, self._blocks, who)
            parts = [self._held[name, part] for name in names for part in self._parts.get(name, ())]
            unbound = [held for held in parts if not is_bound(self.task, held, rule, who)]
            with self._claims.taken(set(names)):
                for held in unbound:
                    slots, updates = restored_slots(held, rule)
                    with self._defining:
                        self.bind_one(held, rule, who, updates, slots)

    def _float_dtypes(self, names: Iterable[str]) -> set[DType]:
        with self._definitions:
            blocks = [
                self._held[name, part].block for name in names for part in self._parts.get(name, ())
            ]
        arrays = [block for block in blocks if isinstance(block, Block)]
        return {block.dtype for block in arrays if is_float(block.dtype)}

    def bind_one(
        self,
        held: Held,
        rule: UpdateRule,
        who: Incarnation,
        updates: int,
        slots: Mapping[str, Array] = MappingProxyType({}),
    ) -> None:
        """Give a shard its update rule, and slots that are not to begin anew."""
        block, entry = held.block, held.entry
        if not isinstance(block, Block):
            raise TypeError(f"{block.shards[entry].label!r} is a table, which has its rule")
        with block.lock:
            block.bind(entry, rule)
            for slot, rows in slots.items():
                block.view(entry, slot)[...] = rows
            block.updates[entry] = updates
            held.bound_by = who
            for each in self._stream.subscribers:
                each.bound(held, rule, who, has_slots=bool(slots))

    def _any_part(self, name: str) -> Held | None:
        parts = self._parts.get(name)
        return self._held[name, parts[0]] if parts else None

    @staticmethod
    def _describe(held: Held) -> HeldShard:
        block, entry = held.block, held.entry
        shard = replace(block.shards[entry], rule=block.rules[entry])
        return HeldShard(shard, bool(block.initialized[entry]), bool(held.restored_from))

    def target_of(self, key: ShardKey) -> tuple[PushTarget, int]:
        """Find the block that a shard is in, and its entry there.

        Raises:
            UnknownVariableError: It is not held here.
        """
        with self._definitions:
            held = self._find(key)
            return held.block, held.entry

    def follow(self, target: PushTarget, entry: int, holder: Hashable) -> RowChanges:
        """Note which rows of an entry change, at least until this holder needs it no more.

        Raises:
            LimitExceededError: There is no memory to note them in.
        """
        if entry not in target.changes:
            num_bytes = target.make_changes(entry).num_bytes  # untouched, so it takes none yet
            name = target.shards[entry].variable.name
            self._limits.check_followed(num_bytes, name, self.targets())
        with target.lock:
            return target.follow(entry, holder)

    def unfollow(self, holder: Hashable) -> None:
        """Forget the changes that only this holder needed."""
        for target in self.targets():
            if target.changes:
                with target.lock:
                    target.unfollow(holder)

    def _find(self, key: ShardKey) -> Held:
        held = self._held.get(key)
        if held is None:
            variable, part = key
            raise UnknownVariableError(
                f"{self.task} holds no part {part} of a variable {variable!r}; it holds "
                f"{len(self._held)} shards. Define the variable in strategy.scope() first",
                task=self.task,
                variable=variable,
            )
        return held

    def region(self, key: ShardKey) -> MemoryRegion | None:
        """Find a shard's values in shared memory; None: they are not there, or there is no such
        shard.
        """
        with self._definitions:
            held = self._held.get(key)
        location = held.block.location(held.entry) if held is not None else None
        if held is None or location is None:
            return None
        shard, dtype = held.block.shards[held.entry], held.block.dtype
        row_bytes = size_of(row_shape(shard.shape)) * dtype.itemsize
        return MemoryRegion(location, shard.num_bytes, dtype, row_bytes)

    def slab(self, number: int) -> Slab:
        """Find the slab of shared memory with this number.

        Raises:
            RefusedError: There is no such slab.
        """
        with self._definitions:
            return self._maker.slab(self.task, number)

    @property
    def max_bytes(self) -> int:
        """Most that values and slots may have together."""
        return self._limits.max_ps_bytes

    def held_bytes(self) -> int:
        """Count the bytes of all values, for placement."""
        with self._definitions:
            return sum(block.value_bytes for block in self._blocks)

    def targets(self) -> list[PushTarget]:
        """List every block of arrays and part of a table, in the order of creation."""
        with self._definitions:
            return list(self._blocks)

    def bytes_in_use(self) -> int:
        """Count the memory of all values and slots, growing tables included, and of what notes
        changes.
        """
        return self.held().memory + sum(block.followed_bytes for block in self.targets())

    def held(self) -> HeldBytes:
        """Count the bytes of all values and slots, growing tables included."""
        blocks = self.targets()
        memory = sum(block.value_bytes + block.slot_bytes - block.disk_bytes for block in blocks)
        return HeldBytes(memory, sum(block.reserved_bytes for block in blocks))

    def blocks(self) -> list[Block]:
        """List every block of arrays, in the order of creation."""
        with self._definitions:
            return [block for block in self._blocks if isinstance(block, Block)]

    def tables(self) -> list[RowsByKey]:
        """List every part of a growing table, in the order of creation."""
        with self._definitions:
            return [block for block in self._blocks if isinstance(block, RowsByKey)]

    def busiest(self) -> tuple[ShardCounters, ...]:
        """Find the shards whose changes had the most bytes, by what blocks count anyway."""
        with self._definitions:
            blocks = list(self._blocks)
        return busiest(shard for block in blocks for shard in _busiest_of(block))

    def summary(self) -> tuple[int, int, int, int, tuple[str, ...]]:
        """Summarize: (shards, variables, bytes of values, bytes of slots, names of the first few
        shards).
        """
        with self._definitions:
            values = sum(block.value_bytes for block in self._blocks)
            slots = sum(block.slot_bytes for block in self._blocks)
            first = islice(self._held.values(), MOST_LABELS)
            labels = tuple(held.block.shards[held.entry].label for held in first)
            return len(self._held), len(self._parts), values, slots, labels


def _busiest_of(block: PushTarget) -> Iterator[ShardCounters]:
    for entry in block.most_changed(MOST_LABELS):
        if updates := int(block.versions[entry]):
            name = block.shards[entry].label
            yield ShardCounters(name, updates, int(block.entry_bytes[entry]))


def _first_values(
    block: PushTarget, entry: int, reader: CheckpointReader | None, check: Callable[[], None]
) -> CheckpointReader | None:
    """Give a shard its first value; the checkpoint, if that came from one."""
    if isinstance(block, Block):
        return initialize(block, entry, reader, check)
    if reader is None or not isinstance(block, RowsByKey):
        return None  # a table begins without rows
    return reader if block.restore(reader, check) else None


def _warm_up_tables(shards: Sequence[ShardDefinition]) -> None:
    tables = [shard for shard in shards if shard.variable.table is not None]
    if tables:
        row_blocks(tables[0]).warm_up(tables)
