"""PyTorch: what a program does to gradients between backward and step, of workers in sync."""

import json
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import processes
from helpers.waiting import scaled

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.bridges

PROGRAM = """\
import json, sys
import numpy as np
import torch
import ropewalk as rw

rng = np.random.default_rng(0)
X = torch.tensor(rng.normal(size=(64, 8)), dtype=torch.float32)
Y = 5 * torch.sin(X.sum(1, keepdim=True))
alone = len(sys.argv) < 2
strategy = None if alone else rw.distribute.MultiWorkerMirroredStrategy()
mine = slice(None) if alone else slice(strategy.extended.input_pipeline_id, None, 2)
CASES = {
    "norm": (lambda p: torch.nn.utils.clip_grad_norm_(p, 0.1), {}),
    "value": (lambda p: torch.nn.utils.clip_grad_value_(p, 0.01), {}),
    "on the worker": (lambda p: torch.nn.utils.clip_grad_norm_(p, 0.1), {"amsgrad": True}),
    "decay": (lambda p: torch.nn.utils.clip_grad_norm_(p, 0.1), {"weight_decay": 0.5}),
    "scaler": (lambda p: torch.nn.utils.clip_grad_norm_(p, 0.1), {}),
}

def train(case, *, synchronize=True, clip=True, mean=True, steps=20):
    change, options = CASES[case]
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8, momentum=0.0), torch.nn.Linear(8, 1)
    )
    optimizer = torch.optim.Adam(module.parameters(), 1e-2, **options)
    if not alone:
        optimizer = rw.training.torch.DistributedOptimizer(
            optimizer, strategy, module=module, name=f"{case} {mean} {synchronize}", mean=mean
        )
    scaler = torch.amp.GradScaler("cpu", enabled=case == "scaler")
    for _ in range(steps):
        optimizer.zero_grad()
        for part in (slice(0, 16), slice(16, None)):
            module.eval()  # each worker's batch has other statistics
            loss = (module(X[mine][part]) - Y[mine][part]).square().sum() / 64
            scaler.scale(loss * (1 if alone or not mean else 2)).backward()
        if synchronize and not alone:
            optimizer.synchronize()
        scaler.unscale_(optimizer)
        if clip:
            change(module.parameters())
        scaler.step(optimizer)
        scaler.update()
    return [float(p.abs().sum()) for p in module.parameters()]
"""

CURVES = """
found = {case: train(case) for case in CASES}
found["sum"] = train("norm", mean=False)
found["scaler alone"] = train("scaler", synchronize=False, clip=False)
print("found", json.dumps(found))
"""

REFUSED = """
train("scaler", synchronize=False, clip=False, steps=2)
layers = torch.nn.ModuleList([torch.nn.Linear(8, 1), torch.nn.Linear(8, 1)])
optimizer = rw.training.torch.DistributedOptimizer(
    torch.optim.SGD(layers.parameters(), 0.1), strategy, module=layers, name="in turn"
)
for layer in layers:  # the second time the first one has zeros, of no backward
    optimizer.zero_grad(set_to_none=False)
    layer(X[mine]).square().mean().backward()
    optimizer.step()
try:
    train("norm", synchronize=False, steps=1)
except rw.errors.ConfigurationError as error:
    print("refused", error)
"""


def run(folder: Path, body: str, *, in_sync: bool) -> str:
    program = folder / "train.py"
    program.write_text(PROGRAM + body)
    local = ["local", "--plain", "--ps", "0", "--no-chief", "--workers", "2"]
    command: list[str | Path] = [*processes.ROPEWALK, *local, program, "--", "in-sync"]
    if not in_sync:
        command = [processes.ROPEWALK[0], program]
    code, output, errors = processes.run(
        command,
        timeout_s=scaled(120),
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert code == 0, output + errors
    return output


def test_gradients_clipped_after_synchronize_train_as_one_process_does(tmp_path: Path) -> None:
    curves = [
        json.loads(found)
        for in_sync in (False, True)
        for found in re.findall(r"found (\{.*\})", run(tmp_path, CURVES, in_sync=in_sync))
    ]
    alone, *workers = curves
    assert len(workers) == 2
    assert workers[0] == workers[1]
    for case, wanted in alone.items():
        np.testing.assert_allclose(workers[0][case], wanted, rtol=2e-5, err_msg=case)


def test_gradients_clipped_before_they_are_averaged_are_an_error_that_says_what_to_write(
    tmp_path: Path,
) -> None:
    output = run(tmp_path, REFUSED, in_sync=True)
    assert len(re.findall(r"refused .*optimizer\.synchronize\(\)", output)) == 2, output


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_hook_is_told_to_see_the_gradient_of_its_worker(
    register: str, caplog: pytest.LogCaptureFixture
) -> None:
    from ropewalk.annexes.torch_bridge.gradients import GradientsInSync

    parameters = {name: torch.nn.Parameter(torch.ones(2)) for name in ("hooked", "plain")}
    getattr(parameters["hooked"], register)(lambda _: None)
    store: Any = None  # no gradient is averaged here
    for _ in range(2):  # the second time the first one's own hooks are there
        caplog.clear()
        GradientsInSync(store, parameters)
        assert [record.args for record in caplog.records] == [("hooked",)]
