"""The definition of a growing embedding table, and counts of what happened to it."""

from dataclasses import dataclass, fields

import numpy as np

from ...core.arrays.dtypes import Array, DType
from ...core.errors import ConfigurationError, ShapeMismatchError
from ...core.rules.definitions import ShardDefinition
from ...core.rules.initializers import Initializer
from ...core.rules.tables import TableOptions
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


def definition_of(shard: ShardDefinition) -> TableDefinition:
    """Describe one part of a variable whose rows are found by key.

    Raises:
        ConfigurationError: It is none, or has numbers that are out of range.
    """
    variable, options = shard.variable, shard.variable.table
    if options is None:
        raise ConfigurationError(f"{variable.name!r} is no table", table=variable.name)
    return TableDefinition(
        name=variable.name,
        dim=variable.shape[1],
        max_rows=shard.rows,
        initializer=variable.initializer or DEFAULT_INITIALIZER,
        dtype=variable.dtype,
        **{field.name: getattr(options, field.name) for field in fields(TableOptions)},
    )
