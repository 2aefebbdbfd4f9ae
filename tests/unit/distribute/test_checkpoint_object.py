"""rw.Checkpoint: what one strategy saved any other restores, and training goes on as if never
stopped.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import ropewalk as rw
from helpers.replicas import FIRST, mirrored
from ropewalk.core.arrays.dtypes import DTYPES, DType
from ropewalk.core.checkpoint import CheckpointReader, list_checkpoints
from ropewalk.core.errors import CheckpointError, ShapeMismatchError
from ropewalk.distribute import (
    CentralStorageStrategy,
    OneDeviceStrategy,
    ParameterServerStrategy,
    ShardedVariable,
    Strategy,
    partitioners,
)
from ropewalk.distribute.data import from_arrays
from ropewalk.distribute.optimizers import Optimizer
from ropewalk.distribute.runtime import local_runtime
from ropewalk.distribute.strategies.parameter_server import ParameterServerExtended

Array = np.ndarray[Any, np.dtype[Any]]


def devices(count: int) -> None:
    rw.config.set_logical_cpu_devices(count)


def central(replicas: int) -> Strategy:
    devices(replicas)
    return CentralStorageStrategy()


def runtime_of(strategy: Strategy) -> Any:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended.runtime


def ps(num_ps: int, parts: int | None = None, restore_from: str = "") -> Strategy:
    devices(1)
    alone = local_runtime(runtime_of(ParameterServerStrategy()).task, num_ps=num_ps)
    runtime = replace(alone, restore_from=restore_from)
    return ParameterServerStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(parts) if parts else None,
        runtime=runtime,
    )


IN_PROCESS: dict[str, Callable[[], Strategy]] = {
    "default": rw.distribute.get_strategy,
    "one-device": lambda: OneDeviceStrategy("CPU:0"),
    "mirrored-1": lambda: mirrored(1),
    "mirrored-2": lambda: mirrored(2),
    "mirrored-3": lambda: mirrored(3),
    "central-1": lambda: central(1),
    "central-2": lambda: central(2),
}
STRATEGIES: dict[str, Callable[[], Strategy]] = {
    **IN_PROCESS,
    "ps": lambda: ps(2),
    "ps-cut": lambda: ps(3, parts=3),
}


def pairs(kinds: Iterable[str]) -> list[tuple[str, str]]:
    """Each with the next one, and there and back with the first: a checkpoint says nothing of who
    wrote it.
    """
    first, *others = kinds
    back = [(other, first) for other in others]
    return [*pairwise([first, *others]), *back, (first, others[-1])]


class Model:
    """A few variables under a strategy."""

    def __init__(self, strategy: Strategy, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.strategy = strategy
        with strategy.scope():
            self.w = rw.Variable(rng.normal(size=(7, 2)).astype(np.float32), name="w")
            self.b = rw.Variable(rng.normal(), dtype=np.float64, name="b")
            self.steps = rw.Variable(seed, name="steps", trainable=False, aggregation=FIRST)
        self.variables = [self.w, self.b, self.steps]

    def values(self) -> list[Array]:
        return [variable.numpy() for variable in self.variables]

    def train(self, optimizer: Optimizer, steps: range) -> None:
        """Steps that depend on their number alone; the first replica has all of the gradient."""

        def step(number: int) -> None:
            context = rw.distribute.get_replica_context()
            assert context is not None
            rng = np.random.default_rng(number)
            share = 0.0 if context.replica_id_in_sync_group else 1.0
            dense = (rng.normal(size=(7, 2)) * share).astype(np.float32)
            optimizer.apply_gradients([(dense, self.w), (np.float64(rng.normal() * share), self.b)])
            self.steps.assign_add(1)

        for number in steps:
            self.strategy.run(step, args=(number,))


def assert_same(mine: list[Array], theirs: list[Array]) -> None:
    for a, b in zip(mine, theirs, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        np.testing.assert_array_equal(a, b)


# -- any strategy to any other -------------------------------------------------------------------


@pytest.mark.parametrize(("here", "there"), pairs(STRATEGIES))
def test_what_one_strategy_saved_another_restores(tmp_path: Path, here: str, there: str) -> None:
    first = Model(STRATEGIES[here](), seed=1)
    path = rw.Checkpoint(first.variables).save(str(tmp_path), global_step=12)
    second = Model(STRATEGIES[there](), seed=2)
    assert rw.Checkpoint(second.variables).restore(path) == 12
    assert_same(second.values(), first.values())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_copy_is_restored(tmp_path: Path, strategy: str) -> None:
    first = Model(rw.distribute.get_strategy(), seed=1)
    path = rw.Checkpoint(first.variables).save(str(tmp_path))
    second = Model(STRATEGIES[strategy](), seed=2)
    rw.Checkpoint(second.variables).restore(path)
    if second.strategy.num_replicas_in_sync > 1:
        seen = second.strategy.run(second.w.read_value)
        for value in second.strategy.experimental_local_results(seen):
            np.testing.assert_array_equal(value, first.w.read_value())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_every_dtype_and_shape_comes_back(tmp_path: Path, dtype: DType) -> None:
    values = {
        "scalar": np.array(1).astype(dtype),
        "vector": np.array([1, 0, 1]).astype(dtype),
        "cube": np.arange(24).reshape(2, 3, 4).astype(dtype),
        "empty": np.zeros((0, 3), dtype),
    }
    saved = [rw.Variable(value, name=name) for name, value in values.items()]
    rw.Checkpoint(saved).save(str(tmp_path))
    found = [rw.Variable(np.zeros_like(value), name=name) for name, value in values.items()]
    rw.Checkpoint(found).restore(str(tmp_path))
    assert_same([v.numpy() for v in found], list(values.values()))


def test_a_value_of_another_dtype_is_converted(tmp_path: Path) -> None:
    rw.Checkpoint([rw.Variable([1.5, 2.5], dtype="float64", name="v")]).save(str(tmp_path))
    v = rw.Variable([0.0, 0.0], dtype="bfloat16", name="v")
    rw.Checkpoint([v]).restore(str(tmp_path))
    np.testing.assert_array_equal(v.numpy().astype(np.float32), [1.5, 2.5])


@pytest.mark.parametrize("parts", [1, 2, 3], ids=lambda n: f"{n}-shards")
def test_shards_are_saved_as_the_whole_and_restored_into_any_number(
    tmp_path: Path, parts: int
) -> None:
    whole = np.arange(14, dtype=np.float32).reshape(7, 2)

    def sharded(value: Array, count: int) -> ShardedVariable:
        pieces = [rw.Variable(piece) for piece in np.array_split(value, count)]
        return ShardedVariable(pieces, name="v")

    path = rw.Checkpoint([sharded(whole, 2)]).save(str(tmp_path))
    assert list(CheckpointReader(path).manifest.variables) == ["v"]
    v = sharded(whole * 0, parts)
    rw.Checkpoint([v]).restore(path)
    np.testing.assert_array_equal(v.read_value(), whole)


# -- training goes on ----------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "SGD": lambda: rw.optimizers.SGD(0.1),
    "momentum": lambda: rw.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: rw.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "Adagrad": lambda: rw.optimizers.Adagrad(0.1),
    "RMSprop": lambda: rw.optimizers.RMSprop(0.1, momentum=0.5, centered=True, epsilon=0.01),
    "Adam": lambda: rw.optimizers.Adam(0.1),
    "AdamW": lambda: rw.optimizers.AdamW(0.1),
    "Ftrl": lambda: rw.optimizers.Ftrl(0.1, l1_regularization_strength=0.01),
    "schedule": lambda: rw.optimizers.Adam(
        rw.optimizers.ExponentialDecay(initial_learning_rate=0.1, decay_steps=2, decay_rate=0.5)
    ),
}


def ten_at_once(optimizer: Optimizer) -> list[Array]:
    model = Model(rw.distribute.get_strategy(), seed=1)
    model.train(optimizer, range(10))
    return model.values()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_five_steps_and_five_more_are_ten(tmp_path: Path, optimizer: str) -> None:
    """To the bit: slots, their number of updates and the schedule go on."""
    rule = OPTIMIZERS[optimizer]
    first = Model(rw.distribute.get_strategy(), seed=1)
    first.train(rule(), range(5))
    rw.Checkpoint(first.variables).save(str(tmp_path))
    second = Model(rw.distribute.get_strategy(), seed=2)
    rw.Checkpoint(second.variables).restore(str(tmp_path))
    second.train(rule(), range(5, 10))
    assert_same(second.values(), ten_at_once(rule()))


@pytest.mark.parametrize(("here", "there"), pairs(IN_PROCESS))
def test_five_steps_here_and_five_there_are_ten(tmp_path: Path, here: str, there: str) -> None:
    """The replicas' gradients add up to one that has no rounding, so to the bit here, too."""
    first = Model(IN_PROCESS[here](), seed=1)
    first.train(rw.optimizers.Adam(0.1), range(5))
    path = rw.Checkpoint(first.variables).save(str(tmp_path))
    second = Model(IN_PROCESS[there](), seed=2)
    rw.Checkpoint(second.variables).restore(path)
    second.train(rw.optimizers.Adam(0.1), range(5, 10))
    assert_same(second.values(), ten_at_once(rw.optimizers.Adam(0.1)))


