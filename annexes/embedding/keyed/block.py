"""A part of a growing table on a ps: rows by key, in the pushes that change arrays, too."""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from ....core.arrays.buffers import BufferPools
from ....core.arrays.dtypes import Array
from ....core.checkpoint import CheckpointReader
from ....core.checkpoint.reader import STATE
from ....core.errors import CheckpointError, ShapeMismatchError
from ....core.report import TableCounters
from ....core.rules.definitions import ShardDefinition
from ....core.wire.steps import MemoryLocation
from ....engine.push_target import SLOT, Range, RowsByKey, StepInfo, UpdatePart
from ....engine.row_changes import RowChanges
from ....server.ps.new_blocks import another_kind
from .definition import TableCounts, TableDefinition, Tile, definition_of
from .index_arrays import ps_of_keys
from .row_rules import warm_up
from .row_store import LAST_STEP
from .table import KeyedTable

_ALL = Range(0, 1, 0, 0)
_KEPT_BYTES = 64 << 20
_KEYS, _COUNTS = "candidate_keys", "candidate_counts"
_CLOCKS = 2  # steps in front of the counts, in the state of a table
_PARTS = 4  # of max_rows, loaded at a time


def warm_up_tables(shards: Sequence[ShardDefinition]) -> None:
    """Begin to load the kernels of the rules of tables, or to compile them.

    Raises:
        ConfigurationError: A definition has a number that is out of range.
    """
    for definition in map(definition_of, shards):
        warm_up(definition.rule, definition.dtype)


