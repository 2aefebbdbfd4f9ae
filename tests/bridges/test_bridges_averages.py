"""Batch norm: the averages of a job are of the batches of all its workers.

The last checkpoint of a job has to predict as well with its averages as with statistics of the
examples themselves, also where the chief's program ended long before the other worker's.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers import processes
from helpers.sharded import through_a_session
from helpers.waiting import scaled
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.checkpoint import CheckpointReader, list_checkpoints

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
BACKEND = os.environ.get("KERAS_BACKEND", "jax")

COMMON = """\
import sys
import numpy as np
import ropewalk as rw

rng = np.random.default_rng(0)
Y = np.arange(512) % 8
X = (rng.normal(size=(8, 16))[Y] * 2 + rng.normal(size=(512, 16)) + 3).astype(np.float32)
in_sync = sys.argv[1] == "in-sync"
kind = "MultiWorkerMirrored" if in_sync else "ParameterServer"
strategy = getattr(rw.distribute, kind + "Strategy")()
STEPS = 200 if in_sync or not strategy.extended.should_checkpoint else 5
order = np.random.default_rng(strategy.extended.input_pipeline_id)

def batches():
    for _ in range(STEPS):
        chosen = order.integers(0, 512, 64)
        yield X[chosen], Y[chosen]
"""

TORCH = """\
import torch

torch.manual_seed(0)
hidden, norm, last = torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 8)
net = torch.nn.Sequential(hidden, norm, torch.nn.ReLU(), last)
optimizer = torch.optim.Adam(net.parameters(), 1e-2)
optimizer = rw.training.torch.DistributedOptimizer(optimizer, strategy, module=net)
for x, y in batches():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y)).backward()
    optimizer.step()
"""

JAX = """\
import jax, optax
from flax import linen

class Net(linen.Module):
    @linen.compact
    def __call__(self, x, train):
        x = linen.Dense(32, name="hidden")(x)
        x = linen.BatchNorm(use_running_average=not train, momentum=0.9, name="norm")(x)
        return linen.Dense(8, name="last")(linen.relu(x))

net = Net()
made = net.init(jax.random.key(0), X[:2], train=True)

@jax.jit
def compute(params, averages, x, y):
    def loss_of(params):
        variables = {"params": params, "batch_stats": averages}
        logits, changed = net.apply(variables, x, train=True, mutable=["batch_stats"])
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, y)
        return losses.mean(), changed["batch_stats"]
    return jax.grad(loss_of, has_aux=True)(params)

state = rw.training.jax.TrainState(
    made["params"], optax.adam(1e-2), strategy, averages=made["batch_stats"], momentum=0.9
)
for x, y in batches():
    gradients, averages = compute(state.params, state.averages, x, y)
    state.apply_gradients(gradients, averages=averages)
"""

KERAS = """\
import keras

with strategy.scope():
    model = keras.Sequential([
        keras.Input((16,)),
        keras.layers.Dense(32, name="hidden"),
        keras.layers.BatchNormalization(momentum=0.9, name="norm"),
        keras.layers.ReLU(),
        keras.layers.Dense(8, name="last"),
    ], name="net")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss)
