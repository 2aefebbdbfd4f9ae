"""Who may write a distributed variable, where, and what becomes of it: TensorFlow's table, cell by
cell.

Every case makes the same variable, ``[10, 20]``, with 2 or 3 logical devices, and writes 1, 2, ...
from the replicas (4 from where there is one writer). Expected values are written down as rules on
plain numbers.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.local_strategies import CPUS
from helpers.replicas import FIRST, MEAN, NONE, ON_READ, ON_WRITE, SUM, copies, mirrored, replica
from helpers.rows import row
from ropewalk.distribute import (
    Mirrored,
    MirroredVariable,
    PerReplica,
    Strategy,
    SyncOnReadVariable,
)

Aggregation = rw.VariableAggregation
Synchronization = rw.VariableSynchronization


def made(
    strategy: Strategy, synchronization: Synchronization, aggregation: Aggregation
) -> MirroredVariable | SyncOnReadVariable:
    with strategy.scope():
        v = rw.Variable(
            np.array([10, 20], np.float32),
            name="v",
            synchronization=synchronization,
            aggregation=aggregation,
        )
    assert isinstance(v, MirroredVariable | SyncOnReadVariable)
    return v


# -- the operations, on a variable and on plain numbers ------------------------------------------

Number = float
DENSE: dict[str, Callable[[Number, Number], Number]] = {
    "assign": lambda old, x: x,
    "assign_add": lambda old, x: old + x,
    "assign_sub": lambda old, x: old - x,
}
ROWS: dict[str, Callable[[Number, Number], Number]] = {
    "scatter_add": lambda old, x: old + x,
    "scatter_sub": lambda old, x: old - x,
    "scatter_mul": lambda old, x: old * x,
    "scatter_div": lambda old, x: old / x,
    "scatter_min": min,
    "scatter_max": max,
    "scatter_update": lambda old, x: x,
}
NO_SUMS = ("scatter_min", "scatter_max", "scatter_update")
OPERATIONS = [*DENSE, *ROWS]
ONE = 4.0  # what is written where there is one writer


def argument(operation: str, number: float) -> Any:
    """``number`` for both elements, or for row 1."""
    if operation in DENSE:
        return np.full(2, number, np.float32)
    return rw.IndexedSlices(np.array([number], np.float32), np.array([1]))


def after(operation: str, numbers: Sequence[float]) -> list[float]:
    """``[10, 20]`` after these numbers were written one after the other."""
    first, second = 10.0, 20.0
    for number in numbers:
        if operation in DENSE:
            first = DENSE[operation](first, number)
            second = DENSE[operation](second, number)
        else:
            second = ROWS[operation](second, number)
    return [first, second]


def outcome(rule: str, operation: str, replicas: int) -> list[list[float]]:
    """The copies' values under a rule of the tables below."""
    given = [float(i + 1) for i in range(replicas)]
    if rule == "each its own":
        return [after(operation, [number]) for number in given]
    if rule == "first":
        written = [given[0]]
    elif rule == "one":
        written = [ONE]
    elif rule == "shared":
        written = [ONE / replicas]
    elif operation in DENSE:
        written = [sum(given) / (replicas if rule == "mean" else 1)]
    else:  # rows of all replicas, one after the other
        written = [number / (replicas if rule == "mean" else 1) for number in given]
    return [after(operation, written)] * replicas


# -- the tables: context → aggregation → rule, or what is raised ---------------------------------

Rule = str | type[Exception]


def on_write(context: str, aggregation: Aggregation, operation: str) -> Rule:
    """Section 6.1, with the decision of section 16.1 for NONE."""
    if context == "replica":
        if aggregation is NONE:
            return ValueError
        if operation in NO_SUMS and aggregation is not FIRST:
            return NotImplementedError
        return {SUM: "sum", MEAN: "mean", FIRST: "first"}[aggregation]
    # Whatever the aggregation.
    return {
        "cross": "one",
        "cross-mirrored": "one",
        "cross-per-replica": "each its own",
        "merge_call": "one",
        "update": "one",
        "update-per-component": "each its own",
    }[context]