@pytest.mark.parametrize("parts", [None, 3], ids=["whole", "cut"])
@pytest.mark.parametrize("here", ["default", "mirrored-2", "central-2"])
def test_a_job_on_parameter_servers_goes_on_from_it(
    tmp_path: Path, here: str, parts: int | None
) -> None:
    """One format: the servers find values, slots and numbers of updates in it."""
    first = Model(IN_PROCESS[here](), seed=1)
    first.train(rw.optimizers.Adam(0.1), range(5))
    path = rw.Checkpoint(first.variables).save(str(tmp_path), global_step=5)
    second = Model(ps(2, parts, restore_from=path), seed=2)
    second.train(rw.optimizers.Adam(0.1), range(5, 10))
    assert_same(second.values(), ten_at_once(rw.optimizers.Adam(0.1)))


def test_restoring_into_a_model_that_has_trained_goes_back_all_the_way(tmp_path: Path) -> None:
    optimizer = rw.optimizers.Adam(0.1)
    model = Model(rw.distribute.get_strategy(), seed=1)
    checkpoint = rw.Checkpoint(model.variables)
    before = checkpoint.save(str(tmp_path), global_step=0)
    model.train(optimizer, range(5))
    middle = checkpoint.save(str(tmp_path), global_step=5)
    model.train(optimizer, range(5, 10))
    ten = model.values()
    for path, start in ((middle, 5), (before, 0), (middle, 5), (before, 0)):
        checkpoint.restore(path)
        model.train(optimizer, range(start, 10))
        assert_same(model.values(), ten)


