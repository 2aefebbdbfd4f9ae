"""Variables: how they are made, what they take, and how they behave in programs."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.rows import row
from helpers.sharded import through_a_session
from ropewalk.core.arrays.dtypes import DTYPES
from ropewalk.core.errors import ShapeMismatchError
from ropewalk.distribute import ParameterServerStrategy, Strategy
from ropewalk.distribute.variables.local import LocalVariable

Aggregation = rw.VariableAggregation
Synchronization = rw.VariableSynchronization


Make = Callable[..., rw.Variable]


@pytest.fixture(params=["default", "ps"])
def make(request: pytest.FixtureRequest) -> Make:
    """``Variable(...)`` under the default strategy, or in the scope of a parameter-server one."""
    if request.param == "default":
        return rw.Variable
    strategy = ParameterServerStrategy()

    def create(*args: Any, **kwargs: Any) -> rw.Variable:
        with strategy.scope():
            variable: rw.Variable = rw.Variable(*args, **kwargs)
        return variable

    return create


def test_numbers_in_another_byte_order_are_converted_wherever_they_come_in() -> None:
    """As those that were read from a file of another machine, or of Java."""

    def foreign(*numbers: float) -> Any:
        return np.array(numbers, ">f4")

    for strategy in (rw.distribute.get_strategy(), ParameterServerStrategy(), through_a_session()):
        with strategy.scope():
            v = rw.Variable(foreign(1, 2), name="v")
            table = rw.Variable(np.array([[1], [2]], ">f4"), name="table")
        assert (v.dtype.str, v.numpy().tolist()) == ("<f4", [1, 2])
        v.assign(foreign(3, 4))
        v.assign_add(foreign(1, 1))
        optimizer = rw.optimizers.SGD(1.0)
        rows = rw.IndexedSlices(np.array([[5]], ">f4"), np.array([1], ">i8"), (2, 1))
        pairs = [(foreign(2, 3), v), (rows, table)]
        strategy.run(lambda pairs=pairs, apply=optimizer.apply_gradients: apply(pairs))
        assert (v.numpy().tolist(), table.numpy().tolist()) == ([2, 2], [[1], [-3]])


# -- making ------------------------------------------------------------------------------------


def test_a_variable_knows_what_it_was_made_of(make: Make) -> None:
    v = make(np.ones((2, 3), np.float32), name="w", trainable=False)
    assert (v.name, v.shape, v.dtype, v.trainable) == ("w", (2, 3), np.dtype(np.float32), False)
    assert v.synchronization is Synchronization.AUTO
    assert v.aggregation is Aggregation.NONE
    value = " value=[[1. 1. 1.] [1. 1. 1.]]" if isinstance(v, LocalVariable) else ""
    assert repr(v) == f"<Variable 'w' shape=(2, 3) dtype=float32{value}>", "a server is not asked"
    np.testing.assert_array_equal(v.read_value(), 1)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (1.5, np.float32),
        ([1.0, 2.0], np.float32),
        ([[1, 2]], np.int64),
        (True, np.bool_),
        (np.float64(1.5), np.float64),
        (np.ones(2), np.float64),
        (np.ones(2, np.float16), np.float16),
        (np.ones(2, np.int8), np.int8),
    ],
    ids=["float", "floats", "ints", "bool", "float64", "array64", "array16", "int8"],
)
def test_the_dtype_is_the_arrays_own_and_python_floats_are_float32(
    make: Make, value: Any, dtype: Any
) -> None:
    assert make(value, name="v").dtype == np.dtype(dtype)


def test_every_dtype_can_be_asked_for(make: Make) -> None:
    for dtype in DTYPES:
        with row(dtype):
            v = make([0, 1], dtype=dtype, name="v")
            assert v.dtype == v.read_value().dtype == dtype
            np.testing.assert_array_equal(v.read_value(), np.array([0, 1], dtype))


@pytest.mark.parametrize("value", ["text", object(), 1j], ids=["text", "object", "complex"])
def test_other_dtypes_are_refused_with_the_list(value: Any) -> None:
    with pytest.raises(TypeError, match="those are float32"):
        rw.Variable(value)


def test_what_is_given_is_copied(make: Make) -> None:
    given = np.ones(3, np.float32)
    v = make(given, name="v")
    given[:] = 7
    np.testing.assert_array_equal(v.read_value(), 1)
    v.assign(given)
    given[:] = 8
    np.testing.assert_array_equal(v.read_value(), 7)


def test_an_initializer_makes_the_value_where_the_variable_lives(make: Make) -> None:
    initializer = rw.Initializer("random_normal", seed=3)
    v = make(initializer=initializer, shape=(5, 2), name="v")
    assert v.dtype == np.float32
    np.testing.assert_array_equal(
        v.read_value(), initializer.rows((5, 2), np.dtype(np.float32), 0, 5)
    )


def test_scalars_and_empty_variables_work(make: Make) -> None:
    scalar, empty = make(2.0, name="scalar"), make(np.zeros((0, 3), np.float32), name="empty")
    assert scalar.assign_add(1).read_value() == 3
    assert empty.assign(np.zeros((0, 3))).read_value().shape == (0, 3)
    assert make(initializer=rw.Initializer("ones"), shape=(), name="s").read_value() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "needs an initial_value, or an initializer"),
        ({"initializer": rw.Initializer("zeros")}, "give a shape with an initializer"),
        (
            {"initial_value": 1.0, "initializer": rw.Initializer("zeros"), "shape": ()},
            "and no initial_value",
        ),
        ({"initial_value": [1.0], "shape": (2,)}, r"has shape \(1,\), not \(2,\)"),
        (
            {"initial_value": 1.0, "synchronization": Synchronization.NONE},
            "synchronization NONE is not supported",
        ),
        (
            {"initial_value": 1, "aggregation": Aggregation.MEAN, "name": "count"},
            r"MEAN needs a float dtype, variable 'count' is int64",
        ),
    ],
    ids=["nothing", "no-shape", "both", "shape", "synchronization", "mean-of-integers"],
)
def test_what_makes_no_variable_is_a_value_error(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rw.Variable(**arguments)


def test_variables_are_trainable_unless_they_are_synchronized_on_read() -> None:
    on_read = Synchronization.ON_READ
    assert rw.Variable(1.0).trainable
    assert not rw.Variable(1.0, synchronization=on_read).trainable
    assert rw.Variable(1.0, synchronization=on_read, trainable=True).trainable
    assert rw.Variable(1.0, aggregation=Aggregation.MEAN).aggregation is Aggregation.MEAN


def test_the_current_strategy_makes_the_variable() -> None:
    strategy = ParameterServerStrategy()
    with strategy.scope():
        theirs = rw.Variable([1.0], name="w")
    mine = rw.Variable([1.0], name="w")
    assert theirs.strategy is strategy
    assert isinstance(theirs, rw.Variable)
    assert isinstance(mine, LocalVariable)
    assert strategy.extended.variable_created_in_scope(theirs)
    assert not strategy.extended.variable_created_in_scope(mine)
    assert rw.distribute.get_strategy().extended.variable_created_in_scope(mine)


def test_a_repeated_name_gets_a_number_in_the_order_of_creation() -> None:
    with ParameterServerStrategy().scope():
        names = [rw.Variable([1.0], name=name).name for name in ("w", "w", "b", "w", "w_1", "w")]
    assert names == ["w", "w_1", "b", "w_2", "w_1_1", "w_3"]
    assert rw.Variable([1.0]).name == "Variable"


def test_each_of_two_variables_of_one_name_has_its_own_value() -> None:
    with ParameterServerStrategy().scope():
        a, b = rw.Variable([1.0], name="w"), rw.Variable([2.0], name="w")
    assert (a.read_value()[0], b.read_value()[0]) == (1, 2)


def test_a_variable_may_be_read_before_its_scope_ends() -> None:
    with ParameterServerStrategy().scope():
        v = rw.Variable([1.0, 2.0], name="v")
        np.testing.assert_array_equal(v.assign_add([1, 1]).read_value(), [2, 3])


# -- reading and writing -----------------------------------------------------------------------


def test_what_is_read_is_read_only_and_stays_as_it_was(make: Make) -> None:
    v = make([1.0, 2.0], name="v")
    value = v.read_value()
    with pytest.raises(ValueError, match="read-only"):
        value[0] = 9
    v.assign([5, 6])
    np.testing.assert_array_equal(value, [1, 2])
    np.testing.assert_array_equal(v.value(), [5, 6])


def test_numpy_is_a_copy_of_ones_own(make: Make) -> None:
    v = make([1.0, 2.0], name="v")
    mine = v.numpy()
    mine[0] = 9
    np.testing.assert_array_equal(v.read_value(), [1, 2])


def test_assign_add_and_sub_return_the_variable_and_chain(make: Make) -> None:
    v = make([1.0, 2.0], name="v")
    assert v.assign([3.0, 4.0]) is v
    assert v.assign_add([1, 1]) is v
    assert v.assign_sub([0.5, 1.0]) is v
    np.testing.assert_array_equal(v.read_value(), [3.5, 4.0])


def test_python_numbers_take_the_variables_dtype(make: Make) -> None:
    """``counter.assign_add(1)`` works whatever the counter's dtype."""
    for dtype in [d for d in DTYPES if d != np.bool_]:
        with row(dtype):
            v = make(5, dtype=dtype, name="v")
            assert v.assign_add(1).assign_sub(2).read_value() == 4
            assert v.assign(7).read_value() == 7
            assert v.read_value().dtype == dtype


