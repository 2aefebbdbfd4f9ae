"""The bridge to Keras: the same curves as without it, files that Keras loads, workers together."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = np.sin(X @ np.random.default_rng(1).normal(size=(8, 1))).astype(np.float32)


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says; imported by a test, not by the collection."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    pytest.importorskip(os.environ["KERAS_BACKEND"])
    found = pytest.importorskip("keras")
    if found.backend.backend() != os.environ["KERAS_BACKEND"]:
        pytest.skip("Keras runs on another backend here")
    return found


def net(keras: Any, **more: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((8,)),
        keras.layers.Dense(16, "tanh", name="hidden", **more),
        keras.layers.Dense(1, name="last"),
    ]
    return keras.Sequential(layers, name="net")


def compiled(keras: Any, optimizer: Any = "adam", **more: Any) -> Any:
    model = net(keras, **more)
    model.compile(optimizer, "mse", metrics=["mae"])
    return model


def distributed(model: Any, strategy: Any = None, **more: Any) -> Any:
    strategy = strategy if strategy is not None else rw.distribute.ParameterServerStrategy()
    return rw.training.keras.distribute(model, strategy, **more)


def curve(model: Any, epochs: int = 25, **more: Any) -> list[float]:
    """Of two steps per epoch."""
    found = model.fit(X, Y, batch_size=32, epochs=epochs, shuffle=False, verbose=0, **more)
    return found.history["loss"]  # type: ignore[no-any-return]


OPTIMIZERS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "sgd": (lambda o: o.SGD(0.1, momentum=0.9), True),
    "adam-clipped": (lambda o: o.Adam(1e-2, clipnorm=0.5), True),
    "adamw-schedule": (lambda o: o.AdamW(o.schedules.CosineDecay(1e-2, 100)), True),
    "amsgrad": (lambda o: o.Adam(1e-2, amsgrad=True), False),
    "accumulating": (lambda o: o.SGD(0.1, gradient_accumulation_steps=4), False),
}

LEFT_TO_JAX = [OPTIMIZERS[name][0] for name in ("adam-clipped", "accumulating")]


@pytest.mark.parametrize(("make", "served"), OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_curve_is_that_of_keras_alone(
    keras: Any, make: Callable[[Any], Any], served: bool
) -> None:
    """Validation between the epochs and a second ``fit`` change nothing."""
    if keras.backend.backend() != "jax" and make in LEFT_TO_JAX:
        pytest.skip("the rule is the same on each framework")
    alone, shared = (compiled(keras, make(keras.optimizers)) for _ in range(2))
    distributed(shared)
    assert (rw.training.keras.shared_weights(shared).worker_reason is None) is served
    given: dict[str, Any] = {"validation_data": (X, Y), "sample_weight": np.linspace(0, 2, 64)}
    for _ in range(2):
        np.testing.assert_allclose(curve(shared, **given), curve(alone, **given), rtol=1e-4)
    np.testing.assert_allclose(
        shared.predict(X, verbose=0), alone.predict(X, verbose=0), rtol=1e-3, atol=1e-4
    )
    assert shared.evaluate(X, Y, verbose=0) == pytest.approx(alone.evaluate(X, Y, verbose=0), 1e-3)
    assert int(shared.optimizer.iterations) == int(alone.optimizer.iterations)


def test_weights_that_are_left_out_of_decay_after_compile_do_not_decay(keras: Any) -> None:
    """Keras takes it until the first step; the model is shared before."""
    alone, shared = (
        compiled(keras, keras.optimizers.AdamW(1e-2, weight_decay=1.0)) for _ in range(2)
    )
    distributed(shared)
    assert rw.training.keras.shared_weights(shared).worker_reason is None
    for model in (alone, shared):
        model.optimizer.exclude_from_weight_decay(var_names=["kernel"])
    np.testing.assert_allclose(curve(shared), curve(alone), rtol=1e-5)
    reason = rw.training.keras.shared_weights(shared).worker_reason
    assert reason is not None
    assert "exclude_from_weight_decay" in reason


def test_a_weight_that_a_layer_assigns_in_its_call_is_the_one_that_is_trained(keras: Any) -> None:
    """Spectral normalization scales its kernel; the gradient is of the scaled one."""

    def made() -> Any:
        keras.utils.set_random_seed(0)
        dense = keras.layers.Dense(16, "tanh", name="hidden")
        model = keras.Sequential(
            [keras.Input((8,)), keras.layers.SpectralNormalization(dense), keras.layers.Dense(1)]
        )
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    alone, shared = made(), made()
    distributed(shared)
    np.testing.assert_allclose(curve(shared), curve(alone), rtol=0, atol=1e-5)
    for mine, theirs in zip(shared.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-5)


def test_a_callback_that_sets_the_rate_counts_from_the_next_step_on(keras: Any) -> None:
    alone, shared = (compiled(keras, keras.optimizers.SGD(0.1)) for _ in range(2))
    distributed(shared, deltas="forbid")
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 / (1 + epoch))
    np.testing.assert_allclose(
        curve(shared, callbacks=[rates]), curve(alone, callbacks=[rates]), rtol=1e-4
    )


def test_a_subclassed_model_with_batch_norm_and_dropout_trains_and_its_file_loads(
    keras: Any, tmp_path: Path
) -> None:
    """Averages of batch norm are among the shared weights."""

    @keras.saving.register_keras_serializable("ropewalk-test")
    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self, **more: Any) -> None:
            super().__init__(**more)
            self.hidden = keras.layers.Dense(16, "relu")
            self.norm = keras.layers.BatchNormalization(momentum=0.5)
            self.drop = keras.layers.Dropout(0.2)
            self.last = keras.layers.Dense(1)

        def call(self, x: Any, training: bool = False) -> Any:
            normal = self.norm(self.hidden(x), training=training)
            return self.last(self.drop(normal, training=training))

    model = Net()
    model(X)
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    distributed(model)
    losses = curve(model, epochs=50)
    assert losses[-1] < 0.7 * losses[0]
    store = rw.training.keras.shared_weights(model).store
    name = next(name for name in store.names if name.endswith("moving_mean"))
    np.testing.assert_array_equal(store.pull([name])[name], model.norm.moving_mean.numpy())
    assert model.norm.moving_mean.numpy().any()
    model.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    np.testing.assert_allclose(again.predict(X, verbose=0), model.predict(X, verbose=0), rtol=1e-5)
    assert np.isfinite(again.fit(X, Y, verbose=0).history["loss"]).all()


def test_a_train_step_of_the_models_own_is_used(keras: Any) -> None:
    def step(model: Any, *given: Any) -> Any:
        found = keras.Model.train_step(model, *given)
        if keras.backend.backend() != "jax":
            return {**found, "own": found["loss"]}
        logs, state = found
        return {**logs, "own": logs["loss"]}, state

    model = type("Own", (keras.Sequential,), {"train_step": step})(net(keras).layers)
    model(X)
    model.compile("adam", "mse")
    distributed(model)
    assert "own" in model.fit(X, Y, verbose=0).history


def test_a_train_step_that_gives_no_gradients_is_refused(keras: Any) -> None:
    def changed_by_hand(model: Any, state: Any, data: Any) -> Any:
        logs, (weights, *others) = keras.Model.train_step(model, state, data)
        return logs, ([2 * weight for weight in weights], *others)

    def without_optimizer(model: Any, data: Any) -> Any:
        return {"loss": model(data[0], training=True)[0, 0]}

    on_jax = keras.backend.backend() == "jax"
    step = changed_by_hand if on_jax else without_optimizer
    model = type("Own", (keras.Sequential,), {"train_step": step})(net(keras).layers)
    model(X)
    model.compile("adam", "mse")
    distributed(model)
    with pytest.raises(rw.errors.ConfigurationError, match="train_step of Own"):
        model.fit(X, Y, verbose=0)


def test_a_frozen_layer_stays_and_trains_when_the_model_is_compiled_again(keras: Any) -> None:
    model = net(keras)
    model.layers[0].trainable = False
    model.compile(keras.optimizers.Adam(1e-2), "mse")
    distributed(model)
    start = model.layers[0].kernel.numpy()
    curve(model)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), start)
    model.layers[0].trainable = True
    model.compile(keras.optimizers.Adam(1e-3), "mse")
    curve(model)
    assert not np.array_equal(model.layers[0].kernel.numpy(), start)


def test_a_model_compiled_with_another_optimizer_goes_on_as_with_keras_alone(keras: Any) -> None:
    """From the servers to this worker, also with the same kind, which begins anew."""
    o = keras.optimizers
    found: list[list[float]] = []
    for is_shared in (False, True):
        model = compiled(keras, o.Adam(1e-2))
        if is_shared:
            distributed(model, rw.distribute.ParameterServerStrategy())
        losses = curve(model, 5)
        for optimizer in (
            *(o.Adam(1e-2), o.Adam(1e-3), o.SGD(0.1, momentum=0.9), o.SGD(0.1, momentum=0.5)),
            o.RMSprop(1e-3),
        ):
            model.compile(optimizer, "mse", metrics=["mae"])
            losses += curve(model, 5)
            assert int(optimizer.iterations) == 10
        found.append(losses)
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5)
    assert "another optimizer" in str(rw.training.keras.shared_weights(model).worker_reason)


def test_iterations_are_those_of_a_model_that_begins_after_others(keras: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    for _ in range(2):
        model = distributed(compiled(keras, keras.optimizers.Adam(1e-2)), strategy)
        curve(model, 3)
        assert int(model.optimizer.iterations) == 6
    assert strategy.global_step == 12


def test_a_model_compiled_again_tells_that_servers_go_on_with_moments(
    keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Where its optimizer may not run on the worker."""
    schedule = keras.optimizers.schedules.ExponentialDecay(1e-2, 10, 0.5)
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: keras.optimizers.Adam(1e-2), "the moments that its Adam"),
        (lambda: keras.optimizers.SGD(schedule), "the step of the schedule that its SGD"),
        (lambda: keras.optimizers.SGD(1e-2), ""),
    ]
    for make, words in cases:
        model = rw.training.keras.distribute(
            compiled(keras, make()), rw.distribute.ParameterServerStrategy(), deltas="forbid"
        )
        model.compile(make(), "mse")  # before the first step
        model.fit(X, Y, verbose=0)
        model.compile(model.optimizer, "mse")  # with its state
        model.fit(X, Y, verbose=0)
        assert "compiled again" not in caplog.text
        model.compile(make(), "mse")
        model.fit(X, Y, verbose=0)
        every = [record.getMessage() for record in caplog.records]
        told = [each for each in every if "compiled again" in each]
        assert len(told) == bool(words)
        assert all(words in each and "clone_model" in each for each in told)
        caplog.clear()