def test_what_was_restored_and_saved_again_has_its_slots(tmp_path: Path) -> None:
    first = Model(rw.distribute.get_strategy(), seed=1)
    first.train(rw.optimizers.Adam(0.1), range(5))
    rw.Checkpoint(first.variables).save(str(tmp_path / "one"))
    second = Model(mirrored(2), seed=2)
    checkpoint = rw.Checkpoint(second.variables)
    checkpoint.restore(str(tmp_path / "one"))
    checkpoint.save(str(tmp_path / "two"))
    third = Model(rw.distribute.get_strategy(), seed=3)
    rw.Checkpoint(third.variables).restore(str(tmp_path / "two"))
    third.train(rw.optimizers.Adam(0.1), range(5, 10))
    assert_same(third.values(), ten_at_once(rw.optimizers.Adam(0.1)))


def test_another_optimizer_begins_with_slots_of_its_own(tmp_path: Path) -> None:
    """SGD and Adam both have one called momentum; they mean nothing to each other."""
    first = Model(rw.distribute.get_strategy(), seed=1)
    first.train(rw.optimizers.SGD(0.1, momentum=0.9), range(5))
    path = rw.Checkpoint(first.variables).save(str(tmp_path))
    second, third = (Model(rw.distribute.get_strategy(), seed=n) for n in (2, 3))
    rw.Checkpoint(second.variables).restore(path)
    for fresh, trained in zip(third.variables, first.variables, strict=True):
        fresh.assign(trained)
    for model in (second, third):
        model.train(rw.optimizers.Adam(0.1), range(5))
    assert_same(second.values(), third.values())


