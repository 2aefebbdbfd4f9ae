"""Records of a leader, carried out in order, until its link ends."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from ....cluster.replication import replica
from ....cluster.replication.configuration import ReplicaRole
from ....core.checkpoint import CheckpointReader
from ....core.errors import RefusedError
from ....core.task import TaskId
from ....engine.block import Block, warm_up
from ....engine.push_target import PushTarget, RowsByKey
from ....server.ps.new_blocks import Held
from ....server.ps.push_marks import LogCopied
from ....server.ps.store import Store
from . import records
from .records import Record
from .share_part import SharePart

log = logging.getLogger(__name__)

# -- Replaying of records by a follower: the same to its own store, in the same order ----------


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


class LeaderRecords:
    """The records of one leader on one link. Thread-safe.

    A leader may come again on another link; what the old one brings then is refused.

    Args:
        part: Part of this ps in the share.
        leader: Sends the records.
        cancel: Ends the link. From any thread.
        is_whole: Whether this ps has all that the leader has, and gets no copy.

    Attributes:
        heard: Time at which it has heard of the leader last, by the clock of ``time.monotonic``.
        has_ended: Whether the leader has ended the link.
    """

    def __init__(
        self,
        part: SharePart,
        leader: TaskId,
        cancel: Callable[[], None],
        *,
        is_whole: bool = False,
    ) -> None:
        self._part = part
        self._leader = leader
        self._cancel = cancel
        self._replayer = Replayer(part.store, is_whole=is_whole)
        self._position = 0
        self.heard = 0.0
        self.has_ended = False

    def cancel(self) -> None:
        """End the link. From any thread; a second time does nothing."""
        cancel, self._cancel = self._cancel, lambda: None
        cancel()

    def take(
        self,
        epoch: int,
        position: int,
        record: Callable[[], Record],
        accepted: Callable[[], None] = lambda: None,
    ) -> None:
        """Carry out a record of the leader.

        Args:
            epoch: Epoch in which it leads.
            position: Position of the record, on its link.
            record: Returns the record.
            accepted: Called before that and before the record is carried out, when it is sure that
                it will be before this ps leads. Briefly: the share is locked.

        Raises:
            FencedError: This ps follows another leader or link, or none, by now.
            RefusedError: A record is missing.
        """
        part, leader, number = self._part, self._leader, self._part.number
        with part.lock:
            have = self._position
            is_current = part.link is self
            if not is_current or not replica.takes_record(
                part.replica, leader, epoch, position, have
            ):
                if is_current and position != have + 1:
                    raise RefusedError(
                        f"{leader} sent record {position} of share {number} after {have}",
                        task=leader,
                    )
                raise part.fenced(
                    f"does not follow {leader} in epoch {epoch} of share {number} any more"
                )
            self.heard = time.monotonic()
            accepted()
            try:
                self._replayer.take(record())
            except BaseException as error:
                part.replica = replace(part.replica, is_whole=False)  # before it may lead
                raise RefusedError(
                    f"record {position} of share {number} of {leader} could not be carried out: "
                    f"{error!r}",
                    task=leader,
                ) from error
            self._position = position
            part.replica = replica.took_record(part.replica, epoch)
            became_whole = self._replayer.is_whole and not part.replica.is_whole
            if became_whole:
                part.replica = replica.copied_whole(part.replica)
        if became_whole:
            part.changed()

    def end(self) -> None:
        """End the link: without this ps the leader answers nothing any more.

        A copy that was not complete is thrown away.
        """
        part = self._part
        with part.lock:
            if part.link is not self or part.replica.leader is None:
                return
            self.has_ended = True
            if part.replica.is_whole:
                return
            part.become(replica.copy_ended(part.replica), "it was copied to in part")
        part.changed()

    def fail(self, error: BaseException) -> None:
        """Note that a record could not be carried out: this ps has not what the leader has."""
        part = self._part
        with part.lock:
            if part.link is not self or part.replica.role is not ReplicaRole.FOLLOWING:
                return
            part.replica = replace(part.replica, is_whole=False)
        log.error("does not follow %s in share %d any more: %s", self._leader, part.number, error)
        part.changed()
