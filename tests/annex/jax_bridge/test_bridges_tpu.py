"""TPUStrategy on eight forced host devices of one process."""

import json
import os
from typing import Any

import pytest

from helpers import processes
from helpers.waiting import scaled

pytestmark = pytest.mark.bridges

PROGRAM = """\
import json
import threading
import jax, optax
import jax.numpy as jnp
import numpy as np
import ropewalk as rw

assert len(jax.devices()) == 8
rng = np.random.default_rng(0)
X = rng.normal(size=(64, 8)).astype(np.float32)
Y = np.sin(X @ rng.normal(size=(8, 1))).astype(np.float32)
PARAMS = {"w": rng.normal(size=(8, 16)).astype(np.float32) / 4,
          "v": rng.normal(size=(16, 1)).astype(np.float32) / 4}
found = {}


def loss_of(params, x, y):
    return jnp.mean((jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2)


compute = jax.jit(jax.value_and_grad(loss_of))
whole = jax.jit(loss_of)

# Each replica computes on a device of its own, and a jitted function may be run itself.
strategy = rw.distribute.TPUStrategy()
found["replicas"] = strategy.num_replicas_in_sync
found["static"] = strategy.extended.experimental_require_static_shapes
found["worker_devices"] = strategy.extended.worker_devices
results = strategy.experimental_local_results(strategy.run(jax.jit(lambda: jnp.ones(3) + 1)))
found["devices"] = [f"{d.platform}:{d.id}" for each in results for d in each.devices()]
found["sum"] = float(strategy.reduce("SUM", strategy.run(lambda: jnp.float32(
    rw.distribute.get_replica_context().replica_id_in_sync_group)), axis=None))

# The curve is that of one device, by a rule, by an own optimizer, and by hand.
def alone(optimizer):
    params, losses = jax.tree.map(jnp.asarray, PARAMS), []
    state = optimizer.init(params)
    for _ in range(60):
        loss, gradients = compute(params, X, Y)
        updates, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        losses.append(float(loss))
    return losses


def shared(optimizer, name):
    state = rw.training.jax.TrainState(PARAMS, optimizer, strategy, name=name)
    losses = []

    def step(batch):
        loss, gradients = compute(state.params, *batch)
        assert {str(d) for d in loss.devices()} == {str(jax.local_devices()[
            rw.distribute.get_replica_context().replica_id_in_sync_group])}
        state.apply_gradients(gradients)

    data = rw.data.from_arrays((X, Y), batch_size=64, shuffle=False, epochs=60)
    for batch in strategy.experimental_distribute_dataset(data):
        losses.append(float(whole(state.refresh(), X, Y)))
        strategy.run(step, args=(batch,))
    return losses


for name, optimizer in {"adam": optax.adam(1e-2), "amsgrad": optax.amsgrad(1e-2)}.items():
    found[name] = [alone(optimizer), shared(optimizer, name)]

# Four replicas of two logical devices.
assignment = rw.distribute.experimental.DeviceAssignment.build(
    computation_shape=[1, 1, 1, 2], num_replicas=4
)
resolver = rw.distribute.cluster_resolver.TPUClusterResolver("local")
logical = rw.distribute.TPUStrategy(resolver, experimental_device_assignment=assignment)
matmul = jax.jit(lambda a, b: a @ b)


def names(array):
    return sorted(f"{d.platform}:{d.id}" for d in array.devices())


def divided():
    split = logical.experimental_split_to_logical_devices(X, [2, 1])
    product = matmul(split, logical.experimental_replicate_to_logical_devices(PARAMS["w"]))
    second = logical.experimental_assign_to_logical_device(X, 1)

    @jax.jit
    def inside(x):
        return logical.experimental_split_to_logical_devices(x * 2, [1, 2]).sum()

    assert abs(float(inside(split)) - float((X * 2).sum())) < 1e-3
    np.testing.assert_allclose(np.asarray(product), X @ PARAMS["w"], rtol=1e-5, atol=1e-6)
    shard = split.addressable_shards[0].data.shape
    return [names(split), list(shard), names(product), names(second), names(second + 1)]


box = {}


def keep():
    box[rw.distribute.get_replica_context().replica_id_in_sync_group] = divided()


logical.run(keep)
found["logical"] = [box[i] for i in range(4)]
found["resolver"] = [logical.cluster_resolver is resolver, resolver.num_accelerators(),
                     resolver.cluster_spec().as_dict()]

found["errors"] = []


def refused(call, *, inside=True):
    try:
        logical.run(call) if inside else call()
    except Exception as error:
        found["errors"].append(f"{type(error).__name__}: {error}")
    else:
        found["errors"].append("none")


split, assign = (logical.experimental_split_to_logical_devices,
                 logical.experimental_assign_to_logical_device)
refused(lambda: split(X, [2, 1]), inside=False)
refused(lambda: split(X, [2]))
refused(lambda: split(X, [2, 2]))
refused(lambda: split(X[:63], [2, 1]))
refused(lambda: assign(X, 2))
refused(lambda: jax.jit(lambda x: assign(x, 0))(X))
build = rw.distribute.experimental.DeviceAssignment.build
refused(lambda: rw.distribute.TPUStrategy(None, build(num_replicas=9)), inside=False)
refused(lambda: rw.distribute.cluster_resolver.TPUClusterResolver("my-tpu"), inside=False)
refused(lambda: build(computation_stride=[2]), inside=False)
refused(lambda: rw.distribute.experimental.DeviceAssignment(None, [[0, 1], [1, 2]]), inside=False)
print("found", json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program found out; it runs once."""
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("tpu")
    (folder / "train.py").write_text(PROGRAM)
    code, output, errors = processes.run(
        [processes.ROPEWALK[0], folder / "train.py"],
        timeout_s=scaled(90),
        cwd=folder,
        env=os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8"},
    )
    assert code == 0, output + errors
    return json.loads(output.partition("found ")[2])


