"""JAX: what a program does to gradients before apply_gradients, of workers in sync."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from helpers import processes
from helpers.waiting import scaled

pytest.importorskip("optax")
pytestmark = pytest.mark.bridges

PROGRAM = """\
import json, sys
import jax
import jax.numpy as jnp
import numpy as np
import optax
import ropewalk as rw

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 8)).astype(np.float32)
Y = 5 * np.sin(X.sum(1))
alone = len(sys.argv) < 2
Strategy = rw.distribute.OneDeviceStrategy if alone else rw.distribute.MultiWorkerMirroredStrategy
strategy = Strategy(*["/cpu:0"] * alone)
mine = slice(None) if alone else slice(strategy.extended.input_pipeline_id, None, 2)
loss_and_gradients = jax.jit(
    jax.value_and_grad(lambda params, x, y: jnp.mean((jnp.tanh(x @ params["w"]) - y) ** 2))
)

def clipped(gradients):
    norm = optax.global_norm(gradients)
    return jax.tree.map(lambda g: g * jnp.minimum(1, 0.1 / norm), gradients)

def train(name, deltas="allow", *, synchronize=True, steps=20):
    params = {"w": jnp.full(8, 0.1), "not trained": 3}
    state = rw.training.jax.TrainState(
        params, optax.adam(1e-2), strategy, deltas=deltas, name=name
    )
    for _ in range(steps):
        _, gradients = loss_and_gradients({"w": state.params["w"]}, X[mine], Y[mine])
        if synchronize:
            gradients = state.synchronize(gradients)
        state.apply_gradients(clipped(gradients))
    return [float(each) for each in state.params["w"]]

found = {deltas: train(deltas, deltas) for deltas in ("allow", "always")}
print("found", json.dumps(found), flush=True)
train("by hand", synchronize=False, steps=6)
"""


def run(folder: Path, *, in_sync: bool) -> tuple[str, str]:
    program = folder / "train.py"
    program.write_text(PROGRAM)
    local = ["local", "--plain", "--ps", "0", "--no-chief", "--workers", "2"]
    command: list[str | Path] = [*processes.ROPEWALK, *local, program, "--", "in-sync"]
    if not in_sync:
        command = [processes.ROPEWALK[0], program]
    code, output, errors = processes.run(
        command, timeout_s=scaled(120), cwd=folder, env={**os.environ, "JAX_PLATFORMS": "cpu"}
    )
    assert code == 0, output + errors
    return output, output + errors


def test_gradients_clipped_after_synchronize_train_as_one_process_and_others_are_warned_of(
    tmp_path: Path,
) -> None:
    alone, told_alone = run(tmp_path, in_sync=False)
    output, told = run(tmp_path, in_sync=True)
    curves = [json.loads(each) for each in re.findall(r"found (\{.*\})", alone + output)]
    assert len(curves) == 3
    assert curves[1] == curves[2]
    for deltas, wanted in curves[0].items():
        np.testing.assert_allclose(curves[1][deltas], wanted, rtol=2e-5, err_msg=deltas)
    warnings = re.findall(r"had the norm 0\.1 in 5 steps in a row.*state\.synchronize", told)
    assert len(warnings) == 2, told
    assert "in a row" not in told_alone
