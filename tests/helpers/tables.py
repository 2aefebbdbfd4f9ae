"""Growing tables on parameter servers: a definition, and a reference in NumPy."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ropewalk.client.ps.step import Write
from ropewalk.core.arrays.dtypes import Array, DType
from ropewalk.core.arrays.indexed_slices import IndexedSlices
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.core.wire.steps import Operation

from .rules import Adagrad

F32 = np.dtype(np.float32)
DIM = 4
RULE = Adagrad(learning_rate=0.1, initial_accumulator_value=0.1)
INITIALIZER = Initializer("random_uniform", seed=3, minval=-1.0, maxval=1.0)
EXTREMES = np.array([0, -1, 1, 2**63 - 1, -(2**63), 2**32, -(2**32)], np.int64)


def table(
    name: str = "t",
    rule: UpdateRule = RULE,
    max_rows: int = 1000,
    dim: int = DIM,
    dtype: DType = F32,
    **options: Any,
) -> VariableDefinition:
    """A table of rows that begin in [-1, 1). A test of it is skipped where there are none."""
    pytest.importorskip("ropewalk.annexes.embedding")
    from ropewalk.annexes.embedding.options import TableOptions

    made = TableOptions(rule=rule, **options)
    return VariableDefinition(name, (max_rows, dim), dtype, INITIALIZER, table=made)


def on_disk(definition: VariableDefinition, rows_bytes: int = 1 << 16) -> VariableDefinition:
    """A table that has memory for so many bytes of values and slots, on each of up to four ps."""
    from ropewalk.annexes.embedding.options import TableOptions

    assert isinstance(definition.table, TableOptions)
    memory = definition.table.index_bytes(definition.shape[0]) + 4 * rows_bytes
    return replace(definition, table=replace(definition.table, memory_bytes=memory))


def gradients(**by_table: tuple[Array, Array]) -> list[Write]:
    """A push of (keys, gradients) by table."""
    return [
        Write(Operation.APPLY, {name: IndexedSlices(values, keys)})
        for name, (keys, values) in by_table.items()
    ]


class Reference:
    """A table under Adagrad as a dictionary of rows. Every key gets its row."""

    def __init__(self, definition: VariableDefinition) -> None:
        self._name, self._dim = definition.name, definition.shape[1]
        from ropewalk.annexes.embedding.keyed.admission import draws_of

        self._draws = draws_of(definition.name, INITIALIZER)
        self.rows: dict[int, tuple[Array, Array]] = {}

    def read(self, keys: Array) -> Array:
        """Rows of keys, made or not."""
        return np.stack([self._row(key)[0] for key in keys.tolist()])

    def push(self, keys: Array, values: Array) -> None:
        """Apply gradients; those of equal keys are added up first."""
        for key in np.unique(keys).tolist():
            w, a = self._row(key)
            g = values[keys == key].sum(axis=0, dtype=values.dtype)
            a = a + g * g
            self.rows[key] = (w - np.float32(0.1) * g / np.sqrt(a + np.float32(RULE.epsilon)), a)

    def _row(self, key: int) -> tuple[Array, Array]:
        if key in self.rows:
            return self.rows[key]
        first = self._draws.of(np.array([key], np.int64), self._dim, F32)[0]
        return first, np.full(self._dim, 0.1, np.float32)
