"""Replaying of records by a follower: the same to its own store, in the same order."""

from typing import assert_never

from ....core.checkpoint import CheckpointReader
from ....core.errors import RefusedError
from ....engine.block import Block, warm_up
from ....engine.push_target import PushTarget, RowsByKey
from ....server.ps.first_values import Held
from ....server.ps.push_marks import LogCopied
from ....server.ps.store import Store
from . import records


class Replayer:
    """Carries out records on a store that follows. Used by one thread.

    Args:
        store: Empty, or with what the leader has.

    Attributes:
        is_whole: Whether it has all that the leader has.
    """

    def __init__(self, store: Store, *, is_whole: bool = False) -> None:
        self._store = store
        self._blocks = {block.number: block for block in store.table.blocks()}
        self._tables: dict[int, RowsByKey] = {block.number: block for block in store.table.tables()}
        self.is_whole = is_whole

    def take(self, record: records.Record) -> None:
        """Carry out one record."""
        if isinstance(record, records.BlockUpdated):
            self._update(record)
        elif isinstance(record, records.BlockSet):
            self._set(record)
        elif isinstance(record, records.PushCompleted):
            self._store.complete(record.info, record.step_increment)
        elif isinstance(record, records.CopiedTile):
            self._take_tile(record)
        elif isinstance(record, records.BlockCopyBegun):
            self._install(record)
        elif isinstance(record, records.TableCopyBegun):
            self._install_table(record)
        elif isinstance(record, records.RowsCopied):
            table = self._tables[record.block]
            with table.writing():
                if record.anew:
                    table.clear()
                table.take_rows(record.columns, record.removed)
        elif isinstance(record, records.TableCopied):
            self._take_state(record)
        elif isinstance(record, records.RuleBound):
            self._bind(record)
        elif isinstance(record, records.TaskRegistered):
            self._store.register_incarnation(record.who)
        elif isinstance(record, records.StepRaised):
            self._store.raise_global_step(record.global_step)
        elif isinstance(record, LogCopied):
            self._store.take_log(record)
        elif isinstance(record, (records.Checked, records.HandedOver)):
            pass
        elif isinstance(record, records.CopyCompleted):
            self.is_whole = True
        else:
            assert_never(record)

    def _install(self, copied: records.BlockCopyBegun) -> None:
        """Make a block as the leader has it; the values come in tiles.

        Raises:
            LimitExceededError: It does not fit.
            CheckpointError: Its slots are yet to come from a checkpoint that cannot be read here.
        """
        unbound = zip(copied.restored_from, copied.bound_by, strict=True)
        readers = {path: CheckpointReader(path) for path, bound in unbound if path and not bound}

        def held(block: PushTarget) -> list[Held]:
            if not isinstance(block, Block):
                raise RefusedError(f"block {copied.block} is a table, and came as an array")
            _take_copy(block, copied)
            self._blocks[copied.block] = block
            sources = zip(copied.defined_by, copied.restored_from, copied.bound_by, strict=True)
            return [
                Held(block, entry, defined_by, readers.get(path), bound_by)
                for entry, (defined_by, path, bound_by) in enumerate(sources)
            ]

        self._store.table.install(copied.shards, copied.block, copied.defined_by[0], held)

    def _install_table(self, copied: records.TableCopyBegun) -> None:
        """Make a part of a table, whose rows come next.

        Raises:
            LimitExceededError: It does not fit.
            ConfigurationError: It is no table.
        """

        def held(block: PushTarget) -> list[Held]:
            if not isinstance(block, RowsByKey):
                raise RefusedError(f"block {copied.block} is no table, and came as one")
            self._tables[copied.block] = block
            return [Held(block, 0, copied.defined_by)]

        self._store.table.install([copied.shard], copied.block, copied.defined_by, held)

    def _bind(self, bound: records.RuleBound) -> None:
        block = self._blocks[bound.block]
        warm_up(bound.rule, block.dtype)
        held = self._store.table.held_of(block)[bound.entry]
        self._store.table.bind_one(held, bound.rule, bound.who, bound.updates)

    def _update(self, record: records.BlockUpdated) -> None:
        block = self._tables.get(record.block) or self._blocks[record.block]
        with block.writing(record.parts):
            block.run(record.parts, record.info)
        if record.completes is not None:
            self._store.complete(record.info, record.completes)

    def _set(self, record: records.BlockSet) -> None:
        block = self._blocks[record.block]
        with block.writing():
            for tile in record.tiles:
                _copy_tile(block, tile)
            block.versions[:] = record.versions
            block.updates[:] = record.updates
            block.initialized[:] = record.initialized
            if record.info is not None:
                block.mark_applied(record.info)
        if record.info is not None and record.completes is not None:
            self._store.complete(record.info, record.completes)

    def _take_state(self, copied: records.TableCopied) -> None:
        table = self._tables[copied.block]
        with table.writing():
            table.take_state(copied.state)
            table.versions[:], table.updates[:] = copied.version, copied.updates
            table.applied = dict(copied.applied)
            table.closures = copied.closures.copy()

    def _take_tile(self, tile: records.CopiedTile) -> None:
        block = self._blocks[tile.block]
        with block.writing():
            _copy_tile(block, tile)


def _copy_tile(block: Block, tile: records.CopiedTile) -> None:
    where = slice(tile.start, tile.stop)
    block.value[where] = tile.value
    for name, values in tile.slots.items():
        block.slots[name][where] = values


def _take_copy(block: Block, copied: records.BlockCopyBegun) -> None:
    """Give a new block all that the leader's has, but for the values."""
    for entry, rule in enumerate(copied.rules):
        if rule is not None:
            warm_up(rule, block.dtype)
            block.bind(entry, rule)
    for slot in copied.slots:
        block.add_slot(slot)
    block.versions[:] = copied.versions
    block.updates[:] = copied.updates
    block.initialized[:] = copied.initialized
    block.applied = dict(copied.applied)
    block.closures = copied.closures.copy()
