"""Datasets can be sent: to the workers of a coordinator, and to other processes of the program."""

import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest

import ropewalk as rw
from ropewalk.distribute.base.worker_index import current_worker
from ropewalk.distribute.data import Dataset, from_arrays, from_files

pytestmark = pytest.mark.usefixtures("plain_process")
X, Y = np.arange(20.0).reshape(10, 2), np.arange(10)


def _double(element: Any) -> Any:
    return element * 2


def _is_large(element: Any) -> bool:
    return bool(element > 2)


def _generate(count: int) -> Iterator[int]:
    yield from range(count)


def _lines(file: str) -> list[str]:
    return [file, file]


def _sent(data: Any, by: Any = pickle) -> Any:
    return pickle.loads(by.dumps(data))  # noqa: S301


MAKERS: dict[str, Callable[[], Dataset]] = {
    "slices": lambda: Dataset.from_tensor_slices((X, {"y": Y})),
    "tensors": lambda: Dataset.from_tensors({"x": X, "y": [1, 2]}),
    "range": lambda: Dataset.range(5, output_type=np.int32),
    "arrays": lambda: from_arrays((X, Y), 4, epochs=2),
    "files": lambda: from_files(["a", "b"], _lines),
    "generator": lambda: Dataset.from_generator(
        _generate, args=(3,), output_signature=rw.data.ArraySpec((), np.dtype(np.float32))
    ),
    "list": lambda: rw.data.as_dataset([X, X + 1]),
    "functions": lambda: Dataset.range(9).map(_double).filter(_is_large).batch(2).unbatch(),
    "order": lambda: Dataset.range(9).shuffle(4, seed=3).repeat(2).skip(1).take(9).shard(2, 1),
    "zip": lambda: Dataset.zip((Dataset.range(3), {"other": Dataset.range(3).enumerate()})),
    "cache": lambda: Dataset.range(3).concatenate(Dataset.range(2)).cache().prefetch(2),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
@pytest.mark.parametrize(
    "copy_of",
    [
        pytest.param(_sent, id="pickle"),
        pytest.param(lambda data: _sent(data, cloudpickle), id="cloudpickle"),
        pytest.param(copy.deepcopy, id="deepcopy"),
    ],
)
def test_a_copy_gives_what_the_dataset_gives(
    make: Callable[[], Dataset], copy_of: Callable[[Dataset], Dataset]
) -> None:
    data = make()
    sent = copy_of(data)
    assert sent.cardinality() == data.cardinality()
    assert repr(list(sent)) == repr(list(data))
    assert sent.options() == data.options()


def test_a_copy_counts_its_passes_for_itself_and_leaves_what_is_cached_behind() -> None:
    cached = Dataset.from_tensor_slices(np.zeros((2000, 16))).cache()
    before = len(pickle.dumps(cached))
    list(cached)
    assert len(pickle.dumps(cached)) <= before + 100
    data = Dataset.range(20).shuffle(20)
    orders = [list(data) for _ in range(3)]
    sent = _sent(data)
    assert [list(sent) for _ in range(3)] == orders


def test_each_worker_of_a_coordinator_has_orders_of_its_own() -> None:
    data = Dataset.range(20).shuffle(20)

    def of(worker: int | None) -> list[int]:
        token = current_worker.set(worker)
        try:
            return list(_sent(data))
        finally:
            current_worker.reset(token)

    assert of(0) == of(None)
    assert of(1) == of(1)
    assert len({tuple(of(worker)) for worker in range(4)}) == 4
