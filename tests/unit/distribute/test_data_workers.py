"""What each worker gets of a dataset under each policy, and where synchronous workers end.

Expected batches are those of tf.distribute's documentation.
"""

from collections.abc import Callable
from itertools import count, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.input_workers import (
    AUTO,
    DATA,
    FILE,
    HINT,
    OFF,
    OneOfSeveralStrategy,
    Steps,
    Workers,
    batches,
    examples_of,
    listed,
    of_files,
    on_workers,
    shared,
    steps_of,
    with_policy,
)
from ropewalk.distribute import InputContext, Strategy
from ropewalk.distribute.data import (
    SHARD_HINT,
    AutoShardPolicy,
    Dataset,
    as_dataset,
    from_arrays,
    from_files,
)

pytestmark = pytest.mark.usefixtures("plain_process")


# -- policies ------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [batches, listed], ids=["size-known", "size-unknown"])
@pytest.mark.parametrize("policy", [DATA, AUTO], ids=lambda policy: policy.name)
@pytest.mark.parametrize(
    ("examples", "workers", "replicas", "expected"),
    [
        (8, 2, 1, [[[[0, 1]], [[4, 5]]], [[[2, 3]], [[6, 7]]]]),
        (4, 2, 2, [[[[0], [2]]], [[[1], [3]]]]),
        (6, 2, 1, [[[[0, 1]], [[4]]], [[[2, 3]], [[5]]]]),
        (5, 2, 1, [[[[0, 1]], [[4]]], [[[2, 3]], [[]]]]),
        (4, 3, 1, [[[[0, 1]]], [[[2, 3]]], [[[]]]]),
    ],
    ids=["two-workers", "two-by-two", "last-short", "last-leaves-one-empty", "three-workers"],
)
def test_data_gives_every_worker_its_part_of_every_batch(
    make: Callable[[int, int], Dataset],
    policy: AutoShardPolicy,
    examples: int,
    workers: int,
    replicas: int,
    expected: list[Steps],
) -> None:
    """TensorFlow's examples, with batches of 4: parts of one batch stay in one step."""
    assert shared(with_policy(make(examples, 4), policy), workers, replicas) == expected


@pytest.mark.parametrize("make", [batches, listed], ids=["size-known", "size-unknown"])
def test_off_gives_every_worker_everything_cut_for_all_replicas(
    make: Callable[[int, int], Dataset],
) -> None:
    """Each replica still gets its share of a global batch, so a worker needs two steps for one."""
    steps = [[[0, 1], [2, 3]], [[4, 5], [6]], [[7, 8], [9, 10]], [[11, 12], [13]]]
    assert shared(with_policy(make(14, 7), OFF), 2, 2) == [steps, steps]


@pytest.mark.parametrize("policy", [FILE, AUTO], ids=lambda policy: policy.name)
def test_file_gives_file_k_to_worker_k_modulo_n(policy: AutoShardPolicy) -> None:
    first, second = shared(with_policy(of_files(4).batch(4), policy), 2, 1)
    assert first == [[[0, 1]], [[2, 3]], [[20, 21]], [[22, 23]]]
    assert second == [[[10, 11]], [[12, 13]], [[30, 31]], [[32, 33]]]


@pytest.mark.parametrize("policy", [FILE, AUTO], ids=lambda policy: policy.name)
def test_fewer_files_than_workers_are_an_error_on_every_worker(policy: AutoShardPolicy) -> None:
    """TensorFlow raises it on those that got a file alone, and the others just end."""
    data = with_policy(of_files(2).batch(4), policy)
    group = Workers(3)
    for worker in range(3):
        strategy = OneOfSeveralStrategy(group, worker, 1, in_sync=True)
        with pytest.raises(
            ValueError, match=r"FILE based sharding: the dataset only has 2 file\(s\)"
        ):
            strategy.experimental_distribute_dataset(data)


@pytest.mark.parametrize(
    "data",
    [batches(8, 4), Dataset.zip(of_files(2), Dataset.range(8))],
    ids=["arrays", "beside-what-is-no-file"],
)
def test_file_needs_a_dataset_that_reads_files(data: Dataset) -> None:
    strategy = OneOfSeveralStrategy(Workers(2), 0, 1, in_sync=True)
    with pytest.raises(ValueError, match="does not read files"):
        strategy.experimental_distribute_dataset(with_policy(data, FILE))


def test_hint_shards_where_it_is_written_and_nothing_else() -> None:
    data = as_dataset(np.arange(8)).shard(SHARD_HINT, SHARD_HINT).batch(4)
    assert shared(with_policy(data, HINT), 2, 2) == [
        [[[0], [2]], [[4], [6]]],
        [[[1], [3]], [[5], [7]]],
    ]
    everything = shared(with_policy(batches(4, 4), HINT), 2, 1)
    assert everything == [[[[0, 1]], [[2, 3]]]] * 2


def test_a_hint_under_another_policy_is_an_error_that_says_which_one_it_needs() -> None:
    data = as_dataset(np.arange(4)).shard(SHARD_HINT, SHARD_HINT).batch(4)
    with pytest.raises(ValueError, match=r"AutoShardPolicy\.HINT"):
        shared(with_policy(data, OFF), 2, 1)