x, y = map(np.concatenate, zip(*batches()))
model.fit(x, y, batch_size=64, verbose=0)
"""

# Kernel and bias, scale, offset, mean and variance of batch norm, kernel and bias.
NAMES: dict[str, list[str]] = {
    "torch": (
        [
            "0.weight",
            "0.bias",
            "1.weight",
            "1.bias",
            "1.running_mean",
            "1.running_var",
            "3.weight",
            "3.bias",
        ]
    ),
    "jax": [
        "hidden/kernel",
        "hidden/bias",
        "norm/scale",
        "norm/bias",
        "norm/mean",
        "norm/var",
        "last/kernel",
        "last/bias",
    ],
    "keras": [
        "net/hidden/kernel",
        "net/hidden/bias",
        "net/norm/gamma",
        "net/norm/beta",
        "net/norm/moving_mean",
        "net/norm/moving_variance",
        "net/last/kernel",
        "net/last/bias",
    ],
}
EPSILON = {"torch": 1e-5, "jax": 1e-5, "keras": 1e-3}
CASES = [
    pytest.param("torch", TORCH, id="torch"),
    pytest.param("jax", JAX, id="jax"),
    pytest.param("keras", KERAS, id="keras"),
]


def accuracy(values: list[Array], epsilon: float, *, of_examples: bool) -> float:
    """Of a net in evaluation mode, with its averages or with the statistics of the examples."""
    rng = np.random.default_rng(0)
    y = np.arange(512) % 8
    x = rng.normal(size=(8, 16))[y] * 2 + rng.normal(size=(512, 16)) + 3
    kernel, bias, scale, offset, mean, variance, last, last_bias = values
    hidden = x @ kernel + bias
    if of_examples:
        mean, variance = hidden.mean(0), hidden.var(0)
    hidden = np.maximum((hidden - mean) / np.sqrt(variance + epsilon) * scale + offset, 0)
    return float(((hidden @ last + last_bias).argmax(1) == y).mean())


@pytest.mark.parametrize("how", ["asynchronous", "in-sync"])
@pytest.mark.parametrize(("framework", "body"), CASES)
def test_the_last_checkpoint_is_as_good_as_batch_statistics(
    framework: str, body: str, how: str, tmp_path: Path
) -> None:
    """Without what the last steps of one worker make of the averages, they are of no use."""
    pytest.importorskip("flax" if framework == "jax" else framework)
    program = tmp_path / "train.py"
    program.write_text(COMMON + body)
    roles = ["--workers", "1", "--ps", "2"]
    if how == "in-sync":
        roles = ["--no-chief", "--workers", "2", "--ps", "0"]
    folder = tmp_path / "model"
    code, output, errors = processes.run(
        [
            *processes.ROPEWALK,
            "local",
            "--plain",
            *roles,
            "--model-dir",
            folder,
            program,
            "--",
            how,
        ],
        timeout_s=scaled(120),
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": BACKEND, **ONE_THREAD},
    )
    assert code == 0, output + errors
    reader = CheckpointReader(list_checkpoints(str(folder))[-1].path)
    values = [np.array(reader.read(name), np.float64) for name in NAMES[framework]]
    if framework == "torch":
        values[0], values[6] = values[0].T, values[6].T
    batch = accuracy(values, EPSILON[framework], of_examples=True)
    assert batch > 0.9
    assert accuracy(values, EPSILON[framework], of_examples=False) > batch - 0.01


# -- of one worker's batches and another's ---------------------------------------------------


def in_turn(first: int, second: int, momentum: float) -> tuple[float, float]:
    """Mean and variance after so many batches of 1 ± 1, then so many of 11 ± 3, by one process."""
    mean, variance = 0.0, 1.0
    for at, spread in [(1, 1)] * first + [(11, 3)] * second:
        mean += momentum * (at - mean)
        variance += momentum * (spread**2 - variance)
    return mean, variance


def batch_of(*, chief: bool) -> Array:
    at, spread = (1, 1) if chief else (11, 3)
    signs = np.tile([1.0, -1.0], 32)
    return np.repeat(at + spread * signs[:, None], 4, axis=1).astype(np.float32)


@pytest.mark.parametrize("optimizers", [1, 2])
def test_batches_of_all_workers_make_torchs_averages_and_are_counted(optimizers: int) -> None:
    """The second worker has loaded values before the first one's steps, as if it were late.

    Several optimizers of the module's parts share its averages: a batch counts once.
    """
    torch: Any = pytest.importorskip("torch")

    def program() -> Mapping[str, Any]:
        strategy = rw.distribute.ParameterServerStrategy()
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(4, momentum=0.2), torch.nn.Linear(4, 1))
        made = [
            rw.training.torch.DistributedOptimizer(
                torch.optim.SGD(part.parameters(), 0.0), strategy, module=net
            )
            for part in ([net] if optimizers == 1 else net)
        ]
        x = torch.from_numpy(batch_of(chief=strategy.is_chief))
        for turn in (True, False):
            strategy.barrier()
            for _ in range(7 if strategy.is_chief == turn else 0):
                for _ in range(2):  # accumulates
                    net(x).sum().backward()
                for optimizer in made:
                    optimizer.step()
            strategy.barrier()
        made[0].refresh()
        return {name: array.numpy() for name, array in net[0].state_dict().items()}

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        for found in cluster.run(program).values():
            mean, variance = in_turn(14, 14, 0.2)
            unbiased = (variance - 0.8**28) * 64 / 63 + 0.8**28
            np.testing.assert_allclose(found["running_mean"], mean, rtol=1e-5)
            np.testing.assert_allclose(found["running_var"], unbiased, rtol=1e-5)
            assert found["num_batches_tracked"] == 28


def test_a_torch_job_of_one_has_the_averages_of_torch_alone() -> None:
    """Also cumulative ones (``momentum=None``), and those of a layer that rests for a while."""
    torch: Any = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    batches = torch.from_numpy(rng.normal(3, 2, size=(200, 16, 4)).astype(np.float32))
    found = []
    for alone in (True, False):
        torch.manual_seed(0)
        first, second = torch.nn.BatchNorm1d(4), torch.nn.BatchNorm1d(4, momentum=None)
        net = torch.nn.Sequential(first, torch.nn.Linear(4, 4), second, torch.nn.Linear(4, 1))
        optimizer: Any = torch.optim.SGD(net.parameters(), 0.01)
        if not alone:
            strategy = rw.distribute.ParameterServerStrategy()
            optimizer = rw.training.torch.DistributedOptimizer(optimizer, strategy, module=net)
        for number, batch in enumerate(batches):
            second.train(number % 3 > 0)
            optimizer.zero_grad()
            net(batch).square().mean().backward()
            optimizer.step()
        found.append({name: buffer.numpy().copy() for name, buffer in net.named_buffers()})
    assert found[0].keys() == found[1].keys()
    for name, expected in found[0].items():
        np.testing.assert_allclose(found[1][name], expected, rtol=1e-5, err_msg=name)


def test_batches_between_a_step_and_a_refresh_stay_in_the_averages() -> None:
    """As those of a GAN's discriminator, and of ``update_bn``, which begins the averages anew."""
    torch: Any = pytest.importorskip("torch")
    x = torch.from_numpy(np.random.default_rng(0).normal(3, 2, size=(5, 16, 4)).astype(np.float32))

    def trained(strategy: Any) -> list[Any]:
        net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
        optimizer: Any = torch.optim.SGD(net.parameters(), 0.0)
        if strategy is not None:
            wrapped = rw.training.torch.DistributedOptimizer
            optimizer = wrapped(optimizer, strategy, module=net)
        found = []
        for after_step in (net, lambda more: torch.optim.swa_utils.update_bn([more], net)):
            net(x[0]).sum().backward()
            optimizer.step()
            after_step(x[1] * 2)
            if strategy is not None:
                optimizer.refresh()
            found += [each.clone().numpy() for each in net[0].buffers()]
        net(x[2]).sum().backward()
        optimizer.step()
        return [*found, *(each.numpy() for each in net[0].buffers())]

    for mine, theirs in zip(trained(through_a_session()), trained(None), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5)


