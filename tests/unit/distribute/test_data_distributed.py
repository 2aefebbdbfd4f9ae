"""Distributed datasets: what each replica of each worker gets, in TensorFlow's order, and where
they end.

Workers are played by threads that ask each other, before every step, whether anybody has data: what
a strategy of several workers does over the network. Expected batches are those of tf.distribute's
documentation.
"""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, count, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windlass as wl
from windlass.distribute import (
    InputContext,
    InputOptions,
    InputReplicationMode,
    MirroredStrategy,
    PerReplica,
    Strategy,
    StrategyExtended,
)
from windlass.distribute.data import (
    SHARD_HINT,
    ArraySpec,
    AutoShardPolicy,
    Dataset,
    Options,
    as_dataset,
    from_arrays,
    from_files,
)
from windlass.distribute.data.prefetch import Prefetcher

Steps = list[list[list[Any]]]
"""Of one worker: what each of its replicas got in each step."""

PER_REPLICA = InputReplicationMode.PER_REPLICA
OFF, AUTO, FILE, DATA, HINT = (
    AutoShardPolicy.OFF,
    AutoShardPolicy.AUTO,
    AutoShardPolicy.FILE,
    AutoShardPolicy.DATA,
    AutoShardPolicy.HINT,
)


@pytest.fixture(autouse=True)
def plain_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No cluster, no GPU, one CPU device."""
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr("windlass.distribute.base.devices.count_gpus", lambda: 0)
    yield
    wl.config.set_logical_cpu_devices(1)


def mirrored(replicas: int) -> MirroredStrategy:
    wl.config.set_logical_cpu_devices(replicas)
    return MirroredStrategy()


def lists(element: Any) -> list[list[Any]]:
    """What each replica gets of an element."""
    parts = element.values if isinstance(element, PerReplica) else [element]
    return [np.asarray(part).tolist() for part in parts]


def steps_of(dataset: Any) -> Steps:
    return [lists(element) for element in dataset]


def batches(examples: int, size: int) -> Dataset:
    """``range(examples).batch(size)``: the size of a batch is known."""
    return from_arrays(np.arange(examples), size, shuffle=False)


def of_unknown_size(examples: int, size: int) -> Dataset:
    return as_dataset(list(batches(examples, size)))


def with_policy(dataset: Dataset, policy: AutoShardPolicy) -> Dataset:
    options = Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


# -- several workers, played by threads --------------------------------------------------------


class Workers:
    """Several that ask each other whether anybody has data, and wait for each other's answers."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked = 0
        self._answers = [False] * count
        self._meeting = threading.Barrier(count, timeout=5)

    def any(self, worker: int, mine: bool) -> bool:
        self.asked += worker == 0
        self._answers[worker] = mine
        self._meeting.wait()
        somebody = any(self._answers)
        self._meeting.wait()
        return somebody

    def leave(self) -> None:
        """Let nobody wait for one that has failed."""
        self._meeting.abort()


class OneOfSeveral(StrategyExtended):
    """Of one worker among several: in sync with the others, or for itself as with parameter
    servers.
    """

    def __init__(
        self, strategy: Strategy, workers: Workers, worker: int, replicas: int, *, in_sync: bool
    ) -> None:
        super().__init__(strategy, [f"/device:CPU:{i}" for i in range(replicas)])
        self._workers, self._worker, self._in_sync = workers, worker, in_sync

    @property
    def num_replicas_in_sync(self) -> int:
        return len(self.replica_devices) * (self._workers.count if self._in_sync else 1)

    @property
    def num_input_pipelines(self) -> int:
        return self._workers.count

    @property
    def input_pipeline_id(self) -> int:
        return self._worker

    @property
    def default_shard_policy(self) -> AutoShardPolicy:
        return AUTO if self._in_sync else OFF

    def any_worker(self, mine: bool) -> bool:
        return self._workers.any(self._worker, mine)


class OneOfSeveralStrategy(Strategy):
    def __init__(self, workers: Workers, worker: int, replicas: int, *, in_sync: bool) -> None:
        super().__init__(OneOfSeveral(self, workers, worker, replicas, in_sync=in_sync))


Distribute = Callable[[Strategy], Any]