@settings(max_examples=12)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    workers=st.integers(1, 3),
    replicas=st.integers(1, 3),
    policy=st.sampled_from([DATA, OFF]),
)
def test_nothing_is_lost_and_workers_keep_step(
    sizes: list[int], workers: int, replicas: int, policy: AutoShardPolicy
) -> None:
    """DATA: each batch is one step, shared by all workers. OFF: everything, in order, on each."""
    numbers = count()
    given_batches = [np.array([next(numbers) for _ in range(size)]) for size in sizes]
    found = shared(with_policy(as_dataset(given_batches), policy), workers, replicas)
    if policy is OFF:
        assert {len(steps) for steps in found} == {len(sizes) * workers}
        assert all(examples_of(steps) == list(range(sum(sizes))) for steps in found)
        return
    assert {len(steps) for steps in found} == {len(sizes)}
    for step, batch in enumerate(given_batches):
        assert sorted(examples_of([steps[step] for steps in found])) == batch.tolist()


# -- workers that are not in sync ----------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2], ids=["one-replica", "two-replicas"])
def test_with_parameter_servers_every_worker_goes_through_everything(replicas: int) -> None:
    found = shared(batches(8, 4), 2, replicas, in_sync=False)
    assert [examples_of(steps) for steps in found] == [list(range(8))] * 2
    assert {len(steps) for steps in found} == {2}


@pytest.mark.parametrize("replicas", [1, 2], ids=["one-replica", "two-replicas"])
def test_with_parameter_servers_data_deals_whole_batches(replicas: int) -> None:
    first, second = shared(with_policy(batches(12, 4), DATA), 2, replicas, in_sync=False)
    assert examples_of(first) == [0, 1, 2, 3, 8, 9, 10, 11]
    assert examples_of(second) == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("in_sync", "endless"), [(False, False), (True, True)], ids=["not-in-sync", "endless"]
)
def test_workers_ask_each_other_only_where_one_may_end_before_the_others(
    in_sync: bool, endless: bool
) -> None:
    group = Workers(2)
    strategy = OneOfSeveralStrategy(group, 0, 1, in_sync=in_sync)
    data = batches(8, 4).repeat() if endless else batches(8, 4)
    steps = steps_of(islice(strategy.experimental_distribute_dataset(data), 3))
    assert steps == (
        [[[0, 1]], [[4, 5]], [[0, 1]]] if endless else [[[0, 1, 2, 3]], [[4, 5, 6, 7]]]
    )
    assert group.asked == 0


# -- where workers end ---------------------------------------------------------------------------


def test_a_worker_that_has_run_out_goes_on_with_empty_batches_until_all_have() -> None:
    first, second = shared(of_files(3).batch(4), 2, 2)
    assert first == [[[0], [1]], [[2], [3]], [[20], [21]], [[22], [23]]]
    assert second == [[[10], [11]], [[12], [13]], [[], []], [[], []]]


def kinds_on_two_workers(distribute: Callable[[Strategy], Any], replicas: int) -> list[list[str]]:
    """Dtype and shape of every batch that each of two workers gets."""

    def kinds(strategy: Strategy) -> list[Any]:
        parts = (strategy.experimental_local_results(batch) for batch in distribute(strategy))
        return [f"{part.dtype}{part.shape}" for step in parts for part in step]

    return [examples_of([steps]) for steps in on_workers(kinds, 2, replicas)]


def test_empty_batches_of_a_worker_that_has_run_out_are_of_the_right_kind() -> None:
    data = from_files("abc", lambda _: [np.ones((2, 3), np.float16)])
    first, second = kinds_on_two_workers(lambda s: s.experimental_distribute_dataset(data), 1)
    assert first == ["float16(1, 3)"] * 4
    assert second == ["float16(1, 3)"] * 2 + ["float16(0, 3)"] * 2


WITHOUT_DATA: dict[str, Dataset] = {
    "files": from_files("ab", lambda name: np.arange(4.0) if name == "a" else []).batch(4),
    "mapped": from_files("ab", lambda name: range(4) if name == "a" else [])
    .map(lambda x: x / 2)
    .batch(4)
    .repeat(1),
    "hint": with_policy(as_dataset([np.arange(4.0)]).shard(SHARD_HINT, SHARD_HINT), HINT),
}


@pytest.mark.parametrize("replicas", [1, 2], ids=["1-replica", "2-replicas"])
@pytest.mark.parametrize("data", WITHOUT_DATA.values(), ids=list(WITHOUT_DATA))
def test_a_worker_that_never_has_data_gets_empty_batches_of_the_right_kind(
    data: Dataset, replicas: int
) -> None:
    first, second = kinds_on_two_workers(
        lambda strategy: strategy.experimental_distribute_dataset(data), replicas
    )
    assert len(first) // replicas in (1, 2)
    assert second == ["float64(0,)"] * len(first)


def test_a_worker_whose_part_of_an_endless_dataset_is_empty_says_so() -> None:
    data = from_files("ab", lambda name: range(4) if name == "a" else []).batch(4).repeat()
    with pytest.raises(ValueError, match="part of an endless dataset ended"):
        shared(data, 2, 1, stop=3)


def test_a_shard_of_a_function_without_data_gets_empty_batches_too() -> None:
    def mine(context: InputContext) -> Dataset:
        whole = from_arrays(np.arange(4.0), 4, shuffle=False)
        return whole.shard(context.num_input_pipelines, context.input_pipeline_id)

    first, second = on_workers(lambda s: s.distribute_datasets_from_function(mine), 2, 1)
    assert (first, second) == ([[[0, 1, 2, 3]]], [[[]]])


def test_a_worker_of_whose_batches_nothing_is_known_says_so_while_others_have_data() -> None:
    def mine(context: InputContext) -> Any:
        return [np.arange(4)] if context.input_pipeline_id == 0 else []

    with pytest.raises(ValueError, match="at least one batch: check the sharding"):
        on_workers(lambda s: s.distribute_datasets_from_function(mine), 2, 1)
