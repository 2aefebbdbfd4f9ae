"""Workers divide an epoch: together they have all of it, each as much as the others."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.training.worker_part import worker_part


def of_worker(worker: int, workers: int) -> Any:
    extended = SimpleNamespace(num_input_pipelines=workers, input_pipeline_id=worker)
    return SimpleNamespace(extended=extended)


@pytest.mark.parametrize(("examples", "workers"), [(12, 3), (10, 4), (1, 3), (5, 5)])
def test_workers_have_all_of_an_epoch_and_equally_much(examples: int, workers: int) -> None:
    order = np.random.default_rng(0).permutation(examples)
    parts = [worker_part(order, of_worker(worker, workers)) for worker in range(workers)]
    each = -(-examples // workers)
    assert [len(part) for part in parts] == [each] * workers
    together = np.stack(parts, 1).ravel()
    assert list(together) == list(np.resize(order, each * workers))  # the first come twice


@pytest.mark.parametrize(("examples", "workers"), [(11, 3), (1, 3), (0, 2)])
def test_what_evaluates_has_each_example_once(examples: int, workers: int) -> None:
    order = np.random.default_rng(0).permutation(examples)
    parts = [worker_part(order, of_worker(each, workers), train=False) for each in range(workers)]
    assert sorted(np.concatenate(parts)) == sorted(order)


def test_parts_of_the_examples_themselves_are_rows() -> None:
    rows = np.arange(12).reshape(6, 2)
    np.testing.assert_array_equal(worker_part(rows, of_worker(1, 2)), rows[1::2])


def test_alone_it_is_the_order_itself() -> None:
    order = np.arange(5)
    assert worker_part(order, rw.distribute.ParameterServerStrategy()) is order
    assert worker_part(order) is order


def test_no_examples_cannot_be_divided() -> None:
    with pytest.raises(ValueError, match="no examples to divide among 2 workers"):
        worker_part(np.zeros(0), of_worker(0, 2))
