"""The bridge to JAX: trees of any kind, the same curves as without it, donated buffers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls
from ropewalk.annexes.jax_bridge.arrays import on_device
from ropewalk.core.arrays.dtypes import BFLOAT16

jax: Any = pytest.importorskip("jax")
optax: Any = pytest.importorskip("optax")
jnp: Any = jax.numpy

pytestmark = pytest.mark.bridges

rng = np.random.default_rng(0)
X = rng.normal(size=(64, 8)).astype(np.float32)
Y = np.sin(X @ rng.normal(size=(8, 1))).astype(np.float32)
PARAMS = {
    "hidden": {"w": rng.normal(size=(8, 16)).astype(np.float32) / 3, "b": np.zeros(16, np.float32)},
    "out": [rng.normal(size=(16, 1)).astype(np.float32) / 4, np.zeros(1, np.float32)],
}


def compute_loss(params: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return jnp.mean((hidden @ params["out"][0] + params["out"][1] - y) ** 2)


loss_and_gradients: Any = jax.jit(jax.value_and_grad(compute_loss))


def params() -> Any:
    return jax.tree.map(jnp.asarray, PARAMS)


def curve_alone(optimizer: Any, steps: int) -> list[float]:
    values, losses = params(), []
    state, update = optimizer.init(values), jax.jit(optimizer.update)
    for _ in range(steps):
        loss, gradients = loss_and_gradients(values, X, Y)
        changes, state = update(gradients, state, values)
        values = optax.apply_updates(values, changes)
        losses.append(float(loss))
    return losses


def curve(state: Any, steps: int) -> list[float]:
    losses = []
    for _ in range(steps):
        loss, gradients = loss_and_gradients(state.params, X, Y)
        state.apply_gradients(gradients)
        losses.append(float(loss))
    return losses


SCHEDULE = optax.cosine_decay_schedule(0.1, 200)
SERVED: dict[str, Any] = {
    "sgd": optax.sgd(0.1),
    "schedule-nesterov": optax.sgd(SCHEDULE, momentum=0.9, nesterov=True),
    "adam": optax.adam(1e-2),
    "adamw": optax.adamw(1e-2, weight_decay=0.01),
    "adagrad": optax.adagrad(0.02),
    "adagrad-epsilon": optax.adagrad(0.02, eps=0.1),
    "rmsprop-epsilon": optax.rmsprop(1e-2, eps=0.1),
    "adam-epsilon": optax.adam(1e-2, eps=0.1),
    "adadelta": optax.adadelta(0.3),
    "clipped": optax.chain(optax.clip_by_global_norm(0.5), optax.adam(1e-2)),
    "decay-in-the-gradient": optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1)),
}
# Their steps are a sign, or nearly: rounding turns one now and then, so fewer are compared.
SHORT: dict[str, Any] = {
    "rmsprop": optax.rmsprop(1e-2, momentum=0.5),
    "lion": optax.lion(1e-3, weight_decay=0.01),
    "lamb": optax.lamb(1e-2, weight_decay=0.01),
}
CASES = [pytest.param(optimizer, 200, id=name) for name, optimizer in SERVED.items()] + [
    pytest.param(optimizer, 20, id=name) for name, optimizer in SHORT.items()
]


@pytest.mark.parametrize(("optimizer", "steps"), CASES)
def test_a_chain_with_a_rule_runs_on_the_servers_with_the_curve_it_has_alone(
    optimizer: Any, steps: int
) -> None:
    state = rw.training.jax.TrainState(
        params(), optimizer, rw.distribute.ParameterServerStrategy(), deltas="forbid"
    )
    assert state.worker_reason is None
    np.testing.assert_allclose(
        curve(state, steps), curve_alone(optimizer, steps), rtol=1e-4, atol=1e-5
    )


LEFT: dict[str, Any] = {
    "belief": optax.adabelief(1e-2),
    "masked": optax.masked(optax.sgd(0.1), True),
    "injected": optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
    "decay after clipping": optax.chain(
        optax.clip(0.1), optax.add_decayed_weights(0.01), optax.sgd(0.1)
    ),
    "nesterov's adam": optax.nadam(1e-2),
    "ascent": optax.scale(0.01),
}


@pytest.mark.parametrize("optimizer", LEFT.values(), ids=LEFT.keys())
def test_any_other_runs_on_the_worker_with_the_same_curve(optimizer: Any) -> None:
    state = rw.training.jax.TrainState(params(), optimizer, rw.distribute.ParameterServerStrategy())
    assert state.worker_reason
    np.testing.assert_allclose(curve(state, 40), curve_alone(optimizer, 40), rtol=1e-5, atol=1e-6)
    with pytest.raises(rw.errors.ConfigurationError, match="deltas are forbidden"):
        rw.training.jax.TrainState(
            params(), optimizer, rw.distribute.ParameterServerStrategy(), deltas="forbid"
        )


@pytest.mark.parametrize("optimizer", [optax.adam(1e-2), LEFT["belief"]], ids=["rule", "none"])
def test_a_program_runs_without_jit(optimizer: Any) -> None:
    with jax.disable_jit():
        state = rw.training.jax.TrainState(
            params(), optimizer, rw.distribute.ParameterServerStrategy()
        )
        found = curve(state, 5)
        alone = curve_alone(optimizer, 5)
    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)


def test_a_rule_that_differs_from_the_transformation_is_not_taken() -> None:
    """optax may change; what a rule computes is compared with what the transformation does."""
    from ropewalk.annexes.jax_bridge.optax_reading import place_transformation

    honest = optax.sgd(0.1)
    changed = optax.GradientTransformation(honest.init, honest.update)

    def update(*arguments: Any, **more: Any) -> Any:
        steps, state = honest.update(*arguments, **more)
        return jax.tree.map(lambda step: 2 * step, steps), state

    update.__qualname__, update.__module__ = "chain.<locals>.update_fn", "optax.transforms"
    assert "cannot be read" in str(place_transformation(changed._replace(update=update)))


def test_an_own_optimizer_has_its_state_at_hand_and_takes_another() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    state = rw.training.jax.TrainState(params(), optax.adam(1e-2), strategy, deltas="always")
    curve(state, 3)
    kept = state.opt_state
    assert int(kept[0].count) == 3
    state.opt_state = kept


@pytest.mark.parametrize("deltas", ["allow", "always"], ids=["rule", "deltas"])
def test_workers_in_sync_have_the_curve_of_one_device(deltas: Any) -> None:
    """Two replicas, each with half of every batch; the mean of their gradients is that of all."""
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        state = rw.training.jax.TrainState(params(), optax.adam(1e-2), strategy, deltas=deltas)

        def step(x: Any, y: Any) -> Any:
            loss, gradients = loss_and_gradients(state.params, x, y)
            state.apply_gradients(gradients)
            return loss

        def halves(array: Any) -> Any:
            return strategy.experimental_distribute_values_from_function(
                lambda context: array[32 * context.replica_id_in_sync_group :][:32]
            )

        both = (halves(X), halves(Y))
        losses = [float(strategy.reduce("MEAN", strategy.run(step, args=both))) for _ in range(200)]
    finally:
        rw.config.set_logical_cpu_devices(1)
    np.testing.assert_allclose(losses, curve_alone(optax.adam(1e-2), 200), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mean", [True, False])
def test_weight_decay_counts_once_whatever_becomes_of_gradients_in_sync(mean: bool) -> None:
    """Of gradients that are averaged over two replicas, or added up."""
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        decayed = optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.5))
        state = rw.training.jax.TrainState(
            {"w": np.ones(2, np.float32)}, decayed, strategy, mean=mean
        )
        assert state.worker_reason is None
        strategy.run(lambda: state.apply_gradients({"w": np.zeros(2, np.float32)}))
        np.testing.assert_allclose(state.refresh()["w"], 1 - 0.5 * 0.1, rtol=1e-6)
    finally:
        rw.config.set_logical_cpu_devices(1)


def test_two_workers_and_two_servers_learn_together() -> None:
    def program() -> float:
        strategy = rw.distribute.ParameterServerStrategy()
        state = rw.training.jax.TrainState(params(), optax.adam(5e-3), strategy)
        curve(state, 60)
        strategy.barrier()
        loss, _ = loss_and_gradients(state.refresh(), X, Y)
        return float(loss)

    with rw.testing.LocalCluster(workers=1, ps=2) as cluster:
        losses = list(cluster.run(program).values())
    assert losses[0] == losses[1] < 0.5 * curve_alone(optax.adam(5e-3), 1)[0]


@pytest.mark.parametrize(
    ("dtype", "make", "deltas", "tells"),
    [
        pytest.param("bfloat16", lambda: optax.adam(1e-2), "allow", True, id="moments"),
        pytest.param("float16", lambda: optax.adam(1e-2), "allow", True, id="float16"),
        pytest.param("bfloat16", lambda: optax.adam(1e-2), "always", False, id="on the worker"),
        pytest.param("bfloat16", lambda: optax.sgd(1e-2), "allow", True, id="no moments"),
        pytest.param("float32", lambda: optax.adam(1e-2), "allow", False, id="float32"),
    ],
)
def test_half_precision_has_the_curve_of_optax_or_a_warning(
    dtype: str, make: Any, deltas: Any, tells: bool, caplog: pytest.LogCaptureFixture
) -> None:
    value = {"w": jax.numpy.linspace(-1, 1, 8).astype(dtype)}
    state = rw.training.jax.TrainState(
        value, make(), rw.distribute.ParameterServerStrategy(), deltas=deltas
    )
    optimizer, gradients = make(), jax.grad(lambda p: (p["w"] ** 3 - p["w"]).sum())
    opt_state = optimizer.init(value)
    for _ in range(20):
        updates, opt_state = optimizer.update(gradients(value), opt_state, value)
        value = optax.apply_updates(value, updates)
        state.apply_gradients(gradients(state.params))
    told = [each.getMessage() for each in caplog.records if "float32" in each.getMessage()]
    assert len(told) == tells
    if tells:
        assert 'deltas="always"' in told[0]
    else:
        found = np.asarray(state.params["w"], np.float32)
        np.testing.assert_allclose(found, np.asarray(value["w"], np.float32), rtol=1e-5)


@pytest.mark.parametrize("deltas", ["allow", "always"])
def test_a_program_may_donate_parameters_and_gradients(deltas: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    # Large enough for JAX to share memory with the arrays of the store.
    state = rw.training.jax.TrainState(
        {"w": np.ones((512, 256), np.float32)}, optax.sgd(0.5), strategy, deltas=deltas
    )
    burn = jax.jit(lambda tree: jax.tree.map(lambda x: x * 0 - 7, tree), donate_argnums=0)
    for number in range(1, 4):
        values = state.params
        burn(values)
        gradients = jax.tree.map(jnp.ones_like, state.params)  # made anew
        state.apply_gradients(gradients)
        burn(gradients)
        np.testing.assert_array_equal(state.params["w"], 1 - 0.5 * number)
    assert float(state.store.pull()["w"].min()) == -0.5
    with pytest.raises(RuntimeError, match="was donated to a jitted function"):
        state.apply_gradients(gradients)


def test_dense_gradients_are_handed_over_without_a_copy(calls: Calls) -> None:
    """What the session is given is JAX's own memory; the copy into the session is the only one."""
    state = rw.training.jax.TrainState(
        {"w": jnp.zeros((64, 64))}, optax.sgd(0.5), rw.distribute.ParameterServerStrategy()
    )
    exchanges = calls.noted(state.store, "exchange")
    gradient = jnp.ones((64, 64))
    state.apply_gradients({"w": gradient})
    [(step,)] = exchanges
    assert step.gradients["w"].ctypes.data == gradient.unsafe_buffer_pointer()