def on_read(context: str, aggregation: Aggregation, operation: str) -> Rule:
    """Section 6.2."""
    if operation in ROWS:
        return NotImplementedError
    if context == "replica":
        return "each its own"
    if context == "update":
        return "one"
    if context == "update-per-component":
        return "each its own"
    if aggregation is NONE:
        return ValueError
    if context == "cross-per-replica":
        # TensorFlow's table does not say; assign gives each copy its own, the others are no sums.
        return "each its own" if operation == "assign" else ValueError
    if operation == "assign":
        return "shared" if aggregation is SUM else "one"
    return ValueError if aggregation is SUM else "one"


def write(context: str, strategy: Strategy, v: Any, operation: str) -> None:
    replicas = strategy.num_replicas_in_sync
    method = getattr(v, operation)
    each = PerReplica([argument(operation, i + 1) for i in range(replicas)])
    one = argument(operation, ONE)

    def merged(_: Strategy) -> None:
        method(one)

    def in_replicas() -> None:
        found = rw.distribute.get_replica_context()
        assert found is not None
        found.merge_call(merged)

    match context:
        case "replica":
            strategy.run(lambda: method(argument(operation, replica() + 1)))
        case "cross":
            with strategy.scope():
                method(one)
        case "cross-mirrored":
            method(Mirrored([one] * replicas))
        case "cross-per-replica":
            method(each)
        case "merge_call":
            strategy.run(in_replicas)
        case "update":
            strategy.extended.update(v, lambda component, x: method(x), args=(one,))
        case "update-per-component":
            strategy.extended.update(v, lambda component, x: method(x), args=(each,))


CONTEXTS = [
    "replica",
    "cross",
    "cross-mirrored",
    "cross-per-replica",
    "merge_call",
    "update",
    "update-per-component",
]
ON_READ_CONTEXTS = [context for context in CONTEXTS if context != "cross-mirrored"]


def cell(
    table: Callable[[str, Aggregation, str], Rule],
    synchronization: Synchronization,
    aggregation: Aggregation,
    operation: str,
    context: str,
    replicas: int,
) -> None:
    strategy = mirrored(replicas)
    v = made(strategy, synchronization, aggregation)
    rule = table(context, aggregation, operation)
    if not isinstance(rule, str):
        with pytest.raises(rule, match=r"'v'|PerReplica of . values"):
            write(context, strategy, v, operation)
        assert copies(v) == [[10, 20]] * replicas, "a refused write changes nothing"
        return
    write(context, strategy, v, operation)
    # float32: a mean of thirds, and quotients, are rounded once or twice.
    np.testing.assert_allclose(copies(v), outcome(rule, operation, replicas), rtol=3e-7)


@pytest.mark.parametrize("context", CONTEXTS)
@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda a: a.name)
def test_mirrored_variables_follow_the_table(aggregation: Aggregation, context: str) -> None:
    for operation, replicas in product(OPERATIONS, (2, 3)):
        with row(operation, f"{replicas} replicas"):
            cell(on_write, ON_WRITE, aggregation, operation, context, replicas)


@pytest.mark.parametrize("context", ON_READ_CONTEXTS)
@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda a: a.name)
def test_sync_on_read_variables_follow_the_table(aggregation: Aggregation, context: str) -> None:
    for operation, replicas in product(OPERATIONS, (2, 3)):
        with row(operation, f"{replicas} replicas"):
            cell(on_read, ON_READ, aggregation, operation, context, replicas)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ], ids=lambda s: s.name)
def test_an_update_function_may_change_its_component_in_every_way(
    synchronization: Synchronization, operation: str
) -> None:
    """The component is a variable of its device; the table is about the variable of all of them."""
    strategy = mirrored(2)
    v = made(strategy, synchronization, NONE)
    each = PerReplica([argument(operation, 1), argument(operation, 2)])
    strategy.extended.update(v, lambda c, x: getattr(c, operation)(x), args=(each,))
    np.testing.assert_allclose(copies(v), outcome("each its own", operation, 2), rtol=3e-7)


# -- reading -------------------------------------------------------------------------------------


def read_in(context: str, strategy: Strategy, v: Any) -> Any:
    def merged(_: Strategy) -> Any:
        return v.read_value()

    def in_replica() -> Any:
        found = rw.distribute.get_replica_context()
        assert found is not None
        return found.merge_call(merged)

    match context:
        case "replica":
            return strategy.run(v.read_value).values
        case "cross":
            return v.read_value()
        case "merge_call":
            return strategy.run(in_replica)
        case _:
            return strategy.extended.update(v, lambda component: v.read_value(), group=False)


