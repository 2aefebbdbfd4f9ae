"""The definition of a growing table, counts of what happened to it, and copies of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from ....core.arrays.dtypes import Array, DType
from ....core.errors import ConfigurationError, ShapeMismatchError
from ....core.rules.definitions import ShardDefinition, VariableDefinition
from ....core.rules.initializers import Initializer
from ....engine.push_target import FREE, SLOT
from ..options import TableOptions
from .distinct import distinct
from .index_arrays import mixed, ps_of_keys
from .row_rules import slots_of
from .row_store import LAST_STEP

DEFAULT_INITIALIZER = Initializer("random_uniform")

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_MAX_ROWS = 1 << 33


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition(TableOptions):
    """The definition of a table, or of the part of it that one ps has.

    Attributes:
        name: Name of the table, part of the seed of its rows.
        dim: Number of elements of a row.
        max_rows: Maximal number of rows.
        initializer: Initializer of the rows.
        dtype: float32 or float64.
    """

    name: str
    dim: int
    max_rows: int
    initializer: Initializer = DEFAULT_INITIALIZER
    dtype: DType = _DTYPES[0]

    def __post_init__(self) -> None:
        self._check("dim", self.dim, 1, 1 << 20)
        self._check("max_rows", self.max_rows, 1, _MAX_ROWS)
        if self.max_unseen_steps is not None:
            self._check("max_unseen_steps", self.max_unseen_steps, 1, LAST_STEP)
        if self.dtype not in _DTYPES:
            raise ConfigurationError(
                f"table {self.name!r}: rows are {self.dtype}; they may be float32 or float64",
                table=self.name,
            )

    def check_rows(self, what: str, rows: Array, count: int) -> None:
        """Check an array of rows of the table.

        Args:
            what: Description of the rows, for messages.
            rows: The array.
            count: Number of rows that it is to have.

        Raises:
            ShapeMismatchError: It has another shape or dtype.
        """
        wanted = [count, self.dim]
        if [*rows.shape] != wanted or rows.dtype != self.dtype:
            raise ShapeMismatchError(
                f"table {self.name!r}: {what} are {rows.dtype}{list(rows.shape)}, expected "
                f"{self.dtype}{wanted}",
                table=self.name,
            )

    def _check(self, what: str, value: int, least: int, most: int) -> None:
        if not least <= value <= most:
            raise ConfigurationError(
                f"table {self.name!r}: {what} is {value}; it must be in [{least}, {most}]",
                table=self.name,
            )


@dataclass(slots=True)
class TableCounts:
    """Counts of what happened to a table since it was made.

    Attributes:
        pushes: Pushes that were applied.
        admitted: Rows that were made.
        refused: Sightings of keys that were not admitted; their gradients were dropped.
        full: Sightings of keys for which there was no room; their gradients were dropped.
        evicted: Rows that were evicted.
    """

    pushes: int = 0
    admitted: int = 0
    refused: int = 0
    full: int = 0
    evicted: int = 0


def options_of(variable: VariableDefinition) -> TableOptions:
    """Return the options of a variable whose rows are found by key.

    Raises:
        ConfigurationError: It is none.
    """
    if not isinstance(variable.table, TableOptions):
        raise ConfigurationError(f"{variable.name!r} is no table", table=variable.name)
    return variable.table


def definition_of(shard: ShardDefinition) -> TableDefinition:
    """Describe one part of a variable whose rows are found by key.

    Raises:
        ConfigurationError: It is none, or has numbers that are out of range.
    """
    variable, options = shard.variable, options_of(shard.variable)
    return TableDefinition(
        name=variable.name,
        dim=variable.shape[1],
        max_rows=shard.rows,
        initializer=variable.initializer or DEFAULT_INITIALIZER,
        dtype=variable.dtype,
        **{field.name: getattr(options, field.name) for field in fields(TableOptions)},
    )


# -- Copies of a table's rows, a tile at a time, and the digest by which two tables are compared --

_U64 = np.uint64


@dataclass(frozen=True, slots=True)
class Tile:
    """A number of rows of a table, each key once.

    Attributes:
        keys: int64, shape ``(n,)``.
        values: Shape ``(n, dim)``, the table's dtype.
        slots: Slots by name, shape ``(n, elements)``.
        counts: uint32, shape ``(n,)``: pushes of each row.
        last: uint32, shape ``(n,)``: the step of each row's last push.
    """

    keys: Array
    values: Array
    slots: Mapping[str, Array]
    counts: Array
    last: Array

    @property
    def columns(self) -> dict[str, Array]:
        """Everything that the rows have, by name as in ``RowStore.columns``."""
        slots = {f"{SLOT}{name}": slot for name, slot in self.slots.items()}
        rest = {"keys": self.keys, "values": self.values, "counts": self.counts, "last": self.last}
        return rest | slots

    def chosen(self, rows: Array) -> "Tile":
        """Select the rows at these positions, or where this is true."""
        slots = {name: slot[rows] for name, slot in self.slots.items()}
        return Tile(self.keys[rows], self.values[rows], slots, self.counts[rows], self.last[rows])

    def of_ps(self, ps: int, num_ps: int) -> "Tile":
        """Select the rows that belong to one of ``num_ps`` ps."""
        return self.chosen(ps_of_keys(self.keys, num_ps) == ps)

    def digest(self) -> int:
        """Sum a hash of all that a row has over the rows, modulo ``2**64``."""
        words = mixed(self.keys) ^ mixed(self.counts.astype(np.uint64) << _U64(32) | self.last)
        for column in (self.values, *(self.slots[name] for name in sorted(self.slots))):
            bits = column.view(f"u{column.dtype.itemsize}")
            for i in range(column.shape[1]):
                words = mixed(words + bits[:, i])
        return int(words.sum(dtype=np.uint64))


def tile_of(definition: TableDefinition, columns: Mapping[str, Array]) -> Tile:
    """Make a tile of columns of a table; rows of places that were not in use are left out.

    Of a key that is there twice the later place counts.

    Args:
        definition: The table that gets them. A slot of it that is not there begins anew.
        columns: Columns by name as in ``RowStore.columns``.

    Raises:
        ShapeMismatchError: Columns are missing, or their lengths differ.
    """
    needed = ("keys", "values", "counts", "last")
    lengths = {column.shape[:1] for column in columns.values()}
    if len(lengths) != 1 or any(name not in columns for name in needed):
        shapes = ", ".join(f"{name}{list(array.shape)}" for name, array in columns.items())
        raise ShapeMismatchError(
            f"table {definition.name!r}: a copy has the columns {shapes}; it needs "
            f"{', '.join(needed)}, all of one length",
            table=definition.name,
        )
    for name, dtype in (("keys", np.int64), ("last", np.uint32)):
        if columns[name].ndim != 1 or columns[name].dtype != dtype:
            raise ShapeMismatchError(
                f"table {definition.name!r}: {name} of a copy are {columns[name].dtype}"
                f"{list(columns[name].shape)}, expected a vector of {np.dtype(dtype)}",
                table=definition.name,
            )
    used = used_places(columns)
    slots = {}
    for slot, (elements, start) in slots_of(
        definition.name, definition.rule, definition.dim
    ).items():
        column = columns.get(f"{SLOT}{slot}")
        fresh = np.full((used.size, elements), start, definition.dtype)
        slots[slot] = fresh if column is None else column[used]
    keys, values, counts, last = (columns[name][used] for name in needed)
    return Tile(keys, values, slots, counts, last)


def used_places(columns: Mapping[str, Array]) -> Array:
    """Find the places of columns whose rows count: those in use, and of a key that is there twice
    the later.

    A row that went and came back while places were copied may be there twice.

    Args:
        columns: Columns by name as in ``RowStore.columns``, of equal lengths.
    """
    used = np.flatnonzero(columns["last"] != FREE)
    _, first = np.unique(columns["keys"][used][::-1], return_index=True)
    return np.sort(used[used.size - 1 - first])


def check_tile(table: str, tile: Tile, values: Array, slots: Mapping[str, Array]) -> None:
    """Check that a tile's rows fit a table's columns.

    Raises:
        ShapeMismatchError: They do not.
    """
    count = tile.keys.size
    wanted = {"values": values} | {f"slot {name!r}": slot for name, slot in slots.items()}
    columns = {"values": tile.values} | {f"slot {name!r}": s for name, s in tile.slots.items()}
    if wanted.keys() != columns.keys():
        raise ShapeMismatchError(
            f"table {table!r}: a tile has {', '.join(columns)}, the table {', '.join(wanted)}; it "
            "was saved under another update rule",
            table=table,
        )
    for name, column in columns.items():
        expected = (count, wanted[name].shape[1])
        if column.shape != expected or column.dtype != wanted[name].dtype:
            raise ShapeMismatchError(
                f"table {table!r}: {name} of a tile are {column.dtype}{list(column.shape)}, "
                f"expected {wanted[name].dtype}{list(expected)}",
                table=table,
            )
    if distinct(table, tile.keys)[0].size < count:
        raise ShapeMismatchError(
            f"table {table!r}: a tile of {count} keys has one of them twice; it is damaged",
            table=table,
        )
    for name, numbers in (("counts", tile.counts), ("last", tile.last)):
        if numbers.shape != (count,) or numbers.dtype != np.uint32:
            raise ShapeMismatchError(
                f"table {table!r}: {name} of a tile are {numbers.dtype}{list(numbers.shape)}, "
                f"expected uint32[{count}]",
                table=table,
            )
    if int(tile.last.max(initial=0)) > LAST_STEP:
        raise ShapeMismatchError(
            f"table {table!r}: a tile has the step {tile.last.max()}, the last possible one is "
            f"{LAST_STEP}; it is damaged",
            table=table,
        )
