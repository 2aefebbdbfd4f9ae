"""Several features of one layer of Keras: the curve of Keras' own embeddings, on each backend."""

import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

emb = rw.embedding
ROWS, DIM, EXAMPLES, BATCH = 50, 4, 48, 16
RNG = np.random.default_rng(0)
IDS = {"a": RNG.integers(0, ROWS, (EXAMPLES, 3)), "b": RNG.integers(0, ROWS, EXAMPLES)}
WEIGHTS = RNG.integers(0, 3, (EXAMPLES, 3)).astype(np.float32)
Y = RNG.normal(size=(EXAMPLES, 1)).astype(np.float32)
ONES = rw.Initializer("ones")
BIG = 2**40  # keys that 32 bits do not hold


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says; JAX with 64 bits, as keys need."""
    backend = os.environ.setdefault("KERAS_BACKEND", "jax")
    module = pytest.importorskip(backend)
    if backend == "jax":
        module.config.update("jax_enable_x64", True)
    yield pytest.importorskip("keras")
    if backend == "jax":
        module.config.update("jax_enable_x64", False)


def features(combiner: str = "sum", **table: Any) -> dict[str, Any]:
    shared = emb.TableConfig("shared", DIM, combiner=combiner, initializer=ONES, **table)
    return {"a": emb.FeatureConfig("a", shared), "b": emb.FeatureConfig("b", shared)}


def inputs(keras: Any) -> dict[str, Any]:
    return {
        "a": keras.Input((3,), dtype="int64", name="a"),
        "b": keras.Input((), dtype="int64", name="b"),
        "w": keras.Input((3,), name="w"),
    }


def net(keras: Any, layer: Any) -> Any:
    keras.utils.set_random_seed(0)
    given = inputs(keras)
    ids = {name: given[name] for name in "ab"}
    rows = layer(ids, {"a": given["w"], "b": None})
    return _head(keras, given, rows)


def alone(keras: Any) -> Any:
    """Keras' own table, whose ids are small."""
    keras.utils.set_random_seed(0)
    given = inputs(keras)
    table = keras.layers.Embedding(ROWS, DIM, embeddings_initializer="ones")
    rows = {
        "a": keras.ops.sum(table(given["a"]) * given["w"][..., None], axis=1),
        "b": table(given["b"]),
    }
    return _head(keras, given, rows)


def _head(keras: Any, given: Any, rows: Any) -> Any:
    hidden = keras.layers.Concatenate()([rows["a"], rows["b"]])
    return keras.Model(given, keras.layers.Dense(1)(hidden), name="net")


def data(offset: int = 0) -> dict[str, Any]:
    return {name: ids + offset for name, ids in IDS.items()} | {"w": WEIGHTS}


def fit(model: Any, x: Any, **more: Any) -> Any:
    own: dict[str, Any] = {"batch_size": BATCH, "epochs": 5, "shuffle": False, "verbose": 0}
    return model.fit(x, Y, **own | more).history


GROWS = {"grows": ({}, BIG), "fixed": ({"vocabulary_size": ROWS}, 0)}


@pytest.mark.parametrize(("table", "offset"), GROWS.values(), ids=GROWS.keys())
def test_the_curve_is_that_of_keras_own_embedding(keras: Any, table: Any, offset: int) -> None:
    plain = alone(keras)
    plain.compile(keras.optimizers.SGD(0.01), "mse")
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        own = None if table else rw.optimizers.SGD(0.01)  # a fixed table has the model's
        layer = rw.training.keras.DistributedEmbedding(features(**table), own)
        shared = net(keras, layer)
        shared.compile(keras.optimizers.SGD(0.01), "mse")
    found = fit(shared, data(offset), validation_data=(data(offset), Y))
    wanted = fit(plain, data(), validation_data=(data(), Y))
    for name, curve in wanted.items():
        np.testing.assert_allclose(found[name], curve, rtol=1e-4)
    assert strategy.global_step == 5 * EXAMPLES // BATCH  # rows travel with the weights
    np.testing.assert_allclose(
        shared.predict(data(offset), verbose=0), plain.predict(data(), verbose=0), rtol=1e-3
    )
    assert sum(weight.numpy().size for weight in shared.weights) == 1 + 2 * DIM + 1