def on_workers(
    distribute: Distribute,
    workers: int,
    replicas: int,
    *,
    in_sync: bool = True,
    start: int = 0,
    stop: int | None = None,
) -> list[Steps]:
    """What every worker gets of ``distribute(strategy)``, resumed at step ``start``."""
    group = Workers(workers)

    def work(worker: int) -> Steps:
        try:
            strategy = OneOfSeveralStrategy(group, worker, replicas, in_sync=in_sync)
            iterator = iter(distribute(strategy))
            if start:
                iterator.load_state_dict({"steps": start})
            return steps_of(islice(iterator, stop))
        except BaseException:
            group.leave()
            raise

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(work, worker) for worker in range(workers)]
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [future.result() for future in futures]


def shared(dataset: Dataset, workers: int, replicas: int, **how: Any) -> list[Steps]:
    return on_workers(
        lambda strategy: strategy.experimental_distribute_dataset(dataset), workers, replicas, **how
    )


def examples_of(steps: Steps) -> list[Any]:
    return list(chain.from_iterable(chain.from_iterable(steps)))


# -- one worker --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (batches(8, 4), [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]),
        (batches(7, 4), [[[0, 1], [2, 3]], [[4, 5], [6]]]),
        (batches(5, 4), [[[0, 1], [2, 3]], [[4], []]]),
        (batches(6, 3), [[[0, 1], [2]], [[3, 4], [5]]]),
        (of_unknown_size(6, 4), [[[0, 1], [2, 3]], [[4], [5]]]),
        (as_dataset(np.arange(5)).batch(4), [[[0, 1], [2, 3]], [[4], []]]),
        (as_dataset(np.arange(5)).batch(4, drop_remainder=True), [[[0, 1], [2, 3]]]),
        (from_arrays(np.arange(5), 4, shuffle=False, drop_remainder=True), [[[0, 1], [2, 3]]]),
        (batches(0, 4), []),
    ],
    ids=[
        "even", "last-uneven", "last-leaves-one-empty", "odd-batch", "size-unknown", "batched",
        "batched-drop-remainder", "drop-remainder", "nothing",
    ],
)  # fmt: skip
def test_two_replicas_share_every_batch(dataset: Dataset, expected: Steps) -> None:
    assert steps_of(mirrored(2).experimental_distribute_dataset(dataset)) == expected


def test_tensorflows_legacy_split_of_batches_of_unknown_size() -> None:
    """range(8).batch(4) on 3 replicas: [0,1],[2,3],[] and [4,5],[6,7],[]."""
    data = mirrored(3).experimental_distribute_dataset(of_unknown_size(8, 4))
    assert steps_of(data) == [[[0, 1], [2, 3], []], [[4, 5], [6, 7], []]]


def test_every_replica_runs_also_on_an_empty_batch_of_the_right_kind() -> None:
    strategy = mirrored(3)
    data = from_arrays({"x": np.ones((4, 2), np.float32)}, 3, shuffle=False)
    seen: list[tuple[int, tuple[int, ...], str]] = []

    def step(batch: Any) -> Any:
        context = wl.distribute.get_replica_context()
        assert context is not None
        seen.append((context.replica_id_in_sync_group, batch["x"].shape, str(batch["x"].dtype)))
        return batch["x"].sum()

    totals = [
        strategy.reduce("SUM", strategy.run(step, args=(batch,)))
        for batch in strategy.experimental_distribute_dataset(data)
    ]
    assert totals == [6.0, 2.0]
    assert sorted(seen[3:]) == [
        (0, (1, 2), "float32"),
        (1, (0, 2), "float32"),
        (2, (0, 2), "float32"),
    ]


def test_a_short_batch_between_others_is_a_step_of_its_own() -> None:
    """Epochs are not run into each other: a step has examples of one global batch."""
    data = batches(3, 2).repeat(2)
    steps = steps_of(mirrored(2).experimental_distribute_dataset(data))
    assert steps == [[[0], [1]], [[2], []]] * 2


def test_single_examples_are_refused_when_they_are_asked_for() -> None:
    data = mirrored(2).experimental_distribute_dataset(np.arange(4))
    with pytest.raises(ValueError, match="Call the `batch` method on the input Dataset"):
        next(iter(data))


