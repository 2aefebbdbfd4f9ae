"""What one worker in sync alone has loaded, or draws by itself, ends the job."""

from pathlib import Path

import pytest

from helpers import processes

pytestmark = pytest.mark.bridges

TORCH = """
import torch
module = torch.nn.Linear(8, 1)
for deltas in ("allow", "always"):
    optimizer = rw.training.torch.DistributedOptimizer(
        torch.optim.Adam(module.parameters()), strategy, module=module, deltas=deltas, name=deltas
    )

def load():
    module.load_state_dict({name: value / 2 for name, value in module.state_dict().items()})

def train():
    optimizer.zero_grad()
    module(torch.tensor(x)).square().mean().backward()
    optimizer.step()
"""

KERAS = """
import keras
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
    model.compile("adam", "mse")

def load():
    model.set_weights([weight / 2 for weight in model.get_weights()])

def train():
    model.train_on_batch(x, x[:, :1])
"""

PROGRAM = """
import numpy as np
import ropewalk as rw
strategy = rw.distribute.MultiWorkerMirroredStrategy()
x = np.ones((4, 8), np.float32)
{framework}
for _ in range(3):
    train()
    load()
train()
print("alike", flush=True)
if strategy.should_save:
    load()
for _ in range(500):
    train()
print("in silence", flush=True)
"""


@pytest.mark.parametrize(
    ("framework", "body", "below"),
    [
        pytest.param("torch", TORCH, "jax", id="torch"),
        pytest.param("keras", KERAS, "jax", id="keras-jax"),
        pytest.param("keras", KERAS, "torch", id="keras-torch"),
        pytest.param("keras", KERAS, "tensorflow", id="keras-tensorflow"),
    ],
)
def test_weights_that_the_chief_alone_loads_end_workers_in_sync(
    framework: str, body: str, below: str, tmp_path: Path
) -> None:
    pytest.importorskip(framework)
    pytest.importorskip(below)
    program = tmp_path / "train.py"
    program.write_text(PROGRAM.replace("{framework}", body))
    code, output, errors = processes.run_workers(program, KERAS_BACKEND=below)
    assert code != 0, output
    assert output.count("alike") == 2, output + errors
    assert "in silence" not in output
    assert "have not changed the same variables" in output + errors
    assert "every worker" in output + errors


NOISE = """
import numpy as np, torch
import ropewalk as rw
strategy = rw.distribute.MultiWorkerMirroredStrategy()
torch.manual_seed(strategy.task_index)

class Langevin(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(torch.randn_like(parameter), alpha=0.01)

module = torch.nn.Linear(8, 4)
in_optimizer = {in_optimizer}
kind = Langevin if in_optimizer else torch.optim.SGD
optimizer = kind(module.parameters(), 0.01)
optimizer = rw.training.torch.DistributedOptimizer(optimizer, strategy, module=module)
for _ in range(500):
    optimizer.zero_grad()
    module(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    if not in_optimizer:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.01)
print("in silence", flush=True)
"""


@pytest.mark.parametrize("in_optimizer", [True, False], ids=["in the optimizer", "between steps"])
def test_noise_that_each_worker_in_sync_draws_by_itself_ends_them(
    in_optimizer: bool, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    program = tmp_path / "train.py"
    program.write_text(NOISE.replace("{in_optimizer}", str(in_optimizer)))
    code, output, errors = processes.run_workers(program)
    assert code != 0, output
    assert "in silence" not in output
    assert "differ between the workers in sync" in output + errors
    assert "one seed" in output + errors
