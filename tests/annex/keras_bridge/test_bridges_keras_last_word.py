"""Weights that the chief's program sets when its training is over, where other workers train on."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.waiting import scaled
from ropewalk.core.checkpoint import CheckpointReader, list_checkpoints
from ropewalk.core.task import TaskId

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

BACKEND = os.environ.get("KERAS_BACKEND", "jax")
CHIEF, WORKER = TaskId("chief", 0), TaskId("worker", 0)
X = np.ones((16, 1), np.float32)
Y = np.zeros((16, 1), np.float32)
ENDLESS = 10**6
MOVED = 100.0


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pytest.importorskip(BACKEND)
    return pytest.importorskip("keras")


def output_itself(_: Any, output: Any) -> Any:
    """A loss whose gradient is 1."""
    return output


def compiled(keras: Any, strategy: Any) -> Any:
    """A weight that begins as 1, and loses 1 with each step of each worker."""
    with strategy.scope():
        weight = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones", name="dense")
        model = keras.Sequential([keras.Input((1,)), weight], name="net")
        model.compile(keras.optimizers.SGD(1.0), output_itself)
    return model


def sets_last(keras: Any, value: float) -> Any:
    """A callback that does what EarlyStopping(restore_best_weights=True) does."""

    class SetsLast(keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_end(self, logs: Any = None) -> None:
            self.model.set_weights([np.full((1, 1), value, np.float32)])

    return SetsLast()


def bounded(keras: Any) -> Any:
    """A callback that ends a fit which nothing else ends."""
    until = time.monotonic() + scaled(60)

    class Bounded(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            assert time.monotonic() < until, "nothing has ended this fit"

    return Bounded()


def weight_of(model: Any) -> float:
    return float(model.get_weights()[0].item())


def of_job(folder: Path, program: Callable[[], Any]) -> tuple[dict[TaskId, Any], float]:
    """What the tasks of a job return, and the weight in its last checkpoint."""
    with rw.testing.LocalCluster(workers=1, ps=1, model_dir=str(folder)) as cluster:
        results = cluster.run(program)
    reader = CheckpointReader(list_checkpoints(str(folder))[-1].path)
    assert reader.manifest.final
    return results, float(reader.read("net/dense/kernel").item())


def test_weights_set_when_the_chiefs_fit_ends_stay_and_end_the_others_training(
    keras: Any, tmp_path: Path
) -> None:
    """Evaluated, saved and in the last checkpoint are the chief's, whatever comes after them."""

    def program() -> Any:
        strategy = rw.distribute.ParameterServerStrategy()
        model = compiled(keras, strategy)
        if not strategy.is_chief:
            fit = {"epochs": ENDLESS, "batch_size": 16, "verbose": 0}
            made = len(model.fit(X, Y, callbacks=[bounded(keras)], **fit).epoch)
            strategy.barrier()
            model.train_on_batch(X, Y)
            strategy.barrier()
            return made
        model.fit(X, Y, batch_size=8, verbose=0, callbacks=[sets_last(keras, 7.0)])
        found = [weight_of(model)]
        strategy.barrier()  # the other's fit is over
        strategy.barrier()  # and it has made one step more
        found.append(float(model.evaluate(X, Y, verbose=0)))
        found.append(float(model.predict(X, verbose=0)[0].item()))
        model.save(tmp_path / "last.keras")
        loaded = keras.models.load_model(tmp_path / "last.keras", compile=False)
        return [*found, weight_of(loaded)]

    results, last = of_job(tmp_path / "job", program)
    assert results[CHIEF] == [7.0] * 4
    assert 0 < results[WORKER] < ENDLESS
    assert last == 7.0


def test_a_file_that_the_chief_loads_after_its_fit_ends_the_others_training_too(
    keras: Any, tmp_path: Path
) -> None:
    """As after ModelCheckpoint(save_best_only=True), also where nothing is evaluated after it."""

    def program() -> Any:
        strategy = rw.distribute.ParameterServerStrategy()
        model = compiled(keras, strategy)
        if not strategy.is_chief:
            fit = {"epochs": ENDLESS, "batch_size": 16, "verbose": 0}
            return len(model.fit(X, Y, callbacks=[bounded(keras)], **fit).epoch)
        best = str(tmp_path / "best.weights.h5")
        saver = keras.callbacks.ModelCheckpoint(best, save_weights_only=True)
        model.fit(X, Y, batch_size=16, verbose=0, callbacks=[saver])
        saved = weight_of(model)
        model.load_weights(best)
        model.load_weights(best)  # again: nothing changes
        return saved, weight_of(model)

    results, last = of_job(tmp_path / "job", program)
    assert last == results[CHIEF][1]
    assert results[WORKER] < ENDLESS


def test_the_chiefs_next_fit_begins_with_the_weights_that_it_has_set(
    keras: Any, tmp_path: Path
) -> None:
    def program() -> Any:
        strategy = rw.distribute.ParameterServerStrategy()
        model = compiled(keras, strategy)
        model.fit(X, Y, batch_size=16, verbose=0, callbacks=[sets_last(keras, 7.0)])
        strategy.barrier()
        if not strategy.is_chief:
            for _ in range(3):
                model.train_on_batch(X, Y)
        strategy.barrier()
        if strategy.is_chief:
            model.fit(X, Y, batch_size=16, verbose=0)
        return weight_of(model)

    results, last = of_job(tmp_path / "job", program)
    assert results[CHIEF] == last == 6.0  # 7, and one step


def test_weights_that_a_callback_of_the_chief_sets_between_epochs_are_trained_on_by_all(
    keras: Any, tmp_path: Path
) -> None:
    class Sets(keras.callbacks.Callback):  # type: ignore[misc]
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 0:
                self.model.set_weights([np.full((1, 1), MOVED, np.float32)])

    def program() -> Any:
        strategy = rw.distribute.ParameterServerStrategy()
        model = compiled(keras, strategy)
        model.train_on_batch(X, Y)  # a chief waits for the first step of the others
        strategy.barrier()
        if strategy.is_chief:
            model.fit(X, Y, batch_size=16, epochs=2, verbose=0, callbacks=[Sets()])
        strategy.barrier()
        made = len(model.fit(X, Y, batch_size=16, epochs=3, verbose=0).epoch)
        strategy.barrier()
        return made

    results, last = of_job(tmp_path / "job", program)
    assert results == {CHIEF: 3, WORKER: 3}  # nobody's training was ended
    assert last == MOVED - 7


def test_a_worker_looks_now_and_then_whether_the_chiefs_fit_has_ended_its_own() -> None:
    """One that is late, or was started again, ends the fits that are over by now, and no later."""
    pytest.importorskip("keras")
    from ropewalk.annexes.keras_bridge.callbacks import EndsWithChief

    now, said, looks = [0.0], [0], [0]

    def look() -> int:
        looks[0] += 1
        return said[0]

    def stopped(number: int, times: list[float]) -> list[bool]:
        now[0] = times[0]
        end: Any = SimpleNamespace(now=look)
        callback = EndsWithChief(lambda: end, number, clock=lambda: now[0])
        model = SimpleNamespace(stop_training=False)
        callback.set_model(model)
        found = []
        for now[0] in times:
            callback.on_train_batch_end(0)
            found.append(model.stop_training)
        return found

    assert stopped(2, [0.0, 0.5, 0.9, 1.1]) == [False] * 4
    assert looks == [2]
    said[0] = 2
    assert stopped(1, [0.0]) == stopped(2, [0.0]) == [True]
    assert stopped(3, [0.0, 2.0]) == [False, False]