@pytest.mark.parametrize("replicas", [1, 2], ids=["one-replica", "two-replicas"])
def test_reduce_folds_over_all_elements(replicas: int) -> None:
    strategy = mirrored(replicas)
    data = strategy.experimental_distribute_dataset(batches(7, 4))
    sums = data.reduce(0, lambda state, element: state + sum(map(sum, lists(element))))
    assert sums == sum(range(7))


def test_the_spec_is_one_per_replica() -> None:
    spec = ArraySpec((None, 3), np.dtype(np.float32))
    dataset = from_arrays({"x": np.ones((6, 3), np.float32)}, 4)
    data = mirrored(2).experimental_distribute_dataset(dataset)
    for owner in (data, iter(data)):
        assert isinstance(owner.element_spec["x"], PerReplica)
        assert owner.element_spec["x"].values == (spec, spec)
    assert mirrored(1).experimental_distribute_dataset(dataset).element_spec == {"x": spec}


def test_after_the_last_element_an_optional_is_empty_and_stays_so() -> None:
    iterator = iter(mirrored(2).experimental_distribute_dataset(batches(4, 4)))
    there = iterator.get_next_as_optional()
    assert there.has_value()
    assert lists(there.get_value()) == [[0, 1], [2, 3]]
    for _ in range(2):
        gone = iterator.get_next_as_optional()
        assert not gone.has_value()
        with pytest.raises(ValueError, match="no value"):
            gone.get_value()
    with pytest.raises(StopIteration):
        next(iterator)


@pytest.mark.parametrize("replicas", [1, 2], ids=["one-replica", "two-replicas"])
def test_the_next_element_is_not_asked_for_inside_a_replica_function(replicas: int) -> None:
    strategy = mirrored(replicas)
    iterator = iter(strategy.experimental_distribute_dataset(batches(8, 4)))
    for ask in (iterator.get_next, iterator.get_next_as_optional, iterator.__next__):
        with pytest.raises(ValueError, match=r"pass the element to strategy\.run"):
            strategy.run(ask)
    with strategy.scope():
        assert examples_of([lists(next(iterator))]) == [0, 1, 2, 3]


# -- policies of several workers ---------------------------------------------------------------


@pytest.mark.parametrize("make", [batches, of_unknown_size], ids=["size-known", "size-unknown"])
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


def test_off_gives_every_worker_everything_in_batches_that_add_up() -> None:
    """Of batches of 7 on two workers with two replicas: 2, 2, 2, 1, the second worker from its
    third on.
    """
    first, second = shared(with_policy(batches(14, 7), OFF), 2, 2)
    assert [[len(part) for part in step] for step in first] == [[2, 2], [2, 1], [2, 2], [2, 1]]
    assert [[len(part) for part in step] for step in second] == [[2, 1], [2, 2], [2, 1], [2, 2]]
    assert examples_of(first) == examples_of(second) == list(range(14))


def test_off_cuts_batches_of_unknown_size_for_all_replicas_in_sync() -> None:
    """Each replica still gets its share of a global batch, so a worker needs two steps for one."""
    steps = [[[0, 1], [2, 3]], [[4, 5], [6]], [[7, 8], [9, 10]], [[11, 12], [13]]]
    assert shared(with_policy(of_unknown_size(14, 7), OFF), 2, 2) == [steps, steps]


def of_files(files: int, each: int = 4) -> Dataset:
    """File k has the examples 10 k, 10 k + 1, ..."""
    return from_files(
        [str(k) for k in range(files)], lambda name: (int(name) * 10 + i for i in range(each))
    )


@pytest.mark.parametrize("policy", [FILE, AUTO], ids=lambda policy: policy.name)
def test_file_gives_file_k_to_worker_k_modulo_n(policy: AutoShardPolicy) -> None:
    first, second = shared(with_policy(of_files(4).batch(4), policy), 2, 1)
    assert first == [[[0, 1]], [[2, 3]], [[20, 21]], [[22, 23]]]
    assert second == [[[10, 11]], [[12, 13]], [[30, 31]], [[32, 33]]]