@pytest.mark.parametrize("prefetch", [False, True])
def test_an_own_optimizer_takes_gradients_where_they_are(prefetch: bool) -> None:
    """No copy to the host and back, nor where its changes are pushed to servers (``prefetch``)."""
    kinds: set[bool] = set()

    def update(updates: Any, state: Any, _: Any, *, value_fn: Any) -> Any:
        assert callable(value_fn)  # so it is not compiled, and is given no tracers
        kinds.update(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(updates))
        return jax.tree.map(lambda each: -each, updates), state

    strategy = rw.distribute.ParameterServerStrategy(prefetch=prefetch)
    optimizer = optax.GradientTransformationExtraArgs(lambda _: optax.EmptyState(), update)
    state = rw.training.jax.TrainState({"w": jnp.zeros(3)}, optimizer, strategy)
    state.apply_gradients({"w": jnp.ones(3)}, value_fn=lambda _: 0.0)
    assert kinds == {True}
    assert state.refresh()["w"].tolist() == [-1.0, -1.0, -1.0]


def test_flax_nnx_states_go_in_and_out() -> None:
    nnx = pytest.importorskip("flax.nnx")

    model = nnx.Sequential(nnx.Linear(8, 16, rngs=nnx.Rngs(0)), nnx.Linear(16, 1, rngs=nnx.Rngs(1)))
    graph, start = nnx.split(model)

    def loss_of(values: Any, x: Any, y: Any) -> Any:
        return jnp.mean((nnx.merge(graph, values)(x) - y) ** 2)

    compute = jax.jit(jax.value_and_grad(loss_of))
    state = rw.training.jax.TrainState(start, optax.adam(1e-2), rw.distribute.get_strategy())
    losses = []
    for _ in range(100):
        loss, gradients = compute(state.params, X, Y)
        state.apply_gradients(gradients)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]
    nnx.update(model, state.params)
    assert float(jnp.mean((model(X) - Y) ** 2)) < losses[0]
    assert any("kernel" in name for name in state.store.names)


