"""Workers of one seed: each shuffles and drops out by itself, and alone nothing changes."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import processes
from helpers.waiting import scaled

pytestmark = pytest.mark.bridges

pytest.importorskip("keras")

PROGRAM = """
import contextlib, json, os, random, sys
import keras, numpy as np
import ropewalk as rw

keras.utils.set_random_seed(0)
how = sys.argv[1]
strategy = None if how == "plain" else getattr(rw.distribute, how)()
found = {"losses": [], "masks": []}
x = np.arange(64, dtype=np.float32)[:, None]


class Notes(keras.callbacks.Callback):
    def on_train_begin(self, logs=None):
        mask = self.model.layers[0](np.ones((1, 64), np.float32), training=True)
        found["masks"].append(np.asarray(keras.ops.convert_to_numpy(mask)).ravel().tolist())

    def on_train_batch_end(self, batch, logs=None):  # of a model that gives zeros: of the examples
        if batch == 0:
            found["losses"].append(round(float(logs["loss"]), 2))


with contextlib.nullcontext() if strategy is None else strategy.scope():
    model = keras.Sequential(
        [keras.layers.Dropout(0.5), keras.layers.Dense(1, kernel_initializer="zeros")]
    )
    model.build((None, 1))
    model.compile(keras.optimizers.SGD(0.0), "mse")
before = random.getstate()
for _ in range(2):
    model.fit(x, x, batch_size=4, epochs=2, verbose=0, callbacks=[Notes()])
found["layers_begin_as_before"] = random.getstate() == before
found["afterwards"] = [random.random(), np.random.random()]
with open(f"{how}-{strategy.extended.input_pipeline_id if strategy else 0}.json", "w") as file:
    json.dump(found, file)
"""

BACKENDS = ["jax", "torch", "tensorflow"]
ALONE = [sys.executable]


def ran(command: list[str], how: str, below: str, folder: Path) -> list[Any]:
    """What each worker found, in their order."""
    (folder / "train.py").write_text(PROGRAM)
    status, output, errors = processes.run(
        [*command, "train.py", *(["--"] if command is not ALONE else []), how],
        timeout_s=scaled(120),
        cwd=folder,
        env={**os.environ, "KERAS_BACKEND": below, "OMP_NUM_THREADS": "1"},
    )
    assert status == 0, output + errors
    return [json.loads(path.read_text()) for path in sorted(folder.glob(f"{how}-*.json"))]


@pytest.mark.parametrize("below", BACKENDS)
def test_alone_keras_draws_what_it_did(below: str, tmp_path: Path) -> None:
    pytest.importorskip(below)
    shared = ran(ALONE, "ParameterServerStrategy", below, tmp_path)
    assert shared == ran(ALONE, "plain", below, tmp_path)


@pytest.mark.parametrize(
    ("below", "how"),
    [(below, "ParameterServerStrategy") for below in BACKENDS]
    + [("jax", "MultiWorkerMirroredStrategy")],
)
def test_workers_of_one_seed_draw_their_own(below: str, how: str, tmp_path: Path) -> None:
    pytest.importorskip(below)
    tasks = ["--ps", "1"] if how == "ParameterServerStrategy" else ["--ps", "0", "--no-chief"]
    command = [*processes.ROPEWALK, "local", "--plain", "--workers", "2", *tasks]
    workers = ran(command, how, below, tmp_path)
    assert len(workers) == (3 if "--no-chief" not in tasks else 2)
    if how == "ParameterServerStrategy":  # in sync the loss is of all workers
        # Each worker's apart: of one seed TensorFlow repeats the order in every epoch of a fit.
        losses = [loss for worker in workers for loss in set(worker["losses"])]
        assert len(set(losses)) == len(losses)
    masks = [tuple(mask) for worker in workers for mask in worker["masks"]]
    assert len(set(masks)) == len(masks)
    assert all(worker["afterwards"] == workers[0]["afterwards"] for worker in workers)
    assert all(worker["layers_begin_as_before"] for worker in workers)