def test_a_worker_that_has_run_out_goes_on_with_empty_batches_until_all_have() -> None:
    first, second = shared(of_files(3).batch(4), 2, 2)
    assert first == [[[0], [1]], [[2], [3]], [[20], [21]], [[22], [23]]]
    assert second == [[[10], [11]], [[12], [13]], [[], []], [[], []]]


def test_empty_batches_of_a_worker_that_has_run_out_are_of_the_right_kind() -> None:
    rows = np.ones((2, 3), np.float16)
    data = from_files("abc", lambda _: [{"x": rows}], batch_size=2)

    def kinds(strategy: Strategy) -> list[Any]:
        distributed = strategy.experimental_distribute_dataset(data)
        return [f"{batch['x'].dtype}{batch['x'].shape}" for batch in distributed]

    [first, second] = on_workers(kinds, 2, 1)
    assert examples_of([first]) == ["float16(1, 3)"] * 4
    assert examples_of([second]) == ["float16(1, 3)"] * 2 + ["float16(0, 3)"] * 2


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


def test_file_needs_a_dataset_that_reads_files() -> None:
    strategy = OneOfSeveralStrategy(Workers(2), 0, 1, in_sync=True)
    with pytest.raises(ValueError, match="does not read files"):
        strategy.experimental_distribute_dataset(with_policy(batches(8, 4), FILE))


def test_hint_shards_where_it_is_written_and_nothing_else() -> None:
    data = as_dataset(np.arange(8)).shard(SHARD_HINT, SHARD_HINT).batch(4)
    assert shared(with_policy(data, HINT), 2, 2) == [
        [[[0], [2]], [[4], [6]]],
        [[[1], [3]], [[5], [7]]],
    ]
    everything = shared(with_policy(batches(4, 4), HINT), 2, 1)
    assert everything == [[[[0, 1]], [[2, 3]]]] * 2


def test_a_hint_is_resolved_for_one_worker_too() -> None:
    data = as_dataset(np.arange(4)).shard(SHARD_HINT, SHARD_HINT).batch(4)
    distributed = mirrored(2).experimental_distribute_dataset(with_policy(data, HINT))
    assert steps_of(distributed) == [[[0, 1], [2, 3]]]


def test_a_hint_under_another_policy_is_an_error_that_says_which_one_it_needs() -> None:
    data = as_dataset(np.arange(4)).shard(SHARD_HINT, SHARD_HINT).batch(4)
    with pytest.raises(ValueError, match=r"AutoShardPolicy\.HINT"):
        shared(with_policy(data, OFF), 2, 1)


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4),
    workers=st.integers(1, 3),
    replicas=st.integers(1, 3),
)
def test_data_loses_nothing_shares_nothing_and_keeps_batches_together(
    sizes: list[int], workers: int, replicas: int
) -> None:
    numbers = count()
    given_batches = [np.array([next(numbers) for _ in range(size)]) for size in sizes]
    found = shared(with_policy(as_dataset(given_batches), DATA), workers, replicas)
    assert {len(steps) for steps in found} == {len(sizes)}
    for step, batch in enumerate(given_batches):
        got = sorted(examples_of([steps[step] for steps in found]))
        assert got == batch.tolist()


@settings(max_examples=25)
@given(
    examples=st.integers(1, 30),
    batch=st.integers(1, 9),
    workers=st.integers(1, 3),
    replicas=st.integers(1, 3),
)
def test_off_shows_every_worker_everything_once_in_order_at_the_same_pace(
    examples: int, batch: int, workers: int, replicas: int
) -> None:
    found = shared(with_policy(batches(examples, batch), OFF), workers, replicas)
    assert all(examples_of(steps) == list(range(examples)) for steps in found)
    assert len({len(steps) for steps in found}) == 1


# -- workers that are not in sync --------------------------------------------------------------


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


def test_workers_that_are_not_in_sync_do_not_ask_each_other() -> None:
    group = Workers(2)
    strategy = OneOfSeveralStrategy(group, 0, 1, in_sync=False)
    assert len(list(strategy.experimental_distribute_dataset(batches(8, 4)))) == 2
    assert group.asked == 0


