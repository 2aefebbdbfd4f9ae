"""What the workers of a fit have in common: metrics, epochs, input; and what ends all of them."""

import os
import sys
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
BACKEND = os.environ.get("KERAS_BACKEND", "jax")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
LOCAL = [*processes.ROPEWALK, "local", "--plain", "--ps", "0", "--no-chief", "--workers", "2"]


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pytest.importorskip(BACKEND)
    return pytest.importorskip("keras")


def compiled(keras: Any, strategy: Any, optimizer: Any = "sgd") -> Any:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)], name="net")
    model.compile(optimizer, "mse", metrics=["mae"], distribute=strategy)
    return model


# -- workers in sync -------------------------------------------------------------------------

IN_SYNC = """\
import sys
import keras
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy()
me = strategy.extended.input_pipeline_id
rng = np.random.default_rng(0)
X = rng.normal(size=(64, 8)).astype(np.float32)
Y = (X.sum(1, keepdims=True) > 0).astype(np.float32)
METRICS = ["accuracy", "auc"]
with strategy.scope():
    model = keras.Sequential([
        keras.Input((8,)),
        keras.layers.BatchNormalization(momentum=0.5),
        keras.layers.Dense(1, "sigmoid"),
    ])
    model.compile("adam", "binary_crossentropy", metrics=METRICS)
x, y = X[me::2][: 32 - 8 * me], Y[me::2][: 32 - 8 * me]

class Callback(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        assert self.model is model
        assert self.validation_data is given
        if me == 1 and epoch == 1:
            self.model.stop_training = True

    def on_train_batch_end(self, batch, logs=None):
        if sys.argv[1] == "raises" and me == 1 and batch == 1:
            raise RuntimeError("by hand")

given = (x, y)
"""

TOGETHER = (
    IN_SYNC
    + """
every = (np.concatenate([X[0::2][:32], X[1::2][:24]]), np.concatenate([Y[0::2][:32], Y[1::2][:24]]))
steps = {"batch_size": 8, "verbose": 0, "validation_data": given}
found = model.fit(x[:24], y[:24], epochs=5, callbacks=[Callback()], **steps).history
print("logs", *(f"{value:.9f}" for values in found.values() for value in values))
assert len(found["loss"]) == 2, "one asked to stop, so all do"
alone = keras.models.clone_model(model)
alone.set_weights(model.get_weights())
alone.compile("sgd", "binary_crossentropy", metrics=METRICS)
here = model.evaluate(x, y, verbose=0)
np.testing.assert_allclose(here, alone.evaluate(*every, verbose=0), rtol=1e-5)
try:
    model.fit(x, y, **steps)
except rw.errors.ConfigurationError as error:
    print(error)
assert strategy.global_step == 6
back = keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False)
for epochs in (1, 3):
    model.fit(x[:24], y[:24], epochs=epochs, callbacks=[back], **steps)
assert strategy.global_step == 15
with strategy.scope():
    summed = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    summed.compile("sgd", keras.losses.MeanSquaredError(reduction="sum"))
try:
    summed.fit(x, y, **steps)
except rw.errors.ConfigurationError as error:
    print(error)
for factor in (1.0, 0.125):
    summed.compile("sgd", lambda y, p: factor * keras.ops.sum((y - p) ** 2, axis=-1))
    summed.fit(x[:24], y[:24], **steps)
dataset = rw.data.from_arrays((X, Y), batch_size=16)  # gone through in a thread, on TensorFlow
model.fit(strategy.experimental_distribute_dataset(dataset), epochs=2, verbose=0)
print("no warning yet")
summed.compile("sgd", lambda y, p: keras.ops.sum((y - p) ** 2))
summed.fit(x[:24], y[:24], **steps)
strategy.close()
"""
)

SHORT = (
    IN_SYNC
    + """
def batches():
    for number in range(5 if me == 0 else 3):
        yield x[:8], y[:8]

model.fit(batches(), steps_per_epoch=5, epochs=2, verbose=0)
"""
)

RESUMED = (
    IN_SYNC
    + """
def dense():
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    return model

def fit(model, epochs):
    back = keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False)
    return model.fit(
        X[me::2], Y[me::2], batch_size=16, epochs=epochs, shuffle=False, verbose=0, callbacks=[back]
    ).history["loss"]

model = dense()
first = model.get_weights()
fit(model, 2)
rest = fit(dense(), 4)  # of other first weights, as after a restart
alone = keras.models.clone_model(model)
alone.set_weights(first)
alone.compile(keras.optimizers.SGD(0.1), "mse")
wanted = alone.fit(X, Y, batch_size=32, epochs=4, shuffle=False, verbose=0).history["loss"]
np.testing.assert_allclose(rest, wanted[2:], rtol=1e-5)
strategy.close()
"""
)

