"""Shuffled orders: each pass, each epoch and each worker that does not share batches has its own;
one seed gives all of them again.
"""

from collections.abc import Callable, Iterator
from itertools import chain, product
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.input_workers import (
    DATA,
    HINT,
    OFF,
    OneOfSeveralStrategy,
    Workers,
    examples_of,
    of_files,
    on_workers,
    shared,
    with_policy,
)
from helpers.rows import row
from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.distribute import (
    InputContext,
    InputOptions,
    InputReplicationMode,
    ParameterServerStrategy,
    Strategy,
)
from ropewalk.distribute.data import SHARD_HINT, AutoShardPolicy, Dataset, from_arrays
from ropewalk.distribute.runtime import ClusterRuntime

pytestmark = pytest.mark.usefixtures("plain_process")
N = 24

MAKERS: dict[str, Callable[[int], Dataset]] = {
    "from_arrays": lambda seed: from_arrays(np.arange(N), 4, seed=seed),
    "shuffle-slices": lambda s: Dataset.from_tensor_slices(np.arange(N)).shuffle(N, s).batch(4),
    "shuffle-range": lambda seed: Dataset.range(N).shuffle(N, seed).batch(4),
    "small-buffer": lambda seed: Dataset.range(N).shuffle(5, seed).batch(4),
    "mapped": lambda s: Dataset.range(N).shuffle(N, s).map(lambda x: x).prefetch(2).batch(4),
}


def flat(elements: Any) -> list[int]:
    return [int(x) for x in chain.from_iterable(np.atleast_1d(e) for e in elements)]


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_every_pass_and_every_seed_has_its_own_order_that_can_be_had_again(
    make: Callable[[int], Dataset],
) -> None:
    data, again, other = make(3), make(3), make(4)
    orders = [tuple(flat(data)) for _ in range(3)]
    assert all(sorted(order) == list(range(N)) for order in orders)
    assert len({*orders, tuple(range(N))}) == 4
    assert [tuple(flat(again)) for _ in range(3)] == orders
    assert tuple(flat(other)) not in orders
    assert flat(data.map(lambda x: x)) not in map(list, orders), "what is derived counts too"


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_every_epoch_has_its_own_order(make: Callable[[int], Dataset]) -> None:
    seen = flat(make(3).repeat(3))
    epochs = [seen[i : i + N] for i in range(0, 3 * N, N)]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_a_buffer_holds_no_more_than_it_should() -> None:
    """The element at place k comes from the first k + buffer_size."""
    order = flat(Dataset.range(200).shuffle(7, seed=1))
    assert sorted(order) == list(range(200))
    assert all(x < place + 7 for place, x in enumerate(order))
    assert order != sorted(order)


def test_a_buffer_larger_than_a_block_of_draws_goes_on() -> None:
    assert sorted(flat(Dataset.range(5000).shuffle(3))) == list(range(5000))


def test_what_waits_in_a_buffer_is_not_overwritten() -> None:
    def reuses() -> Iterator[Any]:
        buffer = np.zeros(1, np.int64)
        for i in range(20):
            buffer[...] = i
            yield buffer

    assert sorted(flat(Dataset.from_generator(reuses).shuffle(8))) == list(range(20))


@pytest.mark.parametrize("buffer_size", [0, -1])
def test_a_buffer_has_room_for_an_element(buffer_size: int) -> None:
    with pytest.raises(ValueError, match=f"buffer_size must be at least 1, got {buffer_size}"):
        Dataset.range(3).shuffle(buffer_size)


def test_without_reshuffling_there_is_one_order_for_every_pass_and_worker() -> None:
    """So a part that is held out stays held out."""
    data = Dataset.range(N).shuffle(N, 1, reshuffle_each_iteration=False)
    orders = [flat(data), flat(data), *(examples_of(s) for s in shared(data.batch(4), 2, 1,
                                                                      in_sync=False))]  # fmt: skip
    assert orders == [orders[0]] * 4
    assert orders[0] != list(range(N))
    assert flat(data.repeat(2)) == orders[0] * 2


def test_a_cache_keeps_the_order_of_what_it_holds() -> None:
    for data in (MAKERS["shuffle-slices"](1).cache(), MAKERS["shuffle-range"](1).cache()):
        assert flat(data) == flat(data) == flat(data.repeat(1))
        assert len({tuple(flat(data.unbatch().shuffle(N))) for _ in range(3)}) == 3


def test_what_is_shuffled_with_one_seed_stays_side_by_side() -> None:
    x, y = (Dataset.range(N).shuffle(N, seed=1) for _ in range(2))
    assert all(a == b for _ in range(2) for a, b in Dataset.zip(x, y))


# -- of several workers --------------------------------------------------------------------------


def orders_of(dataset: Dataset, **how: Any) -> list[tuple[int, ...]]:
    return [tuple(examples_of(steps)) for steps in shared(dataset, 3, 1, **how)]


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_with_parameter_servers_each_worker_goes_through_all_in_an_order_of_its_own(
    make: Callable[[int], Dataset],
) -> None:
    orders = orders_of(make(2), in_sync=False)
    assert all(sorted(order) == list(range(N)) for order in orders)
    assert len(set(orders)) == 3
    assert orders == orders_of(make(2), in_sync=False), "reproducible from the seed"
    assert orders[0] == tuple(flat(make(2))), "the first worker's is that of a process alone"


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_workers_that_share_a_dataset_have_one_order_and_nothing_in_common(
    make: Callable[[int], Dataset],
) -> None:
    for replicas, in_sync in product([1, 2], [True, False]):
        with row(replicas, in_sync):
            found = shared(with_policy(make(2), DATA), 2, replicas, in_sync=in_sync)
            assert sorted(chain.from_iterable(examples_of(steps) for steps in found)) == list(
                range(N)
            )


