"""Embeddings whose tables are on the servers: the curve of Keras' own, and rows alone travel."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

ROWS, BATCH, LENGTH = 96, 16, 4
RNG = np.random.default_rng(0)
# No id twice in a batch: of such gradients Keras on TensorFlow adds up the squares.
IDS = np.concatenate([RNG.permutation(ROWS)[: BATCH * LENGTH].reshape(BATCH, -1) for _ in range(4)])
IDS = IDS.astype(np.int32)
Y = (IDS.sum(axis=1, keepdims=True) / 100).astype(np.float32)


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    pytest.importorskip(os.environ["KERAS_BACKEND"])
    return pytest.importorskip("keras")


def net(keras: Any, embedding: Any, length: int = LENGTH) -> Any:
    keras.utils.set_random_seed(0)
    layers = [
        keras.Input((length,), dtype="int32"),
        embedding,
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ]
    return keras.Sequential(layers, name="net")


def sharded() -> rw.distribute.ParameterServerStrategy:
    return rw.distribute.ParameterServerStrategy(
        variable_partitioner=rw.distribute.partitioners.FixedShardsPartitioner(2)
    )


def test_the_curve_is_that_of_keras_own_embedding(keras: Any) -> None:
    """Adagrad, for which lazy rows make no difference. The table is no weight of the model."""
    alone = net(keras, keras.layers.Embedding(ROWS, 8, embeddings_initializer="ones"))
    alone.compile(keras.optimizers.Adagrad(0.1), "mse")
    with sharded().scope():
        shared = net(keras, rw.training.keras.Embedding(ROWS, 8, "ones", name="embedding"))
        shared.compile(keras.optimizers.Adagrad(0.1), "mse")
    given = {"batch_size": BATCH, "epochs": 10, "shuffle": False, "verbose": 0}
    found = [m.fit(IDS, Y, validation_data=(IDS, Y), **given).history for m in (alone, shared)]
    for name, curve in found[0].items():
        np.testing.assert_allclose(found[1][name], curve, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        shared.predict(IDS, verbose=0), alone.predict(IDS, verbose=0), rtol=1e-3, atol=1e-5
    )
    store = rw.training.keras.shared_weights(shared).store
    assert "net/embedding/embeddings" not in store.pull()
    assert sum(weight.numpy().size for weight in shared.weights) == 8 + 8 * LENGTH + 1


REPEATED = (IDS % 8).astype(np.int32)
"""Ids that each batch has several times."""


def trained_table(keras: Any, optimizer: Any, *, one_hot: bool = False, deltas: Any = None) -> Any:
    """An embedding after training alone, or under a strategy."""
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Embedding(8, 4, embeddings_initializer="ones"),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ]
    if one_hot:
        layers[0] = keras.layers.Dense(4, kernel_initializer="ones", use_bias=False)
    shape = (LENGTH, 8) if one_hot else (LENGTH,)
    model = keras.Sequential([keras.Input(shape), *layers], name="net")
    model.compile(optimizer, "mse")
    if deltas is not None:
        strategy = rw.distribute.ParameterServerStrategy()
        rw.training.keras.distribute(model, strategy, deltas=deltas)
    x = np.eye(8, dtype=np.float32)[REPEATED] if one_hot else REPEATED
    model.fit(x, Y, batch_size=BATCH, epochs=5, shuffle=False, verbose=0)
    return model.get_weights()[0]


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("SGD", {}),
        ("SGD", {"clipnorm": 0.1}),
        ("Adagrad", {}),
        ("RMSprop", {}),
        ("Adam", {"amsgrad": True}),
    ],
)
def test_repeated_ids_are_as_keras_has_them_or_a_warning_says_how_they_are(
    kind: str, options: dict[str, Any], keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Keras on TensorFlow takes each occurrence by itself, else their sum, as of a dense layer."""

    def optimizer() -> Any:
        return getattr(keras.optimizers, kind)(0.1, **options)

    def close(found: Any, expected: Any) -> bool:
        return bool(np.allclose(found, expected, rtol=1e-4, atol=1e-5))

    alone = trained_table(keras, optimizer())
    dense = trained_table(keras, optimizer(), one_hot=True)
    on_worker = trained_table(keras, optimizer(), deltas="always")
    assert close(on_worker, alone)
    assert "each occurrence of an id" not in caplog.text
    shared = trained_table(keras, optimizer(), deltas="allow")
    differs = keras.backend.backend() == "tensorflow" and (kind != "SGD" or bool(options))
    assert close(alone, dense) is not differs
    if options.get("amsgrad"):  # it has no rule
        assert close(shared, alone)
        return
    assert close(shared, dense)
    assert caplog.text.count("each occurrence of an id") == differs


