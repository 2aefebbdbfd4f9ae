"""Definitions of variables, before and after they are cut into shards."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..arrays.dtypes import DType, as_dtype, num_rows, row_shape, size_of
from .initializers import Initializer
from .update_rules import UpdateRule

ShardKey = tuple[str, int]
"""A shard's name: variable and part."""


class RowOptions(ABC):
    """Options of a table whose rows are found by key, as an annex brings them.

    Attributes:
        rule: Update rule of the rows.
        memory_bytes: Most memory of the whole table, over all ps: rows beyond it are on the disks
            of the ps. None: all rows are in memory.
    """

    rule: UpdateRule
    memory_bytes: int | None

    @abstractmethod
    def state_elements(self, width: int) -> int:
        """Count the elements of a row of ``width`` elements, its slots and its count."""

    @abstractmethod
    def num_bytes(self, rows: int, width: int, dtype: DType) -> int:
        """Count the bytes, at most, of a table with so many rows on one ps, in memory or on
        disk.
        """

    @abstractmethod
    def row_bytes(self, rows: int, width: int, dtype: DType) -> int:
        """Count the bytes of the values and slots of so many rows, which may be on disk."""


@dataclass(frozen=True, slots=True)
class VariableDefinition:
    """A whole variable.

    Attributes:
        name: Name of the variable, unique in the job.
        shape: Shape of the whole variable.
        dtype: Dtype of the values, from ``core.arrays.dtypes.DTYPES``.
        initializer: Runs on the ps; None: the creating task assigns the value.
        trainable: Whether optimizers update it by default.
        table: Options of a table whose rows are found by key and not numbered: shape is
            ``(most rows, elements of a row)``. None: it is an array.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    initializer: Initializer | None = None
    trainable: bool = True
    table: RowOptions | None = None

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > 512 or not self.name.isprintable():
            raise ValueError(
                f"a variable needs a printable name of 1 to 512 characters: {self.name!r}"
            )
        object.__setattr__(self, "shape", tuple(int(extent) for extent in self.shape))
        if any(extent < 0 for extent in self.shape):
            raise ValueError(f"variable {self.name!r}: negative extent in shape {self.shape}")
        object.__setattr__(self, "dtype", as_dtype(self.dtype))
        if self.table is not None and len(self.shape) != 2:
            raise ValueError(
                f"table {self.name!r} has shape {self.shape}; that of a table is (max_rows, dim)"
            )

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the value; of a table the most it may take, in memory or on disk."""
        if self.table is not None:
            return self.table.num_bytes(self.shape[0], size_of(row_shape(self.shape)), self.dtype)
        return self.size * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class ShardDefinition:
    """Part ``part`` of ``num_parts`` of a variable: rows ``[row_offset, row_offset + rows)``."""

    variable: VariableDefinition
    part: int = 0
    num_parts: int = 1
    row_offset: int = 0
    rows: int = -1
    rule: UpdateRule | None = None

    def __post_init__(self) -> None:
        if self.rows < 0:
            object.__setattr__(self, "rows", num_rows(self.variable.shape))

    @property
    def key(self) -> ShardKey:
        """Variable name and part."""
        return (self.variable.name, self.part)

    @property
    def label(self) -> str:
        """Name in errors and files: ``w``, or ``w/part_2`` as TensorFlow names parts."""
        name = self.variable.name
        return name if self.num_parts == 1 else f"{name}/part_{self.part}"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        full = self.variable.shape
        return (self.rows, *row_shape(full)) if full else ()

    @property
    def size(self) -> int:
        """Number of elements."""
        return size_of(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of the value; of a table the most it may take, in memory or on disk."""
        variable = self.variable
        if variable.table is not None:
            width = size_of(row_shape(variable.shape))
            return variable.table.num_bytes(self.rows, width, variable.dtype)
        return self.size * variable.dtype.itemsize

    @property
    def memory_bytes(self) -> int:
        """Most memory of it, where a ps has a disk for the rest."""
        budget = self.memory_budget
        return self.num_bytes if budget is None else min(self.num_bytes, budget)

    @property
    def file_bytes(self) -> int:
        """Bytes of a table's values and slots, if not all of it fits into its memory; else 0."""
        variable = self.variable
        if variable.table is None or self.memory_bytes == self.num_bytes:
            return 0
        width = size_of(row_shape(variable.shape))
        return variable.table.row_bytes(self.rows, width, variable.dtype)

    @property
    def memory_budget(self) -> int | None:
        """Bytes of a table's ``memory_bytes`` that this part may use; None: there is no budget."""
        table = self.variable.table
        if table is None or table.memory_bytes is None:
            return None
        return table.memory_bytes * self.rows // max(1, self.variable.shape[0])


def cut(definition: VariableDefinition, num_parts: int) -> list[ShardDefinition]:
    """Cut along axis 0 into parts whose sizes differ by at most one row, larger first ("div").

    As TensorFlow's ShardedVariable: 10 rows in 3 parts are 4, 3, 3. Of a table that many rows are
    the most of each part; which keys it has follows from their hash.
    """
    rows = num_rows(definition.shape)
    num_parts = max(1, min(num_parts, rows)) if definition.shape else 1
    base, extra = divmod(rows, num_parts)
    shards, offset = [], 0
    for part in range(num_parts):
        count = base + (part < extra)
        shards.append(ShardDefinition(definition, part, num_parts, offset, count))
        offset += count
    return shards
