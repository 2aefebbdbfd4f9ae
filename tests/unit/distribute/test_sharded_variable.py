"""Variables cut along axis 0: they read and write as the whole, and touch only the shards they
need.

Most promises hold for both kinds: a ``ShardedVariable`` made of variables by hand, and the one that
``ParameterServerStrategy`` makes with a partitioner, here over three ps in this process.
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls
from helpers.rows import row
from helpers.sharded import KINDS, PS, WHOLE, by_hand, of_ps, on_ps, strategy_of
from ropewalk.core.errors import ShapeMismatchError
from ropewalk.distribute import (
    AggregatingVariable,
    MirroredStrategy,
    ParameterServerStrategy,
    ShardedVariable,
    placement,
)
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.distribute.runtime import local_runtime
from ropewalk.distribute.variables.local import LocalVariable
from ropewalk.distribute.variables.parameter_server import PsShardedVariable

Array = np.ndarray[Any, np.dtype[Any]]
Make = Callable[..., ShardedVariable]


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a sharded variable of 10 rows in three shards, of 4, 3 and 3."""
    return KINDS[request.param]


class Touched:
    """Which shards are read or written from now on."""

    def __init__(self, v: ShardedVariable, calls: Calls) -> None:
        self._numbers: set[int] = set()
        self._before: list[tuple[int, int]] = []
        self._transports: list[LocalPs] = []
        if isinstance(v, PsShardedVariable):
            for transport in of_ps(v.strategy).runtime.session.peers:
                assert isinstance(transport, LocalPs)
                self._transports.append(transport)
            self._before = self._counted()
            return
        shards = {id(shard): i for i, shard in enumerate(v.variables)}

        def note(this: LocalVariable, *_: Any) -> None:
            self._numbers.add(shards[id(this)])

        for name in ("read_value", "sparse_read", "scatter", "assign", "assign_add"):
            calls.before(LocalVariable, name, note)

    def _counted(self) -> list[tuple[int, int]]:
        counters = [transport.store.counters() for transport in self._transports]
        return [(c.bytes_out, c.bytes_in) for c in counters]

    def shards(self) -> set[int]:
        """Round robin: shard i is on ps i."""
        if not self._transports:
            return self._numbers
        now = self._counted()
        return {i for i, (a, b) in enumerate(zip(self._before, now, strict=True)) if a != b}


# -- what it is ----------------------------------------------------------------------------------


def test_the_larger_shards_come_first_and_are_named_after_the_whole(make: Make) -> None:
    v = make()
    assert [shard.name for shard in v.variables] == ["v/part_0", "v/part_1", "v/part_2"]
    assert [shard.shape for shard in v.variables] == [(4, 2), (3, 2), (3, 2)]
    assert [shard.name for shard in v] == [shard.name for shard in v.variables]
    for shard, rows in zip(v.variables, np.array_split(WHOLE, 3), strict=True):
        np.testing.assert_array_equal(shard.read_value(), rows)
    assert (v.name, v.shape, v.dtype, v.trainable) == ("v", (10, 2), np.dtype(np.float32), True)
    assert len(v) == 10
    assert repr(v) == "<Variable 'v' shape=(10, 2) dtype=float32>"


def test_shards_are_on_the_ps_in_turn() -> None:
    v = on_ps(parts=4)
    names = [f"/job:ps/replica:0/task:{ps}/device:CPU:0" for ps in (0, 1, 2, 0)]
    assert [shard.device for shard in v.variables] == names
    assert v.device == names[0]
    assert [shard.trainable for shard in on_ps(trainable=False).variables] == [False] * PS


def test_round_robin_counts_every_variable_and_every_shard() -> None:
    strategy = strategy_of(parts=2)
    with strategy.scope():
        a = rw.Variable(WHOLE, name="a")
        scalar = rw.Variable(1.0, name="scalar")
        b = rw.Variable(WHOLE, name="b")
    assert isinstance(a, ShardedVariable)
    assert isinstance(b, ShardedVariable)
    assert not isinstance(scalar, ShardedVariable)
    tasks = [v.device.split("task:")[1][0] for v in (*a.variables, scalar, *b.variables)]
    assert tasks == ["0", "1", "2", "0", "1"]


