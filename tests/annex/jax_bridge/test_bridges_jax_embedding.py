"""Tables in JAX programs: the curve of a table that is a parameter, in one push with the others."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.late import Late

jax: Any = Late("jax")
optax: Any = Late("optax")

pytestmark = pytest.mark.bridges

emb = rw.embedding
ROWS, DIM, STEPS = 30, 4, 20
RNG = np.random.default_rng(0)
IDS = {"a": RNG.integers(0, ROWS, (8, 3)), "b": RNG.integers(0, ROWS, 8)}
LABELS = RNG.normal(size=8).astype(np.float32)


def loss(params: Any, rows: Any, labels: Any) -> Any:
    hidden = jax.numpy.concatenate([rows["a"], rows["b"]], 1) @ params["w"]
    return jax.numpy.mean((hidden - labels) ** 2)


def first() -> dict[str, Any]:
    return {"w": np.linspace(-1, 1, 2 * DIM, dtype=np.float32)}


def tables(strategy: Any, **options: Any) -> Any:
    table = emb.TableConfig("t", DIM, initializer=rw.Initializer("ones"), **options)
    features = [emb.FeatureConfig(name, table) for name in IDS]
    with strategy.scope():
        return emb.Embeddings(features, rw.optimizers.SGD(0.1))


def curve_alone(make: Any) -> list[float]:
    """JAX with the whole table as a parameter."""

    def whole(params: Any) -> Any:
        found = {"a": params["t"][IDS["a"]].mean(1), "b": params["t"][IDS["b"]]}
        return loss(params, found, LABELS)

    params = {**first(), "t": np.ones((ROWS, DIM), np.float32)}
    parts = optax.multi_transform({"w": make(), "t": optax.sgd(0.1)}, {"w": "w", "t": "t"})
    state, found = parts.init(params), []
    step = jax.jit(jax.value_and_grad(whole))
    for _ in range(STEPS):
        value, gradients = step(params)
        updates, state = parts.update(gradients, state, params)
        params = optax.apply_updates(params, updates)
        found.append(float(value))
    return found


MADE = {"served": lambda: optax.adam(0.05), "on-worker": lambda: optax.amsgrad(0.05)}


@pytest.mark.parametrize("in_run", [False, True], ids=["outside", "in-run"])
@pytest.mark.parametrize("make", MADE.values(), ids=MADE.keys())
def test_the_curve_is_that_of_a_table_that_is_a_parameter(make: Any, in_run: bool) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    embeddings = tables(strategy)
    state = rw.training.jax.TrainState(first(), make(), strategy)
    loss_and_gradients = rw.training.jax.value_and_grad(loss, embeddings)

    def step() -> float:
        value, (gradients, rows) = loss_and_gradients(state.params, IDS, LABELS)
        assert set(rows) == set(IDS)
        assert len(rows) == 2
        state.apply_gradients(gradients, rows=rows)
        return float(value)

    found = [strategy.run(step) if in_run else step() for _ in range(STEPS)]
    np.testing.assert_allclose(found, curve_alone(make), rtol=1e-4)
    assert strategy.global_step == STEPS  # one push for both


def test_steps_with_and_without_rows_take_turns_where_the_optimizer_is_on_the_worker() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    embeddings = tables(strategy)
    state = rw.training.jax.TrainState(first(), optax.amsgrad(0.05), strategy)
    params, own = first(), optax.amsgrad(0.05)
    kept = own.init(params)
    gradients = {"w": np.ones(2 * DIM, np.float32)}
    calls = rw.training.jax.value_and_grad(loss, embeddings)
    for turn in range(6):
        _, (_, rows) = calls(state.params, IDS, LABELS)
        state.apply_gradients(gradients, rows=rows if turn % 2 else None)
        updates, kept = own.update(gradients, kept, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(state.params["w"], params["w"], rtol=1e-5)


@pytest.fixture
def two_devices() -> Iterator[None]:
    """For one test: the others of this process have one."""
    rw.config.set_logical_cpu_devices(2)
    yield
    rw.config.set_logical_cpu_devices(1)


@pytest.mark.usefixtures("two_devices")
def test_a_table_of_a_vocabulary_trains_under_workers_in_sync_replicas_included() -> None:
    strategy = rw.distribute.MirroredStrategy()
    embeddings = tables(strategy, vocabulary_size=ROWS)
    state = rw.training.jax.TrainState(first(), optax.adam(0.05), strategy, mean=True)
    loss_and_gradients = rw.training.jax.value_and_grad(loss, embeddings)

    def step() -> float:
        value, (gradients, rows) = loss_and_gradients(state.params, IDS, LABELS)
        state.apply_gradients(gradients, rows=rows)
        return float(value)

    found = [float(np.asarray(strategy.run(step).values)[0]) for _ in range(STEPS)]
    np.testing.assert_allclose(found, curve_alone(MADE["served"]), rtol=1e-4)


def test_rows_without_parameters_and_what_else_a_function_returns() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    embeddings = tables(strategy)

    def with_more(params: Any, rows: Any, factor: float) -> Any:
        return factor * rows["b"].sum(), {"rows": rows["b"]}

    call = rw.training.jax.value_and_grad(with_more, embeddings, has_aux=True)
    weights = {"b": np.full(2, 2.0, np.float32)}
    (value, more), (_, rows) = call({}, {"b": [1, 2]}, 3.0, weights=weights)
    assert float(value) == 3 * 2 * DIM  # combined by the mean, which a weight does not change
    assert more["rows"].shape == (2, DIM)
    rows.apply()
    after = rw.training.jax.embedding_lookup(embeddings, {"a": [[1, 2]], "b": [9]})
    np.testing.assert_allclose(after["a"], np.full((1, DIM), 1 - 0.1 * 3), rtol=1e-6)
    np.testing.assert_array_equal(after["b"], np.ones((1, DIM)))


def test_rows_that_are_looked_up_ahead_train_the_same() -> None:
    def curve(count: int) -> list[float]:
        strategy = rw.distribute.ParameterServerStrategy()
        embeddings = tables(strategy, vocabulary_size=ROWS)
        loss_and_gradients = rw.training.jax.value_and_grad(loss, embeddings)
        state = rw.training.jax.TrainState(first(), optax.adam(0.05), strategy)
        batches, found = [IDS] * 5, []
        for ids in embeddings.look_ahead(batches, lambda ids: ids, count=2) if count else batches:
            value, (gradients, rows) = loss_and_gradients(state.params, ids, LABELS)
            state.apply_gradients(gradients, rows=rows)
            found.append(float(value))
        return found

    assert curve(2) == curve(0)
