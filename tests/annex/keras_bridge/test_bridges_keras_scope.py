"""Keras models in a strategy's scope, and compile(distribute=…), as tf.distribute's users write."""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers import processes
from helpers.waiting import scaled

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pytest.importorskip(os.environ["KERAS_BACKEND"])
    return pytest.importorskip("keras")


def net(keras: Any, *first: Any) -> Any:
    return keras.Sequential([*first, keras.layers.Dense(1)])


def subclassed(keras: Any) -> Any:
    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.last = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.last(x)

    return Net()


def functional(keras: Any) -> Any:
    given = keras.Input((8,))
    return keras.Model(given, keras.layers.Dense(1)(given))


KINDS = {
    "sequential": lambda keras: net(keras, keras.Input((8,))),
    "built-by-its-first-batch": net,
    "functional": functional,
    "subclassed": subclassed,
}
STRATEGIES: dict[str, Callable[[], rw.distribute.Strategy]] = {
    "ps": rw.distribute.ParameterServerStrategy,
    "mirrored": lambda: rw.distribute.MirroredStrategy(["CPU:0"]),
    "central": lambda: rw.distribute.experimental.CentralStorageStrategy(["CPU:0"]),
    "one-device": lambda: rw.distribute.OneDeviceStrategy("CPU:0"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_that_is_made_and_compiled_in_a_scope_is_distributed(keras: Any, kind: str) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        model = KINDS[kind](keras)
        model.compile("sgd", "mse")
    model.evaluate(X, Y, verbose=0)
    model.fit(X, Y, epochs=2, verbose=0)
    store = rw.training.keras.shared_weights(model).store
    assert store.strategy is strategy
    assert store.step == 4


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_model_trains_under_each_strategy_of_one_replica(keras: Any, name: str) -> None:
    strategy = STRATEGIES[name]()  # before `compile` is looked up
    alone = functional(keras)
    alone.compile("sgd", "mse")
    shared = functional(keras)
    shared.set_weights(alone.get_weights())
    shared.compile("sgd", "mse", distribute=strategy)
    curves = [m.fit(X, Y, epochs=3, shuffle=False, verbose=0).history for m in (alone, shared)]
    np.testing.assert_allclose(curves[1]["loss"], curves[0]["loss"], rtol=1e-5)


def test_a_model_of_a_scope_may_be_compiled_outside_of_it_and_again(keras: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        model = net(keras, keras.Input((8,)))
    for _ in range(2):
        model.compile("sgd", "mse")
        model.fit(X, Y, verbose=0)
    assert rw.training.keras.shared_weights(model).store.step == 4
    assert rw.training.keras.distribute(model, strategy) is model


def test_each_mistake_is_named(keras: Any) -> None:
    fails, error = pytest.raises, rw.errors.ConfigurationError
    strategy, other = (rw.distribute.ParameterServerStrategy() for _ in range(2))
    outside = net(keras, keras.Input((8,)))
    with strategy.scope(), fails(error, match="made outside of any scope and is compiled in"):
        outside.compile("sgd", "mse")
    with strategy.scope():
        inside = net(keras, keras.Input((8,)))
    with other.scope(), fails(error, match="made in the scope of another"):
        inside.compile("sgd", "mse")
    with fails(error, match="belongs to the scope of a Param"):
        inside.compile("sgd", "mse", distribute=other)
    with fails(error, match="is no strategy of Ropewalk"):
        outside.compile("sgd", "mse", distribute="mirrored")
    outside.compile("sgd", "mse", distribute=strategy)
    with fails(error, match="is distributed under a Param"):
        outside.compile("sgd", "mse", distribute=other)
    with fails(error, match="is distributed already"):
        rw.training.keras.distribute(outside, strategy, deltas="always")


def test_a_model_of_no_scope_is_as_it_was(keras: Any, tmp_path: Path) -> None:
    """Also its file, which names nothing of ours."""
    rw.distribute.ParameterServerStrategy()
    model = net(keras, keras.Input((8,)))
    model.compile("sgd", "mse")
    model.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    assert again.compiled
    assert np.isfinite(again.fit(X, Y, verbose=0).history["loss"]).all()
    with pytest.raises(rw.errors.ConfigurationError, match="shares no weights"):
        rw.training.keras.shared_weights(again)


PROGRAM = """\
import sys
import ropewalk as rw
strategy = rw.distribute.ParameterServerStrategy()
assert "keras" not in sys.modules
{first}
with strategy.scope():
    import keras
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
print(len(rw.training.keras.shared_weights(model).store.names))
"""


@pytest.mark.parametrize(
    "first",
    ["pass", "rw.training.keras", "import keras.layers", "from ropewalk.training import keras"],
)
def test_keras_may_be_imported_after_the_strategy_was_made(tmp_path: Path, first: str) -> None:
    """By whatever imports it first, the bridge among them."""
    pytest.importorskip("keras")
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("{first}", first))
    environment = {**os.environ, "KERAS_BACKEND": "jax"}
    code, output, errors = processes.run(
        [sys.executable, program], timeout_s=scaled(60), cwd=tmp_path, env=environment
    )
    assert code == 0, output + errors
    assert output.split() == ["2"]
