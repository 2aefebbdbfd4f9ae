"""Options of a table whose rows are found by key: which keys get a row, and which rows go.

``keyed`` carries them out. A table is a variable of shape ``(max_rows, dim)``
that has these options: its rows are not numbered, and there are at most so many.
"""

import math
from dataclasses import dataclass, field
from typing import Literal

from ...core.arrays.dtypes import DType
from ...core.errors import ConfigurationError
from ...core.rules.definitions import RowOptions
from ...core.rules.update_rules import UpdateRule
from .update_rules import slot_elements

# Of a key in an index: 16, in a segment that is between 65 % and half of that full.
_INDEX_BYTES = 50
_ROW_BYTES = 24 + _INDEX_BYTES  # beside its elements: key, count, step and free list
_SKETCH_DEPTH = 4


@dataclass(frozen=True, slots=True)
class Sightings:
    """A key gets a row at its sighting number ``count``; sightings are counted exactly.

    Attributes:
        count: Number of the sighting, at least 1.
        max_candidates: Keys without a row that are counted. When there are more, those that were
            seen least often are forgotten, half of all; of equals those with the larger key.
    """

    count: int
    max_candidates: int = 1 << 20


@dataclass(frozen=True, slots=True)
class SketchedSightings:
    """Sightings in a count-min sketch (Cormode and Muthukrishnan, 2005), in constant memory.

    A key may get its row early, but late only where sightings have faded.

    Attributes:
        count: Sightings that give a key its row, at least 1.
        counters: Number of counters in each of its four rows, a power of two. Unit: 4 bytes.
    """

    count: int
    counters: int = 1 << 20


@dataclass(frozen=True, slots=True)
class Chance:
    """A chance: at every sighting a key gets a row with this probability.

    Attributes:
        probability: Probability in (0, 1].
    """

    probability: float


Admission = Sightings | SketchedSightings | Chance

Order = Literal["least_recent", "least_frequent"]
"""Order of eviction: the rows whose last push is longest ago, or those with the fewest pushes."""


@dataclass(frozen=True, slots=True)
class NormClipping:
    """Limits to which gradients are clipped; None: they are not.

    Attributes:
        row_norm: The largest norm of a row's gradient.
        table_norm: The largest norm of all gradients of a push, after rows were clipped.
    """

    row_norm: float | None = None
    table_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("row_norm", "table_norm"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigurationError(f"{name} is {value}; it must be positive and finite")


@dataclass(frozen=True, slots=True)
class TableOptions(RowOptions):
    """Options of a growing table.

    Attributes:
        rule: Update rule of the rows.
        unknown: Value that is read for a key without a row: the initial value of its row, or zeros.
        admission: Condition on which a key gets a row; None: all get one.
        max_unseen_steps: Steps after its last push at which a row is evicted, within a sixteenth
            of them; None: no row is.
        evicts: Order of eviction when the table is full; None: none, and new keys are refused.
        clipping: Clipping of gradients, by norm.
        memory_bytes: Most memory of the whole table, over all ps: rows beyond it are on the disks
            of the ps. None: all rows are in memory.
    """

    rule: UpdateRule
    unknown: Literal["initial", "zeros"] = "initial"
    admission: Admission | None = None
    max_unseen_steps: int | None = None
    evicts: Order | None = None
    clipping: NormClipping = field(default_factory=NormClipping)
    memory_bytes: int | None = None

    def state_elements(self, width: int) -> int:
        """Count the elements of a row of ``width`` elements, its slots and its count."""
        return width + sum(slot_elements(self.rule, width).values()) + 1

    def num_bytes(self, rows: int, width: int, dtype: DType) -> int:
        """Count the bytes, at most, of a table with so many rows on one ps, in memory or on
        disk.
        """
        return self.row_bytes(rows, width, dtype) + self.index_bytes(rows)

    def row_bytes(self, rows: int, width: int, dtype: DType) -> int:
        """Count the bytes of the values and slots of so many rows, which may be on disk."""
        elements = width + sum(slot_elements(self.rule, width).values())
        return rows * elements * dtype.itemsize

    def index_bytes(self, rows: int) -> int:
        """Count the bytes, at most, of the rest, which is always in memory: of keys, counts, steps
        and index, and of what admission remembers.
        """
        return rows * _ROW_BYTES + self._admission_bytes()

    def rows_within(self, budget_bytes: int, width: int, dtype: DType) -> int:
        """Count the rows of a table that fit into a budget on one ps, at most; less than 1: none
        does.
        """
        per_row = self.num_bytes(1, width, dtype) - self._admission_bytes()
        return (budget_bytes - self._admission_bytes()) // per_row

    def _admission_bytes(self) -> int:
        match self.admission:
            case Sightings(max_candidates=candidates):
                return _INDEX_BYTES * candidates
            case SketchedSightings(counters=counters):
                return 4 * _SKETCH_DEPTH * counters
            case _:
                return 0