READ_CONTEXTS = ["replica", "update", "cross", "merge_call"]
# Cross-replica reads of an ON_READ variable whose copies are 1, 2, 4.
CROSS_READ: dict[Aggregation, Any] = {NONE: ValueError, SUM: 7.0, MEAN: 7 / 3, FIRST: 1.0}


@pytest.mark.parametrize("context", READ_CONTEXTS)
@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda a: a.name)
def test_reads_of_sync_on_read_variables_follow_the_table(
    aggregation: Aggregation, context: str
) -> None:
    strategy = mirrored(3)
    v = made(strategy, ON_READ, aggregation)
    for component, number in zip(v.values, (1, 2, 4), strict=True):
        component.assign([number, number])
    if context in ("replica", "update"):
        mine = read_in(context, strategy, v)
        np.testing.assert_array_equal(mine, [[1, 1], [2, 2], [4, 4]])
        return
    expected = CROSS_READ[aggregation]
    if expected is ValueError:
        with pytest.raises(ValueError, match=r"Could not read 'v'.*create it with an aggregation"):
            read_in(context, strategy, v)
    else:
        # The mean of three float32 numbers is rounded once.
        np.testing.assert_allclose(read_in(context, strategy, v), [expected] * 2, rtol=1e-7)


@pytest.mark.parametrize("context", READ_CONTEXTS)
@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda a: a.name)
def test_mirrored_variables_are_read_where_they_are(aggregation: Aggregation, context: str) -> None:
    strategy = mirrored(3)
    v = made(strategy, ON_WRITE, aggregation)
    v.assign(
        PerReplica([np.array([n, n]) for n in (1, 2, 4)])
    )  # each copy its own: to tell them apart
    found = read_in(context, strategy, v)
    if context in ("replica", "update"):
        np.testing.assert_array_equal(found, [[1, 1], [2, 2], [4, 4]])
    else:
        np.testing.assert_array_equal(found, [1, 1])


@pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ], ids=lambda s: s.name)
def test_rows_and_operators_are_of_the_value_read(synchronization: Synchronization) -> None:
    strategy = mirrored(2)
    v = made(strategy, synchronization, MEAN)
    for component, number in zip(v.values, (1.0, 3.0), strict=True):
        component.assign([number, 10 * number])
    rows = strategy.run(lambda: (v.sparse_read([1]), v * 2, v.gather_nd([[1], [0]])))
    np.testing.assert_array_equal(rows[0].values, [[10], [30]])
    np.testing.assert_array_equal(rows[1].values, [[2, 20], [6, 60]])
    np.testing.assert_array_equal(rows[2].values, [[10, 1], [30, 3]])
    whole = 10.0 if synchronization is ON_WRITE else 20.0  # the first copy, or the mean
    np.testing.assert_array_equal(v.sparse_read([1, 1]), [whole, whole])
    np.testing.assert_array_equal(v + 1, [whole / 10 + 1, whole + 1])
    np.testing.assert_array_equal(np.asarray(v)[1:], [whole])


# -- values that are the same everywhere ---------------------------------------------------------


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [(SUM, 6.0), (MEAN, 2.0), (FIRST, 2.0)],
    ids=["SUM", "MEAN", "FIRST"],
)
def test_one_object_from_all_replicas_counts_once_for_each(
    aggregation: Aggregation, expected: float
) -> None:
    strategy = mirrored(3)
    with strategy.scope():
        v = rw.Variable(0.0, name="v", aggregation=aggregation)
    same = np.float32(2)
    strategy.run(lambda: v.assign(same))
    assert v.read_value() == expected
    strategy.run(lambda: v.assign(2))  # Python numbers are arrays of each replica's own
    assert v.read_value() == expected


@pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST], ids=lambda a: a.name)
def test_another_variable_may_be_written(aggregation: Aggregation) -> None:
    strategy = mirrored(2)
    v = made(strategy, ON_WRITE, aggregation)
    with strategy.scope():
        w = rw.Variable(np.array([1, 2], np.float32), name="w")
        metric: Any = rw.Variable(
            np.zeros(2, np.float32), name="m", synchronization=ON_READ, aggregation=SUM
        )
    factor = 2 if aggregation is SUM else 1
    strategy.run(lambda: v.assign(w))
    assert copies(v) == [[factor, 2 * factor]] * 2
    assert copies(v.assign(w)) == [[1, 2]] * 2
    for component, number in zip(metric.values, (3, 4), strict=True):
        component.assign([number, number])
    assert copies(v.assign(metric)) == [[7, 7]] * 2, "what it reads as, in every copy"


def test_the_copies_are_no_part_of_the_first_value() -> None:
    strategy = mirrored(3)
    v = made(strategy, ON_WRITE, NONE)
    assert tuple(component.device for component in v.values) == CPUS[:3]
    v.values[1].assign([0, 0])
    assert copies(v) == [[10, 20], [0, 0], [10, 20]]
    assert v.device == CPUS[0]
    seen = "copies=[[10. 20.], [0. 0.], [10. 20.]]"
    assert repr(v) == f"<MirroredVariable 'v' shape=(2,) dtype=float32 {seen}>"


# -- integers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
@pytest.mark.parametrize(
    ("aggregation", "expected"), [(SUM, 11), (FIRST, 6)], ids=["SUM", "ONLY_FIRST_REPLICA"]
)
def test_counters_of_every_integer_dtype_count(
    aggregation: Aggregation, expected: int, dtype: Any
) -> None:
    strategy = mirrored(3)
    with strategy.scope():
        v: Any = rw.Variable(5, dtype=dtype, name="v", aggregation=aggregation)
    strategy.run(lambda: v.assign_add(replica() + 1))
    assert v.read_value() == expected
    assert v.read_value().dtype == dtype
    strategy.run(lambda: v.assign_sub(replica() + 1))
    assert [component.read_value() for component in v.values] == [5] * 3
    assert v.assign(7).read_value() == 7


@pytest.mark.parametrize("aggregation", list(Aggregation), ids=lambda a: a.name)
@pytest.mark.parametrize("synchronization", list(Synchronization), ids=lambda s: s.name)
@pytest.mark.parametrize("dtype", [np.float32, np.int64], ids=["float", "int"])
def test_what_may_be_created_is_created_and_the_rest_is_a_value_error(
    dtype: Any, synchronization: Synchronization, aggregation: Aggregation
) -> None:
    strategy = mirrored(2)
    make: Callable[[], Any] = lambda: rw.Variable(  # noqa: E731 - used in both branches
        np.array([4, 6], dtype), synchronization=synchronization, aggregation=aggregation
    )
    wrong_dtype = dtype is np.int64 and aggregation is MEAN
    with strategy.scope():
        if synchronization is Synchronization.NONE:
            with pytest.raises(ValueError, match="NONE is not supported"):
                make()
            return
        if wrong_dtype:
            with pytest.raises(ValueError, match="MEAN needs a float dtype"):
                make()
            return
        v = make()
    kind = SyncOnReadVariable if synchronization is ON_READ else MirroredVariable
    assert type(v) is kind
    wanted = ON_READ if synchronization is ON_READ else Synchronization.ON_WRITE
    assert (v.synchronization, v.aggregation) == (wanted, aggregation)
    assert v.trainable is (synchronization is not ON_READ)
    assert copies(v) == [[4, 6]] * 2


@pytest.mark.parametrize("value", [8, 7, 0, -7, 2**62 + 1], ids=str)
@pytest.mark.parametrize("replicas", [1, 2, 3], ids=lambda n: f"{n}-replicas")
def test_an_integer_sum_on_read_is_shared_out_in_whole_numbers(replicas: int, value: int) -> None:
    strategy = mirrored(replicas)
    with strategy.scope():
        v: Any = rw.Variable(0, name="seen", synchronization=ON_READ, aggregation=SUM)
    shares = copies(v.assign(value))
    assert v.read_value() == sum(shares) == value
    assert max(shares) - min(shares) <= 1
    assert shares == sorted(shares, reverse=True), "what is left over goes to the first ones"


# -- creation ------------------------------------------------------------------------------------