def test_two_workers_train_a_table_that_neither_of_them_has(keras: Any) -> None:
    """Called twice in a model of its own kind, with ids that the model computes."""

    def program() -> float:
        class Net(keras.Model):  # type: ignore[misc]
            def __init__(self) -> None:
                super().__init__(name="net")
                self.table = rw.training.keras.Embedding(100_000, 8, name="table")
                self.last = keras.layers.Dense(1)

            def call(self, ids: Any) -> Any:
                rows = self.table(ids * 1000) + self.table(ids + 50_000)
                return self.last(keras.ops.mean(rows, axis=1))

        strategy = sharded()
        with strategy.scope():
            model = Net()
            model.compile(keras.optimizers.Adam(0.02), "mse")
        model.fit(IDS, Y, epochs=8, verbose=0)
        strategy.barrier()
        return float(model.evaluate(IDS, Y, verbose=0))

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        chief, worker = cluster.run(program).values()
        counters = [server.store.counters() for server in cluster.servers]
    assert chief == pytest.approx(worker, rel=1e-5)
    assert chief < 0.7 * float(np.mean(Y**2))
    assert all(each.pushes for each in counters)


def test_a_table_has_an_optimizer_of_its_own_where_the_models_runs_on_the_worker(
    keras: Any,
) -> None:
    strategy = sharded()
    model = net(keras, rw.training.keras.Embedding(ROWS, 8))
    model.compile(keras.optimizers.Adam(0.01, amsgrad=True), "mse")
    with pytest.raises(rw.errors.ConfigurationError, match="give the Embedding an optimizer of rw"):
        rw.training.keras.distribute(model, strategy)
    rule = rw.optimizers.Adam(0.01)
    model = net(keras, rw.training.keras.Embedding(ROWS, 8, optimizer=rule))
    model.compile(keras.optimizers.Adam(0.01, amsgrad=True), "mse", distribute=strategy)
    losses = model.fit(IDS, Y, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < 0.7 * losses[0]


def test_id_0_is_padding_if_asked(keras: Any) -> None:
    with sharded().scope():
        model = keras.Sequential(
            [
                keras.Input((LENGTH,), dtype="int32"),
                rw.training.keras.Embedding(ROWS, 8, "random_normal", mask_zero=True),
                keras.layers.GlobalAveragePooling1D(),
            ]
        )
        model.compile("sgd", "mse")
    found = model.predict(np.array([[5, 0, 0, 0], [5, 5, 0, 5]], np.int32), verbose=0)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    assert found.any()


def test_a_file_has_the_layer_and_not_its_table(keras: Any, tmp_path: Path) -> None:
    with sharded().scope():
        model = net(keras, rw.training.keras.Embedding(ROWS, 8))
        model.compile("adagrad", "mse")
    model.fit(IDS, Y, verbose=0)
    model.save(tmp_path / "net.keras")
    again = keras.models.load_model(tmp_path / "net.keras")
    with pytest.raises(Exception, match="has no table: its model is not distributed"):
        again.predict(IDS, verbose=0)
    with pytest.raises(Exception, match=r"id 96|96.*rows|\[0, 96\)|out of range"):
        model.predict(IDS + ROWS, verbose=0)
