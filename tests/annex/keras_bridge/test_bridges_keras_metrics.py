"""Metrics and logs that a program has written itself are the job's, as those of Keras are."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import processes
from helpers.waiting import scaled

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

BACKEND = os.environ.get("KERAS_BACKEND", "jax")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
LOCAL = [*processes.ROPEWALK, "local", "--plain", "--no-chief", "--workers", "2"]


def two_workers(program: str, folder: Path, *, in_sync: bool) -> str:
    """The output of two workers, in sync or with a ps."""
    pytest.importorskip("keras")
    pytest.importorskip(BACKEND)
    path = folder / "train.py"
    path.write_text(program)
    code, output, errors = processes.run(
        [*LOCAL, "--ps", "0" if in_sync else "1", path],
        timeout_s=scaled(120),
        cwd=folder,
        env={**os.environ, **ONE_THREAD, "KERAS_BACKEND": BACKEND},
    )
    assert code == 0, output + errors
    return output + errors


OWN_STEPS = """\
import keras
import numpy as np
import ropewalk as rw

{step}

class Net(Stepping):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.tracked = keras.metrics.Mean(name="tracked")
        self.error = keras.metrics.MeanAbsoluteError(name="error")

    @property
    def metrics(self):
        return [self.tracked, self.error]

class Evaluates(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 0:
            self.model.evaluate(np.ones((2, 4)), np.ones((2, 1)), verbose=0)

def trained(strategy, x, y, batch):
    keras.utils.set_random_seed(0)
    with strategy.scope():
        inputs = keras.Input((4,))
        model = Net(inputs, keras.layers.Dense(1)(inputs))
        model.compile("sgd", "mse")
    fit = dict(batch_size=batch, epochs=2, shuffle=False, verbose=0, callbacks=[Evaluates()])
    return model.fit(x, y, **fit).history

strategy = rw.distribute.MultiWorkerMirroredStrategy()
me = strategy.extended.input_pipeline_id
x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
y = x.sum(1, keepdims=True)
found = trained(strategy, x[me::2], y[me::2], 8)
alone = trained(rw.distribute.OneDeviceStrategy("CPU:0"), x, y, 16)
assert found.keys() == {{"loss", "mae", "of_last_batch"}}, found
for name, numbers in alone.items():
    np.testing.assert_allclose(found[name], numbers, rtol=1e-5, err_msg=name)
"""

STEPS = {
    "jax": """\
import jax

class Stepping(keras.Model):
    def loss_and_updates(self, trainable, others, x, y):
        predicted, others = self.stateless_call(trainable, others, x, training=True)
        return keras.ops.mean((y - predicted) ** 2), (predicted, others)

    def train_step(self, state, data):
        trainable, others, of_optimizer, metrics = state
        x, y = data
        gradient = jax.value_and_grad(self.loss_and_updates, has_aux=True)
        (loss, (predicted, others)), gradients = gradient(trainable, others, x, y)
        trainable, of_optimizer = self.optimizer.stateless_apply(
            of_optimizer, gradients, trainable
        )
        count = len(self.tracked.variables)
        tracked = self.tracked.stateless_update_state(metrics[:count], loss)
        error = self.error.stateless_update_state(metrics[count:], y, predicted)
        logs = {
            "loss": self.tracked.stateless_result(tracked),
            "mae": self.error.stateless_result(error),
            "of_last_batch": loss,
        }
        return logs, (trainable, others, of_optimizer, tracked + error)
""",
    "tensorflow": """\
import tensorflow as tf

class Stepping(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = keras.ops.mean((y - predicted) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables))
        self.tracked.update_state(loss)
        self.error.update_state(y, predicted)
        return {
            "loss": self.tracked.result(), "mae": self.error.result(), "of_last_batch": loss
        }
""",
    "torch": """\
import torch

class Stepping(keras.Model):
    def train_step(self, data):
        x, y = data
        self.zero_grad()
        predicted = self(x, training=True)
        loss = keras.ops.mean((y - predicted) ** 2)
        loss.backward()
        with torch.no_grad():
            weights = self.trainable_weights
            self.optimizer.apply([each.value.grad for each in weights], weights)
        self.tracked.update_state(loss)
        self.error.update_state(y, predicted)
        return {
            "loss": self.tracked.result(), "mae": self.error.result(), "of_last_batch": loss
        }
""",
}


def test_logs_of_a_programs_own_step_are_the_jobs_in_sync(tmp_path: Path) -> None:
    """Results of metrics under other names, as in Keras' guide; other numbers are averaged."""
    two_workers(OWN_STEPS.format(step=STEPS[BACKEND]), tmp_path, in_sync=True)


KEPT = """\
import keras
import numpy as np
import ropewalk as rw

class Kept(keras.metrics.Metric):
    def __init__(self, keep, aggregation="sum"):
        super().__init__(name=f"{{keep}}_{{aggregation}}")
        self.keep = getattr(keras.ops, keep)
        self.value = self.add_variable((), "zeros", aggregation=aggregation)

    def update_state(self, y, *_, **__):
        self.value.assign(self.keep(self.value, keras.ops.max(y)))

    def result(self):
        return keras.ops.convert_to_tensor(self.value)

strategy = rw.distribute.{strategy}()
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    metrics = [Kept("maximum", kind) for kind in ("sum", "mean", "only_first_replica")]
    metrics += [Kept("add")]
    model.compile("sgd", "mse", metrics=metrics)
x = np.full((8, 1), 3.0 if strategy.is_chief else 5.0)
if strategy.is_chief and {in_turn}:  # its logs are of both
    strategy.barrier()
logs = model.fit(x, x, verbose=0).history
if strategy.is_chief:
    print("kept", *(logs[metric.name][0] for metric in metrics), flush=True)
elif {in_turn}:
    strategy.barrier()
"""


@pytest.mark.parametrize(
    ("strategy", "in_sync"),
    [("MultiWorkerMirroredStrategy", True), ("ParameterServerStrategy", False)],
    ids=["in sync", "asynchronous"],
)
def test_states_of_a_metric_become_the_jobs_as_its_variables_say(
    strategy: str, in_sync: bool, tmp_path: Path
) -> None:
    program = KEPT.format(strategy=strategy, in_turn=not in_sync)
    output = two_workers(program, tmp_path, in_sync=in_sync)
    assert "kept 8.0 4.0 3.0 8.0" in output


@pytest.mark.parametrize(
    ("grows", "loss"),
    [
        (True, lambda keras, y, p: keras.ops.sum((y - p) ** 2)),
        (False, lambda keras, y, p: keras.ops.sum((y - p) ** 2, axis=-1)),
        (False, lambda keras, y, p: keras.ops.mean((y - p) ** 2)),
        (False, None),
    ],
    ids=["sum", "one-per-example", "mean", "of-keras"],
)
def test_a_loss_that_grows_with_examples_is_warned_of_before_the_first_step(
    grows: bool, loss: Any, caplog: pytest.LogCaptureFixture
) -> None:
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pytest.importorskip(BACKEND)
    keras = pytest.importorskip("keras")
    from ropewalk.annexes.keras_bridge.loss_of_sum import warn_of_sum

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse" if loss is None else lambda y, p: loss(keras, y, p))
    state = random.getstate()
    warn_of_sum(model, 2)
    model.fit(np.ones((8, 4)), np.ones((8, 1)), verbose=0, shuffle=False)
    assert ("grows with the number of examples" in caplog.text) == grows
    assert random.getstate() == state
    assert "compute_loss" not in vars(model)
