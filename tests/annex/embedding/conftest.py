"""Around every test of embedding tables: no cluster, no GPU, one CPU device."""

from collections.abc import Iterator

import pytest

import ropewalk as rw
from helpers.embedding import use_kernels, without_numba


@pytest.fixture(autouse=True)
def plain_process(plain_process: None) -> Iterator[None]:
    """A test may set a strategy for good, too; it is gone afterwards."""
    yield
    rw.distribute.experimental_set_strategy(None)


@pytest.fixture(params=["kernel", "numpy"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The kernels of tables, and the same by NumPy."""
    use_kernels() if request.param == "kernel" else without_numba(monkeypatch)
    return str(request.param)