def test_workers_in_sync_need_not_ask_each_other_for_what_never_ends() -> None:
    group = Workers(2)
    strategy = OneOfSeveralStrategy(group, 0, 1, in_sync=True)
    data = strategy.experimental_distribute_dataset(batches(8, 4).repeat())
    assert steps_of(islice(data, 3)) == [[[0, 1]], [[4, 5]], [[0, 1]]]
    assert group.asked == 0


def test_a_worker_whose_part_of_an_endless_dataset_is_empty_says_so() -> None:
    data = from_files("ab", lambda name: range(4) if name == "a" else []).batch(4).repeat()
    with pytest.raises(ValueError, match="part of an endless dataset ended"):
        shared(data, 2, 1, stop=3)


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
    def kinds(strategy: Strategy) -> list[Any]:
        distributed = strategy.experimental_distribute_dataset(data)
        parts = (strategy.experimental_local_results(batch) for batch in distributed)
        return [f"{part.dtype}{part.shape}" for step in parts for part in step]

    [first, second] = on_workers(kinds, 2, replicas)
    steps = len(examples_of([first])) // replicas
    assert steps in (1, 2)
    assert examples_of([second]) == ["float64(0,)"] * replicas * steps


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


# -- going on where it was ---------------------------------------------------------------------


@pytest.mark.parametrize("taken", [0, 1, 2, 5, 6, 9], ids=str)
@pytest.mark.parametrize("replicas", [1, 2, 3], ids=["1-replica", "2-replicas", "3-replicas"])
@pytest.mark.parametrize(
    "dataset",
    [
        from_arrays(np.arange(10), 4, seed=3, epochs=2),
        from_arrays(np.arange(10), 4, seed=3, epochs=2).map(lambda x: x + 1),
        of_unknown_size(22, 4),
        as_dataset(np.arange(10)).shard(2, 1).batch(2).repeat(2),
        of_files(4, 3).batch(5),
    ],
    ids=["arrays", "mapped", "unknown-size", "sharded", "files"],
)
def test_an_iterator_goes_on_exactly_where_another_was(
    dataset: Dataset, replicas: int, taken: int
) -> None:
    """Also in another process: the state is plain data."""
    strategy = mirrored(replicas)
    data = strategy.experimental_distribute_dataset(dataset)
    first = iter(data)
    before = steps_of(islice(first, taken))
    state = json.loads(json.dumps(first.state_dict()))

    fresh = iter(strategy.experimental_distribute_dataset(dataset))
    fresh.load_state_dict(state)
    rest = steps_of(fresh)
    assert rest == steps_of(first)
    assert before + rest == steps_of(data)


@pytest.mark.parametrize("start", range(6), ids=str)
@pytest.mark.parametrize("workers", [2, 3], ids=["2-workers", "3-workers"])
@pytest.mark.parametrize("replicas", [1, 2], ids=["1-replica", "2-replicas"])
@pytest.mark.parametrize(
    ("dataset", "in_sync"),
    [
        (with_policy(batches(22, 7), DATA), True),
        (with_policy(batches(22, 7), OFF), True),
        (with_policy(of_unknown_size(22, 7), OFF), True),
        (of_files(4, 3).batch(5), True),
        (with_policy(as_dataset(np.arange(22)).shard(-1, -1).batch(5), HINT), True),
        (with_policy(batches(22, 3), DATA), False),
        (batches(22, 3), False),
    ],
    ids=["data", "off", "off-unknown-size", "file", "hint", "ps-data", "ps"],
)
def test_workers_go_on_exactly_where_they_were(
    dataset: Dataset, in_sync: bool, replicas: int, workers: int, start: int
) -> None:
    """Also those that had run out by then: they go on with empty batches."""
    everything = shared(dataset, workers, replicas, in_sync=in_sync)
    rest = shared(dataset, workers, replicas, in_sync=in_sync, start=start)
    assert rest == [steps[start:] for steps in everything]


def test_what_is_prepared_ahead_does_not_count_as_taken() -> None:
    options = InputOptions(experimental_per_replica_buffer_size=3)
    iterator = iter(mirrored(2).experimental_distribute_dataset(batches(20, 2), options))
    next(iterator), next(iterator)
    assert iterator.state_dict() == {"steps": 2}


