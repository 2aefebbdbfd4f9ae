"""Two workers in sync, each with half of every batch, have the curve of one device."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from helpers import processes
from helpers.waiting import scaled

pytestmark = pytest.mark.bridges

# Threads of a framework that spin for work take the time of the other worker.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}

COMMON = """\
import json, sys
import numpy as np
import ropewalk as rw

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 8)).astype(np.float32)
Y = np.sin(X @ rng.normal(size=(8, 1))).astype(np.float32)
W, V = (rng.normal(size=shape).astype(np.float32) / 4 for shape in ((8, 16), (16, 1)))
alone = len(sys.argv) < 2
strategy = None if alone else rw.distribute.MultiWorkerMirroredStrategy()
mine = slice(0, 64) if alone else slice(32 * strategy.extended.input_pipeline_id, None)
x, y = X[mine][: 64 if alone else 32], Y[mine][: 64 if alone else 32]
losses = []
"""

TORCH = """\
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.v = torch.nn.Parameter(torch.tensor(W)), torch.nn.Parameter(torch.tensor(V))

    def forward(self, x):
        return torch.tanh(x @ self.w) @ self.v

for make, mean in (
    (lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.01), True),
    (lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True), True),
    (lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.1), False),
):
    module = Net()
    optimizer = make(module.parameters())
    if not alone:
        optimizer = rw.training.torch.DistributedOptimizer(
            optimizer, strategy, module=module, name=str(len(losses)), mean=mean
        )
    share = 1 if alone or mean else 2
    for _ in range(200):
        with torch.no_grad():
            losses.append(float((module(torch.tensor(X)) - torch.tensor(Y)).square().mean()))
        optimizer.zero_grad()
        (module(torch.tensor(x)) - torch.tensor(y)).square().mean().div(share).backward()
        optimizer.step()
"""

JAX = """\
import jax, optax
import jax.numpy as jnp

def loss_of(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)

compute, loss_of = jax.jit(jax.grad(loss_of)), jax.jit(loss_of)
for optimizer in (optax.adam(1e-2), optax.amsgrad(1e-2)):
    values = {"w": jnp.asarray(W), "v": jnp.asarray(V)}
    opt_state = optimizer.init(values)
    if not alone:
        state = rw.training.jax.TrainState(values, optimizer, strategy, name=str(len(losses)))
    for _ in range(200):
        if not alone:
            values = state.params
        losses.append(float(loss_of(values, X, Y)))
        gradients = compute(values, x, y)
        if alone:
            updates, opt_state = optimizer.update(gradients, opt_state, values)
            values = optax.apply_updates(values, updates)
        else:
            state.apply_gradients(gradients)
"""

KERAS = """\
import keras

for make in (
    lambda: keras.optimizers.Adam(1e-2),
    lambda: keras.optimizers.Adam(1e-2, amsgrad=True),
):
    model = keras.Sequential([
        keras.Input((8,)),
        keras.layers.Dense(16, "tanh", use_bias=False),
        keras.layers.Dense(1, use_bias=False),
    ])
    model.set_weights([W, V])
    model.compile(make(), "mse")
    if not alone:
        rw.training.keras.distribute(model, strategy, name=str(len(losses)))
    for _ in range(200):
        w, v = (weight.numpy() for weight in model.weights)
        losses.append(float(((np.tanh(X @ w) @ v - Y) ** 2).mean()))
        model.train_on_batch(x, y)
"""

LAST = """\
print("curve", json.dumps(losses))
if not alone:
    strategy.close()
"""


CASES = [
    pytest.param("jax", JAX, "jax", id="jax"),
    pytest.param("keras", KERAS, "jax", id="keras-jax"),
    pytest.param("keras", KERAS, "torch", id="keras-torch"),
    pytest.param("keras", KERAS, "tensorflow", id="keras-tensorflow"),
    pytest.param("torch", TORCH, "jax", id="torch"),
]


@pytest.mark.parametrize(("framework", "body", "below"), CASES)
def test_the_curve_is_that_of_one_device(
    framework: str, body: str, below: str, tmp_path: Path
) -> None:
    """By a rule, and by an optimizer that each worker runs for itself on reduced gradients."""
    pytest.importorskip(framework)
    pytest.importorskip(below)
    program = tmp_path / "train.py"
    program.write_text(COMMON + body + LAST)
    local = ["local", "--plain", "--ps", "0", "--no-chief", "--workers", "2"]
    curves = []
    commands: list[list[str | Path]] = [
        [processes.ROPEWALK[0], program],
        [*processes.ROPEWALK, *local, program, "--", "in-sync"],
    ]
    environment = {**os.environ, "KERAS_BACKEND": below, **ONE_THREAD}
    for command in commands:
        code, output, errors = processes.run(
            command, timeout_s=scaled(120), cwd=tmp_path, env=environment
        )
        assert code == 0, output + errors
        curves += [json.loads(found) for found in re.findall(r"curve (\[.*\])", output)]
    alone, *workers = curves
    assert len(workers) == 2
    assert workers[0] == workers[1]
    np.testing.assert_allclose(workers[0], alone, rtol=1e-5, atol=1e-5)
    if framework == "keras":  # so the curves of all three are one another's
        np.testing.assert_allclose(workers[0][:200], by_hand(), rtol=1e-4)


def by_hand() -> list[float]:
    """The first 200 losses of the program above, in float64: Adam as Keras has it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 8)).astype(np.float32).astype(float)
    y = np.sin(x @ rng.normal(size=(8, 1)))
    w, v = (rng.normal(size=shape) / 4 for shape in ((8, 16), (16, 1)))
    values, losses = [w, v], []
    moments = [[np.zeros_like(value), np.zeros_like(value)] for value in values]
    for step in range(1, 201):
        hidden = np.tanh(x @ values[0])
        error = hidden @ values[1] - y
        losses.append(float(np.mean(error**2)))
        back = 2 * error / len(x)
        gradients = [x.T @ (back @ values[1].T * (1 - hidden**2)), hidden.T @ back]
        rate = 1e-2 * np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        for value, gradient, (first, second) in zip(values, gradients, moments, strict=True):
            first[:] += 0.1 * (gradient - first)
            second[:] += 0.001 * (gradient**2 - second)
            value[:] -= rate * first / (np.sqrt(second) + 1e-7)
    return losses