class KeyedBlock(RowsByKey):
    """A part of a table. Hold ``lock`` around everything but the constructor.

    A push applies gradients of keys; nothing else is done to its rows. They are clipped by what the
    table says: a step's clipping by the norm of all gradients is for arrays.

    Args:
        shard: The part. Keys that belong to it are those of its ps.
        number: Number of the block among those of its store.

    Attributes:
        table: Rows of the part.

    Raises:
        ConfigurationError: The definition is that of no table, or does not fit its update rule.
        LimitExceededError: There are no addresses for so many rows.
    """

    def __init__(self, shard: ShardDefinition, number: int = 0) -> None:
        super().__init__([shard], number)
        definition = definition_of(shard)
        self.table = self._new_table(definition)
        self.rules = [definition.rule]
        self.initialized[:] = True
        self._memory = BufferPools(sizes=8, most_bytes=_KEPT_BYTES)

    def _new_table(self, definition: TableDefinition) -> KeyedTable:
        return KeyedTable(definition)

    @property
    def value_bytes(self) -> int:
        """Bytes of all rows."""
        return len(self.table) * self.table.definition.dim * self.dtype.itemsize

    @property
    def slot_bytes(self) -> int:
        """Bytes of everything beside the rows, and of places of rows that were evicted."""
        return self.table.num_bytes - self.value_bytes

    @property
    def most_bytes(self) -> int:
        """Bytes that the table may come to have, and of what is noted about changes."""
        return self.shards[0].num_bytes + self.followed_bytes

    def location(self, entry: int) -> MemoryLocation | None:  # noqa: ARG002 - the interface's
        """Return None: only the ps knows where a row is."""
        return None

    def range_of(self, entry: int) -> Range:  # noqa: ARG002 - the interface's
        """Return the range of all elements."""
        return _ALL

    @contextmanager
    def writing(self, parts: Sequence[UpdatePart] = ()) -> Iterator[None]:  # noqa: ARG002 - for rows on disk
        """Hold the lock."""
        with self.lock:
            yield

    @property
    def counters(self) -> TableCounters:
        """Counters of what the table holds, and what happened to it. Also without the lock."""
        counts = self.table.counts
        return TableCounters(
            name=self.table.definition.name,
            rows=len(self.table),
            num_bytes=self.table.num_bytes,
            admitted=counts.admitted,
            refused=counts.refused,
            full=counts.full,
            evicted=counts.evicted,
        )

    def read(self, keys: Array, room: Array | None = None) -> Array:
        """Read the rows of keys, shape ``(n, dim)``; makes none."""
        shape = (keys.size, self.table.definition.dim)
        rows = room.view(self.dtype).reshape(shape) if room is not None else None
        if rows is None or not rows.flags.aligned:
            # Not used again before the last reader of the rows is done with them.
            rows = self._memory.take_array(shape, self.dtype)
        return self.table.read(keys, rows)

    @property
    def state_elements(self) -> int:
        """Elements of a row, its slots and its count."""
        definition = self.table.definition
        return definition.state_elements(definition.dim)

    def read_states(self, keys: Array) -> Array:
        """Read the rows of keys with their slots and counts; makes none."""
        shape = (keys.size, self.state_elements)
        return self.table.read_states(keys, self._memory.take_array(shape, self.dtype))

    def clear(self) -> None:
        """Forget all rows, and what is remembered beside them."""
        self.table = self._new_table(self.table.definition)
        self.changes = {}

    def follow(self, entry: int, holder: Hashable) -> RowChanges:
        """Note which rows change or go, at least until this holder needs it no more."""
        self.table.changes = super().follow(entry, holder)
        return self.table.changes

    def make_changes(self, entry: int) -> RowChanges:
        """Make what notes the changes of rows, and which go, from now on."""
        return RowChanges(self.shards[entry].rows)

    def unfollow(self, holder: Hashable) -> None:
        """Forget the changes that only this holder needed."""
        super().unfollow(holder)
        self.table.changes = self.changes.get(0)

    def places(self, entry: int) -> int:  # noqa: ARG002 - the interface's
        """Count the places that were ever used."""
        return self.table.places

    def changed_keys(self, entry: int, since: int, start: int, stop: int) -> Array:
        """Find the keys of rows that changed and are there."""
        return self.table.keys_in_use(self.changes[entry].since(since, start, stop))

    @property
    def columns(self) -> Mapping[str, Array]:
        """Columns by name: memory of all places that were ever used, no copy."""
        return self.table.columns

    def copied_rows(self, places: Array) -> Mapping[str, Array]:
        """Copy the rows at these places, of those that have one, by column."""
        return self.table.copy(places).columns

    def state(self) -> Mapping[str, Array]:
        """Return what decides beside the rows, by name."""
        return self.table.state()

    def note_copied(self, places: Array) -> None:
        """Note that the rows of these places are copied now: they may be on disk."""
        self.table.note_copied(places)

    def restore(self, reader: CheckpointReader, check: Callable[[], None]) -> bool:
        """Load the rows of a checkpoint, if it has the table; returns whether it does."""
        return _restore(self, reader, check)

    def take_rows(self, columns: Mapping[str, Array], removed: Array) -> None:
        """Remove rows, and write others as they were copied from another replica."""
        self.table.evict(removed)
        tile = self.table.tile(columns)
        self.table.load(tile)

    def take_state(self, state: Mapping[str, Array]) -> None:
        """Go on as the replica whose state this is; its rows are here already."""
        self.table.counts = TableCounts()  # of what copying the rows has made and evicted
        self.table.load_state(state)

    def run(self, parts: Sequence[UpdatePart], info: StepInfo) -> None:
        """Apply gradients, and remember the push. The same on every replica."""
        # A row notes its step in 32 bits: what comes after the last one counts as the last one.
        step = min(info.global_step, LAST_STEP)
        for part in parts:
            keys = part.gradient.rows if part.gradient.rows is not None else np.empty(0, np.int64)
            gradients = part.gradient.values.reshape(keys.size, self.table.definition.dim)
            self.table.push(keys, gradients, step)
        self.versions += 1
        self.updates += 1
        self.mark_applied(info)


# -- restoring -------------------------------------------------------------------------------


def _restore(block: KeyedBlock, reader: CheckpointReader, check: Callable[[], None]) -> bool:
    """Load the rows of a new part of a table; returns whether the checkpoint has the table.

    If it was saved in as many parts, only its own is read. Slots are those of the saved update
    rule; under another one they begin anew.
    """
    [shard] = block.shards
    name = shard.variable.name
    if reader.variable(name) is not None:
        raise another_kind(reader, name, "an array", "a growing table")
    record = reader.table(name)
    if record is None:
        return False
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
    return True


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
