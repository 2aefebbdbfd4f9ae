"""Datasets made by a function per worker or per replica: what it is told, and who gets what."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from helpers.input_workers import Steps, batches, mirrored, on_workers, steps_of
from ropewalk.distribute import InputContext, InputOptions, InputReplicationMode, Strategy
from ropewalk.distribute.data import ArraySpec, Dataset

PER_REPLICA = InputReplicationMode.PER_REPLICA

pytestmark = pytest.mark.usefixtures("plain_process")


def told(context: InputContext) -> tuple[int, int, int]:
    return (
        context.num_input_pipelines,
        context.input_pipeline_id,
        context.num_replicas_in_sync,
    )


def test_the_function_is_called_once_per_worker_and_told_which_it_is() -> None:
    contexts: list[tuple[int, int, int]] = []

    def make(context: InputContext) -> Dataset:
        contexts.append(told(context))
        return batches(4, 2)

    data = mirrored(2).distribute_datasets_from_function(make)
    assert contexts == [(1, 0, 2)]
    assert steps_of(data) == steps_of(data) == [[[0, 1], [2, 3]]]
    assert contexts == [(1, 0, 2)]

    contexts.clear()
    on_workers(lambda strategy: strategy.distribute_datasets_from_function(make), 3, 2)
    assert sorted(contexts) == [(3, 0, 6), (3, 1, 6), (3, 2, 6)]


@pytest.mark.parametrize(
    ("elements", "expected"),
    [
        ([[0, 1], [2, 3], [4, 5], [6, 7]], [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
        ([[0, 1], [2, 3], [4]], [[[0, 1], [2, 3]], [[4], []]]),
        ([[0], [1, 2, 3]], [[[0], [1, 2, 3]]]),
        ([[0]], [[[0], []]]),
        ([], []),
    ],
    ids=["even", "one-missing", "uneven", "one", "none"],
)
def test_consecutive_elements_go_to_consecutive_replicas_as_they_are(
    elements: list[list[int]], expected: Steps
) -> None:
    arrays = [np.array(element) for element in elements]
    data = mirrored(2).distribute_datasets_from_function(lambda _: arrays)
    assert steps_of(data) == expected


def test_single_examples_go_to_replicas_and_end_with_the_last_one_for_each() -> None:
    data = mirrored(2).distribute_datasets_from_function(lambda _: [1, 2, 3])
    assert [step.values for step in data] == [(1, 2)]


def test_workers_in_step_are_told_that_single_examples_have_no_empty_batch() -> None:
    with pytest.raises(ValueError, match="Call the `batch` method"):
        on_workers(lambda s: s.distribute_datasets_from_function(lambda _: [1, 2, 3]), 2, 2)


@pytest.mark.parametrize(
    ("mode", "dealt"),
    [
        (InputReplicationMode.PER_WORKER, [[[0, 1], [2, 3]]]),
        (PER_REPLICA, [[[0, 1], [0, 1]], [[2, 3], [2, 3]], [[4, 5], [4, 5]]]),
    ],
    ids=["one-pipeline", "one-per-replica"],
)
def test_a_dataset_that_drops_the_remainder_gives_no_empty_batch(
    mode: InputReplicationMode, dealt: Steps
) -> None:
    data = mirrored(2).distribute_datasets_from_function(
        lambda c: Dataset.range(6 + c.input_pipeline_id).batch(2, drop_remainder=True),
        InputOptions(experimental_replication_mode=mode),
    )
    assert steps_of(data) == dealt


def test_workers_that_make_datasets_of_different_lengths_end_together() -> None:
    def distribute(strategy: Strategy) -> Any:
        return strategy.distribute_datasets_from_function(
            lambda context: batches(2 * (1 + context.input_pipeline_id), 2)
        )

    first, second = on_workers(distribute, 2, 1)
    assert first == [[[0, 1]], [[]]]
    assert second == [[[0, 1]], [[2, 3]]]


def test_a_pipeline_per_replica_is_told_its_number_over_all_workers() -> None:
    contexts: list[tuple[int, int, int]] = []

    def make(context: InputContext) -> Dataset:
        contexts.append(told(context))
        return batches(2, 2).map(lambda x: x + 10 * context.input_pipeline_id)

    options = InputOptions(experimental_replication_mode=PER_REPLICA)
    found = on_workers(
        lambda strategy: strategy.distribute_datasets_from_function(make, options), 2, 2
    )
    assert sorted(contexts) == [(4, i, 4) for i in range(4)]
    assert found == [[[[0, 1], [10, 11]]], [[[20, 21], [30, 31]]]]


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([2, 1], [[[0], [0]], [[1], []]]),
        ([1, 3], [[[0], [0]], [[], [1]], [[], [2]]]),
        ([0, 1], [[[], [0]]]),
        ([0, 0], []),
    ],
    ids=["second-ends", "first-ends", "first-empty", "both-empty"],
)
def test_a_replica_whose_pipeline_has_ended_gets_empty_batches(
    lengths: Sequence[int], expected: Steps
) -> None:
    data = mirrored(2).distribute_datasets_from_function(
        lambda context: batches(lengths[context.input_pipeline_id], 1),
        InputOptions(experimental_replication_mode=PER_REPLICA),
    )
    assert steps_of(data) == expected


@pytest.mark.parametrize("mode", list(InputReplicationMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize("taken", range(4), ids=str)
def test_a_dataset_from_a_function_goes_on_where_it_was(
    mode: InputReplicationMode, taken: int
) -> None:
    data = mirrored(2).distribute_datasets_from_function(
        lambda context: batches(7 - 2 * context.input_pipeline_id, 2),
        InputOptions(experimental_replication_mode=mode),
    )
    iterator = iter(data)
    iterator.load_state_dict({"steps": taken})
    assert steps_of(iterator) == steps_of(data)[taken:]


def test_the_spec_of_a_dataset_from_a_function_is_one_per_replica() -> None:
    data = mirrored(2).distribute_datasets_from_function(lambda _: batches(4, 2))
    assert data.element_spec.values == (ArraySpec((None,), np.dtype(np.int64)),) * 2


def test_a_context_divides_the_global_batch_and_says_which_it_is() -> None:
    context = InputContext(num_input_pipelines=4, input_pipeline_id=2, num_replicas_in_sync=8)
    assert context.get_per_replica_batch_size(32) == 4
    assert str(context) == "tf.distribute.InputContext(input pipeline id 2, total: 4)"
    with pytest.raises(ValueError, match=r"`global_batch_size` 12 is not divisible .* 8"):
        context.get_per_replica_batch_size(12)
    assert told(InputContext()) == (1, 0, 1)
