"""What a growing embedding table is, and what happened to it."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ...core.arrays.dtypes import DType
from ...core.errors import ConfigurationError
from ...core.rules.initializers import Initializer
from ...core.rules.update_rules import UpdateRule
from .admission import Admission
from .clipping import NormClipping
from .eviction import Order
from .row_rules import slots_of
from .row_store import LAST_STEP

_DTYPES = (np.dtype(np.float32), np.dtype(np.float64))
_MAX_ROWS = 1 << 33


@dataclass(frozen=True, slots=True)
class TableDefinition:
    """The definition of a table.

    Attributes:
        name: Name of the table, part of the seed of its rows.
        dim: Number of elements of a row.
        rule: How rows are updated.
        max_rows: Maximal number of rows; see ``max_rows_of``.
        initializer: Initializer of the rows.
        dtype: float32 or float64.
        unknown: What a key without a row reads as: the initial value of its row, or zeros.
        admission: Which keys get a row; None: all.
        max_unseen_steps: Steps after its last push at which a row is evicted, within a sixteenth
            of them; None: no row is.
        evicts: Order of eviction when the table is full; None: none, and new keys are refused.
        clipping: Clipping of gradients, by norm.
    """

    name: str
    dim: int
    rule: UpdateRule
    max_rows: int
    initializer: Initializer = field(default_factory=lambda: Initializer("random_uniform"))
    dtype: DType = _DTYPES[0]
    unknown: Literal["initial", "zeros"] = "initial"
    admission: Admission | None = None
    max_unseen_steps: int | None = None
    evicts: Order | None = None
    clipping: NormClipping = field(default_factory=NormClipping)

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

    def _check(self, what: str, value: int, least: int, most: int) -> None:
        if not least <= value <= most:
            raise ConfigurationError(
                f"table {self.name!r}: {what} is {value}; it must be in [{least}, {most}]",
                table=self.name,
            )


@dataclass(slots=True)
class TableCounts:
    """What happened to a table since it was made.

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


def max_rows_of(budget_bytes: int, definition: TableDefinition) -> int:
    """How many rows of a table fit into a budget, index included."""
    slots = slots_of(definition.name, definition.rule, definition.dim)
    elements = definition.dim + sum(count for count, _ in slots.values())
    per_row = elements * definition.dtype.itemsize + 24 + 40
    return max(1, budget_bytes // per_row)
