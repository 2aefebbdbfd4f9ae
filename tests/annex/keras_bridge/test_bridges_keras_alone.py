"""Keras with an optimizer on the worker and no cluster: the model's own step, bit for bit."""

import os
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.client.ps.step import Step

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = np.sin(X @ np.random.default_rng(1).normal(size=(8, 1))).astype(np.float32)


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, where a step can be compiled as a whole."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    found = pytest.importorskip("keras")
    if found.backend.backend() != "jax":
        pytest.skip("Keras runs on another backend here")
    return found


def compiled(keras: Any, optimizer: str = "Adafactor") -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    body = [layers.Dense(16, "tanh"), layers.BatchNormalization(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((8,)), *body], name="net")
    model.compile(getattr(keras.optimizers, optimizer)(1e-2), "mse")
    return model


def shared(model: Any) -> Any:
    strategy = rw.distribute.ParameterServerStrategy()
    rw.training.keras.distribute(model, strategy, deltas="always")
    return strategy


def pushed_bytes(strategy: Any) -> int:
    return int(strategy.extended.runtime.session.counters.pushed)


@pytest.mark.parametrize("optimizer", ["Adafactor", "Adam"])
def test_steps_are_those_of_keras_to_the_bit_and_push_nothing(keras: Any, optimizer: str) -> None:
    alone, model = compiled(keras, optimizer), compiled(keras, optimizer)
    strategy = shared(model)
    before = pushed_bytes(strategy)
    for _ in range(20):
        assert model.train_on_batch(X, Y) == alone.train_on_batch(X, Y)
    assert pushed_bytes(strategy) == before
    for each in (alone, model):
        each.fit(X, Y, batch_size=32, epochs=3, shuffle=False, verbose=0)
    for ours, theirs in zip(model.variables, alone.variables, strict=True):
        if "seed" not in ours.path:
            np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)
    assert strategy.global_step == 26


def test_the_store_has_weights_and_the_state_of_the_optimizer_when_it_is_asked(keras: Any) -> None:
    model = compiled(keras, "Adam")
    strategy = shared(model)
    for _ in range(3):
        model.train_on_batch(X, Y)
    session = strategy.extended.runtime.session
    names = [name for shards in session.variables.placement().values() for name, _, _ in shards]
    values = session.step(Step(reads=names)).values
    shared_weights = [each for each in model.weights if each.path in values]
    assert len(shared_weights) == 8
    for variable in shared_weights:
        np.testing.assert_array_equal(values[variable.path], variable, err_msg=variable.path)
    moments = [name for name in names if "momentum" in name]
    assert len(moments) == 6
    assert all(np.any(values[name]) for name in moments)


def test_what_the_program_assigns_is_trained_on(keras: Any) -> None:
    alone, model = compiled(keras), compiled(keras)
    shared(model)
    for each in (alone, model):
        each.train_on_batch(X, Y)
        kernel = each.layers[0].kernel
        kernel.assign(np.clip(np.asarray(kernel), -0.1, 0.1))
        each.train_on_batch(X, Y)
    for ours, theirs in zip(model.weights, alone.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)


def test_a_step_with_nan_changes_neither_weights_nor_the_optimizers_state(keras: Any) -> None:
    model = compiled(keras, "Adam")
    strategy = shared(model)
    model.train_on_batch(X, Y)
    before = [np.array(v) for v in (*model.weights, *model.optimizer.variables)]
    model.train_on_batch(X * np.nan, Y)
    assert strategy.global_step == 1
    after = [*model.weights, *model.optimizer.variables]
    for ours, theirs in zip(after, before, strict=True):
        np.testing.assert_array_equal(ours, theirs, err_msg=ours.path)
    model.train_on_batch(X, Y)
    assert strategy.global_step == 2


def test_two_models_that_hold_one_layer_train_it_together(keras: Any) -> None:
    """One with an optimizer of the servers, one with one of the worker."""

    def both() -> tuple[Any, Any]:
        keras.utils.set_random_seed(0)
        layer = keras.layers.Dense(1, name="both")
        found = []
        for optimizer in (keras.optimizers.SGD(0.01), keras.optimizers.Adafactor(1e-2)):
            model = keras.Sequential([keras.Input((8,)), layer])
            model.compile(optimizer, "mse")
            found.append(model)
        return found[0], found[1]

    alone, together = both(), both()
    strategy = rw.distribute.ParameterServerStrategy()
    for model in together:
        rw.training.keras.distribute(model, strategy)
    for _ in range(4):
        for ours, theirs in zip(together, alone, strict=True):
            for _ in range(2):
                loss = ours.train_on_batch(X, Y)
                np.testing.assert_allclose(loss, theirs.train_on_batch(X, Y), rtol=1e-5)