def test_equinox_modules_go_in_and_out_with_their_functions() -> None:
    eqx = pytest.importorskip("equinox")

    model = eqx.nn.MLP(8, 1, 16, 1, activation=jnp.tanh, key=jax.random.key(0))

    def loss_of(model: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    compute = eqx.filter_jit(eqx.filter_value_and_grad(loss_of))
    strategy = rw.distribute.ParameterServerStrategy()
    state = rw.training.jax.TrainState(model, optax.adam(1e-2), strategy)
    losses = []
    for _ in range(100):
        loss, gradients = compute(state.params, X, Y)
        state.apply_gradients(gradients)
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]
    assert "layers/0/weight" in state.store.names


@pytest.mark.parametrize(
    ("make", "said"),
    [
        pytest.param(lambda: {"n": jnp.arange(3)}, "no floating-point array", id="no floats"),
        pytest.param(dict, "no floating-point array", id="nothing"),
    ],
)
def test_a_tree_without_parameters_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rw.training.jax.TrainState(make(), optax.sgd(0.1), rw.distribute.get_strategy())


def test_gradients_of_another_model_are_refused_by_name() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    state = rw.training.jax.TrainState({"w": jnp.zeros(3)}, optax.sgd(0.1), strategy)
    with pytest.raises(ValueError, match="an array 'v' that params has not; params has w"):
        state.apply_gradients({"v": jnp.zeros(3)})
    with pytest.raises(rw.errors.ShapeMismatchError, match="'w'"):
        state.apply_gradients({"w": jnp.zeros(4)})


