"""Growing tables in checkpoints: copied while training goes on, and restored for any number of ps.

A part of a table is saved by places and not by rows, since how many rows are there changes while
they are copied: the columns of places ``[start, stop)``, in which free ones are marked. Rows keep
their places while they live, so a copy has every row that is there all the time; one that is made
in a place beyond those that were used at the beginning comes with the next checkpoint. Places are
copied some at a time under the table's lock, each row with its slots.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.checkpoint import CheckpointReader
from ...core.checkpoint.manifest import SavedShard
from ...core.checkpoint.reader import STATE
from ...core.checkpoint.tensor_file import TensorSpec
from ...core.errors import CheckpointError, ShapeMismatchError
from ...engine.keyed.block import KeyedBlock
from ...engine.keyed.hashing import ps_of_keys
from ...engine.keyed.row_store import SLOT
from ...engine.keyed.tiles import Tile
from ...engine.push_target import PushTarget, RowsByKey, UpdatePart
from .block_reader import BlockReader, PlannedTensor, copy_in_parts, parts_of
from .first_values import another_kind

_MOST_KEPT_BYTES = 64 << 20
"""A larger table is not kept for a cut: a push would stand while all of it is copied."""
_KEYS, _COUNTS = "candidate_keys", "candidate_counts"
_CLOCKS = 2  # steps in front of the counts, in the state of a table
_PARTS = 4  # of max_rows, loaded at a time


class TableCopy(BlockReader):
    """A part of a table that is to be saved, planned at one moment.

    Args:
        block: The part.
        most: Bytes of a piece's columns together.
        most_kept: Bytes of a table that is kept at the moment before a push changes it.

    Attributes:
        planned_state: The first of the arrays: what decides about rows.
        state: Arrays of the state.
        version: Version of the part at that moment.
        applied: Marks of pushes at that moment.
        moment: Position of the changes at that moment, if they are noted; else 0.
        shard: Definition of the part.
        used: Places that had been used.
        row_bytes: Bytes of a row.
        step: Rows of a piece.
        is_kept: Whether a push has kept the rows before it changed them.
    """

    def __init__(self, block: KeyedBlock, most: int, most_kept: int = _MOST_KEPT_BYTES) -> None:
        self.block = block
        [self.shard] = block.shards
        self.part = self.shard.part
        with block.lock:
            self.state = block.table.state()
            columns = block.table.columns
            self.version = self.updates = int(block.versions[0])
            self.applied = dict(block.applied)
            changes = block.table.changes
            self.moment = changes.advance() if changes is not None else 0
        self._kept: dict[int, list[Array]] = {}  # by the first place
        self._most_kept = most_kept
        self._next = 0  # places before it are read
        self.is_kept = False
        self.used = columns["keys"].shape[0]
        self.row_bytes = sum(column[:1].nbytes for column in columns.values()) if self.used else 1
        self.step = max(1, most // self.row_bytes)
        label = self.shard.label
        self.planned_state = [
            self.planned_array(f"{STATE}{name}", f"{label}:{STATE}{name}", array, 0, len(array))
            for name, array in self.state.items()
        ]

    def planned_array(
        self, column: str, name: str, like: Array, start: int, rows: int
    ) -> PlannedTensor:
        """Plan an array of so many rows that are as those of another one."""
        spec = TensorSpec(name, (rows, *like.shape[1:]), like.dtype)
        return PlannedTensor(self.shard, column, spec, start, rows)

    @cached_property
    def planned(self) -> list[PlannedTensor]:
        """Arrays that are read, in order."""
        label, columns = self.shard.label, self.block.table.columns
        return self.planned_state + [
            self.planned_array(name, f"{label}[{start}:{stop}]:{name}", column, start, stop - start)
            for start, stop in self._tiles()
            for name, column in columns.items()
        ]

    def read(self, memory: Array) -> Iterator[Iterator[memoryview]]:  # noqa: ARG002 - rows are copied by column
        """See :meth:`BlockReader.read`."""
        return parts_of(self.arrays())

    def saved(self, number: int) -> list[SavedShard]:
        """See :meth:`BlockReader.saved`."""
        return [SavedShard(self.shard, self.version, self.updates, number)]

    def arrays(self) -> Iterator[Array]:
        """Yield copies of the arrays, in order."""
        yield from self.state.values()
        for start, stop in self._tiles():
            copied = self._copied(start, stop) if not self.is_kept else []
            with self.block.lock:
                self._next = stop
                kept = self._kept.pop(start, copied)
            yield from kept

    def keep(self, _: Sequence[UpdatePart]) -> int:
        """Copy all that is not read, before a push changes rows; the number of bytes copied.

        The caller locks the block. A push may move rows, so that it does not matter which ones it
        names.
        """
        if self.is_kept or not self.is_of_one_moment:
            return 0
        self.is_kept = True
        columns = self.block.table.columns
        for start, stop in self._tiles():
            if start >= self._next:
                self.block.table.note_copied(np.arange(start, stop))
                self._kept[start] = [column[start:stop].copy() for column in columns.values()]
        return sum(array.nbytes for arrays in self._kept.values() for array in arrays)

    @property
    def is_of_one_moment(self) -> bool:
        """Whether a push keeps rows before it changes them; a larger table changes meanwhile."""
        return bool(self.used * self.row_bytes <= self._most_kept)

    def planned_columns(self) -> dict[str, Array]:
        """Return the columns as they were planned, none of which was read.

        The caller locks the block, unless a push has kept them.
        """
        columns = {name: column[: self.used] for name, column in self.block.table.columns.items()}
        if not self._kept:
            return columns
        kept = zip(*(self._kept[start] for start, _ in self._tiles()), strict=True)
        return {name: np.concatenate(pieces) for name, pieces in zip(columns, kept, strict=True)}

    def drop(self) -> None:
        """Keep nothing any more: nobody reads the rows. The caller locks the block."""
        self.is_kept, self._kept = True, {}

    def _tiles(self) -> Iterator[tuple[int, int]]:
        for start in range(0, self.used, self.step):
            yield start, min(start + self.step, self.used)

    def _copied(self, start: int, stop: int) -> list[Array]:
        self.block.fetch_copied(range(start, stop))
        with self.block.lock:
            columns = self.block.table.columns
        copies = [np.empty_like(column[start:stop]) for column in columns.values()]

        def copy_places(part: slice) -> None:
            for copy, column in zip(copies, columns.values(), strict=True):
                copy[part] = column[start:stop][part]

        copy_in_parts(self.block.lock, stop - start, self.row_bytes, copy_places)
        return copies


# -- restoring -------------------------------------------------------------------------------


def restore_table(
    block: PushTarget, reader: CheckpointReader, check: Callable[[], None]
) -> CheckpointReader | None:
    """Load the rows of a new part of a table; the checkpoint, if it has the table.

    If it was saved in as many parts, only its own is read. Slots are those of the saved update
    rule; under another one they begin anew.

    Args:
        block: Part of a table, without rows.
        reader: The checkpoint.
        check: Called for each piece; raises to give up.

    Raises:
        CheckpointError: The checkpoint has another table of this name, or is damaged.
        LimitExceededError: There is no room for its rows.
    """
    [shard] = block.shards
    name = shard.variable.name
    if reader.variable(name) is not None:
        raise another_kind(reader, name, "an array", "a growing table")
    record = reader.table(name)
    if record is None or not isinstance(block, KeyedBlock):
        return None
    definition = block.table.definition
    if (record.dim, record.dtype) != (definition.dim, definition.dtype.name):
        raise CheckpointError(
            f"{reader.path} has the table {definition.name!r} of {record.dtype}[{record.dim}], the "
            f"program defines {definition.dtype.name}[{definition.dim}]; it was saved by another "
            "model. Restore it with that program, or name another model_dir",
            variable=definition.name,
            path=reader.path,
        )
    same_parts = record.parts == shard.num_parts
    same_rule = record.rule.get("name") == definition.rule.name
    for columns in reader.columns(name, shard.part if same_parts else None):
        check()
        try:
            if "keys" in columns:
                tile = block.table.tile(columns if same_rule else _without_slots(columns))
                _load_rows(block, tile if same_parts else tile.of_ps(shard.part, shard.num_parts))
            else:
                state = {name.removeprefix(STATE): array for name, array in columns.items()}
                _load_state(block, state, same_parts=same_parts)
        except ShapeMismatchError as error:
            raise CheckpointError(
                f"{reader.path} is damaged: {error.message}", path=reader.path, variable=name
            ) from error
    return reader


def _without_slots(columns: dict[str, Array]) -> dict[str, Array]:
    return {name: column for name, column in columns.items() if not name.startswith(SLOT)}


def _load_rows(block: KeyedBlock, tile: Tile) -> None:
    table = block.table
    size = max(1, table.definition.max_rows // _PARTS)  # so that rows can make room for others
    for start in range(0, tile.keys.size, size):
        with block.writing():
            table.load(tile.chosen(np.arange(start, min(start + size, tile.keys.size))))


def _load_state(block: KeyedBlock, state: dict[str, Array], *, same_parts: bool) -> None:
    """Load what decided about rows: of several parts it adds up, and counts go to the first."""
    table, [shard] = block.table, block.shards
    steps = state.get("steps", np.empty(0))
    if steps.shape != table.state()["steps"].shape or steps.dtype != np.int64:
        raise ShapeMismatchError(
            f"the steps of table {shard.label!r} are {steps.dtype}{list(steps.shape)}"
        )
    seen = [state[name] for name in (_KEYS, _COUNTS) if name in state]
    if any(
        array.ndim != 1 or array.dtype != np.int64 or array.size != seen[0].size for array in seen
    ):
        raise ShapeMismatchError(f"the candidates of table {shard.label!r} do not fit together")
    if not same_parts:
        if _KEYS in state and _COUNTS in state:
            mine = ps_of_keys(state[_KEYS], shard.num_parts) == shard.part
            state = state | {name: state[name][mine] for name in (_KEYS, _COUNTS)}
        if shard.part != 0:
            state = state | {"steps": np.concatenate([steps[:_CLOCKS], 0 * steps[_CLOCKS:]])}
    expected = table.state()
    fits = {
        name: array
        for name, array in state.items()
        if name in expected and (name in (_KEYS, _COUNTS) or array.shape == expected[name].shape)
    }
    table.load_state(fits)


def copies_of_tables(parts: Sequence[RowsByKey], most: int) -> list[TableCopy]:
    """Plan copies of parts of growing tables, yet to be made."""
    return [TableCopy(part, most) for part in parts if isinstance(part, KeyedBlock)]