def test_averages_of_a_layer_that_counts_no_batches_move() -> None:
    """Instance norm has the counter of batch norm, and leaves it at 0."""
    torch: Any = pytest.importorskip("torch")
    batch = torch.from_numpy(batch_of(chief=True)).reshape(-1, 2, 2)

    def train(wrap: Any) -> dict[str, Array]:
        torch.manual_seed(0)
        norm = torch.nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
        optimizer = wrap(torch.optim.SGD(norm.parameters(), 0.01), norm)
        for step in range(10):
            norm.train(step != 7)
            optimizer.zero_grad()
            norm(batch + step).square().mean().backward()
            optimizer.step()
        return {name: value.numpy().copy() for name, value in norm.state_dict().items()}

    def program() -> dict[str, Array]:
        strategy = rw.distribute.ParameterServerStrategy()
        return train(
            lambda optimizer, module: rw.training.torch.DistributedOptimizer(
                optimizer, strategy, module=module
            )
        )

    with rw.testing.LocalCluster(workers=0, ps=1) as cluster:
        (found,) = cluster.run(program).values()
    for name, expected in train(lambda optimizer, _: optimizer).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, err_msg=name)


def test_what_is_no_average_is_the_last_workers_and_is_not_mixed() -> None:
    torch: Any = pytest.importorskip("torch")

    class Queue(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)
            self.register_buffer("queue", torch.zeros(4))
            self.register_buffer("constant", torch.ones(4))
            self.register_buffer("running_mean", torch.zeros(1))  # of an unknown momentum
            self.register_buffer("running_var", torch.ones(1))

        def forward(self, x: Any) -> Any:
            self.queue[:] = x
            batch = x + torch.zeros(8, 1)
            torch.nn.functional.batch_norm(
                batch, self.running_mean, self.running_var, training=True
            )
            return self.linear(x)

    def program() -> tuple[list[float], list[float], list[float], float]:
        strategy = rw.distribute.ParameterServerStrategy()
        net = Queue()
        optimizer = rw.training.torch.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), 0.0), strategy, module=net
        )
        for turn in (True, False):
            strategy.barrier()
            if strategy.is_chief == turn:
                net(torch.full((1,), 3.0 if turn else 5.0)).sum().backward()
                optimizer.step()
            strategy.barrier()
        own = net.queue.tolist()
        optimizer.refresh()
        return own, net.queue.tolist(), net.constant.tolist(), float(net.running_mean)

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        chief, worker = cluster.run(program).values()
    assert chief == ([3.0] * 4, [5.0] * 4, [1.0] * 4, 0.5)
    assert worker == ([5.0] * 4, [5.0] * 4, [1.0] * 4, 0.5)


