"""What is no count, no strategy or no place for a variable is refused at the call that says it."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.arguments import real_number, whole_number
from ropewalk.distribute import partitioners


@pytest.fixture(autouse=True)
def two_devices(plain_process: None) -> Iterator[None]:
    rw.config.set_logical_cpu_devices(2)
    yield
    rw.config.set_logical_cpu_devices(1)


@pytest.mark.parametrize("value", [3, np.int32(3), np.array(3)], ids=repr)
def test_any_kind_of_integer_is_a_count(value: Any) -> None:
    assert whole_number(value, "count") == 3


@pytest.mark.parametrize("value", ["3", 3.0, None, [3]], ids=repr)
def test_what_is_no_integer_is_named_with_the_argument(value: Any) -> None:
    for kind in (TypeError, ValueError):
        with pytest.raises(kind, match="`count` must be a whole number, got "):
            whole_number(value, "count")


def test_a_number_of_bytes_may_have_fractions() -> None:
    assert real_number(2.5, "bytes") == 2.5
    with pytest.raises(TypeError, match="`bytes` must be a number, got 'two'"):
        real_number("two", "bytes")


DATASETS: dict[str, Callable[[rw.data.Dataset], Any]] = {
    "count": lambda data: (data.take("a"), data.skip("a"), data.repeat("a")),  # type: ignore[arg-type]
    "batch_size": lambda data: data.batch(2.5),  # type: ignore[arg-type]
    "buffer_size": lambda data: data.shuffle("a"),  # type: ignore[arg-type]
    "num_shards": lambda data: data.shard("a", 0),  # type: ignore[arg-type]
    "index": lambda data: data.shard(2, "a"),  # type: ignore[arg-type]
    "start": lambda data: data.enumerate("a"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_names_the_argument_that_is_no_count(name: str) -> None:
    with pytest.raises(TypeError, match=f"`{name}` must be a whole number, got"):
        DATASETS[name](rw.data.Dataset.range(3))


@pytest.mark.parametrize("method", ["map", "filter"])
def test_a_dataset_calls_functions_alone(method: str) -> None:
    with pytest.raises(ValueError, match="must be a function, got 3"):
        getattr(rw.data.Dataset.range(3), method)(3)


@pytest.mark.parametrize(
    "make",
    [
        lambda: partitioners.FixedShardsPartitioner("2"),  # type: ignore[arg-type]
        lambda: partitioners.MinSizePartitioner("2"),  # type: ignore[arg-type]
        lambda: partitioners.MaxSizePartitioner("2"),  # type: ignore[arg-type]
    ],
    ids=["fixed", "min-size", "max-size"],
)
def test_a_partitioner_takes_numbers(make: Callable[[], Any]) -> None:
    with pytest.raises(TypeError, match="must be a number, got '2'"):
        make()


def test_what_is_no_strategy_is_not_made_current() -> None:
    with pytest.raises(AttributeError, match=r"takes a strategy, or None.*; 3 has no scope"):
        rw.distribute.experimental_set_strategy(3)  # type: ignore[arg-type]
    assert not rw.distribute.has_strategy()


def test_a_strategy_is_made_current_in_one_thread() -> None:
    rw.distribute.experimental_set_strategy(rw.distribute.MirroredStrategy())
    try:
        assert rw.distribute.has_strategy()
        with ThreadPoolExecutor() as pool:
            assert not pool.submit(rw.distribute.has_strategy).result()
    finally:
        rw.distribute.experimental_set_strategy(None)


def test_values_are_reduced_by_their_own_strategy() -> None:
    mine, other = rw.distribute.MirroredStrategy(), rw.distribute.MirroredStrategy()
    value = mine.experimental_distribute_values_from_function(lambda _: np.ones(1))
    with other.scope(), pytest.raises(RuntimeError, match="Mixing different"):
        mine.reduce("SUM", value, axis=None)
    with mine.scope():
        assert mine.reduce("SUM", value, axis=None) == 2


@pytest.mark.parametrize("argument", ["aggregation", "synchronization"])
def test_text_in_the_place_of_an_enumeration_is_refused(argument: str) -> None:
    with pytest.raises(ValueError, match=f"Invalid variable {argument}: 'SUM'; give a rw.Variable"):
        rw.Variable(1.0, **{argument: "SUM"})  # type: ignore[arg-type]


def test_a_dtype_of_integers_does_not_cut_fractions_off() -> None:
    assert rw.Variable(2.0, dtype=np.int32).read_value() == 2
    with pytest.raises(TypeError, match="initial_value of 'v' has fractions, which dtype=int32"):
        rw.Variable([2.0, 2.5], dtype=np.int32, name="v")


@pytest.mark.parametrize("where", ["scope", "nowhere"])
def test_a_closure_creates_no_variable(where: str) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    coordinator = rw.distribute.coordinator.ClusterCoordinator(strategy)

    def closure() -> Any:
        with strategy.scope() if where == "scope" else nullcontext():
            return rw.Variable(1.0, name="inside").read_value()

    coordinator.schedule(closure)
    with pytest.raises(ValueError, match="a closure creates variable 'inside'"):
        coordinator.join()
    coordinator.close()