def test_there_is_a_replica_on_every_device(found: Any) -> None:
    assert found["replicas"] == 8
    assert found["devices"] == [f"cpu:{i}" for i in range(8)]
    assert found["sum"] == 28
    assert found["static"] is True
    assert found["worker_devices"][3] == "/job:localhost/replica:0/task:0/device:CPU:3"


@pytest.mark.parametrize("optimizer", ["adam", "amsgrad"], ids=["a rule", "its own optimizer"])
def test_the_curve_is_that_of_one_device(found: Any, optimizer: str) -> None:
    alone, shared = found[optimizer]
    assert shared == pytest.approx(alone, rel=1e-5, abs=1e-5)


def test_arrays_are_divided_among_a_replicas_logical_devices(found: Any) -> None:
    for replica, (split, shard, product, second, after) in enumerate(found["logical"]):
        own = [f"cpu:{2 * replica + i}" for i in range(2)]
        assert split == product == own
        assert shard == [32, 8]
        assert second == after == own[1:]
    assert found["resolver"] == [True, {}, {}]


def test_each_mistake_is_named(found: Any) -> None:
    wanted = [
        "RuntimeError: experimental_split_to_logical_devices outside of strategy.run",
        "ValueError: Length of `partition_dimensions` must equal to the rank of `tensor` (1 vs. 2)",
        "ValueError: The product of `partition_dimensions` [2, 2] should be equal to the number",
        "ValueError: Tensor shape at `partition_dimensions[0]` must be divisible",
        "ValueError: `logical_core_id` to assign must be lower",
        "TypeError: experimental_assign_to_logical_device in a jitted function",
        "ValueError: the device assignment names device 8, and JAX has 8 here",
        "ConfigurationError: TPUClusterResolver(tpu='my-tpu'): programs run on the machine",
        "ValueError: computation_stride [2]: only ones are supported",
        "ValueError: core_assignment [[0, 1], [1, 2]] has a number below 0, or a device twice",
    ]
    assert len(found["errors"]) == len(wanted)
    for said, start in zip(found["errors"], wanted, strict=True):
        assert said.startswith(start)