def test_a_step_with_nan_leaves_the_optimizers_state_on_the_worker_as_it_was() -> None:
    """Where no other process has the parameters: the next step goes on from the last good one."""
    strategies = [rw.distribute.ParameterServerStrategy() for _ in range(2)]
    states = [
        rw.training.jax.TrainState(params(), optax.adam(0.1), each, deltas="always")
        for each in strategies
    ]
    for state in states:
        curve(state, 2)
    _, gradients = loss_and_gradients(states[0].params, X * np.nan, Y)
    states[0].apply_gradients(gradients)
    assert strategies[0].global_step == 2
    assert curve(states[0], 3) == curve(states[1], 3)


def test_arrays_of_any_dtype_shape_and_size_come_to_the_device_as_they_are() -> None:
    given = [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asarray(3, np.int32),
        np.zeros((0, 4), np.float32),
        np.arange(300_000, dtype=np.float32),  # shared
        np.arange(30_000, dtype=np.float32).reshape(100, 300).T,  # an argument of its own
        np.arange(4).astype(BFLOAT16),
        np.arange(4, 8).astype(BFLOAT16),
        np.asarray(2.5, np.float32),
    ]
    arrays = on_device(given)
    assert all(isinstance(array, jax.Array) for array in arrays)
    assert [array.dtype for array in arrays] == [value.dtype for value in given]
    for array, value in zip(arrays, given, strict=True):
        np.testing.assert_array_equal(np.asarray(array), value)
