"""Whose copy of what each worker has one of counts for the job."""

from types import SimpleNamespace
from typing import Any

import pytest

from ropewalk.training.in_sync import copy_counts, workers_in_sync


@pytest.mark.parametrize(
    ("replicas", "in_sync", "chief", "workers", "counts"),
    [
        pytest.param(1, 1, True, 1, True, id="the chief of asynchronous workers"),
        pytest.param(1, 1, False, 1, False, id="another asynchronous worker"),
        pytest.param(2, 2, False, 1, False, id="another asynchronous worker, of two replicas"),
        pytest.param(1, 2, False, 2, True, id="the second of two workers in sync"),
        pytest.param(2, 4, False, 2, True, id="the second of two in sync, of two replicas each"),
    ],
)
def test_a_copy_counts_if_it_is_the_chiefs_or_that_of_all(
    replicas: int, in_sync: int, chief: bool, workers: int, counts: bool
) -> None:
    strategy: Any = SimpleNamespace(
        extended=SimpleNamespace(
            replica_devices=("/device:CPU:0",) * replicas,
            num_replicas_in_sync=in_sync,
            should_checkpoint=chief,
        )
    )
    assert workers_in_sync(strategy) == workers
    assert copy_counts(strategy) is counts