@pytest.mark.parametrize(
    ("shape", "parts"),
    [((), 0), ((1, 3), 0), ((2, 3), 2), ((5,), 3), ((3, 0), 3)],
    ids=["scalar", "one-row", "fewer-rows", "vector", "empty-rows"],
)
def test_no_more_shards_than_rows_and_one_is_a_plain_variable(
    shape: tuple[int, ...], parts: int
) -> None:
    strategy = strategy_of(parts=3)
    with strategy.scope():
        v = rw.Variable(np.ones(shape, np.float32), name="v")
    assert isinstance(v, ShardedVariable) == bool(parts)
    if isinstance(v, ShardedVariable):
        assert len(v.variables) == parts
    np.testing.assert_array_equal(v.read_value(), np.ones(shape))


def test_a_partitioner_that_cuts_another_axis_is_refused() -> None:
    task = of_ps(ParameterServerStrategy()).runtime.task
    strategy = ParameterServerStrategy(
        variable_partitioner=lambda shape, dtype: [1, 2], runtime=local_runtime(task, num_ps=2)
    )
    with (
        strategy.scope(),
        pytest.raises(ValueError, match=r"elements are 1 besides the first element.*\[1, 2\]"),
    ):
        rw.Variable(WHOLE)


def test_an_initializer_makes_the_same_rows_in_shards_as_in_one() -> None:
    initializer = rw.Initializer("random_normal", seed=5)
    strategy = strategy_of(parts=3)
    with strategy.scope():
        v = rw.Variable(initializer=initializer, shape=(10, 2), name="v")
    expected = initializer.rows((10, 2), np.dtype(np.float32), 0, 10)
    np.testing.assert_array_equal(v.read_value(), expected)


