"""Arrays of JAX on several devices, replicated and cut in parts, wherever an array is taken.

JAX shares no memory of them by DLPack. A child process has two CPU devices, and a GPU that is
played: with one in use, large gradients take another way to the host.
"""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from helpers.strict_cupy import FOLDER
from helpers.waiting import scaled

PROGRAM = """\
import json, traceback
import cupy, jax, numpy as np, optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import ropewalk as rw
from ropewalk.annexes.jax_bridge import arrays

started = []  # copies to the host
start = arrays.start_copies
arrays.start_copies = lambda given: (started.extend(given), start(given))
arrays._has_accelerator = lambda: True
assert arrays.gpus_in_use()
assert len(jax.devices()) == 2
mesh = Mesh(jax.devices(), "d")
places = {"replicated": PartitionSpec(), "in parts": PartitionSpec("d")}
LARGE = (1024, 300)  # 1.2 MB
cpu = rw.distribute.OneDeviceStrategy("cpu:0")

def placed(shape, where):
    values = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    return values, jax.device_put(values, NamedSharding(mesh, where))

def assign(where):
    values, given = placed((4, 2), where)
    variable = rw.Variable(np.zeros((4, 2), np.float32))
    variable.assign(given)
    return variable.numpy(), values

def made(where):
    values, given = placed((4, 2), where)
    return rw.Variable(given).numpy(), values

def on_a_gpu(where):
    values, given = placed((4, 2), where)
    with rw.distribute.OneDeviceStrategy("gpu:0").scope():
        return rw.Variable(given).numpy(), values

def apply_gradients(where):
    values, given = placed((4, 2), where)
    variable = rw.Variable(np.zeros((4, 2), np.float32))
    rw.optimizers.SGD(1.0).apply_gradients([(given, variable)])
    return variable.numpy(), -values

def metric(where):
    values, given = placed((4,), where)
    mean = rw.metrics.Mean()
    mean.update_state(given)
    return mean.result(), values.mean()

def bfloat16(where):
    values, given = placed((4, 2), where)
    variable = rw.Variable(np.zeros((4, 2)), dtype="bfloat16")
    variable.assign(given.astype("bfloat16"))
    return variable.numpy().astype(np.float32), values

def train_state(where, optimizer=None):
    values, _ = placed(LARGE, where)
    state = rw.training.jax.TrainState({"w": np.zeros(LARGE, np.float32)}, optimizer, cpu)
    at = NamedSharding(mesh, where)
    gradients = jax.jit(lambda g: {"w": g / values.size}, in_shardings=at, out_shardings=at)(values)
    started.clear()
    state.apply_gradients(gradients)
    assert started, "large ones are copied at once, not one after the other"
    return state.params["w"], -values / values.size

def rule(where):
    return train_state(where, optax.sgd(1.0))

def own_optimizer(where):
    return train_state(where, optax.chain(optax.scale(-0.5), optax.scale(2.0)))

cases = [assign, made, on_a_gpu, apply_gradients, metric, bfloat16, rule, own_optimizer]
found = {}
for case in cases:
    for name, where in places.items():
        try:
            np.testing.assert_allclose(*case(where), rtol=1e-6)
            found[f"{case.__name__} {name}"] = "right"
        except Exception:
            found[f"{case.__name__} {name}"] = traceback.format_exc()
print(json.dumps(found))
"""
CASES = [
    "assign", "made", "on_a_gpu", "apply_gradients", "metric", "bfloat16", "rule", "own_optimizer",
]  # fmt: skip


@pytest.fixture(scope="module")
def found() -> Any:
    """What came of each case."""
    paths = [FOLDER, *(path for path in sys.path if path)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "FAKE_GPUS": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        capture_output=True,
        text=True,
        timeout=scaled(90),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("how", ["replicated", "in parts"])
@pytest.mark.parametrize("case", CASES)
def test_an_array_on_several_devices_of_jax_is_taken(
    found: dict[str, str], case: str, how: str
) -> None:
    assert found[f"{case} {how}"] == "right", found[f"{case} {how}"]