@pytest.mark.parametrize("write", ["assign", "assign_add", "assign_sub"])
def test_a_value_of_another_shape_is_refused_with_both(make: Make, write: str) -> None:
    v = make([1.0, 2.0], name="w")
    with pytest.raises(ValueError, match=r"(?s)'w'.*\(3,\)|'w'.*\(2,\)") as caught:
        getattr(v, write)(np.ones(3, np.float32))
    assert "(2,)" in str(caught.value)
    assert "(3,)" in str(caught.value)
    np.testing.assert_array_equal(v.read_value(), [1, 2])


def test_sparse_read_gives_rows_in_the_order_asked_for(make: Make) -> None:
    table = np.arange(12, dtype=np.float32).reshape(6, 2)
    v = make(table, name="table")
    for ids in ([5, 0, 5, 3], [[1, 2], [2, 1]], 4, np.array([], np.int64), []):
        index = np.asarray(ids, np.int64)
        np.testing.assert_array_equal(v.sparse_read(ids), table[index])
        assert v.sparse_read(ids).shape == (*index.shape, 2)


@pytest.mark.parametrize("row", [-1, 3], ids=["negative", "past-the-end"])
def test_sparse_read_of_a_row_that_is_not_there_is_an_error(make: Make, row: int) -> None:
    v = make(np.ones((3, 2)), name="table")
    with pytest.raises((ValueError, IndexError), match=rf"{row} .*out of"):
        v.sparse_read([0, row])


