"""Estimators whose model_fn is written with a framework: trained, resumed, evaluated and used."""

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.estimator import estimator, input_fn, points
from helpers.pages import ROOT
from ropewalk.annexes.estimator import EstimatorSpec, ModeKeys

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]
STRATEGIES = [
    pytest.param(None, id="none"),
    pytest.param(rw.distribute.ParameterServerStrategy, id="servers"),
]


def with_torch() -> Any:
    torch: Any = pytest.importorskip("torch")

    def make() -> Any:
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(3, 1), torch.nn.BatchNorm1d(1, momentum=0.5))
        optimizer = torch.optim.Adam(net.parameters(), 0.05)
        return net, rw.training.torch.DistributedOptimizer(optimizer, module=net)

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        net, optimizer = rw.estimator.once(make)
        net.train(mode == ModeKeys.TRAIN)
        predicted = net(torch.tensor(features))[:, 0]
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions={"y": predicted})
        loss = (predicted - torch.tensor(labels)).square().mean()
        if mode == ModeKeys.TRAIN:
            optimizer.zero_grad()
            loss.backward()
        return EstimatorSpec(mode, loss=loss, train_op=optimizer.step)

    return model_fn


def with_jax() -> Any:
    jax: Any = pytest.importorskip("jax")
    optax: Any = pytest.importorskip("optax")

    def predict(params: Any, x: Any) -> Any:
        return x @ params["w"] + params["b"]

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        return ((predict(params, x) - y) ** 2).mean()

    loss_and_gradients = jax.jit(jax.value_and_grad(loss_of))

    def make() -> Any:
        params = {"w": jax.numpy.zeros(3), "b": jax.numpy.zeros(())}
        return rw.training.jax.TrainState(params, optax.adam(0.05))

    def model_fn(features: Any, labels: Any, mode: str) -> EstimatorSpec:
        state = rw.estimator.once(make)
        if mode == ModeKeys.PREDICT:
            return EstimatorSpec(mode, predictions={"y": predict(state.params, features)})
        loss, gradients = loss_and_gradients(state.params, features, labels)
        return EstimatorSpec(mode, loss=loss, train_op=lambda: state.apply_gradients(gradients))

    return model_fn


FRAMEWORKS = {"torch": with_torch, "jax": with_jax}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_model_fn_of_a_framework_goes_on_where_it_stopped(
    framework: str, strategy: Any, tmp_path: Path
) -> None:
    model_fn = FRAMEWORKS[framework]()

    def batch() -> Any:
        return points(count=16)

    whole = estimator(tmp_path / "whole", model_fn, train_distribute=strategy)
    whole.train(batch, max_steps=40)
    estimator(tmp_path / "parts", model_fn, train_distribute=strategy).train(batch, max_steps=15)
    parts = estimator(tmp_path / "parts", model_fn, train_distribute=strategy)
    parts.train(batch, max_steps=40)
    for name in whole.get_variable_names():
        np.testing.assert_allclose(
            parts.get_variable_value(name), whole.get_variable_value(name), rtol=1e-5, atol=1e-6
        )
    assert parts.latest_checkpoint().endswith("ckpt-0000000040")
    # What it predicts is of the checkpoint, averages of batches included.
    loss = whole.evaluate(input_fn(batch_size=64, epochs=1))["loss"]
    predicted = np.array([each["y"] for each in whole.predict(input_fn(epochs=1))])
    np.testing.assert_allclose(np.mean((predicted - points()[1]) ** 2), loss, rtol=1e-4)


PAGES = [(ROOT / "docs" / f"{name}.md").read_text() for name in ("estimator", "canned-estimators")]
EXAMPLES = re.findall(r"^``` {\.python \.bridges}\n(.*?)^```", "\n".join(PAGES), flags=re.M | re.S)


@pytest.mark.parametrize("number", range(3))
def test_an_example_of_the_page_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert len(EXAMPLES) == 3
    monkeypatch.setenv("KERAS_BACKEND", os.environ.get("KERAS_BACKEND", "jax"))
    pytest.importorskip("torch" if number == 0 else "keras")
    program = compile(EXAMPLES[number], f"the pages' example {number + 1}", "exec")
    exec(program, {"__name__": "example"})  # noqa: S102 - our own page


@pytest.fixture(scope="module")
def keras() -> Any:
    """Imported by a test, not by the collection: others use Keras on NumPy."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    found = pytest.importorskip("keras")
    if found.backend.backend() != "jax":
        pytest.skip("Keras runs on another backend here")
    return found


def compiled(keras: Any) -> Any:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(8, "tanh", name="hidden"),
            keras.layers.Dense(1, name="last"),
        ],
        name="net",
    )
    model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
    return model


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_keras_model_becomes_an_estimator(keras: Any, strategy: Any, tmp_path: Path) -> None:
    model = compiled(keras)
    before = [np.array(weight) for weight in model.get_weights()]
    config = rw.estimator.RunConfig(train_distribute=strategy, log_step_count_steps=None)
    found = rw.estimator.model_to_estimator(model, model_dir=str(tmp_path), config=config)
    x, y = points(count=16)
    found.train(lambda: (x, y), steps=12)
    found.train(lambda: (x, y), max_steps=30)
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)  # copies are trained

    alone = compiled(keras)  # the curve is Keras' own
    for _ in range(30):
        alone.train_on_batch(x, y)
    np.testing.assert_allclose(
        found.get_variable_value("net/hidden/kernel"),
        alone.layers[0].kernel.numpy(),
        rtol=1e-4,
        atol=1e-5,
    )
    results = found.evaluate(input_fn(batch_size=48, epochs=1))
    expected = alone.evaluate(*points(), verbose=0, return_dict=True, batch_size=48)
    np.testing.assert_allclose(results["mae"], expected["mae"], rtol=1e-3)
    np.testing.assert_allclose(results["loss"], expected["loss"], rtol=1e-3)
    predicted = [each["last"] for each in found.predict(input_fn(epochs=1))]
    np.testing.assert_allclose(predicted, alone.predict(points()[0], verbose=0), rtol=1e-3)
    folder = Path(found.export_saved_model(str(tmp_path / "exports"), lambda: x))
    again = keras.models.load_model(folder / "model.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), predicted[:16], rtol=1e-4)


def test_a_keras_model_that_cannot_become_one_is_named(keras: Any) -> None:
    with pytest.raises(ValueError, match="and not both"):
        rw.estimator.model_to_estimator()
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    with pytest.raises(ValueError, match="is not compiled"):
        rw.estimator.model_to_estimator(model)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match="is not built"):
        rw.estimator.model_to_estimator(model)


@pytest.mark.parametrize("setting", ["train_distribute", "eval_distribute"])
def test_several_replicas_would_share_the_keras_model_of_an_estimator(
    keras: Any, setting: str, tmp_path: Path
) -> None:
    rw.config.set_logical_cpu_devices(2)
    try:
        distributed: dict[str, Any] = {setting: rw.distribute.MirroredStrategy()}
        config = rw.estimator.RunConfig(**distributed)
        found = rw.estimator.model_to_estimator(
            compiled(keras), model_dir=str(tmp_path), config=config
        )
        refused: Any = found.train
        if setting == "eval_distribute":
            found.train(input_fn(), max_steps=2)
            refused = found.evaluate
        with pytest.raises(rw.errors.ConfigurationError, match=f"{setting} is .* 2 replicas"):
            refused(input_fn(), steps=2)
    finally:
        rw.config.set_logical_cpu_devices(1)