RAISES = (
    IN_SYNC
    + """
model.fit(x[:24], y[:24], batch_size=8, validation_data=given, callbacks=[Callback()])
"""
)


def in_sync(body: str, tmp_path: Path, word: str = "") -> tuple[int, str]:
    pytest.importorskip("keras")
    pytest.importorskip(BACKEND)
    program = tmp_path / "train.py"
    program.write_text(body)
    code, output, errors = processes.run(
        [*LOCAL, program, "--", word],
        timeout_s=scaled(120),
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": BACKEND, **ONE_THREAD},
    )
    return code, output + errors


def test_metrics_averages_and_the_end_of_training_are_the_jobs_in_sync(tmp_path: Path) -> None:
    """Also the first epoch that a backup brings back; unequal steps and sums are refused."""
    code, output = in_sync(TOGETHER, tmp_path)
    assert code == 0, output
    logs = {line.split("logs")[1] for line in output.splitlines() if " logs " in line}
    assert len(logs) == 1, output
    assert "steps per epoch: /job:worker/task:0 4, /job:worker/task:1 3" in output
    assert "so a step would be 1/2 of that of one process" in output
    before, _, after = output.partition("no warning yet")
    assert "grows with the number of examples" not in before
    assert "grows with the number of examples" in after


def test_all_workers_in_sync_go_on_from_the_chiefs_backup(tmp_path: Path) -> None:
    code, output = in_sync(RESUMED, tmp_path)
    assert code == 0, output


def test_input_that_ends_before_its_steps_on_one_worker_in_sync_is_an_error(tmp_path: Path) -> None:
    code, output = in_sync(SHORT, tmp_path)
    assert code == 5, output
    assert "task:1 has ended an epoch after 3 of 5 steps" in output
    assert "In sync all make as many steps in an epoch" in output


def test_a_callback_that_raises_on_one_worker_in_sync_ends_all_with_its_error(
    tmp_path: Path,
) -> None:
    code, output = in_sync(RAISES, tmp_path, "raises")
    assert code == 1, output
    assert "RuntimeError: by hand" in output


# -- workers of parameter servers ------------------------------------------------------------