@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
@pytest.mark.parametrize("how", ["shard", "hint", "function"])
def test_a_shard_of_a_shuffled_dataset_has_nothing_in_common_with_another(
    make: Callable[[int], Dataset], how: str
) -> None:
    def distribute(strategy: Any) -> Any:
        data = make(2)
        if how == "hint":
            hinted = with_policy(data.shard(SHARD_HINT, SHARD_HINT), HINT)
            return strategy.experimental_distribute_dataset(hinted)
        worker = strategy.extended.input_pipeline_id
        if how == "shard":
            return strategy.experimental_distribute_dataset(data.shard(3, worker))
        return strategy.distribute_datasets_from_function(
            lambda c: make(2).shard(c.num_input_pipelines, c.input_pipeline_id)
        )

    found = on_workers(distribute, 3, 1, in_sync=False)
    assert sorted(chain.from_iterable(map(examples_of, found))) == list(range(N))


def test_what_is_shuffled_after_a_shard_has_an_order_of_its_own() -> None:
    def distribute(strategy: Any) -> Any:
        part = Dataset.range(2 * N).shard(2, 0).shuffle(N).batch(4)
        return strategy.experimental_distribute_dataset(part)

    first, second = (examples_of(steps) for steps in on_workers(distribute, 2, 1, in_sync=False))
    assert sorted(first) == sorted(second) != first != second


def test_synchronous_workers_that_each_go_through_everything_have_orders_of_their_own() -> None:
    found = orders_of(with_policy(MAKERS["from_arrays"](2), OFF))
    assert all(sorted(order) == list(range(N)) for order in found)
    assert len(set(found)) == 3


def test_files_are_divided_and_shuffled_behind() -> None:
    first, second = shared(of_files(4).shuffle(8).batch(4), 2, 1)
    assert sorted(examples_of(first)) == [0, 1, 2, 3, 20, 21, 22, 23]
    assert sorted(examples_of(second)) == [10, 11, 12, 13, 30, 31, 32, 33]


@pytest.mark.parametrize("mode", list(InputReplicationMode), ids=lambda mode: mode.name)
def test_pipelines_of_a_function_have_orders_of_their_own(mode: InputReplicationMode) -> None:
    def distribute(strategy: Any) -> Any:
        return strategy.distribute_datasets_from_function(
            lambda _: MAKERS["from_arrays"](2), InputOptions(experimental_replication_mode=mode)
        )

    found = on_workers(distribute, 2, 2)
    if mode is InputReplicationMode.PER_WORKER:
        orders = {tuple(examples_of(steps)) for steps in found}
        assert len(orders) == 2
    else:
        orders = {
            tuple(chain.from_iterable(step[replica] for step in steps))
            for steps in found
            for replica in range(2)
        }
        assert len(orders) == 4
    assert all(sorted(order) == list(range(N)) for order in orders)


def test_every_iteration_of_a_distributed_dataset_has_its_own_order_on_every_worker() -> None:
    def distribute(strategy: Any) -> Any:
        data = MAKERS["from_arrays"](2)
        if strategy.extended.input_pipeline_id == 0:
            list(data)  # what a worker does by itself does not change its share
        once = strategy.experimental_distribute_dataset(data)
        anew = strategy.experimental_distribute_dataset(data.map(lambda x: x))
        return chain(once, once, anew)

    found = [examples_of(steps) for steps in on_workers(distribute, 2, 1)]
    assert len(found[0]) == len(found[1]) == 3 * N // 2
    epochs = [
        [*found[0][i : i + N // 2], *found[1][i : i + N // 2]] for i in range(0, 3 * N // 2, N // 2)
    ]
    assert all(sorted(epoch) == list(range(N)) for epoch in epochs)
    assert len(set(map(tuple, epochs))) == 3


def test_strategies_of_one_process_count_their_passes_for_themselves() -> None:
    """Workers that are threads share the dataset: ``LocalCluster``."""
    data, group = MAKERS["from_arrays"](2), Workers(2)
    orders = [
        [flat(data) for data in [one.experimental_distribute_dataset(data)] for _ in range(2)]
        for one in (OneOfSeveralStrategy(group, 0, 1, in_sync=False) for _ in range(2))
    ]
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1]


def of_evaluator() -> Strategy:
    """The strategy of an evaluator beside a chief and a worker."""
    spec = rw.ClusterSpec({"chief": ["h:1"], "worker": ["h:2"], "ps": ["h:3"]})
    task = ResolvedTask(TaskId("evaluator", 0), spec, TaskId("chief", 0))
    return ParameterServerStrategy(runtime=ClusterRuntime(task, Settings()))


@pytest.mark.parametrize("policy", [OFF, DATA], ids=lambda policy: policy.name)
@pytest.mark.parametrize("make", MAKERS.values(), ids=list(MAKERS))
def test_an_evaluator_goes_through_all_of_it_in_order(
    make: Callable[[int], Dataset], policy: AutoShardPolicy
) -> None:
    strategy = of_evaluator()
    data = strategy.experimental_distribute_dataset(with_policy(make(2), policy))
    assert flat(data) == flat(data) == list(range(N))
    seen: list[tuple[int, int]] = []

    def make_mine(context: InputContext) -> Dataset:
        seen.append((context.num_input_pipelines, context.input_pipeline_id))
        return make(2)

    assert flat(strategy.distribute_datasets_from_function(make_mine)) == list(range(N))
    assert seen == [(1, 0)]
