"""Around every test of this room: no cluster, no GPU, one CPU device."""

from collections.abc import Iterator

import pytest

import ropewalk as rw
from helpers.local_strategies import ALL
from ropewalk.distribute.strategies.replica_barrier import ReplicaThread


@pytest.fixture(autouse=True)
def plain_process(plain_process: None) -> Iterator[None]:
    """A test may set a strategy for good, too; it is gone afterwards."""
    yield
    rw.distribute.experimental_set_strategy(None)


@pytest.fixture
def four_devices(plain_process: None) -> None:
    """Four logical CPU devices."""
    rw.config.set_logical_cpu_devices(4)


@pytest.fixture(params=ALL.values(), ids=list(ALL))
def strategy(request: pytest.FixtureRequest, four_devices: None) -> rw.distribute.Strategy:
    """Every strategy of one machine in turn."""
    made: rw.distribute.Strategy = request.param()
    return made


@pytest.fixture
def replicas(strategy: rw.distribute.Strategy) -> int:
    """How many replicas it has."""
    return strategy.num_replicas_in_sync


@pytest.fixture
def asleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replicas' threads are slow to wake, so that the caller does all the work."""
    monkeypatch.setattr(ReplicaThread, "start", lambda thread, work: None)
