"""Workers in threads share the examples of each epoch, and say what keeps them from it."""

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.waiting import scaled, wait_until
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.task import TaskId
from ropewalk.launch.screen.status_table import status_lines

EXAMPLES, BATCH = 300, 8


class Counter:
    """Counts examples on the ps, in the program of one worker."""

    def __init__(self, data: Any = None, **options: Any) -> None:
        self.strategy = rw.distribute.ParameterServerStrategy(**options)
        with self.strategy.scope():
            self.counts = rw.Variable(
                np.zeros(EXAMPLES, np.int64), name="counts", aggregation=rw.VariableAggregation.SUM
            )
        self.batches = self.strategy.experimental_distribute_dataset(
            rw.data.from_arrays(np.arange(EXAMPLES), BATCH) if data is None else data,
            ledger="train",
        )

    def step(self, numbers: Any) -> None:
        """Count the examples of a batch."""
        self.strategy.run(self._count, args=(numbers,))

    def _count(self, numbers: Any) -> None:
        ones = np.ones(len(numbers), np.int64)
        self.counts.scatter_add(rw.IndexedSlices(ones, numbers, self.counts.shape))

    def epoch(self) -> int:
        """Go through an epoch; returns the number of this worker's steps."""
        steps = 0
        for numbers in self.batches:
            self.step(numbers)
            steps += 1
        return steps

    @property
    def distinct(self) -> list[int]:
        """The numbers of times that examples were counted."""
        return [int(each) for each in np.unique(self.counts.numpy())]


