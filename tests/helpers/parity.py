"""Small programs that run under ``tf.distribute`` and under ours, and what they are compared by.

::

    @alike()  # the same result, or the same kind of error
    def test_gather(side: Side) -> Any:
        return side.strategy("Mirrored", 2).gather(side.array([1.0]), axis=0)
"""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import ropewalk as rw

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
    """What programs are written against, so that they run under TensorFlow and under Ropewalk.

    Attributes:
        root: ``tf`` or ``rw``.
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


class Ropewalk(Side):
    """Ours."""

    def __init__(self) -> None:
        self.root = rw
        self.distribute = rw.distribute
        self.sharded_variable = rw.distribute.ShardedVariable

    def array(self, value: Any, dtype: str = "float32") -> Any:
        return np.asarray(value, dtype)

    def slices(self, values: Any, indices: Any, rows: int) -> Any:
        given = np.asarray(values, np.float32)
        return rw.IndexedSlices(given, np.asarray(indices, np.int64), (rows, *given.shape[1:]))

    def save(self, variable: Any, folder: Path) -> None:
        rw.Checkpoint([variable]).save(str(folder))

    def restore(self, variable: Any, folder: Path) -> None:
        rw.Checkpoint([variable]).restore(str(folder))

    def lookup(self, variable: Any, ids: Any) -> Any:
        return variable.embedding_lookup(ids)

    def cluster_spec(self, cluster: Any) -> Any:
        return rw.ClusterSpec(cluster)

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


Program = Callable[[Side], Any]
Outcome = dict[str, Any]
Same = Callable[[Program], Any]
Both = Callable[[Program], tuple[Outcome, Outcome]]


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
    message = f"{where}: TensorFlow {theirs!r}, Ropewalk {ours!r}"
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


AGGREGATIONS = ["NONE", "SUM", "MEAN", "ONLY_FIRST_REPLICA"]
AGGREGATED = AGGREGATIONS[1:]
WRITES = ["assign", "assign_add", "assign_sub"]
SCATTERS = ["add", "sub", "mul", "div", "min", "max", "update"]
TWO: dict[str, Any] = {"worker": ["a:1", "b:2"], "ps": ["c:3"]}


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


def outcomes(side: Side, *calls: Callable[[], Any]) -> list[Any]:
    """What each call gives; of an error its kind."""

    def one(call: Callable[[], Any]) -> Any:
        told = outcome(side, lambda _: call())
        return told.get("error", told.get("value"))

    return [one(call) for call in calls]


def listed(value: Any) -> Any:
    """A plain result with lists in the place of arrays."""
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [listed(item) for item in value]
    return value.tolist() if isinstance(value, np.ndarray) else value


_ANYTHING = object()


def alike(gives: Any = _ANYTHING) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of a program: it gives the same, or the same kind of error, under both.

    Args:
        gives: The result, or the name of the error, where the test is to say it.
    """

    def check(program: Program, same: Same) -> None:
        found = same(program)
        assert gives is _ANYTHING or listed(found) == gives

    return partial(_test_of, check=check, fixture="same")


def differ(
    *, theirs: Any, ours: Any, words: str = ""
) -> Callable[[Callable[..., Any]], Callable[..., None]]:
    """Make a test of a program that does something else here, on purpose: its docstring says why.

    Args:
        theirs: What it gives under TensorFlow: the result, the name of an error, or a tuple of
            several names; ``"value"`` stands for any result.
        ours: What it gives here.
        words: Part of our error's message.
    """

    def check(program: Program, both: Both) -> None:
        for outcome_of, wanted in zip(both(program), (theirs, ours), strict=True):
            if wanted == "value":
                assert "value" in outcome_of, outcome_of
                continue
            found = outcome_of.get("error", listed(outcome_of.get("value")))
            assert found in wanted if isinstance(wanted, tuple) else found == wanted, outcome_of
        assert words in outcome_of.get("words", "")

    return partial(_test_of, check=check, fixture="both")


def _test_of(
    program: Callable[..., Any], *, check: Callable[[Program, Any], None], fixture: str
) -> Callable[..., None]:
    """A test that takes the arguments of the program, and a fixture in the place of ``side``."""

    def test(**given: Any) -> None:
        compare = given.pop(fixture)
        check(lambda side: program(side, **given), compare)

    kind = inspect.Parameter.KEYWORD_ONLY
    names = [fixture, *list(inspect.signature(program).parameters)[1:]]
    test.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    for name in ("__name__", "__doc__", "__module__"):
        setattr(test, name, getattr(program, name))
    return test