def test_an_optimizer_on_the_worker_leaves_tables_to_theirs(keras: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    layer = rw.training.keras.DistributedEmbedding(features(), rw.optimizers.SGD(0.01))
    plain, shared = alone(keras), net(keras, layer)
    for model in (plain, shared):
        model.compile(keras.optimizers.SGD(0.01), "mse")
    rw.training.keras.distribute(shared, strategy, deltas="always")
    np.testing.assert_allclose(
        fit(shared, data(), epochs=2)["loss"], fit(plain, data(), epochs=2)["loss"], rtol=1e-4
    )


def test_two_workers_train_sequences_of_one_table(keras: Any) -> None:
    def program() -> float:
        strategy = rw.distribute.ParameterServerStrategy()
        with strategy.scope():
            table = emb.TableConfig("t", DIM, optimizer=rw.optimizers.Adagrad(0.1))
            layer = rw.training.keras.DistributedEmbedding([emb.FeatureConfig("s", table, 3)])
            ids = keras.Input((None,), dtype="int64")
            rows = layer([ids])[0]
            model = keras.Model(ids, keras.layers.Dense(1)(keras.layers.Flatten()(rows)))
            model.compile(keras.optimizers.Adam(0.02), "mse")
        for _ in range(9):
            model.train_on_batch(IDS["a"] - BIG, Y)
        strategy.barrier()
        return float(np.square(model.predict_on_batch(IDS["a"] - BIG) - Y).mean())

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        chief, worker = cluster.run(program).values()
        tables = [server.store.counters().tables[0].rows for server in cluster.servers]
    assert chief == pytest.approx(worker, rel=1e-5)
    assert chief < 0.9 * float(np.mean(Y**2))
    assert sum(tables) == len(np.unique(IDS["a"]))


def keras_rs_feature(keras: Any, **table: Any) -> Any:
    """As the classes of keras-rs, field by field."""
    fields: dict[str, Any] = {
        "name": "rs",
        "vocabulary_size": ROWS,
        "embedding_dim": DIM,
        "initializer": keras.initializers.Constant(2.0),
        "optimizer": "adagrad",
        "combiner": "sum",
    }
    made = SimpleNamespace(**fields | table)
    return SimpleNamespace(name="f", table=made, input_shape=(BATCH, 3), output_shape=(BATCH, DIM))


def test_configurations_of_keras_rs_are_taken(keras: Any) -> None:
    given = keras_rs_feature(keras)
    other = SimpleNamespace(**vars(given) | {"name": "g"})
    with rw.distribute.ParameterServerStrategy().scope():
        layer = rw.training.keras.DistributedEmbedding((given, other))
        first, second = layer.features
        assert first.table is second.table
        rule = first.table.optimizer
        assert rule is not None
        assert rule.learning_rate == pytest.approx(0.001)
        ids = keras.Input((3,), dtype="int64")
        model = keras.Model(ids, keras.ops.add(*layer((ids, ids))))
        model.compile("sgd", "mse")
    np.testing.assert_array_equal(
        model.predict(np.array([[1, 2, 3]]), verbose=0), np.full((1, DIM), 12)
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"initializer": "he_normal"}, "'rs' has the initializer HeNormal"),
        ({"optimizer": "muon"}, "the optimizer of table 'rs', Muon"),
    ],
)
def test_what_keras_rs_says_and_is_not_done_here_is_refused(
    keras: Any, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(rw.errors.ConfigurationError, match=said):
        rw.training.keras.DistributedEmbedding(keras_rs_feature(keras, **changes))


def test_the_defaults_of_keras_rs_are_ours_and_rows_that_stay_apart_are_refused(
    keras: Any,
) -> None:
    given = keras_rs_feature(
        keras, initializer=keras.initializers.VarianceScaling(mode="fan_out"), optimizer=None
    )
    made = rw.training.keras.DistributedEmbedding(given).features[0].table
    assert made.first_values.name == "truncated_normal"
    assert made.optimizer is None
    given.output_shape = (BATCH, 3, DIM)
    with pytest.raises(rw.errors.ConfigurationError, match="max_sequence_length"):
        rw.training.keras.DistributedEmbedding(given)
    with pytest.raises(rw.errors.ConfigurationError, match="no FeatureConfig"):
        rw.training.keras.DistributedEmbedding(["f"])


def test_mistakes_are_refused_by_name(keras: Any) -> None:
    with rw.distribute.ParameterServerStrategy().scope():
        model = net(keras, rw.training.keras.DistributedEmbedding(features()))
        with pytest.raises(rw.errors.ConfigurationError, match=r"'shared'.*has no optimizer"):
            model.compile("sgd", "mse")
    layer = rw.training.keras.DistributedEmbedding(features(), rw.optimizers.SGD(0.1))
    with pytest.raises(rw.errors.ConfigurationError, match="'a' are float32, not integers"):
        layer({"a": keras.Input((3,)), "b": keras.Input(())})
    unshared = net(keras, rw.training.keras.DistributedEmbedding(features()))
    with pytest.raises(Exception, match="has no tables: its model is not distributed"):
        unshared.predict(data(), verbose=0)


def test_growing_tables_on_jax_need_integers_of_64_bits(keras: Any) -> None:
    if keras.backend.backend() != "jax":
        return
    jax: Any = pytest.importorskip("jax")
    jax.config.update("jax_enable_x64", False)
    try:
        with rw.distribute.ParameterServerStrategy().scope():
            rule = rw.optimizers.SGD(0.1)
            model = net(keras, rw.training.keras.DistributedEmbedding(features(), rule))
            with pytest.raises(rw.errors.ConfigurationError, match="jax_enable_x64"):
                model.compile("sgd", "mse")
    finally:
        jax.config.update("jax_enable_x64", True)


def test_weights_of_some_features_alone_say_how_to_leave_others_out(keras: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        layer = rw.training.keras.DistributedEmbedding(features(), rw.optimizers.SGD(0.1))
        net(keras, layer).compile("sgd", "mse")
    with pytest.raises(ValueError, match="structure of its features, with None for one that has"):
        layer(IDS, {"a": WEIGHTS})