def test_a_worker_begins_with_the_epoch_of_the_chiefs_backup(
    keras: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And writes nothing. One that cannot read it makes all epochs, and says so."""
    from ropewalk.annexes.keras_bridge.callbacks import _chosen

    def epochs(folder: Path, *, is_chief: bool, until: int) -> list[int]:
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        backup = keras.callbacks.BackupAndRestore(str(folder), delete_checkpoint=False)
        callbacks = _chosen([backup], is_chief=is_chief, in_sync=False)
        return list(model.fit(X, Y, epochs=until, verbose=0, callbacks=callbacks).epoch)

    folder = tmp_path / "backup"
    assert epochs(folder, is_chief=False, until=2) == [0, 1]
    assert not folder.exists()
    assert epochs(folder, is_chief=True, until=2) == [0, 1]
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert epochs(folder, is_chief=False, until=4) == [2, 3]
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    (folder / "training_metadata.json").write_text("{")
    assert epochs(folder, is_chief=False, until=1) == [0]
    assert "cannot be read, so all epochs are made" in caplog.text


@pytest.mark.parametrize("kind", ["ParameterServerStrategy", "MirroredStrategy"])
def test_iterations_and_the_place_in_a_schedule_come_back_with_a_backup(
    keras: Any, kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a strategy the rates of 20 updates add up to 0.09375."""

    def fitted(epochs: int, optimizer: Any, folder: str = "scheduled") -> Any:
        strategy = getattr(rw.distribute, kind)()
        with strategy.scope():
            weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")
            model = keras.Sequential([keras.Input((1,)), weight])
            model.compile(optimizer, lambda _, output: output)  # each gradient is 1
        where = str(tmp_path / folder)
        backup = keras.callbacks.BackupAndRestore(where, delete_checkpoint=False)
        x, y = np.ones((40, 1), np.float32), np.zeros((40, 1), np.float32)
        model.fit(x, y, batch_size=8, epochs=epochs, verbose=0, callbacks=[backup])
        return model

    def schedule() -> Any:
        schedules = keras.optimizers.schedules
        return schedules.ExponentialDecay(0.01, 5, 0.5, staircase=True)

    assert int(fitted(2, keras.optimizers.SGD(schedule())).optimizer.iterations) == 10
    model = fitted(4, keras.optimizers.SGD(schedule()))
    assert int(model.optimizer.iterations) == 20
    assert 1 - model.get_weights()[0].item() == pytest.approx(0.09375, rel=1e-5)
    assert "begin anew" not in caplog.text
    for epochs in (1, 3):  # of a rate that is a number
        plain = fitted(epochs, keras.optimizers.SGD(0.01), "plain")
        assert int(plain.optimizer.iterations) == 5 * epochs


def test_moments_that_a_backup_does_not_bring_back_are_said_to_begin_anew(
    keras: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for epochs in (1, 2):
        caplog.clear()
        model = compiled(keras, rw.distribute.ParameterServerStrategy(), "adam")
        backup = keras.callbacks.BackupAndRestore(str(tmp_path), delete_checkpoint=False)
        model.fit(X, Y, batch_size=32, epochs=epochs, verbose=0, callbacks=[backup])
        assert int(model.optimizer.iterations) == 2 * epochs
        assert ("the moments of its Adam begin anew" in caplog.text) is (epochs == 2)


def test_the_chiefs_history_has_the_metrics_of_all_workers(keras: Any) -> None:
    """Each example counts once. The rate is 0, so an example has one loss whoever looks at it."""

    def program() -> tuple[float, float, float]:
        strategy = rw.distribute.ParameterServerStrategy()
        model = compiled(keras, strategy, keras.optimizers.SGD(0.0))
        mine = slice(0, 32) if strategy.is_chief else slice(32, 64)
        if not strategy.is_chief:
            first = model.fit(X[mine], Y[mine], verbose=0).history["mae"][0]
        strategy.barrier()
        if strategy.is_chief:
            first = model.fit(X[mine], Y[mine], verbose=0).history["mae"][0]
        every = np.abs(model.predict(X, verbose=0) - Y)
        return first, float(every[mine].mean()), float(every.mean())

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        chief, worker = cluster.run(program).values()
    assert chief[0] == pytest.approx(chief[2], rel=1e-5)
    assert worker[0] == pytest.approx(worker[1], rel=1e-5)


def test_metrics_of_a_model_that_another_worker_has_compiled_otherwise_are_left_out(
    keras: Any,
) -> None:
    """The chief has gone on to other metrics while a worker still counted by those before."""

    def program() -> tuple[list[float], list[float]]:
        strategy = rw.distribute.ParameterServerStrategy()
        mine = slice(0, 32) if strategy.is_chief else slice(32, 64)
        model = compiled(keras, strategy, keras.optimizers.SGD(0.0))

        def fit() -> dict[str, list[float]]:
            logs: dict[str, list[float]] = model.fit(X[mine], Y[mine], verbose=0).history
            return logs

        logs: list[float] = []
        for epoch in range(2):  # a worker makes the first by the metrics before
            if strategy.is_chief or epoch:
                model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mape"])
            if not strategy.is_chief:
                fit()
            strategy.barrier()
            if strategy.is_chief:
                logs.append(fit()["mape"][0])
            strategy.barrier()
        error = np.abs((model.predict(X, verbose=0) - Y) / Y) * 100
        return logs, [float(error[mine].mean()), float(error.mean())]

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        logs, wanted = next(iter(cluster.run(program).values()))
    assert logs == pytest.approx(wanted, rel=1e-5)


def test_a_callback_that_raises_on_one_worker_ends_its_fit_with_its_error(keras: Any) -> None:
    class Raises(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            raise KeyError("by hand")

    def program() -> int:
        strategy = rw.distribute.ParameterServerStrategy()
        model = compiled(keras, strategy)
        model.fit(X, Y, verbose=0, callbacks=[] if strategy.is_chief else [Raises()])
        return strategy.global_step

    with (
        rw.testing.LocalCluster(workers=1, ps=1) as cluster,
        pytest.raises(Exception, match="by hand"),
    ):
        cluster.run(program)


def test_a_dataset_creator_makes_each_workers_input(keras: Any) -> None:
    def program() -> tuple[tuple[int, int, int], int]:
        strategy = rw.distribute.ParameterServerStrategy()
        model = compiled(keras, strategy)
        seen = []

        def make(context: Any) -> Any:
            seen.append(
                (
                    context.num_input_pipelines,
                    context.input_pipeline_id,
                    context.num_replicas_in_sync,
                )
            )
            return rw.data.from_arrays((X, Y), batch_size=16)

        model.fit(rw.training.keras.DatasetCreator(make), steps_per_epoch=4, epochs=1, verbose=0)
        strategy.barrier()
        rw.training.keras.shared_weights(model).refresh()
        (context,) = seen
        return context, strategy.global_step

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        results = list(cluster.run(program).values())
    assert [context for context, _ in results] == [(2, 0, 1), (2, 1, 1)]
    assert {steps for _, steps in results} == {8}


def test_a_dataset_of_ours_is_gone_through_once_per_epoch(keras: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    model = compiled(keras, strategy)
    data = rw.data.from_arrays((X, Y), batch_size=16)
    with pytest.warns(UserWarning, match="ran out of data"):
        found = model.fit(data, epochs=3, verbose=0, validation_data=data)
    assert len(found.history["val_loss"]) == 3
    assert strategy.global_step == 12
    distributed = strategy.experimental_distribute_dataset(data)
    arrays = model.evaluate(X, Y, verbose=0)
    with pytest.warns(UserWarning, match="ran out of data"):
        np.testing.assert_allclose(model.evaluate(distributed, verbose=0), arrays, rtol=1e-5)


def test_input_that_ends_early_ends_the_epoch_of_its_worker(keras: Any) -> None:
    """Of parameter servers: nobody waits for it, and Keras warns."""
    strategy = rw.distribute.ParameterServerStrategy()
    model = compiled(keras, strategy)
    data = rw.training.keras.DatasetCreator(lambda _: rw.data.from_arrays((X, Y), batch_size=16))
    with pytest.warns(UserWarning, match="ran out of data"):
        model.fit(data, steps_per_epoch=6, verbose=0)
    assert strategy.global_step == 4


def test_mistakes_of_a_dataset_creator_are_named(keras: Any) -> None:
    creator: Any = rw.training.keras.DatasetCreator
    with pytest.raises(TypeError, match="must be a `callable`, got int"):
        creator(3)
    with pytest.raises(TypeError, match="must be `InputOptions`, got dict"):
        creator(lambda _: None, {})
    model = compiled(keras, rw.distribute.ParameterServerStrategy())
    with pytest.raises(rw.errors.ConfigurationError, match="steps_per_epoch"):
        model.fit(creator(lambda _: None), verbose=0)
    for made, name in (([X, Y], "list"), ((X, Y), "tuple"), (None, "NoneType")):
        with pytest.raises(TypeError, match=f"return a dataset of batches, and returned a {name}"):
            model.fit(creator(lambda _, made=made: made), steps_per_epoch=1, verbose=0)


# -- what a framework brings with it ---------------------------------------------------------


def test_a_model_of_mixed_precision_trains_with_its_loss_scaled(keras: Any) -> None:
    """On the worker, by deltas; the scale is halved where gradients overflow, and nothing lost."""
    model = keras.Sequential(
        [keras.Input((8,)), keras.layers.Dense(1, dtype="mixed_float16")], name="mixed"
    )
    scaled_adam = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1))
    strategy = rw.distribute.ParameterServerStrategy()
    model.compile(scaled_adam, "mse", distribute=strategy)
    losses = model.fit(X, Y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]
    assert rw.training.keras.shared_weights(model).worker_reason is not None
    other = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    other.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(0.1)), "mse")
    with pytest.raises(
        rw.errors.ConfigurationError,
        match="LossScaleOptimizer scales the loss",
    ):
        rw.training.keras.distribute(other, strategy, deltas="forbid")


