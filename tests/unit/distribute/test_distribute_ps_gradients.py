"""Gradients on their way to the servers: rows, clipping, what is not finite, several replicas."""

import logging
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.replicas import SUM, replica
from ropewalk.core.errors import NonFiniteGradientError, ShapeMismatchError
from ropewalk.distribute import ParameterServerStrategy, PerReplica, partitioners
from ropewalk.distribute.runtime import TaskProgress
from ropewalk.distribute.strategies.parameter_server import ParameterServerExtended

Array = np.ndarray[Any, np.dtype[Any]]
SGD = rw.optimizers.SGD


def progress(strategy: ParameterServerStrategy) -> TaskProgress:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended.runtime.progress


def floats(*numbers: float) -> Array:
    return np.array(numbers, np.float32)


# -- rows --------------------------------------------------------------------------------------


@pytest.mark.parametrize("parts", [1, 2, 3], ids=lambda n: f"{n}-parts")
def test_indexed_slices_touch_their_rows_alone_and_repeated_ones_add_up(parts: int) -> None:
    strategy = ParameterServerStrategy(
        variable_partitioner=partitioners.FixedShardsPartitioner(parts)
    )
    rng = np.random.default_rng(0)
    start = rng.standard_normal((7, 3)).astype(np.float32)
    with strategy.scope():
        table = rw.Variable(start, name="table")
    optimizer = SGD(0.5)
    expected = start.astype(np.float64)
    for _ in range(5):
        ids = rng.integers(0, 7, 10)
        gradient = rng.standard_normal((10, 3)).astype(np.float32)

        def step(ids: Array = ids, gradient: Array = gradient) -> None:
            np.testing.assert_allclose(table.sparse_read(ids), expected[ids], rtol=1e-5, atol=1e-6)
            optimizer.apply_gradients([(rw.IndexedSlices(gradient, ids), table)])

        strategy.run(step)
        np.subtract.at(expected, ids, 0.5 * gradient)
    # Five float32 updates of order 1 against float64.
    np.testing.assert_allclose(table.read_value(), expected, rtol=1e-5, atol=1e-6)


def test_rows_that_are_not_there_are_refused_before_anything_is_sent() -> None:
    strategy = ParameterServerStrategy()
    with strategy.scope():
        a, table = rw.Variable([1.0], name="a"), rw.Variable(np.ones((4, 2)), name="table")
    for index, message in ((4, "row 4 of 'table'"), (-1, "row -1 of 'table'")):
        rows = rw.IndexedSlices(np.ones((1, 2)), np.array([index]))
        with pytest.raises(ShapeMismatchError, match=f"{message} is out of range: it has 4 rows"):
            SGD(1.0).apply_gradients([([1.0], a), (rows, table)])
    narrow = rw.IndexedSlices(np.ones((1, 3)), np.array([0]))
    with pytest.raises(ShapeMismatchError, match=r"have shape \(3,\), the variable's rows.*\(2,\)"):
        SGD(1.0).apply_gradients([(narrow, table)])
    assert a[0] == 1
    assert strategy.global_step == 0


def test_no_rows_at_all_is_a_step_like_others() -> None:
    strategy = ParameterServerStrategy()
    with strategy.scope():
        table = rw.Variable(np.ones((4, 2)), name="table")
    SGD(1.0).apply_gradients([(rw.IndexedSlices(np.ones((0, 2)), np.zeros(0, np.int64)), table)])
    assert (table.read_value() == 1).all()
    assert strategy.global_step == 1