def test_files_tell_that_servers_have_the_moments_and_go_on_with_them(
    keras: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Keras writes an optimizer's state into files of weights."""
    for optimizer, words in ((keras.optimizers.Adam(), "the moments that its Adam"), ("sgd", "")):
        model = distributed(compiled(keras, optimizer), rw.distribute.ParameterServerStrategy())
        model.fit(X, Y, verbose=0)
        path = tmp_path / "net.weights.h5"
        model.save_weights(path)
        model.save(tmp_path / "net.keras")
        assert caplog.text.count("is saved without the moments") == bool(words)
        assert "has loaded" not in caplog.text
        model.load_weights(path)
        assert ("has loaded a file" in caplog.text) == bool(words)
        assert words in caplog.text
        caplog.clear()


def test_a_checkpoint_of_the_programs_objects_has_the_weights_of_a_model(
    keras: Any, tmp_path: Path
) -> None:
    """And one that has none is refused, rather than written empty."""
    model = distributed(compiled(keras))
    curve(model, 1)
    saved = model.get_weights()
    checkpoint = rw.train.Checkpoint(model=model, optimizer=model.optimizer)
    manager = rw.train.CheckpointManager(checkpoint, str(tmp_path), max_to_keep=2)
    manager.save()
    curve(model, 1)
    assert not np.array_equal(model.get_weights()[0], saved[0])
    checkpoint.restore(manager.latest_checkpoint).assert_consumed()
    for now, then in zip(model.get_weights(), saved, strict=True):
        np.testing.assert_array_equal(now, then)
    of_none = rw.train.Checkpoint(model=compiled(keras))
    of_none.restore(None)
    for use in (of_none.write, of_none.restore):
        with pytest.raises(rw.errors.ConfigurationError, match=r"model \(Sequential\) would be"):
            use(str(manager.latest_checkpoint))


def test_weights_that_the_chief_loads_are_everybodys(keras: Any) -> None:
    """Before ``evaluate``, and by a callback within ``fit``."""
    model = distributed(compiled(keras, keras.optimizers.SGD(0.0)))
    store = rw.training.keras.shared_weights(model).store
    ones = [np.ones_like(weight) for weight in model.get_weights()]
    model.set_weights(ones)
    model.evaluate(X, Y, verbose=0)
    assert all((value == 1).all() for value in store.pull().values())
    twos = keras.callbacks.LambdaCallback(
        on_train_begin=lambda _: model.set_weights([2 * weight for weight in ones])
    )
    model.fit(X, Y, verbose=0, callbacks=[twos])
    assert all((value == 2).all() for value in store.pull().values())


def test_a_step_compares_each_weight_once(keras: Any, calls: Calls) -> None:
    """A comparison takes as long as a copy. On JAX none is made: other values are other arrays."""
    model = compiled(keras)
    distributed(model)
    model.train_on_batch(X, Y)
    compared = calls.noted("ropewalk.annexes.keras_bridge.eager_steps", "same_values")
    model.train_on_batch(X, Y)
    assert len(compared) == (0 if keras.backend.backend() == "jax" else 4)


def test_two_workers_learn_together_and_the_chief_alone_writes(keras: Any, tmp_path: Path) -> None:
    def program() -> tuple[float, float, int]:
        strategy = rw.distribute.ParameterServerStrategy()
        model = compiled(keras, keras.optimizers.Adam(1e-2))
        if not strategy.is_chief:
            model.set_weights([7 + weight for weight in model.get_weights()])
        distributed(model, strategy)
        first = float(model.weights[0].numpy().max())
        path = tmp_path / f"{strategy.task_index}.csv"
        model.fit(
            X, Y, epochs=20, steps_per_epoch=2, callbacks=[keras.callbacks.CSVLogger(str(path))]
        )
        strategy.barrier()
        return first, model.evaluate(X, Y, verbose=0)[0], int(model.optimizer.iterations)

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        results = list(cluster.run(program).values())
    assert all(first < 3 for first, _, _ in results)
    assert results[0][1] == pytest.approx(results[1][1], 1e-6)
    assert max(steps for _, _, steps in results) == 80
    assert [path.name for path in tmp_path.iterdir()] == ["0.csv"]


def test_another_model_on_a_worker_is_an_error_of_the_ps(keras: Any) -> None:
    def program() -> str:
        strategy = rw.distribute.ParameterServerStrategy()
        units = 16 if strategy.is_chief else 17
        layers = [keras.Input((8,)), keras.layers.Dense(units, name="hidden")]
        model = keras.Sequential(layers, name="net")
        model.compile("adam", "mse")
        try:
            distributed(model, strategy)
        except rw.errors.DefinitionMismatchError as error:
            return str(error)
        return ""

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        texts = list(cluster.run(program).values())
    assert texts[0] == ""
    assert "/job:ps/task:0" in texts[1]
    assert "float32[8, 17]" in texts[1] or "float32[17]" in texts[1]


def test_a_loss_of_nan_changes_nothing_and_ends_fit(keras: Any) -> None:
    model = distributed(compiled(keras))
    start = model.get_weights()
    with pytest.raises(rw.errors.NonFiniteGradientError, match="net/"):
        model.fit(X * np.nan, Y, batch_size=4, epochs=10, verbose=0)
    for before, after in zip(start, model.get_weights(), strict=True):
        np.testing.assert_array_equal(before, after)


def test_a_loss_of_nan_ends_fit_where_the_optimizer_runs_on_the_worker(keras: Any) -> None:
    """And where the loss is scaled: Keras leaves out such steps for ever."""
    own = keras.optimizers.Adafactor()
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    for optimizer, what in ((own, "an optimizer on the worker"), (scaled, "scales the loss by")):
        model = distributed(compiled(keras, optimizer), name=type(optimizer).__name__)
        start = [np.array(weight) for weight in model.get_weights()]  # not of the same memory
        with pytest.raises(rw.errors.NonFiniteGradientError, match=what):
            model.fit(X * np.nan, Y, batch_size=2, epochs=10, verbose=0)
        for before, after in zip(start, model.get_weights(), strict=True):
            np.testing.assert_array_equal(before, after)


def test_each_mistake_is_named(keras: Any) -> None:
    fails = pytest.raises
    error = rw.errors.ConfigurationError
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("adam", "mse")
    with fails(error, match="is not built"):
        rw.training.keras.shared_weights(distributed(unbuilt))
    with fails(error, match="is not compiled"):
        distributed(net(keras))
    with fails(error, match="deltas are forbidden"):
        distributed(compiled(keras, keras.optimizers.Adam(amsgrad=True)), deltas="forbid")
    with fails(error, match="has a constraint"):
        constrained = compiled(keras, kernel_constraint=keras.constraints.NonNeg())
        distributed(constrained, deltas="forbid")
    with fails(error, match="shares no weights"):
        rw.training.keras.shared_weights(net(keras))
    trained = compiled(keras)
    trained.fit(X, Y, verbose=0)
    with fails(error, match="has made 2 steps already"):
        distributed(trained)
    done = distributed(compiled(keras))
    with fails(error, match="is distributed already"):
        distributed(done)


def test_a_dense_gradient_is_not_copied_before_the_session(keras: Any) -> None:
    """What the store is given is the framework's memory."""
    model = distributed(compiled(keras))
    weights = rw.training.keras.shared_weights(model)
    given: list[dict[str, Any]] = []
    exchange = weights.store.exchange

    def noting(step: Any, **more: Any) -> Any:
        given.append(dict(step.gradients))
        return exchange(step, **more)

    object.__setattr__(weights.store, "exchange", noting)
    model.train_on_batch(X, Y)
    (gradients,) = given
    assert all(not array.flags.owndata for array in gradients.values())