def test_an_iterator_in_use_can_be_put_elsewhere() -> None:
    iterator = iter(mirrored(2).experimental_distribute_dataset(batches(6, 2)))
    everything = steps_of(iterator)
    iterator.load_state_dict({"steps": 1})
    assert steps_of(iterator) == everything[1:]
    iterator.load_state_dict({"steps": 0})
    next(iterator)
    iterator.load_state_dict({"steps": 0})
    assert steps_of(iterator) == everything


@pytest.mark.parametrize("buffer", [0, 2], ids=["unbuffered", "buffered"])
def test_what_can_be_gone_through_once_goes_on_from_where_it_is(buffer: int) -> None:
    options = InputOptions(experimental_per_replica_buffer_size=buffer)
    source = (np.full(2, i) for i in range(6))
    iterator = iter(mirrored(2).experimental_distribute_dataset(source, options))
    next(iterator), next(iterator)
    iterator.load_state_dict(iterator.state_dict())
    assert lists(next(iterator)) == [[2], [2]], "nothing is left out twice"
    iterator.load_state_dict({"steps": 5})
    with pytest.raises(
        ValueError, match=r"at step 5 .* go back to step 4\. Make the dataset of a func"
    ):
        iterator.load_state_dict({"steps": 4})
    assert steps_of(iterator) == [[[5], [5]]]


# -- datasets from functions -------------------------------------------------------------------


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


def test_single_examples_go_to_replicas_but_have_no_empty_batch() -> None:
    iterator = iter(mirrored(2).distribute_datasets_from_function(lambda _: [1, 2, 3]))
    assert next(iterator).values == (1, 2)
    with pytest.raises(ValueError, match="Call the `batch` method"):
        next(iterator)


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


# -- options and contexts ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"experimental_place_dataset_on_device": True}, "PER_REPLICA"),
        (
            {
                "experimental_place_dataset_on_device": True,
                "experimental_replication_mode": PER_REPLICA,
            },
            "experimental_fetch_to_device",
        ),
        (
            {
                "experimental_place_dataset_on_device": True,
                "experimental_replication_mode": PER_REPLICA,
                "experimental_fetch_to_device": True,
            },
            "experimental_fetch_to_device",
        ),
        ({"experimental_per_replica_buffer_size": -1}, "must be >= 0, got -1"),
        (
            {"experimental_fetch_to_device": True, "experimental_prefetch_to_device": False},
            "two names of one option",
        ),
    ],
    ids=["place-per-worker", "place-and-fetch-by-default", "place-and-fetch", "buffer", "names"],
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


def test_a_context_divides_the_global_batch_and_says_which_it_is() -> None:
    context = InputContext(num_input_pipelines=4, input_pipeline_id=2, num_replicas_in_sync=8)
    assert context.get_per_replica_batch_size(32) == 4
    assert str(context) == "tf.distribute.InputContext(input pipeline id 2, total: 4)"
    with pytest.raises(ValueError, match=r"`global_batch_size` 12 is not divisible .* 8"):
        context.get_per_replica_batch_size(12)
    assert told(InputContext()) == (1, 0, 1)


# -- on devices --------------------------------------------------------------------------------


@pytest.fixture
def placed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[int]]]:
    """(device, batch) of what is copied to devices, which pass for GPUs."""
    found: list[tuple[str, list[int]]] = []

    def place(value: Any, device: str) -> Any:
        found.append((device, np.asarray(value).tolist()))
        return value

    monkeypatch.setattr("windlass.distribute.data.distributed.is_gpu", lambda _: True)
    monkeypatch.setattr("windlass.distribute.data.distributed.place", place)
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


# -- ahead, in a thread ------------------------------------------------------------------------


def prefetch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.fixture
def new_threads() -> Callable[[], list[threading.Thread]]:
    """Threads that prepare elements, since the test began."""
    before = set(prefetch_threads())
    return lambda: [thread for thread in prefetch_threads() if thread not in before]


def ended(thread: threading.Thread) -> bool:
    thread.join(5)
    return not thread.is_alive()