@pytest.mark.parametrize("synchronization", [ON_WRITE, ON_READ], ids=lambda s: s.name)
def test_creation_in_run_gives_every_replica_one_variable(synchronization: Synchronization) -> None:
    strategy = mirrored(3)
    asked: list[int] = []

    def create() -> Any:
        asked.append(replica())
        initial = np.full(2, replica() + 1, np.float32)
        return rw.Variable(initial, name="v", synchronization=synchronization)

    v = strategy.run(create)
    assert sorted(asked) == [0, 1, 2]
    assert isinstance(v, MirroredVariable | SyncOnReadVariable)
    assert v.name == "v"
    assert copies(v) == [[1, 1]] * 3, "the first replica's value is everybody's"


def test_random_first_values_are_the_same_everywhere() -> None:
    strategy = mirrored(3)
    rng = np.random.default_rng(0)
    with strategy.scope():
        drawn: Any = rw.Variable(lambda: rng.normal(size=4) + 1)
        made_there: Any = rw.Variable(initializer=rw.Initializer("random_normal"), shape=(3, 2))
        scalar: Any = rw.Variable(initializer=rw.Initializer("ones"), shape=())
    for v in (drawn, made_there, scalar):
        assert all(np.array_equal(c.read_value(), v.values[0].read_value()) for c in v.values)


def test_names_are_unique_in_a_strategy_and_its_copies_are_numbered() -> None:
    strategy = mirrored(2)
    a, b = made(strategy, ON_WRITE, NONE), made(strategy, ON_READ, NONE)
    assert (a.name, b.name) == ("v", "v_1")
    assert [component.name for component in b.values] == ["v_1", "v_1/replica_1"]


# -- errors that help ----------------------------------------------------------------------------


def test_without_an_aggregation_the_error_says_which_there_are() -> None:
    strategy = mirrored(2)
    v = made(strategy, ON_WRITE, NONE)
    with pytest.raises(ValueError, match="You must specify an aggregation method") as caught:
        strategy.run(lambda: v.assign_add([1, 1]))
    for word in ("'v'", "2 replicas", "SUM", "MEAN", "ONLY_FIRST_REPLICA (for counters)"):
        assert word in str(caught.value)


def test_replicas_that_write_in_different_ways_are_an_error() -> None:
    strategy = mirrored(2)
    v = made(strategy, ON_WRITE, SUM)
    with pytest.raises(RuntimeError, match=r"replicas disagree.*assign, assign_add"):
        strategy.run(lambda: (v.assign_add if replica() else v.assign)([1, 1]))
    assert copies(v) == [[10, 20]] * 2


def test_replicas_that_write_values_of_different_shapes_change_nothing() -> None:
    strategy = mirrored(2)
    v = made(strategy, ON_WRITE, SUM)
    with pytest.raises(ValueError, match="differ in shape"):
        strategy.run(lambda: v.assign(np.ones(2 + replica(), np.float32)))
    assert copies(v) == [[10, 20]] * 2


# -- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["run", "cross"])
def test_gradients_of_all_replicas_are_summed_and_applied_once(where: str) -> None:
    strategy = mirrored(3)
    v = made(strategy, ON_WRITE, NONE)
    optimizer = rw.optimizers.SGD(1.0)
    gradients = [np.full(2, i + 1, np.float32) for i in range(3)]
    if where == "run":
        strategy.run(lambda: optimizer.apply_gradients([(gradients[replica()], v)]))
    else:
        optimizer.apply_gradients([(PerReplica(gradients), v)])
    assert copies(v) == [[4, 14]] * 3


def test_optimizers_leave_sync_on_read_variables_alone() -> None:
    strategy = mirrored(2)
    v = made(strategy, ON_READ, SUM)
    with pytest.raises(ValueError, match="'v' has synchronization ON_READ"):
        strategy.run(lambda: rw.optimizers.SGD().apply_gradients([(np.ones(2), v)]))


@pytest.mark.parametrize("aggregation", [SUM, MEAN, FIRST], ids=lambda value: value.name)
def test_a_value_that_is_mirrored_is_read_on_read_as_it_was_assigned(
    aggregation: Aggregation,
) -> None:
    strategy = mirrored(2)
    v = made(strategy, ON_READ, aggregation)
    v.assign(Mirrored([np.array([4, 6], np.float32)] * 2))
    np.testing.assert_array_equal(v.read_value(), [4, 6])