def test_a_worker_is_not_told_that_its_own_queue_loses_what_others_have_written() -> None:
    torch: Any = pytest.importorskip("torch")

    def program() -> list[str]:
        import logging

        said: list[str] = []
        handler = logging.Handler(logging.WARNING)
        handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
        logging.getLogger("ropewalk").addHandler(handler)
        strategy = rw.distribute.ParameterServerStrategy()
        net = torch.nn.Linear(1, 1)
        net.register_buffer("queue", torch.zeros(2))
        optimizer = rw.training.torch.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), 0.1), strategy, module=net
        )
        for step in range(3):
            net.queue[:] = step + 1
            net(torch.ones(1)).sum().backward()
            optimizer.step()
        return [each for each in said if "as a whole" in each]

    with rw.testing.LocalCluster(workers=1, ps=1) as cluster:
        assert list(cluster.run(program).values()) == [[], []]


def test_a_queue_that_changed_after_the_last_step_is_not_undone_by_refresh() -> None:
    torch: Any = pytest.importorskip("torch")

    def program() -> tuple[list[float], list[float]]:
        strategy = rw.distribute.ParameterServerStrategy()
        net = torch.nn.Linear(1, 1)
        net.register_buffer("queue", torch.zeros(2))
        optimizer = rw.training.torch.DistributedOptimizer(
            torch.optim.SGD(net.parameters(), 0.1), strategy, module=net
        )
        net(torch.ones(1)).sum().backward()
        optimizer.step()
        net.queue[:] = 7
        optimizer.refresh()
        return net.queue.tolist(), optimizer.store.pull(["queue"])["queue"].tolist()

    with rw.testing.LocalCluster(workers=0, ps=1) as cluster:
        (found,) = cluster.run(program).values()
    assert found == ([7.0, 7.0], [7.0, 7.0])


