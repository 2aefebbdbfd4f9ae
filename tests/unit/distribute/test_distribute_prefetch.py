"""Steps that do not wait for their push: values lack the worker's own last update alone."""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Exchange, answered
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import PeerLostError, RefusedError
from ropewalk.core.wire.steps import NO_TARGET, PullTarget, StepRequest
from ropewalk.distribute import ParameterServerStrategy
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.distribute.strategies.parameter_server import ParameterServerExtended

SGD = rw.optimizers.SGD
RATE = np.float32(0.05)


def make(*values: Any) -> tuple[ParameterServerStrategy, list[rw.Variable]]:
    strategy = ParameterServerStrategy(prefetch=True)
    with strategy.scope():
        variables = [rw.Variable(v, name="abc"[i]) for i, v in enumerate(values)]
    return strategy, variables


def extended_of(strategy: ParameterServerStrategy) -> ParameterServerExtended:
    extended = strategy.extended
    assert isinstance(extended, ParameterServerExtended)
    return extended


def session_of(strategy: ParameterServerStrategy) -> ParameterSession:
    return extended_of(strategy).runtime.session


def gradient(w: Array) -> Array:
    """Of a bowl around (3, -2, 1, ...)."""
    return w - np.resize(np.array([3, -2, 1], np.float32), w.shape)


def test_each_step_begins_with_values_that_lack_its_own_last_update() -> None:
    strategy, [w] = make(np.zeros(5, np.float32))
    optimizer = SGD(float(RATE))
    seen: list[Array] = []

    def step() -> None:
        seen.append(w.read_value().copy())
        optimizer.apply_gradients([(gradient(seen[-1]), w)])

    # The same in NumPy, bit for bit: held[k] is the value after k updates.
    held: list[Array] = [np.zeros(5, np.float32)]
    for number in range(12):
        strategy.run(step)
        held.append(held[-1] - RATE * gradient(seen[-1]))
        # There is nothing else to begin the second step with; it may wait for the first.
        allowed = held[:2] if number == 1 else [held[max(number - 1, 0)]]
        assert any(np.array_equal(seen[-1], value) for value in allowed), number
    np.testing.assert_array_equal(w.read_value(), held[-1])


def test_staleness_counts_the_workers_own_step() -> None:
    strategy, [w] = make([0.0])
    for _ in range(8):
        strategy.run(lambda: SGD(0.1).apply_gradients([(gradient(w.read_value()), w)]))
    session_of(strategy).finish()
    w.read_value()
    reported = list(extended_of(strategy).runtime.progress.staleness)
    assert reported[2:] == [1] * len(reported[2:])
    assert len(reported) >= 7
    assert strategy.global_step == 8


def test_outside_a_step_reads_have_every_update() -> None:
    strategy, [w] = make([0.0])
    for count in range(1, 8):
        strategy.run(lambda: SGD(1.0).apply_gradients([(0 * w.read_value() - 1, w)]))
        assert w.read_value()[0] == count


@pytest.mark.parametrize("size", [4, 100_000], ids=["small", "large"])
def test_a_program_may_use_its_gradient_arrays_again(size: int) -> None:
    strategy, [w] = make(np.zeros(size, np.float32))
    optimizer, reused = SGD(1.0), np.empty(size, np.float32)

    def step(number: int) -> None:
        w.read_value()
        reused[:] = -number
        optimizer.apply_gradients([(reused, w)])

    for number in range(1, 9):
        strategy.run(step, args=(number,))
        reused[:] = 1e9
    np.testing.assert_array_equal(w.read_value(), sum(range(1, 9)))


def test_an_assignment_between_steps_is_never_taken_back() -> None:
    """Not even by values that were on their way when it was made."""
    strategy, [w] = make([0.0])
    seen: list[float] = []

    def step() -> None:
        seen.append(float(w.read_value()[0]))
        SGD(1.0).apply_gradients([([-1.0], w)])

    for _ in range(4):
        strategy.run(step)
    w.assign([1000.0])
    for _ in range(4):
        strategy.run(step)
    assert min(seen[4:]) >= 1000
    assert w.read_value()[0] == 1004