# -- the constructor -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variables", "error", "message"),
    [
        (list, TypeError, "at least one variable"),
        (lambda: None, TypeError, "should be a list of variables"),
        (lambda: rw.Variable([1.0]), TypeError, "should be a list of variables"),
        (lambda: [np.ones(2)], TypeError, "should be a list of variables"),
        (
            lambda: [rw.Variable([1.0]), rw.Variable([1])],
            ValueError,
            "must have the same dtype, got float32 and int64",
        ),
        (
            lambda: [rw.Variable(np.ones((2, 2))), rw.Variable(np.ones((2, 3)))],
            ValueError,
            r"same shape but for axis 0, got \(2, 2\) and \(2, 3\)",
        ),
        (lambda: [rw.Variable(1.0)], ValueError, r"same shape but for axis 0, got \(\) and \(\)"),
        (
            lambda: [rw.Variable(1.0), rw.Variable([1.0])],
            ValueError,
            r"same shape but for axis 0, got \(\)",
        ),
        (
            lambda: [rw.Variable([1.0]), rw.Variable(1.0)],
            ValueError,
            r"same shape but for axis 0, got \(1,\) and \(\)",
        ),
    ],
    ids=[
        "none",
        "no-list",
        "variable",
        "array",
        "dtypes",
        "shapes",
        "scalar",
        "scalar-first",
        "scalar-last",
    ],
)  # fmt: skip
def test_what_is_no_list_of_shards_is_refused(
    variables: Callable[[], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ShardedVariable(variables())


def test_shards_may_be_of_any_length_and_of_any_strategy() -> None:
    rw.config.set_logical_cpu_devices(2)
    with MirroredStrategy().scope():
        shards = tuple(rw.Variable(np.full((n, 2), n, np.float32)) for n in (1, 4, 0, 2))
    v = ShardedVariable(shards)
    assert v.name == "ShardedVariable"
    assert v.shape == (7, 2)
    assert v.strategy is shards[0].strategy
    np.testing.assert_array_equal(v.sparse_read([6, 0, 4])[:, 0], [2, 1, 4])
    v.assign_add(np.ones((7, 2)))
    np.testing.assert_array_equal(shards[1].read_value(), 5)


# -- as arrays -----------------------------------------------------------------------------------


def test_it_goes_where_arrays_go(make: Make) -> None:
    v = make()
    np.testing.assert_array_equal(v.read_value(), WHOLE)
    np.testing.assert_array_equal(np.asarray(v), WHOLE)
    np.testing.assert_array_equal(np.asarray(v, np.float64), WHOLE)
    np.testing.assert_array_equal(v + 1, WHOLE + 1)
    np.testing.assert_array_equal(np.ones((1, 10), np.float32) @ v, WHOLE.sum(0, keepdims=True))
    mine = v.numpy()
    mine[...] = 0
    np.testing.assert_array_equal(v.read_value(), WHOLE)


# -- which shards --------------------------------------------------------------------------------

# Rows 0-3, 4-6 and 7-9.
TOUCHES: dict[str, tuple[Callable[[ShardedVariable], Any], set[int]]] = {
    "row": (lambda v: v[4], {1}),
    "last-row": (lambda v: v[-1], {2}),
    "element": (lambda v: v[0, 1], {0}),
    "slice": (lambda v: v[1:4], {0}),
    "slice-over-two": (lambda v: v[3:5, ::-1], {0, 1}),
    "backwards": (lambda v: v[9:6:-1], {2}),
    "steps-over-one": (lambda v: v[0::8], {0, 2}),
    "empty-slice": (lambda v: v[5:5], set()),
    "mask": (lambda v: v[np.arange(10) == 5], {1}),
    "rows": (lambda v: v.sparse_read([8, 7, 8]), {2}),
    "no-rows": (lambda v: v.sparse_read([]), set()),
    "lookup": (lambda v: v.embedding_lookup([[0, 9]]), {0, 2}),
    "gather_nd": (lambda v: v.gather_nd([[5, 1], [6, 0]]), {1}),
    "shard": (lambda v: v.variables[1].read_value(), {1}),
    "shard-rows": (lambda v: v.variables[2].sparse_read([0]), {2}),
    "whole": (lambda v: v.read_value(), {0, 1, 2}),
    "ellipsis": (lambda v: v[...], {0, 1, 2}),
}


@pytest.mark.parametrize("what", TOUCHES)
def test_reads_touch_only_the_shards_they_need(make: Make, what: str, calls: Calls) -> None:
    v = make()
    read, expected = TOUCHES[what]
    touched = Touched(v, calls)
    read(v)
    assert touched.shards() == expected


def test_writes_of_rows_touch_only_their_shards(calls: Calls) -> None:
    v = by_hand()
    touched = Touched(v, calls)
    v.scatter_add(rw.IndexedSlices(np.ones((2, 2), np.float32), np.array([5, 4])))
    assert touched.shards() == {1}


# -- rows ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_rows_come_in_the_order_and_shape_of_their_numbers(make: Make, dtype: Any) -> None:
    """Not grouped by shard, as TensorFlow's sparse_read has it."""
    v = make()
    for ids in ([9, 0, 5, 0], [[4, 3], [7, 6]], 8, []):
        index = np.array(ids, dtype)
        for read in (v.sparse_read, v.embedding_lookup):
            found = read(index)
            assert found.shape == (*index.shape, 2)
            np.testing.assert_array_equal(found, WHOLE[index])
    np.testing.assert_array_equal(
        v.variables[1].sparse_read(np.array([2, 0], dtype)), WHOLE[[6, 4]]
    )


def test_small_integers_name_rows_of_a_late_shard(make: Make) -> None:
    whole = np.arange(600, dtype=np.float32).reshape(300, 2)
    v = make(whole, 2)
    rows = np.array([120], np.uint8)
    np.testing.assert_array_equal(v.variables[1].sparse_read(rows), whole[[270]])
    np.testing.assert_array_equal(v.sparse_read(rows), whole[[120]])


@pytest.mark.parametrize("row", [-1, 10], ids=["negative", "past-the-end"])
def test_a_row_that_is_not_there_is_an_error(make: Make, row: int) -> None:
    v = make()
    with pytest.raises(ShapeMismatchError, match=f"row {row} of 'v' is out of range"):
        v.sparse_read([0, row])
    with pytest.raises(ShapeMismatchError, match=f"row {row} of 'v' is out of range"):
        v.gather_nd([[row, 0]])
    with pytest.raises(ShapeMismatchError, match=rf"row {row} (of|pushed to) 'v' is out of range"):
        v.scatter_add(rw.IndexedSlices(np.ones((1, 2), np.float32), np.array([row])))
    np.testing.assert_array_equal(v.read_value(), WHOLE)


def test_a_row_of_another_shard_is_not_a_shards_own(make: Make) -> None:
    shard = make().variables[1]
    with pytest.raises(ShapeMismatchError, match="row 3 of 'v/part_1' is out of range"):
        shard.sparse_read([3])
    with pytest.raises(ShapeMismatchError, match="row 3 of 'v/part_1' is out of range"):
        shard.scatter_add(rw.IndexedSlices(np.ones((1, 2), np.float32), np.array([3])))


@pytest.mark.parametrize(
    ("indices", "pick"),
    [
        ([[9, 1], [0, 0], [4, 1]], lambda x: x[[9, 0, 4], [1, 0, 1]]),
        ([[9], [0]], lambda x: x[[9, 0]]),
        ([4], lambda x: x[4]),
        ([4, 1], lambda x: x[4, 1]),
        ([[[1, 0]], [[8, 1]]], lambda x: x[[[1], [8]], [[0], [1]]]),
        (np.empty((0, 2), np.int64), lambda x: x[[], []]),
    ],
    ids=["elements", "rows", "one-row", "one-element", "deep", "none"],
)
def test_gather_nd_picks_elements_and_slices(make: Make, indices: Any, pick: Any) -> None:
    found = make().gather_nd(indices)
    np.testing.assert_array_equal(found, pick(WHOLE))
    assert found.shape == pick(WHOLE).shape


# -- writing -------------------------------------------------------------------------------------


def test_the_whole_is_assigned_shard_by_shard(make: Make) -> None:
    v = make()
    assert v.assign(WHOLE * 2) is v
    assert v.assign_add(WHOLE) is v
    assert v.assign_sub(np.ones((10, 2))) is v
    np.testing.assert_array_equal(v.read_value(), WHOLE * 3 - 1)
    np.testing.assert_array_equal(v.variables[2].read_value(), (WHOLE * 3 - 1)[7:])


def test_python_lists_of_integers_will_do(make: Make) -> None:
    v = make(np.arange(5, dtype=np.int32))
    v.assign([5, 4, 3, 2, 1]).assign_add([1] * 5).assign_sub([2] * 5)
    np.testing.assert_array_equal(v.read_value(), [4, 3, 2, 1, 0])
    assert v.read_value().dtype == np.int32


def test_a_value_of_another_shape_is_refused(make: Make) -> None:
    for method, shape in product(
        ["assign", "assign_add", "assign_sub"], [(9, 2), (10, 1), (10,), ()]
    ):
        with row(method, shape):
            v = make()
            with pytest.raises(ValueError, match=r"'v'.*"):
                getattr(v, method)(np.ones(shape, np.float32))
            np.testing.assert_array_equal(v.read_value(), WHOLE)


def test_a_shard_is_a_variable(make: Make) -> None:
    v = make()
    shard = v.variables[1]
    shard.assign(np.full((3, 2), 1.0)).assign_add(np.full((3, 2), 2.0))
    shard.assign_sub(np.full((3, 2), 0.5))
    shard.scatter_add(rw.IndexedSlices(np.ones((2, 2), np.float32), np.array([2, 2])))
    np.testing.assert_array_equal(v[4:7], [[2.5] * 2, [2.5] * 2, [4.5] * 2])
    np.testing.assert_array_equal(v[:4], WHOLE[:4])
    np.testing.assert_array_equal(v[7:], WHOLE[7:])
    with pytest.raises(ValueError, match=r"'v/part_1' has shape \(3, 2\), the value has \(2, 2\)"):
        shard.assign(np.ones((2, 2)))


ADDING = {"scatter_add": 1, "scatter_sub": -1}


@pytest.mark.parametrize("method", ADDING)
def test_rows_are_added_in_their_shards_and_repeated_ones_add_up(make: Make, method: str) -> None:
    v = make()
    rows = np.array([9, 0, 9, 4])
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    getattr(v, method)(rw.IndexedSlices(values, rows))
    expected = WHOLE.copy()
    np.add.at(expected, rows, ADDING[method] * values)
    np.testing.assert_array_equal(v.read_value(), expected)


@pytest.mark.parametrize("method", ["scatter_update", "batch_scatter_update"])
def test_rows_are_overwritten_and_of_repeated_ones_the_last_counts(make: Make, method: str) -> None:
    v = make()
    rows = np.array([9, 0, 9, 4])
    values = np.arange(8, dtype=np.float32).reshape(4, 2)
    getattr(v, method)(rw.IndexedSlices(values, rows))
    expected = WHOLE.copy()
    expected[[9, 0, 4]] = values[[2, 1, 3]]
    np.testing.assert_array_equal(v.read_value(), expected)


@pytest.mark.parametrize("kind", ["mul", "div", "min", "max"])
@pytest.mark.parametrize("make", ["by_hand", "on_ps"])
def test_other_scatters_are_those_of_the_shards(make: str, kind: str) -> None:
    v = globals()[make]()
    delta = rw.IndexedSlices(np.full((2, 2), 4, np.float32), np.array([9, 1]))
    expected = WHOLE.copy()
    expected[[9, 1]] = {
        "mul": lambda old: old * 4,
        "div": lambda old: old / 4,
        "min": lambda old: np.minimum(old, 4),
        "max": lambda old: np.maximum(old, 4),
    }[kind](WHOLE[[9, 1]])
    np.testing.assert_array_equal(getattr(v, f"scatter_{kind}")(delta).read_value(), expected)


# -- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_a_cut_variable_trains_as_a_whole_one(optimizer: str) -> None:
    """The same kernels over the same elements, so to the bit."""

    def trained(parts: int | None) -> Any:
        strategy = strategy_of(parts=parts)
        with strategy.scope():
            v = rw.Variable(WHOLE, name="v")
        rule = getattr(rw.optimizers, optimizer)(0.1)
        rows = rw.IndexedSlices(np.ones((3, 2), np.float32), np.array([9, 2, 9]))
        for _ in range(3):
            strategy.run(lambda: rule.apply_gradients([(v.read_value() / 10, v)]))
            strategy.run(lambda: rule.apply_gradients([(rows, v)]))
        return v.numpy()

    np.testing.assert_array_equal(trained(3), trained(None))


def test_shards_made_by_hand_are_trained_one_by_one() -> None:
    v = by_hand()
    rw.optimizers.SGD(1.0).apply_gradients([(shard.read_value(), shard) for shard in v])
    np.testing.assert_array_equal(v.read_value(), 0)


# -- colocation ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", [placement.round_robin, placement.greedy_by_bytes])
def test_colocated_variables_are_never_cut_and_go_to_the_same_ps(where: Any) -> None:
    strategy = strategy_of(parts=3, where=where)
    with strategy.scope():
        first = rw.Variable(WHOLE, name="first")
        plain = rw.Variable(1.0, name="plain")
        with strategy.extended.colocate_vars_with(plain):
            near = rw.Variable(WHOLE, name="near")
            also = rw.Variable(WHOLE, name="also")
        with strategy.extended.colocate_vars_with(first):
            by_first = rw.Variable(WHOLE, name="by_first")
    assert isinstance(first, ShardedVariable)
    assert not any(isinstance(v, ShardedVariable) for v in (near, also, by_first))
    assert near.device == also.device == plain.device
    assert by_first.device == first.variables[0].device == first.device
    np.testing.assert_array_equal(near.read_value(), WHOLE)


def test_a_variable_may_go_where_a_shard_is() -> None:
    strategy = strategy_of(parts=3)
    with strategy.scope():
        v = rw.Variable(WHOLE, name="v")
        assert isinstance(v, ShardedVariable)
        near = []
        for shard in v.variables:
            with strategy.extended.colocate_vars_with(shard):
                near.append(rw.Variable(1.0))
    assert [n.device for n in near] == [shard.device for shard in v.variables]


def test_colocation_does_not_advance_round_robin() -> None:
    strategy = strategy_of()
    with strategy.scope():
        a = rw.Variable(1.0, name="a")
        with strategy.extended.colocate_vars_with(a):
            rw.Variable(1.0, name="near")
        b = rw.Variable(1.0, name="b")
    assert [v.device.split("task:")[1][0] for v in (a, b)] == ["0", "1"]


def test_a_variable_of_another_strategy_is_nothing_to_go_to() -> None:
    theirs = on_ps()
    with pytest.raises(ValueError, match="must be created in the same strategy scope"):
        strategy_of().extended.colocate_vars_with(theirs)


# -- several replicas ----------------------------------------------------------------------------


def test_replicas_write_a_cut_variable_by_its_aggregation() -> None:
    rw.config.set_logical_cpu_devices(2)
    v = on_ps(aggregation=rw.VariableAggregation.SUM)
    strategy = v.strategy
    assert strategy.num_replicas_in_sync == 2
    rows = rw.IndexedSlices(np.ones((1, 2), np.float32), np.array([9]))
    strategy.run(lambda: v.assign_add(np.ones((10, 2), np.float32)))
    strategy.run(lambda: v.scatter_sub(rows))
    strategy.run(lambda: v.variables[0].assign_add(np.ones((4, 2))))
    expected = WHOLE + 2
    expected[9] -= 2
    expected[:4] += 2
    np.testing.assert_array_equal(v.read_value(), expected)
    assert [shard.aggregation for shard in v.variables] == [rw.VariableAggregation.SUM] * 3


def test_shards_may_be_variables_of_several_replicas() -> None:
    rw.config.set_logical_cpu_devices(2)
    strategy = rw.distribute.CentralStorageStrategy()
    with strategy.scope():
        shards = [
            rw.Variable(piece, aggregation=rw.VariableAggregation.SUM)
            for piece in np.array_split(WHOLE, 3)
        ]
    assert all(isinstance(shard, AggregatingVariable) for shard in shards)
    v = ShardedVariable(shards)
    strategy.run(lambda: v.assign_add(WHOLE))
    np.testing.assert_array_equal(v.read_value(), WHOLE * 3)


def test_an_optimizer_takes_the_shards_made_by_hand_and_says_so() -> None:
    shards = [rw.Variable(np.zeros((2, 2), np.float32), name=f"part_{i}") for i in range(2)]
    whole = ShardedVariable(shards, name="whole")
    optimizer = rw.optimizers.SGD(1.0)
    with pytest.raises(ValueError, match=r"'whole' is made of 2 variables; .*`\.variables`"):
        optimizer.apply_gradients([(np.ones((4, 2), np.float32), whole)])
    optimizer.apply_gradients([(np.ones((2, 2), np.float32), shard) for shard in whole.variables])
    assert (whole.numpy() == -1).all()
