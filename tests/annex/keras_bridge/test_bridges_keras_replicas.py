"""Several replicas in one process under Keras: the curve of one device, and what is everybody's."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers import processes
from helpers.strict_cupy import FOLDER
from helpers.waiting import scaled

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

BACKEND = os.environ.get("KERAS_BACKEND", "jax")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(20, 3, 4)).astype(np.float32)
X[RNG.random((20, 3)) < 0.3] = 0  # padding
Y = np.sin(X.sum(-1, keepdims=True))
WEIGHTS = np.linspace(0, 2, 60).reshape(20, 3)


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    pytest.importorskip(BACKEND)
    return pytest.importorskip("keras")


@pytest.fixture(autouse=True)
def _three_devices() -> Iterator[None]:
    rw.config.set_logical_cpu_devices(3)
    yield
    rw.config.set_logical_cpu_devices(1)


def mirrored(count: int) -> rw.distribute.Strategy:
    return rw.distribute.MirroredStrategy([f"CPU:{i}" for i in range(count)])


STRATEGIES: dict[str, Callable[[], rw.distribute.Strategy]] = {
    "mirrored": lambda: mirrored(3),
    "central": rw.distribute.experimental.CentralStorageStrategy,
    "ps": rw.distribute.ParameterServerStrategy,
}


def adding(keras: Any) -> Any:
    class Adding(keras.layers.Layer):  # type: ignore[misc]
        """Adds a mean over the examples, and one loss for each."""

        supports_masking = True

        def call(self, x: Any) -> Any:
            self.add_loss(0.1 * keras.ops.mean(x**2))
            self.add_loss(0.01 * keras.ops.sum(x**2, axis=(1, 2)))
            return x

    return Adding()


def masked_net(keras: Any) -> Any:
    keras.utils.set_random_seed(0)
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((3, 4)),
            layers.Masking(),
            layers.Dense(6, "tanh", kernel_regularizer="l2", activity_regularizer="l2"),
            adding(keras),
            layers.Dense(1),
        ],
        name="net",
    )


def curves(keras: Any, strategy: Any, optimizer: Any, **more: Any) -> dict[str, Any]:
    """Of 200 steps, with batches of 8, 8 and 4 examples; the last replica gets 2, 2 and none."""
    model = masked_net(keras)
    model.compile(optimizer, "mse", weighted_metrics=["mse"], metrics=["mae"], **more)
    if strategy is not None:
        rw.training.keras.distribute(model, strategy)
    found: dict[str, Any] = model.fit(
        X, Y, batch_size=8, epochs=67, shuffle=False, verbose=0, sample_weight=WEIGHTS
    ).history
    if strategy is None or isinstance(strategy, rw.distribute.MirroredStrategy):
        found["evaluated"] = model.evaluate(X, Y, batch_size=8, verbose=0, sample_weight=WEIGHTS)
        found["predicted"] = model.predict(X, batch_size=8, verbose=0)
    return found


@pytest.fixture(scope="module")
def alone(keras: Any) -> dict[str, Any]:
    """What Keras alone makes of the data."""
    return curves(keras, None, keras.optimizers.Adam(1e-2))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_curve_is_that_of_one_device(keras: Any, alone: Any, name: str) -> None:
    """With masks, weights of examples, losses of layers, and batches that cannot be cut evenly."""
    strategy = STRATEGIES[name]()
    assert strategy.num_replicas_in_sync == 3
    shared = curves(keras, strategy, keras.optimizers.Adam(1e-2))
    assert shared.keys() >= {"loss", "mse", "mae"}
    for key, values in shared.items():
        np.testing.assert_allclose(values, alone[key], rtol=1e-5, atol=1e-5)
    assert strategy.global_step == 201  # type: ignore[attr-defined]


def test_an_optimizer_without_a_rule_runs_once_for_all_replicas(keras: Any) -> None:
    """Classes of different weight, and a loss that divides by the weights."""
    labels = (X.sum(axis=(1, 2)) > 0).astype(np.float32)[:, None]
    found = []
    for strategy in (None, mirrored(3), rw.distribute.ParameterServerStrategy()):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1, "sigmoid")])
        loss = keras.losses.BinaryCrossentropy(reduction="mean_with_sample_weight")
        optimizer = keras.optimizers.Adam(1e-2, amsgrad=True)
        given = {} if strategy is None else {"distribute": strategy}
        model.compile(optimizer, loss, metrics=["accuracy", "auc"], **given)
        flat = X.reshape(20, 12)
        fitted = model.fit(
            flat, labels, batch_size=8, epochs=10, shuffle=False, verbose=0,
            class_weight={0: 0.5, 1: 2.0},
        )  # fmt: skip
        batch = model.train_on_batch(flat[:7], labels[:7])
        found.append([*np.ravel(list(fitted.history.values())), *batch])
    for shared in found[1:]:
        np.testing.assert_allclose(shared, found[0], rtol=1e-5)


def test_averages_are_of_all_replicas_and_their_statistics_of_each(keras: Any) -> None:
    """A batch of 6 examples and one of 5: of the second the third replica has one."""
    strategy = mirrored(3)
    with strategy.scope():
        norm = keras.layers.BatchNormalization(momentum=0.0, epsilon=0.0)
        model = keras.Sequential([keras.Input((4,)), norm, keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
    x = X[:, 0] + 10 * np.arange(20)[:, None].astype(np.float32)
    for count in (6, 5):
        model.train_on_batch(x[:count], Y[:count, 0])
        parts = [x[0:2], x[2:4], x[4:count]]
        shares = np.array([len(part) for part in parts]) / count
        means = np.average([part.mean(0) for part in parts], axis=0, weights=shares)
        variances = np.average([part.var(0) for part in parts], axis=0, weights=shares)
        np.testing.assert_allclose(norm.moving_mean.numpy(), means, rtol=1e-5)
        np.testing.assert_allclose(norm.moving_variance.numpy(), variances, rtol=1e-4)
        store = rw.training.keras.shared_weights(model).store
        name = next(name for name in store.names if name.endswith("moving_mean"))
        np.testing.assert_allclose(store.pull([name])[name], means, rtol=1e-5)


def test_each_replica_drops_others_and_its_generator_goes_on(keras: Any) -> None:
    """The gradient of a column of the kernel is what one replica's dropout has left."""
    strategy = mirrored(2)
    model = keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dropout(0.5, seed=1),
            keras.layers.Dense(2, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    model.compile(keras.optimizers.SGD(1.0), lambda y, p: keras.ops.sum(y * p), distribute=strategy)
    kernel, seen = model.layers[-1].kernel, [np.zeros((64, 2))]
    for _ in range(2):
        model.train_on_batch(np.ones((2, 64)), np.eye(2))
        seen.append(kernel.numpy())
    columns = [*np.diff(seen, axis=0)[0].T, *np.diff(seen, axis=0)[1].T]
    assert len({tuple(np.round(column, 3)) for column in columns}) == 4
    assert int(model.layers[0].seed_generator.state.numpy()[1]) == 2


def test_rows_of_all_replicas_are_pushed_once(keras: Any) -> None:
    """Ids that several replicas have add up, as within one."""
    ids = RNG.integers(0, 6, (20, 3)).astype(np.int32)
    found = []
    for count in (1, 3):
        strategy = mirrored(count)
        keras.utils.set_random_seed(0)
        with strategy.scope():
            model = keras.Sequential(
                [
                    keras.Input((3,), dtype="int32"),
                    rw.training.keras.Embedding(6, 2, rw.Initializer("random_normal", seed=1)),
                    keras.layers.Flatten(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile("adagrad", "mse")
        given = {"epochs": 5, "batch_size": 8, "shuffle": False, "verbose": 0}
        losses = model.fit(ids, Y[:, 0], **given).history["loss"]
        table = rw.training.keras.shared_weights(model).store
        rows = next(v for n, v in table.variables.items() if n.endswith("embeddings"))
        predicted = model.predict(ids, verbose=0)
        found.append([*losses, *np.ravel(rows.numpy()), *np.ravel(predicted)])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_a_dataset_that_is_cut_for_replicas_trains_as_it_was(keras: Any) -> None:
    strategy = mirrored(3)
    model = masked_net(keras)
    model.compile("sgd", "mse", distribute=strategy)
    data = rw.data.from_arrays((X, Y), batch_size=8, shuffle=False)
    distributed = strategy.experimental_distribute_dataset(data)
    with pytest.warns(UserWarning, match="ran out of data"):
        found = model.evaluate(distributed, verbose=0)
    assert found == pytest.approx(model.evaluate(X, Y, batch_size=8, verbose=0), rel=1e-5)


def test_parts_are_those_of_a_distributed_dataset() -> None:
    pytest.importorskip("keras")
    from ropewalk.annexes.keras_bridge.replica_parts import part_bounds
    from ropewalk.distribute.data.sharding import cut

    for examples in range(13):
        for replicas in range(1, 6):
            parts = [part.tolist() for part in cut(np.arange(examples), replicas)]
            bounds = part_bounds(examples, replicas)
            assert [list(range(*each)) for each in bounds] == parts


def test_each_mistake_is_named(keras: Any) -> None:
    from ropewalk.annexes.keras_bridge.replica_parts import device_numbers

    fails, error = pytest.raises, rw.errors.ConfigurationError
    with fails(error, match=r"MirroredStrategy has a replica on GPU:3, and PyTorch.* has 2 GPU"):
        device_numbers(
            [("GPU", 0), ("GPU", 3)], {"CPU": 1, "GPU": 2}, "MirroredStrategy", "PyTorch"
        )
    shared = device_numbers([("CPU", 0), ("CPU", 1)], {"CPU": 1}, "MirroredStrategy", "JAX")
    assert shared == [("CPU", 0), ("CPU", 0)]

    class Total(keras.layers.Layer):  # type: ignore[misc]
        def call(self, x: Any) -> Any:
            return keras.ops.sum(x, axis=0, keepdims=True)

    strategy = mirrored(2)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1), Total()])
    model.compile("sgd", "mse", distribute=strategy)
    with fails(error, match="first axis of every output"):
        model.train_on_batch(X[:6, 0], Y[:1, 0])


# -- other processes -------------------------------------------------------------------------

COMMON = """\
import sys
import keras
import numpy as np
import ropewalk as rw

rng = np.random.default_rng(0)
X = rng.integers(0, 9, (40, 4)).astype(np.int32)
Y = np.sin(X.sum(1, keepdims=True)).astype(np.float32)

def compiled(strategy, *first, optimizer="adam"):
    keras.utils.set_random_seed(0)
    first = [make() for make in first or (lambda: keras.layers.Embedding(9, 3),)]
    model = keras.Sequential([
        keras.Input((4,), dtype="int32"), *first, keras.layers.Flatten(), keras.layers.Dense(1)
    ])
    given = {} if strategy is None else {"distribute": strategy}
    model.compile(optimizer, "mse", metrics=["mae"], **given)
    return model

def curve(model, x, y, batch_size):
    given = {"batch_size": batch_size, "epochs": 10, "shuffle": False, "verbose": 0}
    history = model.fit(x, y, validation_data=(x, y), **given).history
    return np.array([history[key] for key in sorted(history)])
"""

MESH = (
    COMMON
    + """
import jax

def parallel(x):
    try:
        jax.lax.axis_index("replica")
    except NameError:
        return False
    return True

class Noting(keras.layers.Layer):
    seen = set()

    def call(self, x, training=False):
        self.seen.add((x.shape[0], parallel(x)))
        return x

alone = curve(compiled(None), X[:38], Y[:38], 8)
rw.config.set_logical_cpu_devices(2)
for strategy in (rw.distribute.MirroredStrategy(["CPU:0", "CPU:1"]), rw.distribute.TPUStrategy()):
    assert strategy.num_replicas_in_sync == 2
    Noting.seen.clear()
    shared = compiled(strategy, lambda: keras.layers.Embedding(9, 3), Noting)
    np.testing.assert_allclose(curve(shared, X[:38], Y[:38], 8), alone, rtol=1e-5)
    # 8 and 6 examples: halves, on both devices at once.
    assert {(4, True), (3, True)} <= Noting.seen, Noting.seen
    assert shared.predict(X[:5], verbose=0).shape == (5, 1)
    assert (3, False) in Noting.seen and (2, False) in Noting.seen, Noting.seen

initial = rw.Initializer("random_normal", seed=1)
table = lambda: rw.training.keras.Embedding(9, 3, initial)
curves = [
    curve(compiled(strategy, table, optimizer="adagrad"), X[:37], Y[:37], 8)
    for strategy in (rw.distribute.OneDeviceStrategy("CPU:0"), rw.distribute.MirroredStrategy())
]
np.testing.assert_allclose(curves[1], curves[0], rtol=1e-5)
print("all agree")
"""
)

LARGE = (
    COMMON
    + f"""
sys.path.insert(0, {FOLDER!r})
import cupy
from ropewalk.annexes.jax_bridge import arrays

arrays._has_accelerator = lambda: True
assert arrays.gpus_in_use()
dense = lambda: keras.layers.Dense(600)

def losses(strategy):
    model = compiled(strategy, dense, dense)
    return [model.train_on_batch(X[:8].astype(np.float32), Y[:8])[0] for _ in range(3)]

alone = losses(None)
rw.config.set_logical_cpu_devices(2)
strategy = rw.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
np.testing.assert_allclose(losses(strategy), alone, rtol=1e-4)
print("all agree")
"""
)

WORKERS = (
    COMMON
    + """
rw.config.set_logical_cpu_devices(2)
strategy = rw.distribute.MultiWorkerMirroredStrategy()
assert strategy.num_replicas_in_sync == 4
me = strategy.extended.input_pipeline_id
order = np.arange(40).reshape(5, 2, 4)[:, me].ravel()  # of each batch of 8 four examples
# Not an embedding of Keras, whose gradient Adam takes row by row on TensorFlow, when it is alone.
dense = lambda: keras.layers.Rescaling(0.1), lambda: keras.layers.Dense(3)
for optimizer in ("adam", keras.optimizers.Adam(amsgrad=True)):
    config = optimizer if isinstance(optimizer, str) else optimizer.get_config()
    fresh = "adam" if isinstance(optimizer, str) else keras.optimizers.Adam.from_config(config)
    alone = curve(compiled(None, *dense, optimizer=fresh), X, Y, 8)
    shared = curve(compiled(strategy, *dense, optimizer=optimizer), X[order], Y[order], 4)
    np.testing.assert_allclose(shared, alone, rtol=1e-5)
initial = rw.Initializer("random_normal", seed=1)
table = lambda: rw.training.keras.Embedding(9, 3, initial)
one = rw.distribute.OneDeviceStrategy("CPU:0")
alone = curve(compiled(one, table, optimizer="sgd"), X, Y, 8)
shared = compiled(strategy, table, optimizer="sgd")
np.testing.assert_allclose(curve(shared, X[order], Y[order], 4), alone, rtol=1e-5)
print("all agree")
strategy.close()
"""
)


def run(body: str, tmp_path: Path, *command: str, **more: str) -> str:
    pytest.importorskip("keras")
    pytest.importorskip(BACKEND)
    program = tmp_path / "train.py"
    program.write_text(body)
    code, output, errors = processes.run(
        [*command, program],
        timeout_s=scaled(120),
        cwd=tmp_path,
        env={**os.environ, "KERAS_BACKEND": BACKEND, **ONE_THREAD, **more},
    )
    assert code == 0, output + errors
    return output


def test_on_several_devices_of_jax_a_step_is_one_program_for_all(tmp_path: Path) -> None:
    """Batches that cannot be cut into equal parts are computed part after part."""
    if BACKEND != "jax":
        pytest.skip("the others have one CPU device")
    flags = "--xla_force_host_platform_device_count=2"
    assert "all agree" in run(MESH, tmp_path, processes.ROPEWALK[0], XLA_FLAGS=flags)


def test_a_weight_above_a_mebibyte_is_trained_on_several_devices_with_cupy_in_use(
    tmp_path: Path,
) -> None:
    """Large arrays on one device go to the host by CuPy; JAX shares none of several devices."""
    if BACKEND != "jax":
        pytest.skip("the others have one CPU device")
    flags = "--xla_force_host_platform_device_count=2"
    assert "all agree" in run(LARGE, tmp_path, processes.ROPEWALK[0], XLA_FLAGS=flags)


def test_workers_in_sync_with_two_devices_each_have_the_curve_of_one_device(
    tmp_path: Path,
) -> None:
    local = ["local", "--plain", "--ps", "0", "--no-chief", "--workers", "2"]
    output = run(WORKERS, tmp_path, *processes.ROPEWALK, *local)
    assert output.count("all agree") == 2