# -- clipping ----------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy_of", ["default", "ps"])
@pytest.mark.parametrize("limit", [0.5, 3.0, 1e6], ids=["clips", "clips-less", "does-not"])
def test_global_clipnorm_scales_all_gradients_of_a_step_jointly(
    strategy_of: str, limit: float
) -> None:
    """Against the formula in float64; repeated rows count as their sum."""
    strategy = ParameterServerStrategy() if strategy_of == "ps" else rw.distribute.get_strategy()
    rng = np.random.default_rng(1)
    with strategy.scope():
        w = rw.Variable(np.zeros((3, 4), np.float32), name="w")
        b = rw.Variable(np.zeros(4, np.float32), name="b")
        table = rw.Variable(np.zeros((5, 2), np.float32), name="table")
    gw, gb = rng.standard_normal((3, 4)), rng.standard_normal(4)
    rows, ids = rng.standard_normal((3, 2)).astype(np.float32), np.array([4, 1, 4])
    dense = np.zeros((5, 2))
    np.add.at(dense, ids, rows)
    norm = np.sqrt(sum((g.astype(np.float32) ** 2).sum(dtype=np.float64) for g in (gw, gb, dense)))
    scale = min(1.0, limit / norm)
    optimizer = SGD(1.0, global_clipnorm=limit)
    pairs = [
        (gw.astype(np.float32), w),
        (gb.astype(np.float32), b),
        (rw.IndexedSlices(rows, ids), table),
    ]
    strategy.run(lambda: optimizer.apply_gradients(pairs))
    for variable, g in ((w, gw), (b, gb), (table, dense)):
        # float32 gradients, scale and product: a few roundings.
        np.testing.assert_allclose(variable.read_value(), -scale * g, rtol=1e-5, atol=1e-7)


def test_optimizers_with_different_clips_do_not_share_their_norm() -> None:
    strategy = ParameterServerStrategy()
    with strategy.scope():
        a, b = rw.Variable([0.0], name="a"), rw.Variable([0.0], name="b")
    tight, loose = SGD(1.0, global_clipnorm=1.0), SGD(1.0, global_clipnorm=100.0)

    def step() -> None:
        tight.apply_gradients([([30.0], a)])
        loose.apply_gradients([([30.0], b)])

    strategy.run(step)
    assert (a[0], b[0]) == (-1, -30)


# -- not finite --------------------------------------------------------------------------------


