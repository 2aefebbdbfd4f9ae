"""Around every test of embedding tables: no cluster, no GPU, one CPU device."""

from collections.abc import Iterator

import pytest

import ropewalk as rw


@pytest.fixture(autouse=True)
def plain_process(plain_process: None) -> Iterator[None]:
    """A test may set a strategy for good, too; it is gone afterwards."""
    yield
    rw.distribute.experimental_set_strategy(None)
