"""Replaying of records by a follower: the same to its own store, in the same order."""

from typing import assert_never

from ....engine.block import Block
from ....engine.push_target import RowsByKey
from ..store import Store
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
            self._blocks[record.block] = self._store.table.install(record)
        elif isinstance(record, records.TableCopyBegun):
            self._tables[record.block] = self._store.table.install_table(record)
        elif isinstance(record, records.RowsCopied):
            table = self._tables[record.block]
            with table.writing():
                if record.anew:
                    table.clear()
                table.take_rows(record.columns, record.removed)
        elif isinstance(record, records.TableCopied):
            self._take_state(record)
        elif isinstance(record, records.RuleBound):
            block = self._blocks[record.block]
            self._store.table.bind_copied(block, record)
        elif isinstance(record, records.TaskRegistered):
            self._store.register_incarnation(record.who)
        elif isinstance(record, records.StepRaised):
            self._store.raise_global_step(record.global_step)
        elif isinstance(record, records.LogCopied):
            self._store.take_log(record)
        elif isinstance(record, (records.Checked, records.HandedOver)):
            pass
        elif isinstance(record, records.CopyCompleted):
            self.is_whole = True
        else:
            assert_never(record)

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