def diverging(limit: int, monkeypatch: pytest.MonkeyPatch) -> ParameterServerStrategy:
    monkeypatch.setenv("ROPEWALK_NONFINITE_LIMIT", str(limit))
    return ParameterServerStrategy()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=["nan", "inf", "-inf"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
def test_a_gradient_that_is_not_finite_refuses_the_whole_step_and_is_counted(
    caplog: pytest.LogCaptureFixture, bad: float, sparse: bool
) -> None:
    strategy = ParameterServerStrategy()
    with strategy.scope():
        a, b = rw.Variable([1.0], name="a"), rw.Variable([[1.0], [2.0]], name="b")
    optimizer = SGD(1.0)
    whole = floats(bad, 0).reshape(2, 1)
    gradient = rw.IndexedSlices(whole[:1], np.array([1])) if sparse else whole
    with caplog.at_level(logging.WARNING):
        strategy.run(lambda: optimizer.apply_gradients([([1.0], a), (gradient, b)]))
    assert (a[0], b[0, 0], b[1, 0]) == (1, 1, 2)
    assert strategy.global_step == 0
    assert progress(strategy).refused_pushes == 1
    assert "refused a push: the gradient of 'b' is NaN or infinite" in caplog.text
    strategy.run(lambda: optimizer.apply_gradients([([1.0], a)]))
    assert a[0] == 0
    assert strategy.global_step == 1


def test_a_program_that_diverged_ends_after_so_many_refusals_in_a_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    strategy = diverging(3, monkeypatch)
    with strategy.scope():
        a = rw.Variable([1.0], name="a")
    optimizer = SGD(1.0)

    def step(gradient: float) -> None:
        optimizer.apply_gradients([([gradient], a)])

    for gradient in (np.nan, np.nan, 0.5, np.inf, np.nan):  # never three in a row
        strategy.run(step, args=(gradient,))
    with pytest.raises(NonFiniteGradientError, match=r"'a' was NaN or infinite 3 steps") as caught:
        strategy.run(step, args=(np.nan,))
    assert caught.value.fields["variable"] == "a"
    assert caught.value.fields["in_a_row"] == "3"
    assert "ROPEWALK_NONFINITE_GRADIENTS=allow" in caught.value.message
    assert progress(strategy).refused_pushes == 5
    assert a[0] == 0.5


def test_gradients_that_are_not_finite_may_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_NONFINITE_GRADIENTS", "allow")
    strategy = ParameterServerStrategy()
    with strategy.scope():
        a = rw.Variable([1.0], name="a")
    SGD(1.0).apply_gradients([([np.nan], a)])
    assert np.isnan(a[0])
    assert strategy.global_step == 1
    assert progress(strategy).refused_pushes == 0


# -- several replicas --------------------------------------------------------------------------


def two_replicas() -> ParameterServerStrategy:
    rw.config.set_logical_cpu_devices(2)
    return ParameterServerStrategy()


def test_gradients_are_summed_over_replicas_and_pushed_once() -> None:
    strategy = two_replicas()
    with strategy.scope():
        w = rw.Variable([0.0, 0.0], name="w")
    optimizer = SGD(1.0)
    for expected in (1, 2):
        strategy.run(
            lambda g: optimizer.apply_gradients([(g, w)]),
            args=(PerReplica([floats(-1, 0), floats(-2, -5)]),),
        )
        assert strategy.global_step == expected
    np.testing.assert_array_equal(w.read_value(), [6, 10])
    assert progress(strategy).pushes == 2


def test_a_gradient_all_replicas_share_counts_once_for_each() -> None:
    strategy = two_replicas()
    with strategy.scope():
        w = rw.Variable([0.0], name="w")
    strategy.run(lambda g: SGD(1.0).apply_gradients([(g, w)]), args=(floats(-1),))
    assert w[0] == 2


def test_clipping_is_of_the_sum_over_replicas() -> None:
    strategy = two_replicas()
    with strategy.scope():
        w = rw.Variable([0.0], name="w")
    optimizer = SGD(1.0, global_clipnorm=3.0)
    strategy.run(
        lambda g: optimizer.apply_gradients([(g, w)]), args=(PerReplica([floats(2), floats(4)]),)
    )
    assert w[0] == -3


def test_both_replicas_read_the_same_values_in_a_step() -> None:
    strategy = two_replicas()
    with strategy.scope():
        w = rw.Variable(np.zeros(4, np.float32), name="w")
    optimizer = SGD(1.0)

    def step() -> Array:
        value: Array = w.read_value()
        optimizer.apply_gradients([(value * 0 - 1, w)])
        np.testing.assert_array_equal(w.read_value(), value)
        return value

    for i in range(3):
        for value in strategy.experimental_local_results(strategy.run(step)):
            np.testing.assert_array_equal(value, 2 * i)


def test_replicas_with_gradients_for_different_variables_are_an_error_not_a_mixture() -> None:
    """None gradients are left out by each replica for itself."""
    strategy = two_replicas()
    with strategy.scope():
        a, b = rw.Variable([0.0], name="a"), rw.Variable([0.0], name="b")

    def step() -> None:
        pairs = [(floats(1), a), (None, b)] if replica() == 0 else [(None, a), (floats(5), b)]
        SGD(1.0).apply_gradients(pairs)

    def uneven() -> None:
        pairs = [(floats(1), a)] if replica() == 0 else [(floats(1), a), (floats(5), b)]
        SGD(1.0).apply_gradients(pairs)

    for program in (step, uneven):
        with pytest.raises(ValueError, match="replicas gave gradients for different variables"):
            strategy.run(program)
    assert (a[0], b[0]) == (0, 0)


@pytest.mark.parametrize(("write", "total"), [("assign", 3), ("assign_add", 13)])
def test_what_replicas_wrote_is_seen_at_once_by_each(write: str, total: float) -> None:
    strategy = two_replicas()
    with strategy.scope():
        v = rw.Variable([10.0], name="v", aggregation=SUM)

    def step() -> Any:
        getattr(v, write)(floats(1 + replica()))
        return v.numpy()

    for value in strategy.experimental_local_results(strategy.run(step)):
        assert value[0] == total