def test_of_variables_on_parameter_servers_the_values_are_taken(tmp_path: Path) -> None:
    """Their slots are the servers', which keep checkpoints of their own."""
    model = Model(ps(2), seed=1)
    model.train(rw.optimizers.Adam(0.1), range(3))
    path = rw.Checkpoint(model.variables).save(str(tmp_path))
    reader = CheckpointReader(path)
    assert [reader.slots(v.name) for v in model.variables] == [[], [], []]
    np.testing.assert_array_equal(reader.read("w"), model.w.read_value())


# -- files ---------------------------------------------------------------------------------------


def counter() -> rw.Variable:
    variable: rw.Variable = rw.Variable(0.0, name="v")
    return variable


def test_checkpoints_are_numbered_and_the_newest_is_restored(tmp_path: Path) -> None:
    v = counter()
    checkpoint = rw.Checkpoint([v])
    paths = []
    for step in (None, None, 10, None):
        v.assign_add(1)
        paths.append(checkpoint.save(str(tmp_path), step))
    assert [Path(path).name for path in paths] == [f"ckpt-{n:010d}" for n in (1, 2, 10, 11)]
    v.assign(0)
    assert checkpoint.restore(str(tmp_path)) == 11
    assert float(v.read_value()) == 4
    assert checkpoint.restore(paths[1]) == 2
    assert float(v.read_value()) == 2


def test_what_was_just_saved_is_kept_though_it_is_old(tmp_path: Path) -> None:
    v = counter()
    checkpoint = rw.Checkpoint([v], keep=2)
    for step in (10, 20):
        checkpoint.save(str(tmp_path), step)
    v.assign(5)
    path = checkpoint.save(str(tmp_path), 1)
    v.assign(0)
    assert checkpoint.restore(path) == 1
    assert float(v.read_value()) == 5


@pytest.mark.parametrize("keep", [0, -1])
def test_at_least_one_is_kept(keep: int) -> None:
    with pytest.raises(ValueError, match=f"at least one checkpoint is kept, got keep={keep}"):
        rw.Checkpoint([counter()], keep=keep)


def test_a_step_saved_again_is_overwritten(tmp_path: Path) -> None:
    v = counter()
    checkpoint = rw.Checkpoint([v])
    checkpoint.save(str(tmp_path), 3)
    v.assign(9)
    path = checkpoint.save(str(tmp_path), 3)
    assert CheckpointReader(path).read("v") == 9
    assert len(list(tmp_path.iterdir())) == 1


@pytest.fixture
def memory_url() -> Iterator[str]:
    """A directory of fsspec's file system in memory."""
    yield "memory://checkpoint-object-test/model"
    fsspec.filesystem("memory").rm("checkpoint-object-test", recursive=True)


def test_a_url_is_as_good_as_a_path(memory_url: str) -> None:
    first = Model(mirrored(2), seed=1)
    first.train(rw.optimizers.Adam(0.1), range(5))
    checkpoint = rw.Checkpoint(first.variables, keep=2)
    for step in (1, 2, 3):
        path = checkpoint.save(memory_url, step)
    assert path == f"{memory_url}/ckpt-0000000003"
    assert [info.global_step for info in list_checkpoints(memory_url)] == [2, 3]
    second = Model(rw.distribute.get_strategy(), seed=2)
    assert rw.Checkpoint(second.variables).restore(memory_url) == 3
    second.train(rw.optimizers.Adam(0.1), range(5, 10))
    assert_same(second.values(), ten_at_once(rw.optimizers.Adam(0.1)))


