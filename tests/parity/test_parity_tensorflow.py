"""The same small program under ``tf.distribute`` and under ours: the same results, the same errors.

Needs TensorFlow, which nothing else of the suite does: ``make parity`` installs it and runs these.
Where we differ on purpose a test asserts what we do, and its docstring says what TensorFlow does.
"""

import copy
import json
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windlass as wl

if find_spec("tensorflow") is None:
    pytest.skip("needs TensorFlow: make parity", allow_module_level=True)

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]

DEVICES = 4
ERRORS: tuple[type[Exception], ...] = (
    NotImplementedError,  # before RuntimeError, which it is a kind of
    AssertionError,
    IndexError,
    KeyError,
    AttributeError,
    RuntimeError,
    TypeError,
    ValueError,
)


class Side:
    """What programs are written against, so that they run under TensorFlow and under Windlass.

    Attributes:
        root: ``tf`` or ``wl``.
        distribute: Its ``distribute``.
        sharded_variable: The class.
    """

    root: Any
    distribute: Any
    sharded_variable: Any

    def strategy(self, kind: str, replicas: int = 1) -> Any:
        """A strategy with ``replicas`` CPU devices."""
        distribute = self.distribute
        devices = [f"/cpu:{i}" for i in range(replicas)]
        if kind == "default":
            return distribute.get_strategy()
        if kind == "OneDevice":
            return distribute.OneDeviceStrategy("/cpu:0")
        if kind == "CentralStorage":
            central = distribute.experimental.CentralStorageStrategy
            return central(compute_devices=devices, parameter_device="/cpu:0")
        # TensorFlow's default, collective operations, would be spoilt for good by the first error
        # in one.
        return distribute.MirroredStrategy(devices, distribute.ReductionToOneDevice())

    def array(self, value: Any, dtype: str = "float32") -> Any:
        """An array of the framework."""
        raise NotImplementedError

    def variable(
        self, value: Any, *, synchronization: str = "AUTO", aggregation: str = "NONE", **more: Any
    ) -> Any:
        """A variable of the current strategy."""
        return self.root.Variable(
            value,
            synchronization=self.root.VariableSynchronization[synchronization],
            aggregation=self.root.VariableAggregation[aggregation],
            **more,
        )

    def slices(self, values: Any, indices: Any, rows: int) -> Any:
        """IndexedSlices of float32 rows."""
        raise NotImplementedError

    def numbers(self, count: int, batch: int, *, drop_remainder: bool = False) -> Any:
        """A dataset of ``range(count)`` in batches."""
        return self.root.data.Dataset.range(count).batch(batch, drop_remainder=drop_remainder)

    def pairs(self, count: int, batch: int) -> Any:
        """A dataset of ``({"x": row of two floats}, number)``, in batches."""
        return self.root.data.Dataset.from_tensor_slices(pairs(count)).batch(batch)

    def save(self, variable: Any, folder: Path) -> None:
        """Write a checkpoint of one variable."""
        raise NotImplementedError

    def restore(self, variable: Any, folder: Path) -> None:
        """Read it."""
        raise NotImplementedError

    def lookup(self, variable: Any, ids: Any) -> Any:
        """Rows of a sharded variable."""
        raise NotImplementedError

    def cluster_spec(self, cluster: Any) -> Any:
        """A ClusterSpec."""
        raise NotImplementedError

    def shape(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        """What partitioners are told of a variable."""
        raise NotImplementedError

    def kind_of(self, error: Exception) -> str:
        """The built-in error that it stands for."""
        kinds = [kind for kind in ERRORS if isinstance(error, kind)] or [type(error)]
        return kinds[0].__name__

    def plain(self, value: Any) -> Any:
        """A result as lists, dictionaries and arrays, distributed values with their kind."""
        if value is None or isinstance(value, str | bool):
            return value
        if isinstance(value, dict):
            return {key: self.plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value]
        if isinstance(value, self.root.IndexedSlices):
            return {"values": np.asarray(value.values), "indices": np.asarray(value.indices)}
        if hasattr(value, "read_value"):
            return {"variable": np.asarray(value.read_value())}
        if isinstance(value, self.distribute.DistributedValues):
            return {type(value).__name__: [self.plain(item) for item in value.values]}
        return np.asarray(value)


class Windlass(Side):
    """Ours."""

    def __init__(self) -> None:
        self.root = wl
        self.distribute = wl.distribute
        self.sharded_variable = wl.distribute.ShardedVariable

    def array(self, value: Any, dtype: str = "float32") -> Any:
        return np.asarray(value, dtype)

    def slices(self, values: Any, indices: Any, rows: int) -> Any:
        given = np.asarray(values, np.float32)
        return wl.IndexedSlices(given, np.asarray(indices, np.int64), (rows, *given.shape[1:]))

    def save(self, variable: Any, folder: Path) -> None:
        wl.Checkpoint([variable]).save(str(folder))

    def restore(self, variable: Any, folder: Path) -> None:
        wl.Checkpoint([variable]).restore(str(folder))

    def lookup(self, variable: Any, ids: Any) -> Any:
        return variable.embedding_lookup(ids)

    def cluster_spec(self, cluster: Any) -> Any:
        return wl.ClusterSpec(cluster)

    def shape(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        return shape, np.dtype(dtype)


class TensorFlow(Side):
    """Theirs."""

    def __init__(self, tf: Any) -> None:
        from tensorflow.python.distribute import sharded_variable

        self.root = tf
        self.distribute = tf.distribute
        self.sharded_variable = sharded_variable.ShardedVariable

    def array(self, value: Any, dtype: str = "float32") -> Any:
        return self.root.constant(value, dtype)

    def slices(self, values: Any, indices: Any, rows: int) -> Any:
        tf = self.root
        given = tf.constant(values, tf.float32)
        shape = tf.constant([rows, *given.shape[1:]], tf.int64)
        return tf.IndexedSlices(given, tf.constant(indices, tf.int64), shape)

    def save(self, variable: Any, folder: Path) -> None:
        self.root.train.Checkpoint(v=variable).write(str(folder / "checkpoint"))

    def restore(self, variable: Any, folder: Path) -> None:
        self.root.train.Checkpoint(v=variable).read(str(folder / "checkpoint"))

    def lookup(self, variable: Any, ids: Any) -> Any:
        return self.root.nn.embedding_lookup(variable, ids)

    def cluster_spec(self, cluster: Any) -> Any:
        return self.root.train.ClusterSpec(cluster)

    def shape(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Any]:
        return self.root.TensorShape(shape), self.root.as_dtype(dtype)

    def kind_of(self, error: Exception) -> str:
        if isinstance(error, self.root.errors.InvalidArgumentError):
            return "ValueError"
        if isinstance(error, self.root.errors.OutOfRangeError):
            return "StopIteration"
        return super().kind_of(error)


def pairs(count: int) -> Any:
    """What :meth:`Side.pairs` makes a dataset of."""
    return {"x": np.arange(2 * count, dtype=np.float32).reshape(count, 2)}, np.arange(count)


@pytest.fixture(scope="session")
def tf() -> Any:
    """TensorFlow with several CPU devices, and without a word on standard error."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import tensorflow
    cpu = tensorflow.config.list_physical_devices("CPU")[0]
    parts = [tensorflow.config.LogicalDeviceConfiguration() for _ in range(DEVICES)]
    tensorflow.config.set_logical_device_configuration(cpu, parts)
    tensorflow.get_logger().setLevel("ERROR")
    return tensorflow


Program = Callable[[Side], Any]
Outcome = dict[str, Any]
Same = Callable[[Program], Any]
Both = Callable[[Program], tuple[Outcome, Outcome]]


@pytest.fixture
def both(tf: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    """``theirs, ours = both(program)``: what it gave under TensorFlow and here, for what
    differs.
    """
    monkeypatch.delenv("TF_CONFIG", raising=False)
    monkeypatch.setattr("windlass.distribute.base.devices.count_gpus", lambda: 0)
    wl.config.set_logical_cpu_devices(DEVICES)
    yield lambda program: (outcome(TensorFlow(tf), program), outcome(Windlass(), program))
    wl.config.set_logical_cpu_devices(1)


@pytest.fixture
def same(both: Both) -> Same:
    """``same(program)``: run it under both, compare, return its result or the name of its error."""

    def compare(program: Program) -> Any:
        theirs, ours = both(program)
        message = f"TensorFlow: {theirs}, Windlass: {ours}"
        assert ours.keys() == theirs.keys(), message
        if "error" in theirs:
            assert ours["error"] == theirs["error"], message
            return ours["error"]
        assert_same(ours["value"], theirs["value"])
        return ours["value"]

    return compare


def outcome(side: Side, program: Program) -> Outcome:
    """What a program returned, or which kind of error it raised, and its words."""
    try:
        return {"value": side.plain(program(side))}
    except Exception as error:  # noqa: BLE001 - compared
        return {"error": side.kind_of(error), "words": str(error)}


def assert_same(ours: Any, theirs: Any, where: str = "result") -> None:
    """Same structure, kinds of numbers and values; float32 sums may differ in the order
    of adding.
    """
    message = f"{where}: TensorFlow {theirs!r}, Windlass {ours!r}"
    assert type(ours) is type(theirs), message
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys(), message
        for key in ours:
            assert_same(ours[key], theirs[key], f"{where}[{key!r}]")
    elif isinstance(ours, list):
        assert len(ours) == len(theirs), message
        for number, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(mine, other, f"{where}[{number}]")
    elif isinstance(ours, np.ndarray):
        assert ours.shape == theirs.shape, message
        assert ours.dtype.kind == theirs.dtype.kind, message
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, err_msg=message)
    else:
        assert ours == theirs, message


def distributed(side: Side, strategy: Any, *values: Any, dtype: str = "float32") -> Any:
    """One of ``values`` per replica."""
    arrays = [side.array(value, dtype) for value in values]
    return strategy.experimental_distribute_values_from_function(
        lambda context: arrays[context.replica_id_in_sync_group]
    )


def replica(side: Side) -> int:
    """Number of the current replica."""
    return int(side.distribute.get_replica_context().replica_id_in_sync_group)


def copies(variable: Any) -> list[Any]:
    """The value on every device."""
    return [np.asarray(component.read_value()) for component in variable.values]


# -- contexts: section by section, which strategy is current and on which side of it we are ---

STRATEGIES = [
    pytest.param("OneDevice", 1, id="OneDevice"),
    pytest.param("Mirrored", 1, id="Mirrored-1"),
    pytest.param("Mirrored", 3, id="Mirrored-3"),
    pytest.param("CentralStorage", 1, id="CentralStorage-1"),
    pytest.param("CentralStorage", 2, id="CentralStorage-2"),
]


def where(side: Side, strategy: Any) -> dict[str, Any]:
    """What the functions of the module say here."""
    distribute = side.distribute
    context = distribute.get_replica_context()
    return {
        "own": distribute.get_strategy() is strategy,
        "replica": None if context is None else str(int(context.replica_id_in_sync_group)),
        "cross": distribute.in_cross_replica_context(),
        "has": distribute.has_strategy(),
    }


def walk(side: Side, strategy: Any, seen: dict[str, Any]) -> None:
    """Note where we are in every context that run and merge_call open."""

    def note(name: str) -> None:
        seen[name] = where(side, strategy)

    def step(name: str) -> None:
        note(f"{name} {replica(side)}")

    def meet() -> None:
        context = side.distribute.get_replica_context()
        context.merge_call(lambda _: note("merge_call"))
        note(f"after merge_call {replica(side)}")

    note("outside")
    with strategy.scope():
        note("scope")
        strategy.run(step, args=("run in scope",))
        with strategy.scope():
            note("scope in scope")
        thread = threading.Thread(target=note, args=("thread",))
        thread.start()
        thread.join()
    strategy.run(step, args=("run",))
    strategy.run(meet)
    note("after all")


@pytest.mark.parametrize(("kind", "replicas"), [("default", 1), *STRATEGIES])
def test_contexts_are_the_same_everywhere(same: Same, kind: str, replicas: int) -> None:
    def program(side: Side) -> Any:
        seen: dict[str, Any] = {}
        walk(side, side.strategy(kind, replicas), seen)
        return seen

    assert len(same(program)) > 6


@pytest.mark.parametrize(("kind", "replicas"), STRATEGIES)
def test_contexts_of_update_are_the_same_everywhere(same: Same, kind: str, replicas: int) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy(kind, replicas)
        seen: list[Any] = []
        with strategy.scope():
            v = side.variable([1.0])

        def note(_: Any) -> None:
            seen.append(where(side, strategy))

        def update() -> None:
            strategy.extended.update(v, note)

        with strategy.scope():
            update()
        update()
        strategy.run(update)
        strategy.run(lambda: side.distribute.get_replica_context().merge_call(lambda _: update()))
        return seen

    assert len(same(program)) == 4 * (replicas if kind == "Mirrored" else 1)


def test_update_of_the_default_strategy_is_an_update_context_too(both: Both) -> None:
    """TensorFlow calls the function in the default replica context."""

    def program(side: Side) -> Any:
        strategy = side.strategy("default")
        return strategy.extended.update(side.variable([1.0]), lambda _: where(side, strategy))

    theirs, ours = both(program)
    assert theirs["value"]["replica"] == "0"
    assert ours["value"] == {"own": True, "replica": None, "cross": True, "has": False}


@pytest.mark.parametrize(("kind", "replicas"), STRATEGIES)
def test_a_strategy_set_for_good_is_current(same: Same, kind: str, replicas: int) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy(kind, replicas)
        side.distribute.experimental_set_strategy(strategy)
        try:
            seen = [where(side, strategy)]
            strategy.run(lambda: seen.append(where(side, strategy)) if not replica(side) else None)
        finally:
            side.distribute.experimental_set_strategy(None)
        return [*seen, where(side, strategy)]

    assert len(same(program)) == 3


@pytest.mark.parametrize(("kind", "replicas"), STRATEGIES)
def test_strategies_describe_themselves_alike(same: Same, kind: str, replicas: int) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy(kind, replicas)
        extended = strategy.extended
        return [
            strategy.num_replicas_in_sync,
            strategy.cluster_resolver is None,
            extended.experimental_require_static_shapes,
            [device.upper()[-5:] for device in extended.worker_devices],
            [device.upper()[-5:] for device in extended.parameter_devices],
        ]

    same(program)


# -- misuse: the same built-in error ----------------------------------------------------------

MISUSE: list[Any] = []


def misuse(expected: str) -> Callable[[Program], Program]:
    """Add a program to the table of those that must fail, with the kind of error."""

    def register(program: Program) -> Program:
        MISUSE.append(pytest.param(program, expected, id=program.__name__))
        return program

    return register


def in_replica(side: Side, function: Callable[[Any], Any]) -> None:
    """Call ``function(strategy)`` on the replicas."""
    strategy = side.strategy("Mirrored", 2)
    strategy.run(lambda: function(strategy))


@misuse("RuntimeError")
def scope_of_another_strategy(side: Side) -> None:
    with side.strategy("Mirrored", 2).scope(), side.strategy("OneDevice").scope():
        pass


@misuse("RuntimeError")
def scope_of_the_default_strategy_in_another(side: Side) -> None:
    default = side.strategy("default")
    with side.strategy("Mirrored", 2).scope(), default.scope():
        pass


@misuse("RuntimeError")
def own_scope_in_run(side: Side) -> None:
    in_replica(side, lambda strategy: strategy.scope().__enter__())


@misuse("RuntimeError")
def run_in_run(side: Side) -> None:
    in_replica(side, lambda strategy: strategy.run(lambda: 1))


@misuse("RuntimeError")
def run_in_run_of_one_device(side: Side) -> None:
    strategy = side.strategy("OneDevice")
    strategy.run(lambda: strategy.run(lambda: 1))


@misuse("RuntimeError")
def run_in_run_of_the_default_strategy(side: Side) -> None:
    strategy = side.strategy("default")
    strategy.run(lambda: strategy.run(lambda: 1))


@misuse("RuntimeError")
def reduce_in_replica(side: Side) -> None:
    in_replica(side, lambda strategy: strategy.reduce("SUM", side.array([1.0]), axis=None))


@misuse("RuntimeError")
def gather_in_replica(side: Side) -> None:
    in_replica(side, lambda strategy: strategy.gather(side.array([1.0]), axis=0))


@misuse("RuntimeError")
def reduce_to_in_replica(side: Side) -> None:
    op = side.distribute.ReduceOp.SUM
    in_replica(side, lambda s: s.extended.reduce_to(op, side.array([1.0]), "/cpu:0"))


@misuse("RuntimeError")
def batch_reduce_to_in_replica(side: Side) -> None:
    op = side.distribute.ReduceOp.SUM
    in_replica(side, lambda s: s.extended.batch_reduce_to(op, [(side.array([1.0]), "/cpu:0")]))


@misuse("RuntimeError")
def set_strategy_in_scope(side: Side) -> None:
    strategy = side.strategy("Mirrored", 2)
    with strategy.scope():
        side.distribute.experimental_set_strategy(strategy)


@misuse("RuntimeError")
def set_strategy_in_run(side: Side) -> None:
    in_replica(side, side.distribute.experimental_set_strategy)


@misuse("RuntimeError")
def merge_call_of_a_stale_context(side: Side) -> None:
    kept: list[Any] = []
    in_replica(side, lambda _: kept.append(side.distribute.get_replica_context()))
    kept[0].merge_call(lambda _: None)


@misuse("RuntimeError")
def all_reduce_of_a_stale_context(side: Side) -> None:
    kept: list[Any] = []
    in_replica(side, lambda _: kept.append(side.distribute.get_replica_context()))
    kept[0].all_reduce("SUM", side.array([1.0]))


@misuse("RuntimeError")
def merge_call_on_one_replica_alone(side: Side) -> None:
    def step(_: Any) -> None:
        if replica(side) == 0:
            side.distribute.get_replica_context().merge_call(lambda _: None)

    in_replica(side, step)


@misuse("RuntimeError")
def merge_call_once_more_on_one_replica(side: Side) -> None:
    def step(_: Any) -> None:
        context = side.distribute.get_replica_context()
        context.merge_call(lambda _: None)
        if replica(side) == 1:
            context.merge_call(lambda _: None)

    in_replica(side, step)


@misuse("KeyError")
def error_of_one_replica(side: Side) -> None:
    def step(_: Any) -> None:
        if replica(side) == 1:
            raise KeyError("mine")

    in_replica(side, step)


@misuse("KeyError")
def error_in_merge_call(side: Side) -> None:
    def merge(_: Any) -> None:
        raise KeyError("mine")

    in_replica(side, lambda _: side.distribute.get_replica_context().merge_call(merge))


@misuse("RuntimeError")
def copy_of_a_strategy(side: Side) -> None:
    copy.copy(side.strategy("Mirrored", 2))


@misuse("RuntimeError")
def copy_of_the_default_strategy(side: Side) -> None:
    copy.copy(side.strategy("default"))


@misuse("RuntimeError")
def worker_devices_of_the_default_strategy(side: Side) -> Any:
    return side.strategy("default").extended.worker_devices


@misuse("RuntimeError")
def parameter_devices_of_the_default_strategy(side: Side) -> Any:
    return side.strategy("default").extended.parameter_devices


@misuse("AssertionError")
def a_device_twice(side: Side) -> None:
    side.distribute.MirroredStrategy(["/cpu:0", "/cpu:0"])


@misuse("ValueError")
def colocation_with_a_variable_of_another_strategy(side: Side) -> None:
    with side.strategy("Mirrored", 2).scope():
        v = side.variable([1.0])
    other = side.strategy("Mirrored", 2)
    with other.scope(), other.extended.colocate_vars_with(v):
        side.variable([1.0])


@misuse("ValueError")
def synchronization_none(side: Side) -> None:
    with side.strategy("Mirrored", 2).scope():
        side.variable([1.0], synchronization="NONE")


@misuse("ValueError")
def aggregation_mean_of_integers(side: Side) -> None:
    with side.strategy("Mirrored", 2).scope():
        side.variable(np.array([1]), aggregation="MEAN")


@misuse("ValueError")
def negative_packs(side: Side) -> None:
    side.distribute.NcclAllReduce(-1)


@misuse("ValueError")
def negative_packs_of_copies(side: Side) -> None:
    side.distribute.HierarchicalCopyAllReduce(-1)


@misuse("ValueError")
def negative_bytes_per_pack(side: Side) -> None:
    side.distribute.experimental.CommunicationOptions(bytes_per_pack=-1)


@misuse("ValueError")
def an_unknown_implementation(side: Side) -> None:
    side.distribute.experimental.CommunicationOptions(implementation="carrier pigeon")


@misuse("NotImplementedError")
def a_pipeline_per_replica_of_one_dataset(side: Side) -> None:
    mode = side.distribute.InputReplicationMode.PER_REPLICA
    options = side.distribute.InputOptions(experimental_replication_mode=mode)
    side.strategy("Mirrored", 2).experimental_distribute_dataset(side.numbers(4, 2), options)


@misuse("ValueError")
def next_in_run(side: Side) -> None:
    strategy = side.strategy("Mirrored", 2)
    iterator = iter(strategy.experimental_distribute_dataset(side.numbers(8, 4)))
    strategy.run(lambda: next(iterator))


@misuse("ValueError")
def shapes_that_differ(side: Side) -> None:
    strategy = side.strategy("Mirrored", 2)
    strategy.reduce("SUM", distributed(side, strategy, [1.0], [2.0, 3.0]), axis=None)


@misuse("AssertionError")
def reduce_to_a_list(side: Side) -> None:
    strategy = side.strategy("Mirrored", 2)
    value = distributed(side, strategy, [1.0], [2.0])
    strategy.extended.reduce_to(side.distribute.ReduceOp.SUM, value, ["/cpu:0"])


@misuse("TypeError")
def length_of_per_replica(side: Side) -> Any:
    return len(distributed(side, side.strategy("Mirrored", 2), [1.0], [2.0]))


@misuse("TypeError")
def element_of_per_replica(side: Side) -> Any:
    return distributed(side, side.strategy("Mirrored", 2), [1.0], [2.0])[0]


@misuse("TypeError")
def per_replica_plus_one(side: Side) -> Any:
    return distributed(side, side.strategy("Mirrored", 2), [1.0], [2.0]) + 1


@misuse("TypeError")
def a_union_of_what_is_no_resolver(side: Side) -> None:
    side.distribute.cluster_resolver.UnionResolver(side.cluster_spec(TWO))


@pytest.mark.parametrize(("program", "expected"), MISUSE)
def test_misuse_is_the_same_kind_of_error(same: Same, program: Program, expected: str) -> None:
    assert same(program) == expected


@pytest.mark.parametrize("args", [1, "x", None, {}], ids=repr)
def test_positional_arguments_are_a_list_or_tuple(same: Same, args: Any) -> None:
    program = lambda side: side.strategy("Mirrored", 2).run(lambda: None, args=args)  # noqa: E731
    assert same(program) == "ValueError"


@pytest.mark.parametrize("name", ["scope", "run"])
def test_inside_the_default_strategys_run_another_strategy_may_be_used(
    same: Same, name: str
) -> None:
    def program(side: Side) -> Any:
        strategy, default = side.strategy("Mirrored", 2), side.strategy("default")

        def use() -> None:
            if name == "run":
                strategy.run(lambda: None)
            else:
                with strategy.scope():
                    pass

        return default.run(use)

    assert same(program) is None


def test_a_strategy_cannot_be_deep_copied_and_the_default_one_stays_itself(both: Both) -> None:
    """TensorFlow 2.21 copies a strategy, for some tests of Keras, and fails on the default one."""

    def of(kind: str) -> Program:
        def program(side: Side) -> Any:
            strategy = side.strategy(kind, 2)
            return copy.deepcopy(strategy) is strategy

        return program

    theirs, ours = both(of("Mirrored"))
    assert (theirs.get("value"), ours.get("error")) == (False, "RuntimeError")
    theirs, ours = both(of("default"))
    assert (theirs.get("error"), ours.get("value")) == ("RuntimeError", True)


def test_values_per_replica_are_made_in_cross_replica_context(both: Both) -> None:
    """TensorFlow makes them on a replica too, one structure of all replicas' values on each."""

    def program(side: Side) -> None:
        make = "experimental_distribute_values_from_function"
        in_replica(side, lambda strategy: getattr(strategy, make)(lambda _: side.array([1.0])))

    theirs, ours = both(program)
    assert "value" in theirs
    assert ours["error"] == "RuntimeError"


def test_replicas_results_of_different_structure_are_a_value_error(both: Both) -> None:
    """TensorFlow fails an assertion."""

    def program(side: Side) -> Any:
        return side.strategy("Mirrored", 2).run(lambda: [1] * (1 + replica(side)))

    theirs, ours = both(program)
    assert (theirs["error"], ours["error"]) == ("AssertionError", "ValueError")


@pytest.mark.parametrize("op", [None, 1], ids=repr)
def test_what_is_no_op_at_all_is_a_value_error(both: Both, op: Any) -> None:
    """TensorFlow fails an assertion; in all_reduce it takes whatever is not MEAN for SUM."""

    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        return strategy.reduce(op, distributed(side, strategy, [1.0], [2.0]), axis=None)

    theirs, ours = both(program)
    assert (theirs["error"], ours["error"]) == ("AssertionError", "ValueError")


def test_a_device_that_is_not_here_is_refused_at_once(both: Both) -> None:
    """TensorFlow makes the strategy, and fails when it is first used."""
    theirs, ours = both(lambda side: side.distribute.MirroredStrategy(["/cpu:77"]) and None)
    assert "value" in theirs
    assert ours["error"] == "ValueError"


def test_variables_of_another_strategy_are_not_updated(both: Both) -> None:
    """TensorFlow calls the function if the variable belongs to another MirroredStrategy."""

    def program(side: Side) -> Any:
        own, other = side.strategy("Mirrored", 2), side.strategy("Mirrored", 2)
        with own.scope():
            v = side.variable([1.0])
        return other.extended.update(v, lambda _: None)

    theirs, ours = both(program)
    assert "value" in theirs
    assert ours["error"] == "ValueError"


@pytest.mark.parametrize(
    "asked",
    [{"aggregation": "MEAN"}, {"synchronization": "NONE"}],
    ids=["mean-of-integers", "synchronization-none"],
)
def test_what_no_strategy_allows_is_refused_by_the_default_one_too(
    both: Both, asked: dict[str, str]
) -> None:
    """TensorFlow notices it only when the program is run under a strategy of several devices."""
    theirs, ours = both(lambda side: side.variable(np.array([1]), **asked))
    assert "value" in theirs
    assert ours["error"] == "ValueError"


def test_a_dataset_of_single_examples_says_to_batch(both: Both) -> None:
    """TensorFlow promises the same, and an IndexError gets out of it (since 2.15 at least)."""

    def program(side: Side) -> Any:
        data = (
            wl.data.as_dataset(lambda: iter(np.arange(4)))
            if isinstance(side, Windlass)
            else side.root.data.Dataset.range(4)
        )
        return list(side.strategy("Mirrored", 2).experimental_distribute_dataset(data))

    theirs, ours = both(program)
    assert theirs["error"] == "IndexError"
    assert ours["error"] == "ValueError"
    assert "Call the `batch` method" in ours["words"]


# -- reduce, gather, all_reduce, all_gather ---------------------------------------------------

OPS = ["SUM", "MEAN"]
UNEVEN = [np.arange(6).reshape(3, 2), np.arange(2).reshape(1, 2), np.zeros((0, 2))]


@pytest.mark.parametrize("op", ["sum", "Mean", "MEAN", "max", ""])
def test_ops_are_named_in_any_case(same: Same, op: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        value = distributed(side, strategy, [1.0], [2.0])
        return [
            strategy.reduce(op, value, axis=None),
            strategy.extended.reduce_to(op, value, "/cpu:0"),
            strategy.run(
                lambda x: side.distribute.get_replica_context().all_reduce(op, x), args=(value,)
            ),
        ]

    same(program)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("axis", [None, 0], ids=["replicas", "axis-0"])
@pytest.mark.parametrize("op", OPS)
def test_reduce_gives_the_same_numbers(same: Same, op: str, axis: int | None, dtype: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 3)
        value = distributed(side, strategy, [1, 5], [2, 6], [4, 9], dtype=dtype)
        return strategy.reduce(op, value, axis=axis)

    same(program)


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_the_mean_of_integers_is_float64(same: Same, dtype: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        mean = strategy.reduce("MEAN", distributed(side, strategy, 1, 2, dtype=dtype), axis=None)
        return [mean, np.asarray(mean).dtype.name]

    assert same(program)[1] == "float64"


@pytest.mark.parametrize(
    "axis",
    [0, 1, -1, -2, 2, -3, (0,), (0, 1), (1, 0), (-1,), (0, 5), (), [0], 0.5, "x"],
    ids=repr,
)
@pytest.mark.parametrize("op", OPS)
def test_reduce_of_uneven_batches_over_any_axis_is_the_same(same: Same, op: str, axis: Any) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 3)
        return strategy.reduce(op, distributed(side, strategy, *UNEVEN), axis=axis)

    same(program)


@pytest.mark.parametrize("axis", [None, 0, 1], ids=repr)
@pytest.mark.parametrize("kind", ["number", "array", "mirrored"])
def test_the_mean_of_what_is_not_distributed_is_the_same(
    same: Same, kind: str, axis: int | None
) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        value: Any = {"number": 2.5, "array": side.array([1.0, 2.0])}.get(kind)
        if kind == "mirrored":
            per_replica = distributed(side, strategy, [1.0], [2.0])
            value = strategy.extended.reduce_to("SUM", per_replica, per_replica)
        return strategy.reduce("MEAN", value, axis=axis)

    same(program)


@pytest.mark.parametrize("value", [1, 2.5, [1.0, 2.0]], ids=repr)
def test_the_sum_of_what_is_not_distributed_is_a_value_error(same: Same, value: Any) -> None:
    def program(side: Side) -> Any:
        given = side.array(value) if isinstance(value, list) else value
        return side.strategy("Mirrored", 2).reduce("SUM", given, axis=None)

    assert same(program) == "ValueError"


def test_the_sum_of_what_is_not_distributed_is_ambiguous_over_an_axis_too(both: Both) -> None:
    """TensorFlow then counts it once for each replica."""

    def program(side: Side) -> Any:
        return side.strategy("Mirrored", 2).reduce("SUM", side.array([1.0, 2.0]), axis=0)

    theirs, ours = both(program)
    assert theirs["value"] == 6
    assert ours["error"] == "ValueError"


@pytest.mark.parametrize("value", [0, [0.0, 0.0]], ids=repr)
def test_zeros_add_up_to_zeros(both: Both, value: Any) -> None:
    """TensorFlow means to allow it, and fails: on a number by an AttributeError."""

    def program(side: Side) -> Any:
        given = side.array(value) if isinstance(value, list) else value
        return side.strategy("Mirrored", 2).reduce("SUM", given, axis=None)

    theirs, ours = both(program)
    assert theirs["error"] in ("AttributeError", "ValueError")
    assert not np.any(ours["value"])


def test_the_sum_of_what_is_mirrored_is_a_value_error(both: Both) -> None:
    """TensorFlow fails an assertion without a word."""

    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        value = distributed(side, strategy, [1.0], [2.0])
        mirrored = strategy.extended.reduce_to("SUM", value, value)
        return strategy.reduce("SUM", mirrored, axis=None)

    theirs, ours = both(program)
    assert (theirs["error"], ours["error"]) == ("AssertionError", "ValueError")


def test_structures_are_reduced_leaf_by_leaf(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        value = distributed(side, strategy, [1.0], [2.0])
        return strategy.reduce("SUM", {"a": value, "b": (value, [value])}, axis=None)

    same(program)


@pytest.mark.parametrize("op", OPS)
def test_indexed_slices_are_concatenated(same: Same, op: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        rows = [side.slices([[1.0]], [0], 3), side.slices([[2.0], [4.0]], [1, 0], 3)]
        value = strategy.experimental_distribute_values_from_function(
            lambda context: rows[context.replica_id_in_sync_group]
        )
        context = side.distribute.get_replica_context
        return [
            strategy.reduce(op, value, axis=None),
            strategy.run(lambda: context().all_reduce(op, rows[replica(side)])),
        ]

    same(program)


GATHERED = [
    pytest.param([np.ones((2, 2)), np.zeros((2, 2))], id="even"),
    pytest.param([np.ones((2, 2)), np.zeros((1, 2))], id="rows-differ"),
    pytest.param([np.ones((2, 2)), np.zeros((2, 1))], id="columns-differ"),
    pytest.param([np.ones((2, 2)), np.zeros((0, 2))], id="one-is-empty"),
    pytest.param([np.ones((2, 2)), np.ones(2)], id="ranks-differ"),
    pytest.param([1.0, 2.0], id="scalars"),
]


@pytest.mark.parametrize("values", GATHERED)
@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_gather_and_all_gather_are_the_same(same: Same, axis: int, values: list[Any]) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        return strategy.gather(distributed(side, strategy, *values), axis=axis)

    def on_replicas(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        return strategy.run(
            lambda x: side.distribute.get_replica_context().all_gather(x, axis),
            args=(distributed(side, strategy, *values),),
        )

    same(program)
    same(on_replicas)


def test_gather_takes_what_is_not_distributed_once_for_each_replica(both: Both) -> None:
    """TensorFlow gives it back as it is, as if there were one replica."""

    def program(side: Side) -> Any:
        return side.strategy("Mirrored", 2).gather(side.array([1.0, 2.0]), axis=0)

    theirs, ours = both(program)
    assert theirs["value"].tolist() == [1, 2]
    assert ours["value"].tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("dtype", ["float32", "int64"])
@pytest.mark.parametrize("op", OPS)
def test_all_reduce_gives_every_replica_the_same(same: Same, op: str, dtype: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 3)
        context = side.distribute.get_replica_context
        value = distributed(side, strategy, [1], [2], [6], dtype=dtype)
        results = strategy.run(
            lambda x: context().all_reduce(op, {"a": x, "b": [x, x]}), args=(value,)
        )
        return [results, strategy.experimental_local_results(results)]

    assert len(same(program)[1]) == 3


def test_an_object_all_replicas_share_counts_once_for_each(both: Both) -> None:
    """TensorFlow takes what is the very same object everywhere for one value, and does not add it
    up.
    """

    def program(side: Side) -> Any:
        shared = side.array([5.0])
        context = side.distribute.get_replica_context
        strategy = side.strategy("Mirrored", 2)
        return [
            strategy.run(lambda: context().all_reduce("SUM", shared)),
            strategy.run(lambda: context().all_gather(shared, 0)),
        ]

    theirs, ours = both(program)
    assert [v.tolist() for v in theirs["value"][0]["PerReplica"]] == [[5], [5]]
    assert [v.tolist() for v in theirs["value"][1]["PerReplica"]] == [[5], [5]]
    assert [v.tolist() for v in ours["value"][0]["PerReplica"]] == [[10], [10]]
    assert [v.tolist() for v in ours["value"][1]["PerReplica"]] == [[5, 5], [5, 5]]


@pytest.mark.parametrize("kind", ["default", "OneDevice"])
def test_with_one_replica_everything_is_the_value(same: Same, kind: str) -> None:
    def program(side: Side) -> Any:
        strategy, x = side.strategy(kind), side.array([1.0, 2.0])
        context = side.distribute.get_replica_context
        return [
            strategy.run(lambda: x),
            strategy.reduce("SUM", x, axis=None),
            strategy.reduce("SUM", x, axis=0),
            strategy.reduce("MEAN", x, axis=0),
            strategy.gather(x, axis=0),
            strategy.experimental_local_results(x),
            strategy.experimental_distribute_values_from_function(lambda _: x),
            strategy.run(lambda: context().all_reduce("SUM", x)),
            strategy.run(lambda: context().all_gather(x, 0)),
            strategy.run(lambda: context().merge_call(lambda _, y: y * 2.0, args=(x,))),
        ]

    same(program)


@pytest.mark.parametrize("op", OPS)
def test_reduce_to_and_batch_reduce_to_are_the_same(same: Same, op: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        extended, reduce_op = strategy.extended, side.distribute.ReduceOp[op]
        with strategy.scope():
            v = side.variable([1.0, 2.0])
        value = distributed(side, strategy, [1.0, 2.0], [3.0, 5.0])
        return [
            extended.reduce_to(reduce_op, value, v),
            extended.reduce_to(reduce_op, value, value),
            extended.reduce_to(reduce_op, value, "/cpu:1"),
            extended.batch_reduce_to(reduce_op, [(value, v), (value, "/cpu:0")]),
        ]

    same(program)


# -- values: run's results, merge_call, local results -----------------------------------------


def test_results_of_run_are_regrouped_alike(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy, shared = side.strategy("Mirrored", 2), side.array([1.0])

        def step() -> Any:
            mine = side.array(float(replica(side)))
            return {"same": shared, "none": None, "word": "a", "list": [mine, shared], "1": (mine,)}

        return strategy.run(step)

    assert same(program)["word"] == "a"


def test_arguments_of_run_are_taken_apart_alike(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        value, plain = distributed(side, strategy, [1.0], [2.0]), side.array([7.0])

        def step(a: Any, b: Any, c: Any = None, d: Any = None) -> Any:
            return [a, b["x"][0] + plain, c, d]

        return strategy.run(step, args=(value, {"x": [value]}), kwargs={"c": value, "d": "word"})

    same(program)


def test_merge_call_gets_and_gives_the_same(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy, shared = side.strategy("Mirrored", 2), side.array([7.0])
        seen: dict[str, Any] = {}

        def merge(current: Any, a: Any, b: Any, c: Any, *, d: Any, e: str) -> Any:
            seen["strategy"] = current is strategy
            seen["arguments"] = side.plain([a, b, c, d, e])
            return {"mine": a, "number": 3, "list": [shared, a], "none": None}

        def step(x: Any) -> Any:
            context = side.distribute.get_replica_context()
            answer = context.merge_call(
                merge, args=(x, shared, [x, {"k": x}]), kwargs={"d": x, "e": "word"}
            )
            return [answer[key] for key in sorted(answer)]

        value = distributed(side, strategy, [1.0], [2.0])
        return [strategy.run(step, args=(value,)), seen]

    same(program)


def test_merge_call_that_answers_mirrored_gives_each_replica_its_part(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        value = distributed(side, strategy, [1.0], [2.0])
        op = side.distribute.ReduceOp.SUM

        def step(x: Any) -> Any:
            context = side.distribute.get_replica_context()
            return context.merge_call(lambda s, y: s.extended.reduce_to(op, y, y), args=(x,))

        return strategy.run(step, args=(value,))

    assert list(same(program)) == ["PerReplica"]


def test_a_variable_goes_through_run_and_merge_call_as_itself(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        with strategy.scope():
            v = side.variable([1.0, 2.0])
        seen: list[bool] = []

        def step(x: Any) -> Any:
            context = side.distribute.get_replica_context()
            context.merge_call(lambda _, y: seen.append(y is v), args=(x,))
            return x

        return [strategy.run(step, args=(v,)) is v, strategy.run(lambda: v) is v, seen]

    assert same(program) == [True, True, [True]]


def test_local_results_are_the_same(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        value = distributed(side, strategy, [1.0], [2.0])
        with strategy.scope():
            v = side.variable([1.0])
        local = strategy.experimental_local_results
        return [
            local(value),
            local(side.array([1.0])),
            local({"a": value, "b": 1}),
            local((value, [value])),
            local(None),
            len(local(v)),
        ]

    same(program)


def test_a_structure_without_distributed_values_is_one_local_result(both: Both) -> None:
    """TensorFlow repeats a list or dictionary for every replica, and nothing else."""
    theirs, ours = both(
        lambda side: len(side.strategy("Mirrored", 2).experimental_local_results([1, 2]))
    )
    assert (theirs["value"], ours["value"]) == (2, 1)


def test_values_from_a_function_are_the_same(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy, shared = side.strategy("Mirrored", 3), side.array([1.0])
        make = strategy.experimental_distribute_values_from_function
        return [
            make(
                lambda context: side.array(
                    [context.replica_id_in_sync_group, context.num_replicas_in_sync]
                )
            ),
            make(lambda _: shared),
            make(
                lambda context: {"a": side.array(context.replica_id_in_sync_group), "b": [shared]}
            ),
        ]

    same(program)


@pytest.mark.parametrize("group", [True, False], ids=["grouped", "not-grouped"])
def test_update_splits_arguments_and_groups_results_alike(same: Same, group: bool) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        with strategy.scope():
            v = side.variable([1.0, 2.0])
        value = distributed(side, strategy, [1.0, 1.0], [2.0, 2.0])

        def change(component: Any, x: Any, k: Any = None) -> Any:
            component.assign_add(x)
            return x + k

        with strategy.scope():
            result = strategy.extended.update(
                v, change, args=(value,), kwargs={"k": side.array(10.0)}, group=group
            )
        return [result, copies(v)]

    same(program)


# -- input ------------------------------------------------------------------------------------

INPUT = [
    # elements, batch, replicas, drop_remainder
    (8, 4, 2, False), (7, 4, 2, False), (7, 4, 3, False), (7, 3, 2, True), (1, 4, 4, False),
    (5, 4, 4, False), (10, 4, 3, False), (3, 2, 3, False), (0, 2, 2, False), (9, 7, 4, False),
    (8, 4, 1, False), (6, 6, 4, True), (12, 5, 2, False), (4, 3, 4, False), (2, 1, 3, False),
    (4, 1, 2, False), (13, 6, 4, True), (3, 8, 3, False), (16, 8, 4, False), (11, 5, 3, True),
]  # fmt: skip


SPLITS = [(kind, *sizes) for kind in ("Mirrored", "CentralStorage") for sizes in INPUT]


@pytest.mark.parametrize(("kind", "count", "batch", "replicas", "drop"), SPLITS, ids=str)
def test_batches_are_split_alike(
    same: Same, kind: str, count: int, batch: int, replicas: int, drop: bool
) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy(kind, replicas)
        data = strategy.experimental_distribute_dataset(
            side.numbers(count, batch, drop_remainder=drop)
        )
        return [strategy.experimental_local_results(step) for step in data]

    same(program)


@pytest.mark.parametrize(("size", "replicas"), [(8, 2), (7, 2), (0, 3), (6, 3)], ids=str)
def test_the_global_batch_is_divided_by_an_input_context_alike(
    same: Same, size: int, replicas: int
) -> None:
    def program(side: Side) -> Any:
        context = side.distribute.InputContext(2, 1, replicas)
        return [str(context), context.get_per_replica_batch_size(size)]

    same(program)


def test_structures_of_batches_are_split_alike(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        data = strategy.experimental_distribute_dataset(side.pairs(5, 3))
        return [strategy.experimental_local_results(step) for step in data]

    assert len(same(program)) == 2


@pytest.mark.parametrize("repeated", ["batches", "elements"])
def test_epochs_are_cut_alike(same: Same, repeated: str) -> None:
    def program(side: Side) -> Any:
        numbers = side.root.data.Dataset.range(5)
        data = numbers.batch(4).repeat(2) if repeated == "batches" else numbers.repeat(2).batch(4)
        strategy = side.strategy("Mirrored", 2)
        return [
            strategy.experimental_local_results(step)
            for step in strategy.experimental_distribute_dataset(data)
        ]

    same(program)


def test_without_sharding_batches_are_cut_as_with_it(both: Both) -> None:
    """TensorFlow then puts batches of known size end to end, and fills replicas in order."""

    def program(side: Side) -> Any:
        options = side.root.data.Options()
        policies = (
            side.root.data.experimental.AutoShardPolicy
            if isinstance(side, TensorFlow)
            else (side.root.data.AutoShardPolicy)
        )
        options.experimental_distribute.auto_shard_policy = policies.OFF
        strategy = side.strategy("Mirrored", 2)
        data = side.numbers(6, 4).with_options(options)
        steps = strategy.experimental_distribute_dataset(data)
        return [[len(x) for x in strategy.experimental_local_results(step)] for step in steps]

    theirs, ours = both(program)
    assert theirs["value"] == [[2, 2], [2, 0]]
    assert ours["value"] == [[2, 2], [1, 1]]


DATASETS: dict[str, Callable[[Any], Any]] = {
    "range": lambda d: d.range(10, 2, -3),
    "slices": lambda d: d.from_tensor_slices({"x": np.ones((3, 2), "f4"), "y": (np.arange(3),)}),
    "slices-of-lists": lambda d: d.from_tensor_slices(([1.0, 2.0], [[3.0], [4.0]])),
    "tensors": lambda d: d.from_tensors((np.arange(3), np.ones(2))),
    "generator": lambda d: d.from_generator(
        lambda n: iter(range(int(n))), args=(3,), output_signature=d.range(1).element_spec
    ),
    "take": lambda d: d.range(5).take(3),
    "take-all": lambda d: d.range(5).take(-1),
    "skip": lambda d: d.range(5).skip(3),
    "skip-all": lambda d: d.range(5).skip(-1),
    "shard": lambda d: d.range(7).shard(3, 1),
    "repeat": lambda d: d.range(2).repeat(2),
    "repeat-forever": lambda d: d.range(3).repeat(),
    "repeat-minus-three": lambda d: d.range(3).repeat(-3),
    "repeat-never": lambda d: d.range(3).repeat(0),
    "batch": lambda d: d.range(5).batch(2),
    "batch-dropped": lambda d: d.range(5).batch(2, drop_remainder=True),
    "batch-of-rows": lambda d: d.from_tensor_slices(np.ones((5, 3), "f4")).batch(2, True),
    "batches-of-batches": lambda d: d.range(8).batch(2, True).batch(3),
    "unbatch": lambda d: d.range(5).batch(2).unbatch(),
    "map": lambda d: d.range(3).map(lambda x: (x, x * 2)).map(lambda x, y: {"s": x + y}),
    "map-parallel": lambda d: d.range(3).map(lambda x: x, num_parallel_calls=2, deterministic=True),
    "filter": lambda d: d.range(5).filter(lambda x: x % 2 == 0),
    "filter-repeat": lambda d: d.range(5).filter(lambda x: x % 2 == 0).repeat(),
    "filter-parts": lambda d: d.zip(d.range(3), d.range(3)).filter(lambda x, y: x + y > 1),
    "enumerate": lambda d: d.range(10, 12).enumerate(5),
    "enumerate-batches": lambda d: d.range(3).batch(2).enumerate(),
    "concatenate": lambda d: d.range(2).concatenate(d.range(5, 7)),
    "concatenate-endless": lambda d: d.range(2).concatenate(d.range(2).repeat()),
    "zip": lambda d: d.zip({"a": d.range(3), "b": (d.range(3), d.range(5))}),
    "zip-arguments": lambda d: d.zip(d.range(3), d.range(2)),
    "zip-endless": lambda d: d.zip((d.range(3).repeat(), d.range(2).repeat())),
    "cache": lambda d: d.range(3).cache(),
    "prefetch": lambda d: d.range(3).prefetch(-1),
    "apply": lambda d: d.range(3).apply(lambda data: data.batch(2)),
    "in-one-order": lambda d: d.range(3).shuffle(1, seed=2, reshuffle_each_iteration=False),
}


@pytest.mark.parametrize("make", DATASETS.values(), ids=list(DATASETS))
def test_datasets_have_the_same_elements_cardinality_and_spec(
    same: Same, make: Callable[[Any], Any]
) -> None:
    def program(side: Side) -> Any:
        data = make(side.root.data.Dataset)
        size = int(data.cardinality())
        specs = data.element_spec
        while isinstance(specs, dict | tuple) and not hasattr(specs, "dtype"):
            specs = next(iter(specs.values())) if isinstance(specs, dict) else specs[-1]
        spec = (
            f"{tuple(specs.shape)} {np.dtype(getattr(specs.dtype, 'as_numpy_dtype', specs.dtype))}"
        )
        return [
            list(data.take(9).as_numpy_iterator()),
            size,
            bool(data),
            len(data) if size >= 0 else -1,
            spec,
        ]

    same(program)


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("buffer", [2, 9])
def test_what_is_shuffled_has_another_order_each_time_or_always_the_same(
    same: Same, buffer: int, seed: int | None
) -> None:
    """Other orders than TensorFlow's."""

    def program(side: Side) -> Any:
        plain = side.root.data.Dataset.range(40)
        anew, once = (plain.shuffle(buffer, seed, flag) for flag in (True, False))
        orders = [
            list(map(int, d.as_numpy_iterator())) for d in (anew, anew, once, once, anew.repeat(1))
        ]
        near = all(x < place + buffer for order in orders for place, x in enumerate(order))
        sets = [sorted(order) == list(range(40)) for order in orders]
        return [near, sets, orders[0] != orders[1], orders[2] == orders[3], orders[4] in orders[:2]]

    assert same(program)[2:] == [True, True, False]


@pytest.mark.parametrize(
    "wrong",
    [
        lambda d: d.range(),
        lambda d: d.zip(3),
        lambda d: d.from_tensor_slices((np.ones(3), np.ones(2))),
        lambda d: d.from_tensor_slices(3),
        lambda d: len(d.range(3).repeat()),
        lambda d: len(d.range(3).filter(lambda x: x > 1)),
    ],
    ids=["range", "zip", "lengths", "scalar", "infinite", "unknown"],
)
def test_datasets_refuse_alike(both: Both, wrong: Callable[[Any], Any]) -> None:
    theirs, ours = both(lambda side: wrong(side.root.data.Dataset))
    assert theirs["error"] == ours["error"] in ("ValueError", "TypeError")


@pytest.mark.parametrize(
    ("count", "batch", "replicas"), [(8, 2, 2), (7, 2, 2), (5, 2, 3), (3, 1, 2)], ids=str
)
def test_datasets_from_a_function_are_dealt_alike(
    same: Same, count: int, batch: int, replicas: int
) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", replicas)
        seen: list[Any] = []

        def make(context: Any) -> Any:
            seen.append(
                [
                    context.num_input_pipelines,
                    context.input_pipeline_id,
                    context.num_replicas_in_sync,
                    str(context),
                ]
            )
            return side.numbers(count, batch)

        data = strategy.distribute_datasets_from_function(make)
        return [seen, [strategy.experimental_local_results(step) for step in data]]

    same(program)


@pytest.mark.parametrize(("count", "replicas"), [(8, 2), (5, 2), (3, 3), (0, 2)], ids=str)
def test_get_next_as_optional_ends_alike(same: Same, count: int, replicas: int) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", replicas)
        iterator = iter(strategy.experimental_distribute_dataset(side.numbers(count, 4)))
        steps = []
        while (step := iterator.get_next_as_optional()).has_value():
            steps.append(strategy.experimental_local_results(step.get_value()))
        return [steps, bool(iterator.get_next_as_optional().has_value())]

    same(program)


@pytest.mark.parametrize("how", ["next", "get_next", "get_value"])
def test_after_the_last_batch_there_is_none(same: Same, how: str) -> None:
    """TensorFlow's ``get_next`` raises OutOfRangeError where ours raises StopIteration."""

    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        iterator = iter(strategy.experimental_distribute_dataset(side.numbers(2, 2)))
        next(iterator)
        if how == "get_value":
            return iterator.get_next_as_optional().get_value()
        return next(iterator) if how == "next" else iterator.get_next()

    assert same(program) == ("ValueError" if how == "get_value" else "StopIteration")


def test_a_distributed_dataset_is_reduced_alike(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        data = strategy.experimental_distribute_dataset(side.numbers(6, 4))
        return data.reduce(
            side.array(0, "int64"), lambda state, x: state + strategy.reduce("SUM", x, axis=0)
        )

    assert same(program) == 15


# -- variables --------------------------------------------------------------------------------

AGGREGATIONS = ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"]
AGGREGATED = AGGREGATIONS[1:]
WRITES = ["assign", "assign_add", "assign_sub"]
WRITERS = ["replica", "cross", "merge", "update"]
SCATTERS = ["add", "sub", "mul", "div", "min", "max", "update"]


def write(side: Side, strategy: Any, v: Any, method: str, value: Any, writer: str) -> None:
    """``v.method(value)`` in a context."""

    def plain(x: Any) -> None:
        getattr(v, method)(x)

    def merge(x: Any) -> None:
        context = side.distribute.get_replica_context()
        context.merge_call(lambda _, y: plain(y), args=(x,))

    def change(component: Any, x: Any) -> None:
        getattr(component, method)(x)

    if writer in ("replica", "merge"):
        strategy.run(plain if writer == "replica" else merge, args=(value,))
        return
    with strategy.scope():
        if writer == "cross":
            plain(value)
        else:
            strategy.extended.update(v, change, args=(value,))


def writing(synchronization: str, aggregation: str, method: str, kind: str, writer: str) -> Program:
    """Write a variable of two copies once; the copies then."""

    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        with strategy.scope():
            v = side.variable(
                1.0 if kind == "number" else [1.0, 2.0],
                synchronization=synchronization,
                aggregation=aggregation,
            )
        value: Any = distributed(side, strategy, [1.0, 3.0], [5.0, 8.0])
        if kind == "mirrored":
            value = strategy.extended.reduce_to(side.distribute.ReduceOp.SUM, value, v)
        elif kind in ("same", "number"):
            value = side.array([4.0, 6.0]) if kind == "same" else 3.0
        write(side, strategy, v, method, value, writer)
        return copies(v)

    return program


KINDS = ["per-replica", "same", "number", "mirrored"]
MIRRORED_WRITES = [
    (aggregation, method, kind, writer)
    for aggregation, method, kind, writer in product(AGGREGATIONS, WRITES, KINDS, WRITERS)
    # These differ: the next two tests.
    if writer != "replica"
    or aggregation not in ("NONE", "SUM")
    or (aggregation == "SUM" and kind not in ("same", "number"))
]


@pytest.mark.parametrize(("aggregation", "method", "kind", "writer"), MIRRORED_WRITES)
def test_writes_of_mirrored_variables_are_the_same(
    same: Same, aggregation: str, method: str, kind: str, writer: str
) -> None:
    same(writing("ON_WRITE", aggregation, method, kind, writer))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", WRITES)
def test_replicas_do_not_write_a_mirrored_variable_without_aggregation(
    both: Both, method: str, kind: str
) -> None:
    """TensorFlow since 2.4 lets each change its own copy, which go their own ways from then on."""
    theirs, ours = both(writing("ON_WRITE", "NONE", method, kind, "replica"))
    assert "value" in theirs
    assert ours["error"] == "ValueError"
    assert "aggregation" in ours["words"]


@pytest.mark.parametrize("kind", ["same", "number"])
@pytest.mark.parametrize("method", WRITES)
def test_what_every_replica_writes_counts_once_for_each(both: Both, method: str, kind: str) -> None:
    """TensorFlow refuses to SUM what is the very same object on every replica."""
    theirs, ours = both(writing("ON_WRITE", "SUM", method, kind, "replica"))
    assert theirs["error"] == "ValueError"
    old = np.asarray(1.0 if kind == "number" else [1.0, 2.0])
    given = 2 * np.asarray(3.0 if kind == "number" else [4.0, 6.0])
    wanted = {"assign": given, "assign_add": old + given, "assign_sub": old - given}[method]
    assert [v.tolist() for v in ours["value"]] == [wanted.tolist()] * 2


# In one place a value for each replica: the next test.
DISTRIBUTED_WRITES = [("per-replica", "cross"), ("per-replica", "merge"), ("mirrored", "merge")]
ON_READ_WRITES = [
    (aggregation, method, kind, writer)
    for aggregation, method, kind, writer in product(AGGREGATIONS, WRITES, KINDS, WRITERS)
    if (kind, writer) not in DISTRIBUTED_WRITES
]


@pytest.mark.parametrize(("aggregation", "method", "kind", "writer"), ON_READ_WRITES)
def test_writes_of_on_read_variables_are_the_same(
    same: Same, aggregation: str, method: str, kind: str, writer: str
) -> None:
    same(writing("ON_READ", aggregation, method, kind, writer))


@pytest.mark.parametrize(("kind", "writer"), DISTRIBUTED_WRITES)
@pytest.mark.parametrize("aggregation", AGGREGATED)
def test_an_on_read_variable_is_assigned_a_value_for_each_copy(
    both: Both, aggregation: str, kind: str, writer: str
) -> None:
    """TensorFlow fails by an AttributeError or TypeError."""
    theirs, ours = both(writing("ON_READ", aggregation, "assign", kind, writer))
    assert theirs["error"] in ("AttributeError", "TypeError")
    wanted = [[1, 3], [5, 8]] if kind == "per-replica" else [[6, 11], [6, 11]]
    assert [v.tolist() for v in ours["value"]] == wanted


@pytest.mark.parametrize(("kind", "writer"), DISTRIBUTED_WRITES)
@pytest.mark.parametrize(
    ("aggregation", "method"),
    [("NONE", "assign"), *product(AGGREGATIONS, ["assign_add", "assign_sub"])],
)
def test_a_value_for_each_copy_is_not_added_in_one_place(
    both: Both, aggregation: str, method: str, kind: str, writer: str
) -> None:
    """TensorFlow says so of SUM, and fails by an AttributeError otherwise."""
    theirs, ours = both(writing("ON_READ", aggregation, method, kind, writer))
    assert theirs["error"] == ("ValueError" if aggregation == "SUM" else "AttributeError")
    assert ours["error"] == "ValueError"


@pytest.mark.parametrize(
    ("synchronization", "aggregation"),
    [
        ("ON_READ", "NONE"), *(("ON_READ", a) for a in AGGREGATED),
        *(("ON_WRITE", a) for a in AGGREGATED), *(("AUTO", a) for a in AGGREGATED),
    ],
)  # fmt: skip
@pytest.mark.parametrize("reader", ["cross", "outside", "replica"])
def test_reads_are_the_same(
    same: Same, reader: str, synchronization: str, aggregation: str
) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        with strategy.scope():
            v = side.variable([1.0, 2.0], synchronization=synchronization, aggregation=aggregation)
        value = distributed(side, strategy, [1.0, 3.0], [5.0, 8.0])
        write(side, strategy, v, "assign_add", value, "replica")
        if reader == "replica":
            return strategy.run(lambda: v.read_value() + side.array(0.0))
        if reader == "outside":
            return v.read_value()
        with strategy.scope():
            return [v.read_value(), bool(v.trainable)]

    same(program)


NO_SUMS = [(op, kind) for op in ("SUM", "MEAN") for kind in ("min", "max", "update")]
SCATTERED = [
    (synchronization, aggregation, kind, where)
    for synchronization, aggregation, kind, where in product(
        ["ON_WRITE", "ON_READ"], AGGREGATIONS, SCATTERS, ["replica", "cross"]
    )
    # These differ: the next two tests.
    if synchronization == "ON_READ"
    or (where == "replica" and aggregation != "NONE")
    or (where == "cross" and (aggregation, kind) not in NO_SUMS)
]


@pytest.mark.parametrize(("synchronization", "aggregation", "kind", "where"), SCATTERED)
def test_scatters_are_the_same(
    same: Same, synchronization: str, aggregation: str, kind: str, where: str
) -> None:
    same(scattering(synchronization, aggregation, kind, where))


def scattering(synchronization: str, aggregation: str, kind: str, where: str) -> Program:
    """Scatter into a variable of two copies once; the copies then."""

    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        with strategy.scope():
            v = side.variable(
                [[1.0], [2.0], [3.0], [4.0]],
                synchronization=synchronization,
                aggregation=aggregation,
            )
        rows = [
            side.slices([[2.0], [3.0]], [0, 2], 4),
            side.slices([[4.0], [5.0]], [2, 1], 4),
        ]

        def step() -> None:
            getattr(v, f"scatter_{kind}")(rows[replica(side)])

        if where == "replica":
            strategy.run(step)
        else:
            with strategy.scope():
                getattr(v, f"scatter_{kind}")(rows[0])
        return copies(v)

    return program


@pytest.mark.parametrize("kind", SCATTERS)
def test_replicas_do_not_scatter_into_a_mirrored_variable_without_aggregation(
    both: Both, kind: str
) -> None:
    """TensorFlow lets each change its own copy, as in the other writes."""
    theirs, ours = both(scattering("ON_WRITE", "NONE", kind, "replica"))
    assert "value" in theirs
    assert ours["error"] == "ValueError"
    assert "aggregation" in ours["words"]


@pytest.mark.parametrize(("aggregation", "kind"), NO_SUMS)
def test_one_writer_may_scatter_whatever_the_aggregation(
    both: Both, aggregation: str, kind: str
) -> None:
    """TensorFlow refuses it in cross-replica context too, where there is nothing to aggregate."""
    theirs, ours = both(scattering("ON_WRITE", aggregation, kind, "cross"))
    assert theirs["error"] == "NotImplementedError"
    assert "value" in ours


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("aggregation", AGGREGATED)
def test_writes_of_central_storage_are_the_same(same: Same, aggregation: str, method: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("CentralStorage", 2)
        with strategy.scope():
            v = side.variable([1.0, 2.0], aggregation=aggregation)
        value = distributed(side, strategy, [1.0, 3.0], [5.0, 8.0])
        write(side, strategy, v, method, value, "replica")
        write(side, strategy, v, method, side.array([1.0, 1.0]), "cross")
        return v.read_value()

    same(program)


def test_variables_know_their_strategy_alike(same: Same) -> None:
    def program(side: Side) -> Any:
        own, other = side.strategy("Mirrored", 2), side.strategy("Mirrored", 2)
        with own.scope():
            v = side.variable([1.0])
            with own.extended.colocate_vars_with(v):
                w = side.variable([2.0])
        return [
            strategy.extended.variable_created_in_scope(variable)
            for strategy in (own, other, side.strategy("default"))
            for variable in (v, w)
        ]

    same(program)


# -- checkpoints of ON_READ variables, each in its own format ---------------------------------


def on_read(side: Side, replicas: int, aggregation: str) -> tuple[Any, Any]:
    """A strategy and a variable of its; a plain one for 0 replicas."""
    strategy = side.strategy("Mirrored", replicas) if replicas else side.strategy("default")
    with strategy.scope():
        v = (
            side.variable(
                [0.0], name="v", synchronization="ON_READ", aggregation=aggregation, dtype="float32"
            )
            if replicas
            else side.variable([0.0], name="v", dtype="float32")
        )
    return strategy, v


@pytest.mark.parametrize("restored", [0, 2, 3], ids=["plain", "on-2", "on-3"])
@pytest.mark.parametrize("saved", [0, 2, 3], ids=["plain", "of-2", "of-3"])
@pytest.mark.parametrize("aggregation", AGGREGATED)
def test_checkpoints_of_on_read_variables_are_shared_out_alike(
    same: Same, tmp_path: Path, aggregation: str, saved: int, restored: int
) -> None:
    def program(side: Side) -> Any:
        folder = tmp_path / type(side).__name__
        folder.mkdir()
        strategy, v = on_read(side, saved, aggregation)
        if saved:
            values = [[3.0], [4.0], [8.0]][:saved]
            write(side, strategy, v, "assign", distributed(side, strategy, *values), "replica")
        else:
            v.assign([7.0])
        side.save(v, folder)
        _, other = on_read(side, restored, aggregation)
        side.restore(other, folder)
        return copies(other) if restored else other

    same(program)


def test_without_an_aggregation_there_is_nothing_to_save(same: Same, tmp_path: Path) -> None:
    assert same(lambda side: side.save(on_read(side, 2, "NONE")[1], tmp_path)) == "ValueError"


def test_without_an_aggregation_each_copy_is_restored_to_the_value(
    same: Same, tmp_path: Path
) -> None:
    def program(side: Side) -> Any:
        folder = tmp_path / type(side).__name__
        folder.mkdir()
        _, v = on_read(side, 0, "NONE")
        v.assign([7.0])
        side.save(v, folder)
        _, other = on_read(side, 2, "NONE")
        side.restore(other, folder)
        return copies(other)

    same(program)


# -- ShardedVariable --------------------------------------------------------------------------


def sharded(side: Side, *rows: int) -> Any:
    """Shards of so many rows of two columns; 0, 1, 2, ... throughout."""
    shards, start = [], 0
    for count in rows or (3, 2):
        value = np.arange(start, start + 2 * count, dtype=np.float32).reshape(count, 2)
        shards.append(side.root.Variable(value))
        start += 2 * count
    return side.sharded_variable(shards, name="table")


def shards_of(side: Side, v: Any) -> list[Any]:
    return [side.plain(shard.read_value()) for shard in v.variables]


INDICES = [
    1, -1, 5, -6, slice(1, 4), slice(0, 5, 2), slice(None, None, -1), slice(4, 1, -2),
    slice(0, 4, 0), slice(2, 2), slice(-100, 100), Ellipsis, None, (1, 0), (slice(1, 4), 1),
    (Ellipsis, 1), (slice(None), None), (slice(None), slice(None, None, -1)),
    (slice(None, None, -2), 0), (-1, slice(0, 1)),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("rows", [(3, 2), (1, 1, 3), (5,)], ids=str)
def test_sharded_variables_are_indexed_alike(same: Same, rows: tuple[int, ...], index: Any) -> None:
    same(lambda side: sharded(side, *rows)[index])


@pytest.mark.parametrize(
    "mask", [np.arange(5) % 2 == 0, np.arange(10).reshape(5, 2) % 3 == 0], ids=["rows", "elements"]
)
def test_sharded_variables_are_masked_alike(same: Same, mask: Any) -> None:
    def program(side: Side) -> Any:
        given = mask if isinstance(side, Windlass) else side.root.constant(mask)
        return sharded(side)[given]

    same(program)


@pytest.mark.parametrize("index", [(None, 1), (Ellipsis, slice(1, 3), 0)], ids=repr)
def test_an_index_that_begins_with_a_new_axis_or_the_rest_is_as_numpys(
    both: Both, index: Any
) -> None:
    """TensorFlow applies it to every shard, and puts the parts together."""
    theirs, ours = both(lambda side: sharded(side)[index])
    wanted = np.arange(10, dtype=np.float32).reshape(5, 2)[index]
    np.testing.assert_array_equal(ours["value"], wanted)
    assert theirs["value"].tolist() != wanted.tolist()


@pytest.mark.parametrize("index", [1.5, "a"], ids=repr)
def test_what_is_no_index_is_numpys_index_error(both: Both, index: Any) -> None:
    """TensorFlow raises a TypeError."""
    theirs, ours = both(lambda side: sharded(side)[index])
    assert (theirs["error"], ours["error"]) == ("TypeError", "IndexError")


@pytest.mark.parametrize("rows", [5, 4], ids=["fits", "does-not-fit"])
@pytest.mark.parametrize("method", WRITES)
def test_sharded_variables_are_assigned_alike(same: Same, method: str, rows: int) -> None:
    def program(side: Side) -> Any:
        v = sharded(side)
        getattr(v, method)(side.array(np.arange(2 * rows).reshape(rows, 2)))
        return shards_of(side, v)

    same(program)


@pytest.mark.parametrize("kind", SCATTERS)
def test_rows_of_sharded_variables_are_scattered_alike(same: Same, kind: str) -> None:
    repeated = 3 if kind == "update" else 4  # which of two updates of a row counts is not promised

    def program(side: Side) -> Any:
        v = sharded(side)
        rows = side.slices([[2.0, 2.0], [3.0, 3.0], [4.0, 4.0]], [4, 0, repeated], 5)
        getattr(v, f"scatter_{kind}")(rows)
        return shards_of(side, v)

    same(program)


def test_sharded_variables_are_described_and_computed_with_alike(same: Same) -> None:
    def program(side: Side) -> Any:
        v = sharded(side)
        return [
            list(v.shape), np.dtype(getattr(v.dtype, "as_numpy_dtype", v.dtype)).name, len(list(v)),
            v.name, v + 1.0, 2.0 * v, v * v, -v, v / 2.0, v @ np.ones((2, 1), np.float32),
        ]  # fmt: skip

    same(program)


def test_rows_are_looked_up_alike(same: Same) -> None:
    same(lambda side: side.lookup(sharded(side), side.array([[4, 0], [3, 4]], "int64")))


@pytest.mark.parametrize("indices", [[9], [-1]], ids=repr)
def test_a_row_that_is_not_there_is_a_value_error(same: Same, indices: list[int]) -> None:
    assert (
        same(lambda side: sharded(side).sparse_read(side.array(indices, "int64"))) == "ValueError"
    )


def test_sparse_read_keeps_the_order_asked_for(both: Both) -> None:
    """TensorFlow gives the rows grouped by shard."""
    theirs, ours = both(lambda side: sharded(side).sparse_read(side.array([4, 0, 3], "int64")))
    assert ours["value"][:, 0].tolist() == [8, 0, 6]
    assert theirs["value"][:, 0].tolist() == [0, 8, 6]


@pytest.mark.parametrize(
    ("shards", "expected"),
    [
        pytest.param(lambda _: [], "TypeError", id="none"),
        pytest.param(lambda _: [1.0], "TypeError", id="a-number"),
        pytest.param(lambda side: side.root.Variable([1.0]), "TypeError", id="no-list"),
        pytest.param(
            lambda side: [side.root.Variable(np.ones(2, d)) for d in ("float32", "float64")],
            "ValueError",
            id="dtypes",
        ),
        pytest.param(
            lambda side: [side.root.Variable(np.ones((2, n))) for n in (1, 2)],
            "ValueError",
            id="shapes",
        ),
        pytest.param(
            lambda side: [side.root.Variable(np.ones(s)) for s in ((2, 1), (2,))],
            "ValueError",
            id="ranks",
        ),
    ],
)
def test_what_is_no_list_of_shards_is_refused_alike(
    same: Same, shards: Callable[[Side], Any], expected: str
) -> None:
    assert same(lambda side: side.sharded_variable(shards(side))) == expected


# -- partitioners -----------------------------------------------------------------------------

PARTITIONERS: list[Any] = [
    ("FixedShardsPartitioner", {"num_shards": 1}),
    ("FixedShardsPartitioner", {"num_shards": 3}),
    ("FixedShardsPartitioner", {"num_shards": 1000}),
    ("MinSizePartitioner", {}),
    ("MinSizePartitioner", {"min_shard_bytes": 64, "max_shards": 4}),
    ("MinSizePartitioner", {"min_shard_bytes": 1, "max_shards": 1000}),
    ("MaxSizePartitioner", {"max_shard_bytes": 1}),
    ("MaxSizePartitioner", {"max_shard_bytes": 64}),
    ("MaxSizePartitioner", {"max_shard_bytes": 64, "max_shards": 3}),
    ("MaxSizePartitioner", {"max_shard_bytes": 1 << 20, "max_shards": None}),
]
SHAPES = [(1,), (10,), (100,), (7, 3), (100, 16), (3, 1000), (2, 3, 4), (1000, 1)]


@pytest.mark.parametrize(("name", "arguments"), PARTITIONERS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int8"])
def test_partitioners_cut_alike(
    same: Same, dtype: str, name: str, arguments: dict[str, Any]
) -> None:
    def program(side: Side) -> Any:
        partitioner = getattr(side.distribute.experimental.partitioners, name)(**arguments)
        cuts = [
            list(partitioner(*side.shape(shape, dtype), axis))
            for shape in SHAPES
            for axis in range(len(shape))
        ]
        return [
            cuts,
            isinstance(partitioner, side.distribute.experimental.partitioners.Partitioner),
        ]

    same(program)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("MinSizePartitioner", {"min_shard_bytes": 0}),
        ("MinSizePartitioner", {"max_shards": 0}),
        ("MinSizePartitioner", {"bytes_per_string": 0}),
        ("MaxSizePartitioner", {"max_shard_bytes": 0}),
        ("MaxSizePartitioner", {"max_shard_bytes": 8, "max_shards": -1}),
        ("MaxSizePartitioner", {"max_shard_bytes": 8, "max_shards": 0}),
        ("MaxSizePartitioner", {"max_shard_bytes": 8, "bytes_per_string": 0}),
    ],
    ids=str,
)
def test_partitioners_refuse_alike(same: Same, name: str, arguments: dict[str, Any]) -> None:
    def program(side: Side) -> Any:
        getattr(side.distribute.experimental.partitioners, name)(**arguments)

    same(program)


@pytest.mark.parametrize("shards", [0, -1])
def test_no_shards_at_all_are_refused_at_once(both: Both, shards: int) -> None:
    """TensorFlow makes the partitioner, and fails on the first variable."""

    def program(side: Side) -> Any:
        make = side.distribute.experimental.partitioners.FixedShardsPartitioner
        return list(make(shards)(*side.shape((5,), "float32")))

    theirs, ours = both(program)
    assert (theirs["value"], ours["error"]) == ([shards], "ValueError")


# -- ClusterSpec and resolvers ----------------------------------------------------------------

CLUSTERS: list[Any] = [
    {},
    {"worker": ["a:1", "b:2"], "ps": ["c:3"]},
    {"worker": ("a:1",)},
    {"worker": {1: "b:2"}, "ps": {0: "c:3", 1: "d:4"}},
    {"worker": {"1": "b:2"}},
    {"worker": "a:1"},
    {"worker": 1},
    {"worker": [1]},
    {"worker": None},
    {1: ["a:1"]},
    ["a:1"],
    None,
    "a:1",
]  # fmt: skip


def outcomes(side: Side, *calls: Callable[[], Any]) -> list[Any]:
    """What each call gives; of an error its kind."""

    def one(call: Callable[[], Any]) -> Any:
        told = outcome(side, lambda _: call())
        return told.get("error", told.get("value"))

    return [one(call) for call in calls]


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_cluster_specs_are_the_same(same: Same, cluster: Any) -> None:
    def program(side: Side) -> Any:
        spec = side.cluster_spec(cluster)
        again = side.cluster_spec(spec)
        calls: list[Callable[[], Any]] = [
            spec.as_dict, lambda: list(spec.jobs), lambda: bool(spec),
            lambda: again == spec, lambda: spec == side.cluster_spec({"x": ["y:1"]}),
        ]  # fmt: skip
        for job in ("worker", "ps", "chief"):
            calls += [partial(f, job) for f in (spec.num_tasks, spec.task_indices, spec.job_tasks)]
            calls += [partial(spec.task_address, job, index) for index in (0, 1, 2, -1)]
        return outcomes(side, *calls)

    same(program)


@pytest.mark.parametrize("tasks", [[], {}], ids=repr)
def test_a_job_without_tasks_has_none(both: Both, tasks: Any) -> None:
    """TensorFlow's ``job_tasks`` fails by the ValueError of ``max()``."""
    theirs, ours = both(lambda side: side.cluster_spec({"worker": tasks}).job_tasks("worker"))
    assert (theirs["error"], ours["value"]) == ("ValueError", [])


@pytest.mark.parametrize(
    ("index", "kind"), [("first", "TypeError"), (-1, "ValueError")], ids=["word", "negative"]
)
def test_what_is_no_index_of_a_task_is_refused_at_once(both: Both, index: Any, kind: str) -> None:
    """TensorFlow raises a ValueError about a word, and fails on a negative number when it counts
    them.
    """
    theirs, ours = both(
        lambda side: side.cluster_spec({"worker": {index: "a:1"}}).job_tasks("worker")
    )
    assert theirs["error"] in ("ValueError", "IndexError")
    assert ours["error"] == kind


TWO: dict[str, Any] = {"worker": ["a:1", "b:2"], "ps": ["c:3"]}
TF_CONFIGS: list[Any] = [
    None,
    {},
    {"cluster": TWO, "task": {"type": "worker", "index": 1}},
    {"cluster": TWO, "task": {"type": "worker", "index": "1"}},
    {"cluster": TWO, "task": {"type": "ps", "index": 0}, "rpc_layer": "grpc"},
    {"cluster": TWO, "task": {"type": "ps", "index": 7}},
    {"cluster": TWO, "task": {"type": "chief", "index": 0}},
    {"cluster": TWO},
    {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}},
    {"cluster": TWO, "task": {"type": "worker", "index": 0}, "session_master": "grpc://x:9"},
    {"cluster": {"worker": {"1": "b:2"}, "ps": ["c:3"]}, "task": {"type": "worker", "index": 1}},
    {"cluster": TWO, "task": {"type": "worker", "index": 0}, "environment": "cloud"},
    {"task": {"type": "worker", "index": 0}},
    "{",
]


def ask(side: Side, resolver: Any) -> list[Any]:
    """What a resolver says of everything."""
    return outcomes(
        side,
        lambda: resolver.cluster_spec().as_dict(),
        lambda: resolver.task_type,
        lambda: resolver.task_id,
        lambda: resolver.rpc_layer,
        lambda: resolver.environment or "",
        resolver.master,
        lambda: resolver.master("worker", 0),
        lambda: resolver.master("ps", 0, "grpc"),
        lambda: resolver.master("worker", 5),
        lambda: resolver.master(rpc_layer="grpc"),
    )


@pytest.mark.parametrize("config", TF_CONFIGS, ids=str)
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"task_type": "worker", "task_id": 0},
        {"task_id": 1, "rpc_layer": "http", "environment": "cloud"},
        {"task_type": "ps", "task_id": 0, "rpc_layer": ""},
    ],
    ids=str,
)
def test_tf_config_is_read_alike(
    same: Same, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], config: Any
) -> None:
    if config is not None:
        text = config if isinstance(config, str) else json.dumps(config)
        monkeypatch.setenv("TF_CONFIG", text)

    def program(side: Side) -> Any:
        resolvers = side.distribute.cluster_resolver
        resolver = resolvers.TFConfigClusterResolver(**arguments)
        told = ask(side, resolver)
        resolver.task_type, resolver.task_id, resolver.rpc_layer = "worker", 1, "quic"
        return [told, ask(side, resolver)]

    same(program)


def test_an_empty_tf_config_is_none(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorFlow says that it is no JSON; templates leave an empty value where there is
    no cluster.
    """
    monkeypatch.setenv("TF_CONFIG", "")

    def program(side: Side) -> Any:
        resolver = side.distribute.cluster_resolver.TFConfigClusterResolver()
        return [resolver.cluster_spec().as_dict(), resolver.task_type]

    theirs, ours = both(program)
    assert (theirs["error"], ours["value"]) == ("ValueError", [{}, None])


def test_nobodys_environment_is_empty(both: Both) -> None:
    """TensorFlow's base class promises an empty string, its TFConfigClusterResolver gives None."""
    theirs, ours = both(
        lambda side: side.distribute.cluster_resolver.TFConfigClusterResolver().environment
    )
    assert (theirs["value"], ours["value"]) == (None, "")


@pytest.mark.parametrize(
    "arguments",
    [
        {"master": "m:1"},
        {"master": "m:1", "task_type": "worker", "task_id": 1, "rpc_layer": "grpc"},
        {"master": "m:1", "environment": "google", "num_accelerators": {"GPU": 3}},
        {"master": 1},
        {"cluster_spec": {"worker": ["a:1"]}},
    ],
    ids=str,
)
def test_simple_resolvers_are_the_same(same: Same, arguments: dict[str, Any]) -> None:
    def program(side: Side) -> Any:
        given = {"cluster_spec": side.cluster_spec(TWO), **arguments}
        resolver = side.distribute.cluster_resolver.SimpleClusterResolver(**given)
        counted = resolver.num_accelerators() if "num_accelerators" in arguments else None
        return [*ask(side, resolver), counted]

    same(program)


def test_an_empty_master_stays_empty(both: Both) -> None:
    """TensorFlow puts the rpc layer even before nothing."""

    def program(side: Side) -> Any:
        resolvers = side.distribute.cluster_resolver
        return resolvers.SimpleClusterResolver(side.cluster_spec(TWO)).master(rpc_layer="grpc")

    theirs, ours = both(program)
    assert (theirs["value"], ours["value"]) == ("grpc://", "")


UNIONS: list[Any] = [
    [TWO],
    [TWO, {"worker": ["d:4"], "chief": ["e:5"]}],
    [{"worker": ["a:1"]}, {"worker": {1: "b:2"}}],
    [{"worker": ["a:1"]}, {"worker": {0: "b:2"}}],
    [{"worker": {3: "a:1"}}, {"worker": {1: "b:2"}}],
    [],
]


@pytest.mark.parametrize("clusters", UNIONS, ids=str)
@pytest.mark.parametrize(
    "arguments",
    [{}, {"task_type": "ps", "task_id": 1, "rpc_layer": "grpc"}, {"nonsense": 1}],
    ids=str,
)
def test_unions_of_resolvers_are_the_same(
    same: Same, arguments: dict[str, Any], clusters: list[Any]
) -> None:
    def program(side: Side) -> Any:
        resolvers = side.distribute.cluster_resolver
        parts = [
            resolvers.SimpleClusterResolver(
                side.cluster_spec(cluster), f"m{i}:1", task_type="worker", task_id=i + 1
            )
            for i, cluster in enumerate(clusters)
        ]
        return ask(side, resolvers.UnionResolver(*parts, **arguments))

    same(program)


# -- losses, options, operations between devices ----------------------------------------------


@pytest.mark.parametrize("size", [None, 4, 0, -1, 2.5], ids=repr)
@pytest.mark.parametrize("weights", [None, 2.0, [1.0, 3.0], [[1.0], [3.0]]], ids=repr)
@pytest.mark.parametrize("losses", [[1.0, 2.0], [[1.0, 2.0], [3.0, 4.0]], 1.0], ids=repr)
def test_average_losses_are_the_same(same: Same, losses: Any, weights: Any, size: Any) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        loss = side.array(losses)
        weight = None if weights is None else side.array(weights)

        def step() -> Any:
            return side.root.nn.compute_average_loss(loss, weight, size)

        return strategy.reduce("SUM", strategy.run(lambda: step() + replica(side)), axis=None)

    same(program)


@pytest.mark.parametrize("name", ["compute_average_loss", "scale_regularization_loss"])
def test_losses_are_of_replicas(same: Same, name: str) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        scale = getattr(side.root.nn, name)
        loss = side.array([1.0, 2.0, 4.0])

        def in_scope() -> Any:
            with strategy.scope():
                return scale(loss)

        on_replicas = strategy.run(lambda: scale(loss) + replica(side))
        return [on_replicas, scale(loss), *outcomes(side, in_scope)]

    assert same(program)[-1] == "RuntimeError"


def test_enumerations_have_the_same_members(same: Same) -> None:
    def program(side: Side) -> Any:
        data = side.root.data.experimental if isinstance(side, TensorFlow) else wl.data
        numbers = [data.AutoShardPolicy, side.root.VariableAggregation]
        names = [
            side.distribute.ReduceOp, side.distribute.InputReplicationMode,
            side.root.VariableSynchronization,
            side.distribute.experimental.CommunicationImplementation,
        ]  # fmt: skip
        return [
            [{member.name: int(member.value) for member in kind} for kind in numbers],
            [sorted(member.name for member in kind) for kind in names],
            int(data.SHARD_HINT),
        ]

    same(program)


def test_cross_device_ops_are_the_same(same: Same) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        ops = side.distribute.ReductionToOneDevice()
        total = side.distribute.ReduceOp.SUM
        value = distributed(side, strategy, [1.0], [2.0])
        return outcomes(
            side,
            lambda: ops.reduce(total, value, value),
            lambda: ops.reduce(total, value, "/cpu:1"),
            lambda: ops.reduce(side.distribute.ReduceOp.MEAN, value, value),
            lambda: ops.batch_reduce(total, [(value, value), (value, "/cpu:0")]),
            lambda: ops.broadcast(side.array([1.0]), value),
            lambda: ops.batch_reduce(total, [value]),
            lambda: ops.batch_reduce(total, (value, value)),
        )

    same(program)


def test_what_cross_device_ops_reduce_is_distributed(both: Both) -> None:
    """TensorFlow takes anything else for the value of one replica, and fails on an empty list."""

    def program(side: Side) -> Any:
        ops, total = side.distribute.ReductionToOneDevice(), side.distribute.ReduceOp.SUM
        one = side.array([1.0])
        return outcomes(
            side, lambda: ops.reduce(total, one, "/cpu:0"), lambda: ops.batch_reduce(total, [])
        )

    theirs, ours = both(program)
    assert [theirs["value"][0].tolist(), theirs["value"][1]] == [[1], "IndexError"]
    assert ours["value"] == ["ValueError", []]


@pytest.mark.parametrize(
    "arguments",
    [
        {"bytes_per_pack": 1},
        {"timeout_seconds": 2.5},
        {"implementation": "ring"},
        {"implementation": "Nccl"},
        {"implementation": 3},
        {"timeout_seconds": 0},
    ],
    ids=str,
)
def test_communication_options_are_the_same(same: Same, arguments: dict[str, Any]) -> None:
    def program(side: Side) -> Any:
        options = side.distribute.experimental.CommunicationOptions(**arguments)
        told = options.implementation
        return [options.bytes_per_pack, options.timeout_seconds, getattr(told, "name", told)]

    same(program)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"experimental_place_dataset_on_device": True},
        {"experimental_fetch_to_device": False, "experimental_per_replica_buffer_size": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["PER_WORKER", "PER_REPLICA"])
def test_input_options_are_taken_alike(same: Same, mode: str, arguments: dict[str, Any]) -> None:
    def program(side: Side) -> Any:
        strategy = side.strategy("Mirrored", 2)
        modes = side.distribute.InputReplicationMode
        options = side.distribute.InputOptions(
            experimental_replication_mode=modes[mode], **arguments
        )
        data = strategy.distribute_datasets_from_function(lambda _: side.numbers(4, 2), options)
        return [strategy.experimental_local_results(step) for step in data]

    same(program)


def test_a_negative_buffer_size_is_refused(both: Both) -> None:
    """TensorFlow takes it, and prepares as much ahead as it sees fit."""
    make = "InputOptions"
    theirs, ours = both(
        lambda side: (
            getattr(side.distribute, make)(experimental_per_replica_buffer_size=-1) and None
        )
    )
    assert "value" in theirs
    assert ours["error"] == "ValueError"
