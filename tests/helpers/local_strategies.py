"""The strategies of one machine, and what their tests ask."""

from collections.abc import Callable
from typing import Any

import pytest

import ropewalk as rw
from ropewalk.distribute import (
    CentralStorageStrategy,
    MirroredStrategy,
    OneDeviceStrategy,
    Strategy,
)
from ropewalk.distribute.strategies.default import the_default_strategy

HERE = "/job:localhost/replica:0/task:0"
CPUS = tuple(f"{HERE}/device:CPU:{i}" for i in range(4))

ALL: dict[str, Callable[[], Strategy]] = {
    "Default": the_default_strategy,
    "OneDevice": lambda: OneDeviceStrategy("/cpu:1"),
    "Mirrored": MirroredStrategy,
    "CentralStorage": CentralStorageStrategy,
}

several = pytest.mark.parametrize(
    "kind", [MirroredStrategy, CentralStorageStrategy], ids=["Mirrored", "CentralStorage"]
)
"""Those of several replicas."""


def where() -> tuple[Strategy, int | None, bool]:
    """(strategy, replica id or None, whether in cross-replica context), here and now."""
    found = rw.distribute.get_replica_context()
    return (
        rw.distribute.get_strategy(),
        None if found is None else found.replica_id_in_sync_group,
        rw.distribute.in_cross_replica_context(),
    )


def parts(strategy: Strategy, value: Any) -> list[Any]:
    """One result per replica, also of what is the same on all."""
    found = list(strategy.experimental_local_results(value))
    return found * strategy.num_replicas_in_sync if len(found) == 1 else found


def per_replica(strategy: Strategy, function: Callable[[int], Any]) -> Any:
    """A distributed value: what ``function`` gives for each replica's number."""
    return strategy.experimental_distribute_values_from_function(
        lambda given: function(given.replica_id_in_sync_group)
    )