def test_an_assignment_in_a_step_is_never_taken_back() -> None:
    strategy, [w] = make([0.0])
    seen: list[float] = []

    def step(number: int) -> None:
        seen.append(float(w.read_value()[0]))
        if number == 4:
            w.assign([1000.0])
        SGD(1.0).apply_gradients([([-1.0], w)])

    for number in range(9):
        strategy.run(step, args=(number,))
    assert max(seen[:5]) < 1000 <= min(seen[5:])
    assert w.read_value()[0] == 1005


def test_values_a_program_keeps_stay_as_they_are() -> None:
    strategy, [w] = make(np.zeros(50, np.float32))
    kept: list[tuple[Array, Array]] = []

    def step() -> None:
        value = w.read_value()
        kept.append((value, value.copy()))
        SGD(1.0).apply_gradients([(value - 1, w)])

    for _ in range(30):
        strategy.run(step)
    for value, copy in kept:
        np.testing.assert_array_equal(value, copy)


def test_a_variable_first_read_later_is_there() -> None:
    strategy, [a, b] = make([1.0], np.full(40_000, 2, np.float32))
    optimizer = SGD(1.0)

    def step(also: bool) -> tuple[float, float]:
        optimizer.apply_gradients([([0.0], a)])
        return float(a.read_value()[0]), float(b.read_value()[-1]) if also else 0.0

    for number in range(8):
        assert strategy.run(step, args=(number > 3,)) == (1, 2 if number > 3 else 0)


def fail_receiving(strategy: ParameterServerStrategy, error: Exception, times: int = 1) -> None:
    """The next steps reach the ps, and their answers are errors."""
    [transport] = session_of(strategy).peers
    assert isinstance(transport, LocalPs)
    step = transport.step
    left = [times]

    def failing(request: StepRequest, target: PullTarget = NO_TARGET) -> Exchange:
        exchange = step(request, target)
        for _ in range(2):
            next(exchange)
            yield
        if left[0]:
            left[0] -= 1
            raise error
        return answered(exchange)

    transport.step = failing  # type: ignore[method-assign]


@pytest.mark.parametrize(
    "error", [RefusedError("no"), PeerLostError("gone")], ids=["refused", "lost"]
)
def test_a_push_that_failed_is_raised_by_the_next_step_at_the_latest_and_once(
    error: Exception,
) -> None:
    strategy, [w] = make([0.0])

    def step() -> None:
        SGD(1.0).apply_gradients([(0 * w.read_value() - 1, w)])

    for _ in range(3):
        strategy.run(step)
    before = w.read_value()[0]
    strategy.run(step)
    session_of(strategy).wait()
    fail_receiving(strategy, error)

    def steps() -> None:
        for _ in range(3):
            strategy.run(step)

    with pytest.raises(type(error)) as caught:
        steps()
    assert caught.value is error
    session_of(strategy).finish()
    if isinstance(error, PeerLostError):
        # The push may have been applied; the next one must not be taken for it.
        with pytest.raises(PeerLostError, match="its outcome is not known"):
            strategy.run(step)
        return
    strategy.run(step)
    session_of(strategy).finish()
    assert w.read_value()[0] == before + 2, "the steps before the failure and after it was raised"


def test_a_last_push_that_failed_is_raised_at_the_end() -> None:
    strategy, [w] = make([0.0])

    def step() -> None:
        SGD(1.0).apply_gradients([(0 * w.read_value() - 1, w)])

    for _ in range(3):
        strategy.run(step)
    error = RefusedError("no")
    session_of(strategy).wait()
    fail_receiving(strategy, error)
    strategy.run(step)
    with pytest.raises(RefusedError) as caught:
        session_of(strategy).finish()
    assert caught.value is error
    session_of(strategy).finish()