# -- what does not fit ---------------------------------------------------------------------------


def test_a_directory_without_a_checkpoint_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        rw.Checkpoint([counter()]).restore(str(tmp_path))
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        rw.Checkpoint([counter()]).restore(str(tmp_path / "nowhere"))


def test_a_damaged_file_is_noticed_and_named(tmp_path: Path) -> None:
    v: Any = rw.Variable(np.ones(1000, np.float32), name="v")
    checkpoint = rw.Checkpoint([v])
    path = checkpoint.save(str(tmp_path))
    v.assign(np.full(1000, 2.0))
    file = Path(path) / "variables.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x7f")
    with pytest.raises(CheckpointError, match=r"variables\.safetensors"):
        checkpoint.restore(path)
    np.testing.assert_array_equal(v.read_value(), 2)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_another_shape_is_refused_before_anything_is_changed(tmp_path: Path, strategy: str) -> None:
    pair = [rw.Variable([5.0], name="a"), rw.Variable(np.ones((2, 3)), name="b")]
    path = rw.Checkpoint(pair).save(str(tmp_path))
    with STRATEGIES[strategy]().scope():
        a, b = rw.Variable([1.0], name="a"), rw.Variable(np.ones((3, 2)), name="b")
    with pytest.raises(ShapeMismatchError, match=r"'b' has shape \(2, 3\) there.*has \(3, 2\)"):
        rw.Checkpoint([a, b]).restore(path)
    np.testing.assert_array_equal(a.read_value(), 1)


def test_variables_it_does_not_have_keep_their_values(tmp_path: Path) -> None:
    rw.Checkpoint([rw.Variable([1.0], name="old"), rw.Variable([2.0], name="gone")]).save(
        str(tmp_path)
    )
    old, new = rw.Variable([0.0], name="old"), rw.Variable([7.0], name="new")
    rw.Checkpoint([old, new]).restore(str(tmp_path))
    assert (old[0], new[0]) == (1, 7)


def test_a_checkpoint_of_another_model_is_refused_with_both_lists(tmp_path: Path) -> None:
    rw.Checkpoint([rw.Variable([1.0], name="x"), rw.Variable([2.0], name="y")]).save(str(tmp_path))
    with pytest.raises(CheckpointError, match="has none of the variables a, b; it has x, y"):
        rw.Checkpoint([rw.Variable([0.0], name="b"), rw.Variable([0.0], name="a")]).restore(
            str(tmp_path)
        )


def test_names_are_unique_and_of_one_strategy() -> None:
    with pytest.raises(ValueError, match="two variables are named 'v'"):
        rw.Checkpoint([counter(), counter()])
    with mirrored(2).scope():
        theirs = rw.Variable([1.0], name="theirs")
    with pytest.raises(ValueError, match="belong to one strategy"):
        rw.Checkpoint([counter(), theirs])


def test_a_variable_may_be_named_like_a_slot_of_another(tmp_path: Path) -> None:
    def make() -> list[Any]:
        return [
            rw.Variable([1.0], name=name) for name in ("w", "w:momentum", "__metadata__", "0:w")
        ]

    first = make()
    optimizer = rw.optimizers.SGD(0.5, momentum=0.5)
    optimizer.apply_gradients([([i + 1.0], v) for i, v in enumerate(first)])
    rw.Checkpoint(first).save(str(tmp_path))
    second = make()
    rw.Checkpoint(second).restore(str(tmp_path))
    for variables in (first, second):
        optimizer.apply_gradients([([1.0], v) for v in variables])
    assert_same([v.numpy() for v in second], [v.numpy() for v in first])


@pytest.mark.parametrize("method", ["save", "restore"])
def test_replicas_do_not_save_or_restore(tmp_path: Path, method: str) -> None:
    model = Model(mirrored(2))
    checkpoint = rw.Checkpoint(model.variables)
    checkpoint.save(str(tmp_path))
    with pytest.raises(RuntimeError, match=f"Checkpoint.{method} requires being in cross-replica"):
        model.strategy.run(lambda: getattr(checkpoint, method)(str(tmp_path)))


