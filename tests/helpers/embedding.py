"""Both ways of the kernels of growing tables, and a table to try."""

from typing import Any

import numpy as np
import pytest

from ropewalk.annexes.embedding.kernels import KERNELS
from ropewalk.annexes.embedding.keyed.definition import TableDefinition
from ropewalk.annexes.embedding.keyed.table import KeyedTable
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.rules.built_in.sgd import SGD
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.rules.update_rules import UpdateRule
from ropewalk.engine.library import ROW_KERNELS, library


def use_kernels() -> None:
    """Load them all, so that none is missing at first."""
    for name, dtypes in (KERNELS | ROW_KERNELS).items():
        for dtype in dtypes:
            library.row_kernel(name, dtype)


def without_numba(patch: pytest.MonkeyPatch) -> None:
    """A process in which Numba cannot be imported."""

    def refuse(name: str, dtype: object) -> None:
        raise ImportError(f"no module named numba, for {name} of {dtype}")

    patch.setattr(library, "row_kernel_if_ready", lambda *_: None)
    patch.setattr(library, "update_kernel_if_ready", lambda *_: None)
    patch.setattr(library, "row_kernel", refuse)
    patch.setattr(library, "update_kernel", refuse)


def a_table(rule: UpdateRule | None = None, **changes: Any) -> KeyedTable:
    """A table of four columns and 1000 rows that begin in [-1, 1), under SGD."""
    given: dict[str, Any] = {
        "name": "t",
        "dim": 4,
        "rule": rule or SGD(learning_rate=0.5),
        "max_rows": 1000,
        "initializer": Initializer("random_uniform", seed=3, minval=-1.0, maxval=1.0),
    }
    return KeyedTable(TableDefinition(**given | changes))


def as_keys(*keys: int) -> Array:
    """Keys as an array."""
    return np.array(keys, np.int64)


def ones(count: int, dim: int = 4) -> Array:
    """Gradients of one."""
    return np.ones((count, dim), np.float32)


def with_a_history(table: KeyedTable) -> KeyedTable:
    """The table, with rows made, updated, evicted and made again."""
    rng = np.random.default_rng(9)
    for step in range(30):
        keys = rng.integers(-300, 300, 100)
        table.push(keys, rng.standard_normal((100, 4), np.float32), step)
        if step % 10 == 9:
            table.evict(rng.integers(-300, 300, 50))
    return table