def test_sparse_read_wants_integers(make: Make) -> None:
    v = make(np.ones((3, 2)), name="table")
    with pytest.raises((TypeError, ValueError, IndexError), match="integer"):
        v.sparse_read([0.5])


# -- as arrays ---------------------------------------------------------------------------------


def test_operators_act_on_the_value(make: Make) -> None:
    v = make([1.0, 2.0], name="v")
    x = np.array([10.0, 20.0], np.float32)
    cases: list[tuple[Any, list[float]]] = [
        (v + 1, [2, 3]), (1 + v, [2, 3]), (x - v, [9, 18]), (v * v, [1, 4]), (x / v, [10, 10]),
        (v**2, [1, 4]), (-v, [-1, -2]), (abs(v), [1, 2]), (np.exp(v * 0), [1, 1]),
    ]  # fmt: skip
    for result, expected in cases:
        assert type(result) is np.ndarray
        assert result.dtype == np.float32
        np.testing.assert_array_equal(result, expected)
    assert v @ x == 50
    assert x @ v == 50
    np.testing.assert_array_equal(v < 1.5, [True, False])


def test_a_variable_goes_where_arrays_go(make: Make) -> None:
    v = make([[1.0, 2.0], [3.0, 4.0]], name="v")
    assert np.asarray(v).dtype == np.float32
    assert np.asarray(v, np.float64).dtype == np.float64
    assert np.sum(v) == 10
    np.testing.assert_array_equal(np.concatenate([v, v]).shape, (4, 2))
    np.testing.assert_array_equal(v[1], [3, 4])
    np.testing.assert_array_equal(v[:, 0], [1, 3])
    assert len(v) == 2
    copied = np.array(v)
    copied[...] = 0
    np.testing.assert_array_equal(v.read_value(), [[1, 2], [3, 4]])


def test_numpy_of_a_scalar_is_a_number(make: Make) -> None:
    number = make(2.5, name="v").numpy()
    assert isinstance(number, np.float32)
    assert {number: "a key"}[np.float32(2.5)]


def test_a_scalar_has_no_length(make: Make) -> None:
    with pytest.raises(TypeError, match="scalar"):
        len(make(1.0, name="v"))


def test_variables_are_equal_by_identity_and_serve_as_keys(make: Make) -> None:
    a, b = make([1.0], name="a"), make([1.0], name="b")
    assert a == a
    assert a != b
    assert not (a == b)  # noqa: SIM201 - the other operator
    assert {a: 1, b: 2}[b] == 2
    assert b in [a, b]
    np.testing.assert_array_equal(np.equal(a, b.read_value()), [True])


# -- updates under the default strategy --------------------------------------------------------


def test_a_base_strategy_refuses_a_variable_of_a_parameter_server() -> None:
    with ParameterServerStrategy().scope():
        theirs = rw.Variable([1.0], name="theirs")
    mine = rw.Variable([1.0], name="mine")
    with pytest.raises(ValueError, match="'theirs' was created under another strategy"):
        rw.optimizers.SGD().apply_gradients([([1.0], mine), ([1.0], theirs)])
    np.testing.assert_array_equal(mine.read_value(), [1], "nothing was applied")


def test_a_push_whose_dtype_does_not_fit_is_refused() -> None:
    with ParameterServerStrategy().scope():
        v = rw.Variable([1, 2], name="count")
    with pytest.raises(ShapeMismatchError, match=r"'count' is float64.*convert it explicitly"):
        v.assign(np.array([0.5, 1.5]))


def test_strategies_of_one_replica_share_the_variables_rules() -> None:
    strategy = Strategy()
    with strategy.scope():
        v = rw.Variable([4.0], name="v")
    assert v.strategy is strategy
    strategy.run(lambda: rw.optimizers.SGD(1.0).apply_gradients([([1.0], v)]))
    assert v.read_value()[0] == 3