def test_what_is_saved_is_of_one_moment_though_training_goes_on(tmp_path: Path) -> None:
    """Each value as a whole: another thread writes all elements at once."""
    v: Any = rw.Variable(np.zeros(50_000, np.float32), name="v")
    checkpoint = rw.Checkpoint([v])
    stop = threading.Event()

    def write() -> None:
        one = np.ones(50_000, np.float32)
        while not stop.is_set():
            v.assign_add(one)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for step in range(1, 6):
            value = CheckpointReader(checkpoint.save(str(tmp_path), step)).read("v")
            assert value.min() == value.max()
    finally:
        stop.set()
        writer.join(10)


# -- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["default", "mirrored-2", "ps"])
def test_an_iterator_goes_on_where_it_was(tmp_path: Path, strategy: str) -> None:
    def batches() -> tuple[Strategy, Any]:
        current = STRATEGIES[strategy]()
        data = from_arrays(np.arange(24), batch_size=4)
        return current, iter(current.experimental_distribute_dataset(data))

    def rest(current: Strategy, iterator: Any) -> list[list[int]]:
        return [
            np.concatenate(current.experimental_local_results(batch)).tolist() for batch in iterator
        ]

    current, iterator = batches()
    for _ in range(2):
        next(iterator)
    rw.Checkpoint([], data=iterator).save(str(tmp_path), 2)
    expected = rest(current, iterator)
    assert len(expected) == 4
    again, other = batches()
    assert rw.Checkpoint([], data=other).restore(str(tmp_path)) == 2
    assert rest(again, other) == expected


def test_a_generator_draws_on_where_it_was(tmp_path: Path) -> None:
    strategy = mirrored(2)
    noise = rw.random.Generator.from_seed(1)

    def draw(generator: rw.random.Generator) -> list[Array]:
        drawn = strategy.run(lambda: generator.normal((3,)))
        return list(strategy.experimental_local_results(drawn))

    draw(noise)
    with strategy.scope():
        v = rw.Variable([1.0], name="v")
    rw.Checkpoint([v], noise=noise).save(str(tmp_path))
    expected = draw(noise)
    other = rw.random.Generator.from_seed(99)
    rw.Checkpoint([v], noise=other).restore(str(tmp_path))
    assert_same(draw(other), expected)


def test_places_it_does_not_have_stay_where_they_are(tmp_path: Path) -> None:
    v = counter()
    rw.Checkpoint([v]).save(str(tmp_path))
    noise, twin = (rw.random.Generator.from_seed(1) for _ in range(2))
    rw.Checkpoint([v], noise=noise).restore(str(tmp_path))
    np.testing.assert_array_equal(noise.normal((3,)), twin.normal((3,)))


@pytest.mark.parametrize(
    ("saved", "dtype"), [(0.75, np.int64), (300, np.uint8)], ids=["float-to-int", "too-large"]
)
def test_numbers_a_variable_does_not_hold_are_not_restored_as_others(
    tmp_path: Path, saved: Any, dtype: Any
) -> None:
    path = rw.Checkpoint([rw.Variable(saved, name="v")]).save(str(tmp_path))
    v = rw.Variable(np.array(1, dtype), name="v")
    with pytest.raises(ShapeMismatchError, match="'v'"):
        rw.Checkpoint([v]).restore(path)
    assert v.numpy() == 1


def test_a_task_that_does_not_save_writes_nothing_though_it_reads_the_first_input(
    tmp_path: Path,
) -> None:
    strategy = OneDeviceStrategy("cpu:0")
    strategy.extended.should_checkpoint = False  # as of an evaluator
    with strategy.scope():
        variable = rw.Variable(np.zeros(2, np.float32), name="w")
    assert strategy.extended.input_pipeline_id == 0
    rw.Checkpoint([variable]).save(str(tmp_path), global_step=1)
    assert list(tmp_path.iterdir()) == []
