"""Checkpoints go from one strategy to another, with every bridge, slots included: five jobs in one
model directory, each under another strategy, have the curves of one run that never stopped.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers import processes
from helpers.waiting import scaled

pytestmark = pytest.mark.bridges

STEPS = 3  # of each job

PROGRAM = """\
import json, os, sys
os.environ["KERAS_BACKEND"] = "jax"
import jax, keras, optax, torch
import jax.numpy as jnp
import numpy as np
import ropewalk as rw

kind, steps = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(0)
X = rng.normal(size=(64, 8)).astype(np.float32)
Y = np.sin(X @ rng.normal(size=(8, 1))).astype(np.float32)
W, V = (rng.normal(size=shape).astype(np.float32) / 4 for shape in ((8, 16), (16, 1)))
strategy, x, y = None, X, Y
if kind != "alone":
    strategy = getattr(rw.distribute, kind)()
if kind == "MultiWorkerMirroredStrategy":
    mine = slice(32 * strategy.extended.input_pipeline_id, None)
    x, y = X[mine][:32], Y[mine][:32]


def loss_of(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w, self.v = torch.nn.Parameter(torch.tensor(W)), torch.nn.Parameter(torch.tensor(V))

    def forward(self, x):
        return torch.tanh(x @ self.w) @ self.v


gradients_of, loss_of = jax.jit(jax.grad(loss_of)), jax.jit(loss_of)
rule = optax.adam(1e-2)
values = {"w": jnp.asarray(W), "v": jnp.asarray(V)}
opt_state = rule.init(values)
module = Net()
optimizer = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
model = keras.Sequential([
    keras.Input((8,)),
    keras.layers.Dense(16, "tanh", use_bias=False, name="w"),
    keras.layers.Dense(1, use_bias=False, name="v"),
], name="net")
model.set_weights([W, V])
model.compile(keras.optimizers.RMSprop(1e-2), "mse")
if strategy is not None:
    state = rw.training.jax.TrainState(values, rule, strategy, name="jax")
    optimizer = rw.training.torch.DistributedOptimizer(
        optimizer, strategy, module=module, name="torch"
    )
    rw.training.keras.distribute(model, strategy, name="keras")
# The same with optimizers that run on the worker.
rule_here = optax.adabelief(1e-2)
values_here, state_here = values, rule_here.init(values)
module_here = Net()
optimizer_here = torch.optim.Adamax(module_here.parameters(), 1e-2)
model_here = keras.models.clone_model(model)
model_here.set_weights([W, V])
model_here.compile(keras.optimizers.Adam(1e-2, amsgrad=True), "mse")
if strategy is not None:
    jax_here = rw.training.jax.TrainState(values_here, rule_here, strategy, name="jax_here")
    optimizer_here = rw.training.torch.DistributedOptimizer(
        optimizer_here, strategy, module=module_here, name="torch_here"
    )
    rw.training.keras.distribute(model_here, strategy, name="keras_here")
losses = {name: [] for name in ("jax", "torch", "keras", "jax_here", "torch_here", "keras_here")}
for _ in range(steps):
    if strategy is not None:
        values = state.params
    losses["jax"].append(float(loss_of(values, X, Y)))
    gradients = gradients_of(values, x, y)
    if strategy is not None:
        state.apply_gradients(gradients)
    else:
        updates, opt_state = rule.update(gradients, opt_state, values)
        values = optax.apply_updates(values, updates)
    with torch.no_grad():
        losses["torch"].append(float((module(torch.tensor(X)) - torch.tensor(Y)).square().mean()))
    optimizer.zero_grad()
    (module(torch.tensor(x)) - torch.tensor(y)).square().mean().backward()
    optimizer.step()
    w, v = (weight.numpy() for weight in model.weights)
    losses["keras"].append(float(((np.tanh(X @ w) @ v - Y) ** 2).mean()))
    model.train_on_batch(x, y)

    if strategy is not None:
        values_here = jax_here.params
    losses["jax_here"].append(float(loss_of(values_here, X, Y)))
    gradients = gradients_of(values_here, x, y)
    if strategy is not None:
        jax_here.apply_gradients(gradients)
    else:
        updates, state_here = rule_here.update(gradients, state_here, values_here)
        values_here = optax.apply_updates(values_here, updates)
    with torch.no_grad():
        out = module_here(torch.tensor(X))
    losses["torch_here"].append(float((out - torch.tensor(Y)).square().mean()))
    optimizer_here.zero_grad()
    (module_here(torch.tensor(x)) - torch.tensor(y)).square().mean().backward()
    optimizer_here.step()
    w, v = (weight.numpy() for weight in model_here.weights)
    losses["keras_here"].append(float(((np.tanh(X @ w) @ v - Y) ** 2).mean()))
    model_here.train_on_batch(x, y)
print("curve", json.dumps(losses))
if hasattr(strategy, "close"):
    strategy.close()
"""

LOCAL = [*processes.ROPEWALK, "local", "--plain"]
RUN = [*processes.ROPEWALK, "run"]
JOBS: list[tuple[str, list[str]]] = [
    ("ParameterServerStrategy", [*LOCAL, "--workers", "0", "--ps", "2"]),
    ("MirroredStrategy", RUN),
    ("MultiWorkerMirroredStrategy", [*LOCAL, "--ps", "0", "--no-chief", "--workers", "2"]),
    ("CentralStorageStrategy", RUN),
    ("ParameterServerStrategy", [*LOCAL, "--workers", "0", "--ps", "1"]),
]


def test_every_bridge_goes_on_under_the_next_strategy(tmp_path: Path) -> None:
    for framework in ("jax", "torch", "keras"):
        pytest.importorskip(framework)
    (tmp_path / "train.py").write_text(PROGRAM)

    def run(command: list[str], kind: str, steps: int) -> dict[str, list[float]]:
        where = [] if kind == "alone" else ["--model-dir", "model"]
        code, output, errors = processes.run(
            [*command, *where, "train.py", kind, str(steps)], timeout_s=scaled(150), cwd=tmp_path
        )
        assert code == 0, output + errors
        curves: list[dict[str, list[float]]]
        curves = [json.loads(found) for found in re.findall(r"curve (\{.*\})", output)]
        assert all(curve == curves[0] for curve in curves)
        return curves[0]

    whole = run([sys.executable], "alone", STEPS * len(JOBS))
    parts = [run(command, kind, STEPS) for kind, command in JOBS]
    for framework, expected in whole.items():
        found = [loss for part in parts for loss in part[framework]]
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6, err_msg=framework)


HERE = [
    pytest.param(rw.distribute.ParameterServerStrategy, id="ParameterServer"),
    pytest.param(rw.distribute.MirroredStrategy, id="Mirrored"),
    pytest.param(rw.distribute.CentralStorageStrategy, id="CentralStorage"),
]


@pytest.mark.parametrize("make", HERE)
def test_a_program_saves_a_bridge_and_restores_it_under_another_strategy(
    make: Any, tmp_path: Path
) -> None:
    """By ``rw.train.Checkpoint``: what the bridge shows is what was saved."""
    optax, torch = pytest.importorskip("optax"), pytest.importorskip("torch")

    def made(strategy: Any) -> tuple[Any, Any, Any]:
        state = rw.training.jax.TrainState(
            {"w": np.zeros(3, np.float32)}, optax.adam(0.1), strategy
        )
        module = torch.nn.Linear(2, 1)
        optimizer = rw.training.torch.DistributedOptimizer(
            torch.optim.SGD(module.parameters(), 0.1, momentum=0.9), strategy, module=module
        )
        return state, module, optimizer

    def train(state: Any, module: Any, optimizer: Any) -> None:
        state.apply_gradients({"w": state.params["w"] - 5})
        optimizer.zero_grad()
        module(torch.ones(4, 2)).square().mean().backward()
        optimizer.step()

    def values(state: Any, module: Any) -> list[Any]:
        return [*np.asarray(state.params["w"]), *(p.detach().clone() for p in module.parameters())]

    before = made(make())
    for _ in range(2):
        train(*before)
    path = rw.train.Checkpoint(jax=before[0], torch=before[2]).save(str(tmp_path / "mine"))
    names = [name for name, _ in rw.train.list_variables(path)]
    assert names == ["jax/w", "torch/bias", "torch/weight"]
    after = made(rw.distribute.MirroredStrategy())
    rw.train.Checkpoint(jax=after[0], torch=after[2]).restore(path).assert_consumed()
    for a, b in zip(values(*before[:2]), values(*after[:2]), strict=True):
        assert (a == b).all()
    if make is rw.distribute.ParameterServerStrategy:
        return  # whose slots are in the job's checkpoints only
    train(*before)
    train(*after)
    for a, b in zip(values(*before[:2]), values(*after[:2]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
