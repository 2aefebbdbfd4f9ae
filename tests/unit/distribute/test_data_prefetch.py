"""Steps are prepared ahead, in a thread, that ends with its iterator."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.input_workers import batches, mirrored
from ropewalk.distribute import InputOptions
from ropewalk.distribute.data import AUTOTUNE, Dataset
from ropewalk.distribute.data.prefetch import Prefetcher

pytestmark = pytest.mark.usefixtures("plain_process")


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

    dataset = rw.distribute.OneDeviceStrategy("CPU:0").experimental_distribute_dataset(batches)
    assert [batch.tolist() for batch in dataset] == [[i, i] for i in range(5)]


@pytest.mark.parametrize("depth", [AUTOTUNE, 0, 2])
def test_a_dataset_prefetches_by_itself_if_it_is_told_to(
    new_threads: Callable[[], list[threading.Thread]], depth: int
) -> None:
    elements = iter(Dataset.range(5).map(lambda x: x * 2).prefetch(depth))
    assert next(elements) == 0
    assert len(new_threads()) == (depth != 0)
    assert list(elements) == [2, 4, 6, 8]
    assert all(map(ended, new_threads()))


def test_a_dataset_does_not_prefetch_less_than_nothing() -> None:
    with pytest.raises(ValueError, match="buffer_size must be >= 0"):
        Dataset.range(3).prefetch(-2)


@pytest.mark.real_start
def test_a_process_ends_well_while_the_next_step_is_prepared() -> None:
    """A thread that Python kills inside of a C++ library, as here of the one that goes through
    nested arrays, would abort it.
    """
    program = """if True:
        import numpy as np, ropewalk as rw

        rw.config.set_logical_cpu_devices(4)
        strategy = rw.distribute.MirroredStrategy()
        data = rw.data.as_dataset(list(np.zeros((1000, 60, 784), np.float32))).repeat()
        for _ in range(5):
            steps = iter(strategy.experimental_distribute_dataset(data))
            for _ in range(50):
                next(steps)
        print("done")
    """
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": str(Path(rw.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "done\n", "")