def test_the_next_step_is_prepared_while_this_one_is_computed() -> None:
    """Before anybody asks for it, and in another thread."""
    second = threading.Event()
    makers: set[int] = set()

    def source() -> Iterator[Any]:
        for number in range(3):
            makers.add(threading.get_ident())
            if number == 1:
                second.set()
            yield np.array([number, number])

    iterator = iter(mirrored(2).experimental_distribute_dataset(source))
    assert not makers
    next(iterator)
    assert second.wait(5)
    assert makers.isdisjoint({threading.get_ident()})


@pytest.mark.parametrize("depth", [1, 3], ids=str)
def test_preparing_does_not_run_away_from_an_endless_dataset(depth: int) -> None:
    """At most ``depth`` wait, and one is in the thread's hand."""
    taken = 0
    leads: list[int] = []

    def source() -> Iterator[int]:
        for number in count(1):
            leads.append(number - taken)
            yield number

    ahead = Prefetcher(source(), depth)
    for wanted in range(1, 200):
        assert next(ahead) == wanted
        taken = wanted
    assert max(leads) <= depth + 2  # one more is handed over, and not yet counted as taken
    ahead.close()


def test_without_a_buffer_nothing_is_prepared_and_there_is_no_thread(
    new_threads: Callable[[], list[threading.Thread]],
) -> None:
    made: list[int] = []

    def source() -> Iterator[Any]:
        for number in range(3):
            made.append(threading.get_ident())
            yield np.array([number])

    options = InputOptions(experimental_per_replica_buffer_size=0)
    iterator = iter(mirrored(1).experimental_distribute_dataset(source, options))
    next(iterator)
    assert made == [threading.get_ident()]
    assert not new_threads()


@pytest.mark.parametrize(
    "leave",
    [
        lambda iterator: list(islice(iterator, 1)),
        lambda iterator: iterator.load_state_dict({"steps": 9}),
    ],
    ids=["dropped", "put-elsewhere"],
)  # fmt: skip
def test_the_thread_ends_with_its_iterator(
    new_threads: Callable[[], list[threading.Thread]], leave: Callable[[Any], Any]
) -> None:
    iterator = iter(mirrored(2).experimental_distribute_dataset(batches(4, 2).repeat()))
    next(iterator)
    [thread] = new_threads()
    leave(iterator)
    del iterator
    assert ended(thread)


def test_the_thread_ends_with_the_data_and_after_a_break(
    new_threads: Callable[[], list[threading.Thread]],
) -> None:
    data = mirrored(2).experimental_distribute_dataset(batches(4, 2))
    iterator = iter(data)
    next(iterator)
    [thread] = new_threads()
    list(iterator)
    assert ended(thread)
    for _ in data:
        threads = new_threads()
        break
    assert all(map(ended, threads))


def broken() -> Iterator[Any]:
    yield np.arange(4)
    yield np.arange(4)
    raise OSError("disk")


@pytest.mark.parametrize("buffer", [0, 1, 5], ids=str)
@pytest.mark.parametrize("replicas", [1, 2], ids=["one-replica", "two-replicas"])
def test_an_error_of_the_dataset_comes_up_in_the_loop_after_the_batches_before_it(
    replicas: int, buffer: int
) -> None:
    options = InputOptions(experimental_per_replica_buffer_size=buffer)
    iterator = iter(mirrored(replicas).experimental_distribute_dataset(broken, options))
    assert len(list(islice(iterator, 2))) == 2
    with pytest.raises(OSError, match="disk"):
        next(iterator)
    assert not iterator.get_next_as_optional().has_value()


def test_an_error_where_the_dataset_is_opened_comes_up_in_the_loop(
    new_threads: Callable[[], list[threading.Thread]],
) -> None:
    def missing() -> Iterator[Any]:
        raise FileNotFoundError("train.csv")

    data = mirrored(2).experimental_distribute_dataset(missing)
    with pytest.raises(FileNotFoundError, match=r"train\.csv"):
        next(iter(data))
    assert all(map(ended, new_threads()))


def test_a_generator_may_use_one_buffer_for_all_of_its_batches() -> None:
    def batches() -> Iterator[Any]:
        buffer = np.zeros(2)
        for i in range(5):
            buffer[...] = i
            yield buffer

    dataset = wl.distribute.OneDeviceStrategy("CPU:0").experimental_distribute_dataset(batches)
    assert [batch.tolist() for batch in dataset] == [[i, i] for i in range(5)]