def test_batches_of_all_workers_make_keras_averages() -> None:
    keras: Any = pytest.importorskip("keras")

    def program() -> Mapping[str, Any]:
        strategy = rw.distribute.ParameterServerStrategy()
        norm = keras.layers.BatchNormalization(momentum=0.8)
        model = keras.Sequential([keras.Input((4,)), norm, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        rw.training.keras.distribute(model, strategy)
        x, y = batch_of(chief=strategy.is_chief), np.zeros((64, 1), np.float32)
        for turn in (True, False):
            strategy.barrier()
            for _ in range(7 if strategy.is_chief == turn else 0):
                model.train_on_batch(x, y)
            strategy.barrier()
        store = rw.training.keras.shared_weights(model).store
        return {name.rpartition("/")[2]: np.array(array) for name, array in store.pull().items()}

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        for found in cluster.run(program).values():
            mean, variance = in_turn(7, 7, 0.2)
            np.testing.assert_allclose(found["moving_mean"], mean, rtol=1e-5)
            np.testing.assert_allclose(found["moving_variance"], variance, rtol=1e-5)


def test_batches_of_all_workers_make_jax_averages_and_integers_count() -> None:
    jax: Any = pytest.importorskip("jax")
    optax: Any = pytest.importorskip("optax")

    def program() -> Mapping[str, Any]:
        strategy = rw.distribute.ParameterServerStrategy()
        averages = {"mean": jax.numpy.zeros(4), "seen": jax.numpy.asarray(0), "key": "no array"}
        state = rw.training.jax.TrainState(
            {"w": jax.numpy.zeros(1)}, optax.sgd(0.0), strategy, averages=averages, momentum=0.8
        )
        x = batch_of(chief=strategy.is_chief)
        for turn in (True, False):
            strategy.barrier()
            for _ in range(7 if strategy.is_chief == turn else 0):
                now = state.averages
                changed = {
                    "mean": 0.8 * now["mean"] + 0.2 * x.mean(0),
                    "seen": now["seen"] + 1,
                    "key": now["key"],
                }
                state.apply_gradients({"w": jax.numpy.ones(1)}, averages=changed)
            strategy.barrier()
        state.refresh()
        return state.averages  # type: ignore[no-any-return]

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        for found in cluster.run(program).values():
            np.testing.assert_allclose(found["mean"], in_turn(7, 7, 0.2)[0], rtol=1e-5)
            assert int(found["seen"]) == 14
            assert found["key"] == "no array"


def test_replicas_of_one_process_have_the_mean_of_their_averages() -> None:
    """In ``run``, with a state of JAX."""
    jax: Any = pytest.importorskip("jax")
    optax: Any = pytest.importorskip("optax")
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        state = rw.training.jax.TrainState(
            {"w": jax.numpy.zeros(1)}, optax.sgd(0.0), strategy, averages=[jax.numpy.zeros(2)]
        )

        def step(x: Any) -> None:
            [now] = state.averages
            state.apply_gradients({"w": jax.numpy.ones(1)}, averages=[0.5 * now + 0.5 * x])

        for _ in range(2):
            given = strategy.experimental_distribute_values_from_function(
                lambda context: (2.0, 4.0)[context.replica_id_in_sync_group]
            )
            strategy.run(step, args=(given,))
        state.refresh()
        np.testing.assert_allclose(state.averages[0], 0.75 * 3.0)
    finally:
        rw.config.set_logical_cpu_devices(1)


def test_mistakes_with_averages_of_jax_are_named() -> None:
    jax: Any = pytest.importorskip("jax")
    optax: Any = pytest.importorskip("optax")

    def state(**given: Any) -> Any:
        return rw.training.jax.TrainState({"w": jax.numpy.zeros(1)}, optax.sgd(0.1), **given)

    with pytest.raises(ValueError, match="what an average keeps of itself"):
        state(averages={"mean": jax.numpy.zeros(1)}, momentum=99)
    with pytest.raises(ValueError, match="two arrays 'w' in params and averages"):
        state(averages={"w": jax.numpy.zeros(1)})
    made = state(averages={"mean": jax.numpy.zeros(1)})
    with pytest.raises(ValueError, match="give what the model returned for the whole tree"):
        made.apply_gradients({"w": jax.numpy.zeros(1)}, averages={})
