"""A step that is refused for NaN leaves the state of an optimizer on the worker as it was."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

X = np.random.default_rng(0).normal(size=(16, 4)).astype(np.float32)
Y = X.sum(1, keepdims=True)


def in_a_job(program: Callable[[Any], Any]) -> Any:
    """What the program returns on the chief of a job with a ps of its own."""
    with rw.testing.LocalCluster(workers=0, ps=1) as cluster:
        found = cluster.run(lambda: program(rw.distribute.ParameterServerStrategy()))
    return next(iter(found.values()))


def alone(program: Callable[[Any], Any]) -> Any:
    """What the program returns where no other process has the variables."""
    return program(rw.distribute.ParameterServerStrategy())


def in_sync(program: Callable[[Any], Any]) -> Any:
    """What the program returns under a strategy in sync."""
    return program(rw.distribute.MultiWorkerMirroredStrategy())


everywhere = pytest.mark.parametrize("run", [in_a_job, alone, in_sync])


@everywhere
@pytest.mark.parametrize("ends", [False, True], ids=["goes-on", "ends"])
def test_that_of_pytorch(run: Any, ends: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setenv("ROPEWALK_NONFINITE_LIMIT", "1" if ends else "10")

    def program(strategy: Any) -> tuple[Any, Any]:
        parameter = torch.nn.Parameter(torch.arange(3.0))
        inner = torch.optim.Adam([parameter], 0.1)
        optimizer = rw.training.torch.DistributedOptimizer(inner, strategy, deltas="always")

        def step(factor: float) -> dict[str, Any]:
            parameter.grad = torch.full((3,), factor)
            optimizer.step()
            return {key: value.tolist() for key, value in inner.state[parameter].items()}

        before = step(1.0)
        if ends:
            with pytest.raises(rw.errors.NonFiniteGradientError):
                step(np.nan)
        else:
            step(np.nan)
        after = {key: value.tolist() for key, value in inner.state[parameter].items()}
        step(1.0)
        assert np.isfinite(parameter.detach().numpy()).all()
        return before, after

    before, after = run(program)
    assert after == before


@everywhere
def test_that_of_optax(run: Any) -> None:
    jax, optax = pytest.importorskip("jax"), pytest.importorskip("optax")

    def program(strategy: Any) -> tuple[Any, Any]:
        start = {"w": np.arange(3, dtype=np.float32)}
        state = rw.training.jax.TrainState(start, optax.adam(0.1), strategy, deltas="always")
        state.apply_gradients({"w": np.ones(3, np.float32)})
        before = state.opt_state
        state.apply_gradients({"w": np.full(3, np.nan, np.float32)})
        after = state.opt_state
        strategy.run(lambda: state.apply_gradients({"w": np.full(3, np.nan, np.float32)}))
        for each in (after, state.opt_state):
            assert jax.tree.all(jax.tree.map(np.array_equal, each, before))
        strategy.run(lambda: state.apply_gradients({"w": np.ones(3, np.float32)}))
        return int(before[0].count), int(state.opt_state[0].count)

    assert run(program) == (1, 2)


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pytest.importorskip(os.environ["KERAS_BACKEND"])
    return pytest.importorskip("keras")


def compiled(keras: Any, optimizer: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="net")
    model.compile(optimizer, "mse")
    return model


@everywhere
def test_that_of_keras(run: Any, keras: Any) -> None:
    def program(strategy: Any) -> None:
        model = compiled(keras, keras.optimizers.Adam(0.1))
        rw.training.keras.distribute(model, strategy, deltas="always")
        model.train_on_batch(X, Y)
        before = [np.array(v) for v in (*model.weights, *model.optimizer.variables)]
        model.train_on_batch(X * np.nan, Y)
        after = [*model.weights, *model.optimizer.variables]
        for ours, theirs in zip(after, before, strict=True):
            np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)
        model.train_on_batch(X, Y)
        assert int(model.optimizer.iterations) == 2

    run(program)


@everywhere
def test_that_of_keras_in_a_loop(run: Any, keras: Any) -> None:
    """Given to ``optimizer.apply``; on JAX to ``stateless_apply``."""

    def program(strategy: Any) -> None:
        with strategy.scope():
            keras.utils.set_random_seed(0)
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)], name="net")
            optimizer = keras.optimizers.Adafactor(0.1)
        weights = model.trainable_variables
        optimizer.build(weights)
        state = [v.value for v in optimizer.variables]
        values = [v.value for v in weights]

        def step(factor: float) -> list[Any]:
            nonlocal state, values
            gradients = [
                keras.ops.convert_to_tensor(np.full(v.shape, factor, np.float32)) for v in weights
            ]
            if keras.backend.backend() != "jax":
                optimizer.apply(gradients, weights)
                return [np.array(v) for v in optimizer.variables]
            values, state = optimizer.stateless_apply(state, gradients, values)
            return [np.array(each) for each in state]

        before = step(1.0)
        for ours, theirs in zip(step(np.nan), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        assert all(np.isfinite(each).all() for each in step(1.0))

    run(program)