def test_workers_share_every_epoch_and_end_it_together() -> None:
    def train() -> tuple[list[int], list[list[int]], list[str]]:
        counter, steps, found = Counter(), [], []
        for _ in range(3):
            steps.append(counter.epoch())
            counter.strategy.extended.barrier(scaled(30))
            found.append(counter.distinct)
            counter.strategy.extended.barrier(scaled(30))
        status = cluster.status()
        assert status is not None
        return steps, found, [line for line in status_lines(status) if "train" in line]

    with rw.testing.LocalCluster(workers=2, ps=2) as cluster:
        results = list(cluster.run(train).values())
    for _, found, lines in results:
        assert found == [[1], [2], [3]]
        assert lines == ["data 'train': epoch 2, 5 of 5 ranges trained, 0 leased"]
    for epoch in range(3):
        assert sum(steps[epoch] for steps, _, _ in results) == -(-EXAMPLES // BATCH)


def test_a_worker_that_waits_says_for_whom_and_a_late_one_has_no_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first one stands still in its last step until the late one has said that it waits."""
    caplog.set_level(logging.INFO)
    at_end, said = threading.Event(), threading.Event()

    def slow() -> Any:
        counter, steps = Counter(), 0
        for numbers in counter.batches:
            if len(numbers) < BATCH:
                at_end.set()
                assert said.wait(scaled(60))
            counter.step(numbers)
            steps += 1
        return steps + counter.epoch()

    def late() -> Any:
        assert at_end.wait(scaled(60))
        counter = Counter()
        watcher = threading.Thread(target=watch)
        watcher.start()
        steps = counter.epoch()
        watcher.join()
        counter.epoch()
        return steps, counter.distinct

    def watch() -> None:
        wait_until(lambda: "the last examples of epoch 0 in 'train'" in caplog.text, 30)
        said.set()

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        found = cluster.run_all(slow, {TaskId("worker", 0): late})
    assert found[TaskId("worker", 0)].value == (0, [2])
    assert "/job:chief/task:0 trains them" in caplog.text


def test_tasks_with_other_data_are_refused_with_both_numbers() -> None:
    def right() -> None:
        Counter().epoch()

    def other() -> None:
        Counter(rw.data.from_arrays(np.arange(EXAMPLES), BATCH, seed=5)).epoch()

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        found = cluster.run_all(right, {TaskId("worker", 0): other})
    error = found[TaskId("worker", 0)].error
    assert isinstance(error, ConfigurationError)
    assert "begun with 300 examples in batches of 8, seed 0" in str(error)
    assert "300 in batches of 8, seed 5" in str(error)


# -- a program alone ---------------------------------------------------------------------------


def test_what_a_loop_leaves_early_comes_first_in_the_next_one() -> None:
    counter = Counter()
    for numbers in counter.batches:
        counter.step(numbers)
        break  # its step is made
    for _ in counter.batches:
        break  # its step is not
    # Three epochs: the third loop is that of the third. A step of the first does not count again.
    assert counter.epoch() == 3 * -(-EXAMPLES // BATCH)
    assert counter.distinct == [3]


@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_each_example_counts_once_with_every_option(prefetch: bool, shuffle: bool) -> None:
    data = rw.data.from_index(
        EXAMPLES, lambda rows: rows, 7, shuffle=shuffle, epochs=2, drop_remainder=True
    )
    counter = Counter(data.map(np.copy), prefetch=prefetch)
    assert counter.epoch() == 2 * (EXAMPLES // 7)
    left_out = EXAMPLES % 7
    values, numbers = np.unique(counter.counts.numpy(), return_counts=True)
    assert numbers @ values == 2 * (EXAMPLES - left_out)
    assert values.max() == 2


@pytest.fixture
def two_devices() -> Iterator[None]:
    """Two replicas in this process."""
    rw.config.set_logical_cpu_devices(2)
    yield
    rw.config.set_logical_cpu_devices(1)


@pytest.mark.usefixtures("two_devices")
def test_several_replicas_share_each_batch() -> None:
    counter = Counter()
    assert counter.strategy.num_replicas_in_sync == 2
    assert counter.epoch() == -(-EXAMPLES // BATCH)
    assert counter.distinct == [1]


def test_several_pushes_are_one_step() -> None:
    counter = Counter()
    with counter.strategy.scope():
        total = rw.Variable(np.zeros((), np.int64), name="total")
    for numbers in counter.batches:
        total.assign_add(len(numbers))
        counter.step(numbers)
        total.assign_add(len(numbers))
    assert counter.distinct == [1]
    assert total.numpy() == 2 * EXAMPLES


def endless() -> Any:
    """A dataset without numbers."""
    return rw.data.Dataset.range(10).batch(2)


@pytest.mark.parametrize(
    ("distribute", "why"),
    [
        (lambda: Counter(endless()), "this dataset has none; make it with rw.data.from_arrays"),
        (
            lambda: rw.distribute.MirroredStrategy().experimental_distribute_dataset(
                rw.data.from_arrays(np.arange(4), 2), ledger="train"
            ),
            "for ParameterServerStrategy",
        ),
        (
            lambda: rw.distribute.ParameterServerStrategy().experimental_distribute_dataset(
                rw.data.from_arrays(np.arange(4), 2), ledger="a/b"
            ),
            "cannot be called 'a/b'",
        ),
        (
            lambda: Counter(rw.data.from_arrays(np.arange(3), 8, drop_remainder=True)),
            "'train' has no batch",
        ),
    ],
    ids=["no index", "no servers", "name", "no batch"],
)
def test_what_has_no_ledger_is_refused(distribute: Callable[[], object], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        distribute()


# -- jobs that go on, and frameworks -----------------------------------------------------------


def test_another_number_of_ps_goes_on_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    def begin() -> None:
        counter = Counter()
        for steps, numbers in enumerate(counter.batches):
            counter.step(numbers)
            if steps == 20:
                break

    def go_on() -> list[int]:
        counter = Counter()
        return [counter.epoch(), *counter.distinct]

    with rw.testing.LocalCluster(workers=0, ps=2, model_dir=str(tmp_path)) as cluster:
        cluster.run(begin)
    for ps in (3, 3):
        with rw.testing.LocalCluster(workers=0, ps=ps, model_dir=str(tmp_path)) as cluster:
            [found] = cluster.run(go_on).values()
        assert found[0] in (-(-EXAMPLES // BATCH) - 20, 0, 1)
        assert found[1:] == [1]


@pytest.mark.annex("jax_bridge")
@pytest.mark.parametrize("on_servers", [True, False])
def test_steps_of_jax_count_once(on_servers: bool) -> None:
    """A gradient of -1 with a rate of 1 counts: by a rule on the ps, or by deltas of the worker."""
    optax, jax = pytest.importorskip("optax"), pytest.importorskip("jax")
    optimizer = optax.sgd(1.0) if on_servers else optax.chain(optax.sgd(1.0), optax.scale(1.0))

    def train() -> Any:
        strategy = rw.distribute.ParameterServerStrategy()
        first = {"counts": np.zeros(EXAMPLES, np.float32)}
        state = rw.training.jax.TrainState(first, optimizer, strategy)
        data = rw.data.from_arrays(np.arange(EXAMPLES), BATCH)
        for epoch in range(2):
            for numbers in strategy.experimental_distribute_dataset(data, ledger=f"jax {epoch}"):
                gradient = np.zeros(EXAMPLES, np.float32)
                gradient[numbers] = -1
                state.apply_gradients({"counts": jax.numpy.asarray(gradient)})
            strategy.extended.barrier(scaled(30))
        return np.unique(np.asarray(state.refresh()["counts"])).tolist()

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        assert list(cluster.run(train).values()) == [[2.0], [2.0]]
