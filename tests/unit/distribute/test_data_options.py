"""InputOptions, and batches on the devices of their replicas."""

from typing import Any

import numpy as np
import pytest

from helpers.input_workers import batches, mirrored, steps_of
from ropewalk.distribute import InputOptions, InputReplicationMode

PER_REPLICA = InputReplicationMode.PER_REPLICA

pytestmark = pytest.mark.usefixtures("plain_process")


def test_options_read_as_what_they_mean() -> None:
    """As in TensorFlow, where nobody has to know what None stands for."""
    meant = (True, InputReplicationMode.PER_WORKER, False, 1, True)
    names = (
        "experimental_fetch_to_device",
        "experimental_replication_mode",
        "experimental_place_dataset_on_device",
        "experimental_per_replica_buffer_size",
        "experimental_prefetch_to_device",
    )
    none: dict[str, Any] = dict.fromkeys(names)
    for options in (InputOptions(), InputOptions(**none)):
        assert tuple(getattr(options, name) for name in names) == meant
    assert InputOptions() == InputOptions(experimental_fetch_to_device=True)
    older: Any = InputOptions(experimental_fetch_to_device=False)
    assert older.experimental_prefetch_to_device is False


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experimental_per_replica_buffer_size": -1}, "must be >= 0, got -1"),
        (
            {"experimental_fetch_to_device": True, "experimental_prefetch_to_device": False},
            "two names of one option",
        ),
    ],
    ids=["buffer", "names"],
)
def test_options_that_contradict_each_other_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        InputOptions(**options)


def test_options_may_be_spelled_as_in_tensorflow_2_4() -> None:
    assert InputOptions(experimental_prefetch_to_device=False) == InputOptions(False)
    assert InputOptions(experimental_prefetch_to_device=True).experimental_fetch_to_device is True
    placed = InputOptions(
        experimental_prefetch_to_device=False,
        experimental_replication_mode=PER_REPLICA,
        experimental_place_dataset_on_device=True,
    )
    assert placed.experimental_fetch_to_device is False


def test_placing_a_dataset_on_devices_is_refused_where_a_function_makes_it() -> None:
    placed = InputOptions(experimental_place_dataset_on_device=True)
    data = mirrored(2).experimental_distribute_dataset(batches(4, 2), placed)
    assert steps_of(data) == steps_of(mirrored(2).experimental_distribute_dataset(batches(4, 2)))
    with pytest.raises(ValueError, match="you must also specify `PER_REPLICA`"):
        mirrored(2).distribute_datasets_from_function(lambda _: batches(2, 2), placed)
    fetched = InputOptions(
        experimental_place_dataset_on_device=True, experimental_replication_mode=PER_REPLICA
    )
    with pytest.raises(ValueError, match="when experimental_fetch_to_device is True"):
        mirrored(2).distribute_datasets_from_function(lambda _: batches(2, 2), fetched)


def test_a_dataset_may_be_placed_on_devices_when_nothing_is_fetched_there() -> None:
    options = InputOptions(
        experimental_fetch_to_device=False,
        experimental_replication_mode=PER_REPLICA,
        experimental_place_dataset_on_device=True,
    )
    data = mirrored(2).distribute_datasets_from_function(lambda _: batches(2, 2), options)
    assert steps_of(data) == [[[0, 1], [0, 1]]]


def test_a_pipeline_per_replica_needs_a_function() -> None:
    with pytest.raises(NotImplementedError, match="distribute_datasets_from_function"):
        mirrored(2).experimental_distribute_dataset(
            batches(4, 2), InputOptions(experimental_replication_mode=PER_REPLICA)
        )


# -- on devices --------------------------------------------------------------------------------


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """(device, batch) of what is copied to devices, which pass for GPUs."""
    found: list[tuple[str, list[int]]] = []

    def place(value: Any, device: str) -> Any:
        found.append((device, np.asarray(value).tolist()))
        return value

    monkeypatch.setattr("ropewalk.distribute.data.distributed.is_gpu", lambda _: True)
    monkeypatch.setattr("ropewalk.distribute.data.distributed.place", place)
    return found


def test_batches_go_to_their_replicas_devices_empty_ones_too(
    placed: list[tuple[str, list[int]]],
) -> None:
    list(mirrored(2).experimental_distribute_dataset(batches(3, 2)))
    first, second = "/device:CPU:0", "/device:CPU:1"
    assert placed == [(first, [0]), (second, [1]), (first, [2]), (second, [])]
    placed.clear()
    list(mirrored(2).distribute_datasets_from_function(lambda _: batches(2, 2)))
    assert placed == [(first, [0, 1]), (second, [])]


@pytest.mark.parametrize("fetch", [None, True, False], ids=repr)
def test_batches_stay_where_they_are_if_fetching_is_not_wanted(
    placed: list[tuple[str, list[int]]], fetch: bool | None
) -> None:
    options = InputOptions(experimental_fetch_to_device=fetch)
    list(mirrored(2).experimental_distribute_dataset(batches(2, 2), options))
    assert bool(placed) == (fetch is not False)