def test_an_input_without_a_size_is_named_before_anything_is_shared(keras: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope(), pytest.raises(ValueError, match="fully-defined"):
        keras.Sequential([keras.Input((None,)), keras.layers.Dense(1)])


def test_a_layer_that_comes_after_the_model_was_distributed_is_shared_by_compile(
    keras: Any,
) -> None:
    model = compiled(keras, rw.distribute.ParameterServerStrategy())
    model.fit(X, Y, verbose=0)
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse", metrics=["mae"])
    first = model.layers[-1].kernel.numpy()
    model.fit(X, Y, verbose=0)
    assert not np.array_equal(model.layers[-1].kernel.numpy(), first)
    store = rw.training.keras.shared_weights(model).store
    assert len(store.pull()) == len(model.weights)


MISSING = """\
import sys
sys.modules["torch"] = None  # as where it is not installed
import ropewalk as rw
try:
    rw.training.keras
except rw.errors.MissingExtraError as error:
    print(error)
"""


def test_a_framework_below_keras_that_is_missing_is_named_with_its_extra(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    code, output, errors = processes.run(
        [sys.executable, "-c", MISSING],
        timeout_s=scaled(60),
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": "torch"},
    )
    assert code == 0, errors
    assert "pip install 'ropewalk[keras,torch]'" in output
