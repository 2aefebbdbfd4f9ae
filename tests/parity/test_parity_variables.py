"""Variables are read and written as in TensorFlow, checkpoints of ON_READ ones too."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.parity import (
    AGGREGATED,
    AGGREGATIONS,
    SCATTERS,
    WRITES,
    Both,
    Program,
    Side,
    alike,
    copies,
    differ,
    distributed,
    replica,
    write,
)

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.filterwarnings("ignore"),  # TensorFlow's own are not ours to mend
]

# -- variables -----------------------------------------------------------------------------------
WRITERS = ["replica", "cross", "merge", "update"]


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
@alike()
def test_writes_of_mirrored_variables_are_the_same(
    side: Side, aggregation: str, method: str, kind: str, writer: str
) -> Any:
    return writing("ON_WRITE", aggregation, method, kind, writer)(side)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", WRITES)
@differ(theirs="value", ours="ValueError", words="aggregation")
def test_replicas_do_not_write_a_mirrored_variable_without_aggregation(
    side: Side, method: str, kind: str
) -> Any:
    """TensorFlow since 2.4 lets each change its own copy, which go their own ways from then on."""
    return writing("ON_WRITE", "NONE", method, kind, "replica")(side)


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
@alike()
def test_writes_of_on_read_variables_are_the_same(
    side: Side, aggregation: str, method: str, kind: str, writer: str
) -> Any:
    return writing("ON_READ", aggregation, method, kind, writer)(side)


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
@alike()
def test_reads_are_the_same(side: Side, reader: str, synchronization: str, aggregation: str) -> Any:
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
@alike()
def test_scatters_are_the_same(
    side: Side, synchronization: str, aggregation: str, kind: str, where: str
) -> Any:
    return scattering(synchronization, aggregation, kind, where)(side)


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
@differ(theirs="value", ours="ValueError", words="aggregation")
def test_replicas_do_not_scatter_into_a_mirrored_variable_without_aggregation(
    side: Side, kind: str
) -> Any:
    """TensorFlow lets each change its own copy, as in the other writes."""
    return scattering("ON_WRITE", "NONE", kind, "replica")(side)


@pytest.mark.parametrize(("aggregation", "kind"), NO_SUMS)
@differ(theirs="NotImplementedError", ours="value")
def test_one_writer_may_scatter_whatever_the_aggregation(
    side: Side, aggregation: str, kind: str
) -> Any:
    """TensorFlow refuses it in cross-replica context too, where there is nothing to aggregate."""
    return scattering("ON_WRITE", aggregation, kind, "cross")(side)


@pytest.mark.parametrize("method", WRITES)
@pytest.mark.parametrize("aggregation", AGGREGATED)
@alike()
def test_writes_of_central_storage_are_the_same(side: Side, aggregation: str, method: str) -> Any:
    strategy = side.strategy("CentralStorage", 2)
    with strategy.scope():
        v = side.variable([1.0, 2.0], aggregation=aggregation)
    value = distributed(side, strategy, [1.0, 3.0], [5.0, 8.0])
    write(side, strategy, v, method, value, "replica")
    write(side, strategy, v, method, side.array([1.0, 1.0]), "cross")
    return v.read_value()


@alike()
def test_variables_know_their_strategy_alike(side: Side) -> Any:
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


@pytest.mark.parametrize("kind", ["default", "Mirrored", "CentralStorage"])
@alike(gives=[True, True])
def test_a_variable_of_this_process_prints_its_value(side: Side, kind: str) -> Any:
    with side.strategy(kind, 2).scope():
        v = side.variable([7.25, 8.5], name="seen")
    return ["7.25" in str(v), "seen" in repr(v)]


@alike(gives=["float32", 2.5])
def test_the_value_of_a_scalar_is_a_number_of_numpys(side: Side) -> Any:
    number = side.variable(2.5).numpy()
    return [type(number).__name__, number]


# -- checkpoints of ON_READ variables, each in its own format ------------------------------------
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
@alike()
def test_checkpoints_of_on_read_variables_are_shared_out_alike(
    side: Side, tmp_path: Path, aggregation: str, saved: int, restored: int
) -> Any:
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


@alike(gives="ValueError")
def test_without_an_aggregation_there_is_nothing_to_save(side: Side, tmp_path: Path) -> Any:
    return side.save(on_read(side, 2, "NONE")[1], tmp_path)


@alike()
def test_without_an_aggregation_each_copy_is_restored_to_the_value(
    side: Side, tmp_path: Path
) -> Any:
    folder = tmp_path / type(side).__name__
    folder.mkdir()
    _, v = on_read(side, 0, "NONE")
    v.assign([7.0])
    side.save(v, folder)
    _, other = on_read(side, 2, "NONE")
    side.restore(other, folder)
    return copies(other)
