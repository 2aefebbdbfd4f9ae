"""What optax does by the program's own tree: masks, labels, paths, and what needs all parameters.

The reference is optax alone. Losses of 200 steps agree to 1e-5; an optimizer that runs on this
worker is given what it would be given alone, so most agree to the last bit.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw

jax: Any = pytest.importorskip("jax")
optax: Any = pytest.importorskip("optax")
jnp: Any = jax.numpy

pytestmark = pytest.mark.bridges

STEPS = 200
rng = np.random.default_rng(0)
X = rng.normal(size=(64, 6)).astype(np.float32)
Y = np.sin(X @ rng.normal(size=(6, 1))).astype(np.float32)
# As a tree it is hidden, out, slow; by name out/0 and out/1 lie between.
PARAMS = {
    "slow": {"w": rng.normal(size=(6, 8)).astype(np.float32) / 3, "b": np.zeros(8, np.float32)},
    "hidden": {"w": rng.normal(size=(8, 8)).astype(np.float32) / 3, "b": np.zeros(8, np.float32)},
    "out": [rng.normal(size=(8, 1)).astype(np.float32) / 3, np.zeros(1, np.float32)],
}
WEIGHTS = {"slow": {"w": True, "b": False}, "hidden": {"w": True, "b": False}, "out": [True, False]}
LABELS = {"slow": "frozen", "hidden": {"w": "slow", "b": "fast"}, "out": "fast"}


def compute_loss(params: Any, x: Any, y: Any) -> Any:
    hidden = jnp.tanh(x @ params["slow"]["w"] + params["slow"]["b"])
    hidden = jnp.tanh(hidden @ params["hidden"]["w"] + params["hidden"]["b"])
    return jnp.mean((hidden @ params["out"][0] + params["out"][1] - y) ** 2)


loss_and_gradients: Any = jax.jit(jax.value_and_grad(compute_loss))


def params() -> Any:
    return jax.tree.map(jnp.asarray, PARAMS)


def is_weight(tree: Any) -> Any:
    """A mask by paths: what ends with w, or is the first of a list."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: getattr(path[-1], "key", None) == "w" or getattr(path[-1], "idx", 1) == 0,
        tree,
    )


def label(tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: "frozen" if path[0].key == "slow" else "fast", tree
    )


FROZEN = {"frozen": optax.set_to_zero(), "slow": optax.sgd(0.01), "fast": optax.adam(1e-2)}
SCHEDULE = optax.warmup_cosine_decay_schedule(0.0, 3e-2, 20, STEPS)
CASES: dict[str, Any] = {
    # Two on the servers.
    "schedule": optax.sgd(SCHEDULE, momentum=0.9),
    "clipped": optax.chain(optax.clip_by_global_norm(0.1), optax.sgd(SCHEDULE, nesterov=True)),
    "mask tree": optax.adamw(1e-2, weight_decay=0.3, mask=WEIGHTS),
    "mask of paths": optax.adamw(1e-2, weight_decay=0.3, mask=is_weight),
    "masked": optax.chain(
        optax.masked(optax.add_decayed_weights(0.1), WEIGHTS), optax.sgd(SCHEDULE, momentum=0.9)
    ),
    "labels": optax.multi_transform(FROZEN, LABELS),
    "labels of paths": optax.partition(FROZEN, label),
    "multi steps": optax.MultiSteps(optax.adamw(SCHEDULE, mask=WEIGHTS), 4),
    "multi steps in a chain": optax.chain(
        optax.clip_by_global_norm(0.5),
        optax.MultiSteps(optax.sgd(0.1, momentum=0.9), 3).gradient_transformation(),
    ),
    "injected": optax.inject_hyperparams(optax.adamw, static_args="mask")(
        learning_rate=SCHEDULE, weight_decay=0.1, mask=is_weight
    ),
    "clipped, then masked": optax.chain(
        optax.clip_by_global_norm(0.1), optax.adamw(1e-2, weight_decay=0.3, mask=WEIGHTS)
    ),
    "layers": optax.lars(0.1, weight_decay=1e-3, weight_decay_mask=WEIGHTS),
    "factored": optax.adafactor(1e-2, min_dim_size_to_factor=4, weight_decay_mask=WEIGHTS),
    "noise": optax.noisy_sgd(0.01, key=jax.random.key(1)),
    "schedule free": optax.contrib.schedule_free_adamw(1e-2),
    "prodigy": optax.contrib.prodigy(),
    "muon": optax.contrib.muon(1e-2),
    "mechanic": optax.contrib.mechanize(optax.sgd(0.1)),
    "polyak": optax.polyak_sgd(1.0),
    "plateau": optax.chain(optax.sgd(0.1), optax.contrib.reduce_on_plateau(patience=5)),
}
TAKES_VALUE = {"polyak", "plateau"}


def alone(name: str, compute: Any = loss_and_gradients) -> list[float]:
    optimizer, values, losses = CASES[name], params(), []
    state, update = optimizer.init(values), jax.jit(optimizer.update)
    for _ in range(STEPS):
        loss, gradients = compute(values, X, Y)
        extra = {"value": loss} if name in TAKES_VALUE else {}
        changes, state = update(gradients, state, values, **extra)
        values = optax.apply_updates(values, changes)
        losses.append(float(loss))
    return losses


def one_step(state: Any, name: str, x: Any = X, y: Any = Y) -> Any:
    loss, gradients = loss_and_gradients(state.params, x, y)
    state.apply_gradients(gradients, **({"value": loss} if name in TAKES_VALUE else {}))
    return loss


def curve(strategy: Any, name: str) -> list[float]:
    state = rw.training.jax.TrainState(params(), CASES[name], strategy, name=name)
    return [float(one_step(state, name)) for _ in range(STEPS)]


@pytest.fixture(scope="module")
def expected() -> dict[str, list[float]]:
    return {name: alone(name) for name in CASES}


@pytest.mark.parametrize("servers", [False, True])
@pytest.mark.parametrize("name", ["schedule", "mask of paths"])
def test_each_model_of_a_program_has_the_curve_of_optax(
    expected: dict[str, list[float]], name: str, *, servers: bool
) -> None:
    """As those of a cross-validation, which have the same names."""

    def program() -> list[list[float]]:
        strategy = rw.distribute.ParameterServerStrategy()
        found = []
        for _ in range(2):
            state = rw.training.jax.TrainState(params(), CASES[name], strategy)
            found.append([float(one_step(state, name)) for _ in range(40)])
        return found

    if servers:
        with rw.testing.LocalCluster(workers=0, ps=2) as cluster:
            curves = next(iter(cluster.run(program).values()))
    else:
        curves = program()
    for each in curves:
        check(each, expected[name][:40])


def check(got: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_program_alone_has_the_curve_of_optax(
    name: str, expected: dict[str, list[float]]
) -> None:
    check(curve(rw.distribute.ParameterServerStrategy(), name), expected[name])


def test_a_worker_of_two_servers_has_the_curve_of_optax(expected: dict[str, list[float]]) -> None:
    def program() -> dict[str, list[float]]:
        strategy = rw.distribute.ParameterServerStrategy()
        return {name: curve(strategy, name) for name in CASES}

    with rw.testing.LocalCluster(workers=0, ps=2) as cluster:
        (got,) = cluster.run(program).values()
    for name, losses in got.items():
        check(losses, expected[name])


def by_halves(values: Any, x: Any, y: Any) -> Any:
    """The mean of two halves, which rounds otherwise than the whole: 200 steps carry that on."""
    halves = [loss_and_gradients(values, x[part], y[part]) for part in (slice(32), slice(32, 64))]
    return jax.tree.map(lambda *two: sum(np.asarray(one) * np.float32(0.5) for one in two), *halves)


def test_replicas_in_sync_have_the_curve_of_optax() -> None:
    """Two replicas, each with half of every batch, and the mean of their gradients and values."""
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()

        def half(array: Any) -> Any:
            return strategy.experimental_distribute_values_from_function(
                lambda context: array[32 * context.replica_id_in_sync_group :][:32]
            )

        halves = half(X), half(Y)
        for name, optimizer in CASES.items():
            state = rw.training.jax.TrainState(params(), optimizer, strategy, name=name)

            def step(x: Any, y: Any, state: Any = state, name: str = name) -> Any:
                return one_step(state, name, x, y)

            losses = [
                float(strategy.reduce("MEAN", strategy.run(step, args=halves)))
                for _ in range(STEPS)
            ]
            check(losses, alone(name, by_halves))
    finally:
        rw.config.set_logical_cpu_devices(1)


def test_what_is_frozen_by_its_path_stays_to_the_last_bit() -> None:
    state = rw.training.jax.TrainState(
        params(), CASES["labels of paths"], rw.distribute.ParameterServerStrategy()
    )
    for _ in range(5):
        one_step(state, "labels of paths")
    before = params()
    for key, changed in (("slow", False), ("hidden", True)):
        assert bool((state.params[key]["w"] != before[key]["w"]).any()) == changed


def test_a_schedule_follows_the_updates_of_its_own_state_also_in_the_next_job(
    tmp_path: Path,
) -> None:
    """Two models in turn, of which the job's global step counts all; and one made later."""

    def program() -> list[float]:
        strategy = rw.distribute.ParameterServerStrategy()
        kinds = optax.sgd(0.1), optax.sgd(SCHEDULE), optax.sgd(SCHEDULE, momentum=0.9)
        states = [
            rw.training.jax.TrainState(params(), optimizer, strategy, name=name)
            for name, optimizer in zip(("plain", "one", "other"), kinds, strict=True)
        ]
        losses = []
        for _ in range(15):
            for state, repeats in zip(states, (3, 2, 1), strict=True):
                for _ in range(repeats):
                    loss = one_step(state, "")
            losses.append(float(loss))
        return losses

    got: list[float] = []
    for _ in range(2):
        with rw.testing.LocalCluster(workers=0, ps=2, model_dir=str(tmp_path)) as cluster:
            got += next(iter(cluster.run(program).values()))
    check(got, alone("schedule")[:30])


def test_a_schedule_in_run_counts_a_step_of_several_replicas_once() -> None:
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.ParameterServerStrategy()
        assert strategy.num_replicas_in_sync == 2
        optimizer = optax.sgd(lambda count: 1.0 + count)
        state = rw.training.jax.TrainState({"w": jnp.zeros(2)}, optimizer, strategy)

        def step() -> None:
            state.apply_gradients({"w": -jnp.ones(2)})

        for number in range(1, 4):
            strategy.run(step)
            np.testing.assert_array_equal(state.refresh()["w"], number * (number + 1) / 2)
    finally:
        rw.config.set_logical_cpu_devices(1)


# -- trees of other kinds ----------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Layer:
    """Its fields are not in the order of their names."""

    weight: Any
    bias: Any
    count: int = dataclasses.field(metadata={"static": True}, default=1)


def train_both(
    tree: Any, optimizer: Any, compute: Any, only: Callable[[Any], Any] = lambda tree: tree
) -> tuple[list[float], list[float]]:
    """Losses of optax alone and of a TrainState."""
    equinox = pytest.importorskip("equinox")
    values, state, want = tree, optimizer.init(only(tree)), []
    for _ in range(STEPS):
        loss, gradients = compute(values, X, Y)
        changes, state = jax.jit(optimizer.update)(gradients, state, only(values))
        values = equinox.apply_updates(values, changes)
        want.append(float(loss))
    shared, got = rw.training.jax.TrainState(tree, optimizer), []
    for _ in range(STEPS):
        loss, gradients = compute(shared.params, X, Y)
        shared.apply_gradients(gradients)
        got.append(float(loss))
    return got, want


def weights_by_attribute(tree: Any) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: any(
            getattr(key, "name", getattr(key, "key", None)) in ("weight", "kernel") for key in path
        ),
        tree,
    )


@pytest.mark.parametrize("form", ["function", "tree"])
@pytest.mark.parametrize("kind", ["dataclass", "nnx", "equinox"])
def test_masks_fit_trees_of_any_kind(kind: str, form: str) -> None:
    only: Callable[[Any], Any] = lambda tree: tree  # noqa: E731
    key = jax.random.key(0)
    if kind == "dataclass":
        tree = {"a": Layer(jnp.asarray(X[:6, :1]), jnp.zeros(1))}
        compute = jax.jit(
            jax.value_and_grad(lambda t, x, y: jnp.mean((x @ t["a"].weight + t["a"].bias - y) ** 2))
        )
    elif kind == "nnx":
        nnx = pytest.importorskip("flax.nnx")
        model = nnx.Sequential(
            nnx.Linear(6, 8, rngs=nnx.Rngs(0)), nnx.Linear(8, 1, rngs=nnx.Rngs(1))
        )
        graph, tree = nnx.split(model)
        compute = jax.jit(
            jax.value_and_grad(lambda t, x, y: jnp.mean((nnx.merge(graph, t)(x) - y) ** 2))
        )
    else:
        eqx = pytest.importorskip("equinox")
        tree = eqx.nn.MLP(6, 1, 8, 1, activation=jnp.tanh, key=key)
        compute = eqx.filter_jit(
            eqx.filter_value_and_grad(lambda t, x, y: jnp.mean((jax.vmap(t)(x) - y) ** 2))
        )
        only = lambda tree: eqx.filter(tree, eqx.is_inexact_array)  # noqa: E731
    mask = weights_by_attribute if form == "function" else weights_by_attribute(only(tree))
    got, want = train_both(tree, optax.adamw(1e-2, weight_decay=0.3, mask=mask), compute, only)
    check(got, want)


def test_adam_on_the_servers_has_the_curve_of_a_network_of_relus() -> None:
    """Which a unit that turns on a step earlier throws off: rounding has to be that of optax."""
    eqx = pytest.importorskip("equinox")
    tree = eqx.nn.MLP(6, 1, 16, 2, key=jax.random.key(0))
    compute = eqx.filter_jit(
        eqx.filter_value_and_grad(lambda t, x, y: jnp.mean((jax.vmap(t)(x) - y) ** 2))
    )
    got, want = train_both(
        tree, optax.adam(1e-2), compute, lambda tree: eqx.filter(tree, eqx.is_inexact_array)
    )
    check(got[:100], want[:100])  # then it swings around the minimum, where the last bit decides


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(lambda w, b: {"a/b": w, "a": {"b": b}}, id="one name by two paths"),
        pytest.param(lambda w, b: {"": w, "~ b": b}, id="odd names"),
        pytest.param(lambda w, b: {1: w, 2: b}, id="numbers"),
    ],
)
def test_every_array_is_shared_whatever_its_key_is(keys: Callable[..., Any]) -> None:
    tree = keys(jnp.asarray(X[:6, :1]), jnp.zeros(1))
    compute = jax.jit(
        jax.value_and_grad(
            lambda t, x, y: jnp.mean((sum(jax.tree.leaves(jax.tree.map(
                lambda a: x @ a if a.ndim == 2 else a, t))) - y) ** 2)
        )
    )  # fmt: skip
    optimizer = optax.adamw(1e-2, weight_decay=0.3, mask=keys(True, False))
    got, want = train_both(tree, optimizer, compute)
    check(got, want)


# -- arguments of update -----------------------------------------------------------------------


def test_a_line_search_is_given_its_function() -> None:
    def value_fn(tree: Any) -> Any:
        return compute_loss(tree, X, Y)

    optimizer, values, want = optax.lbfgs(), params(), []
    state = optimizer.init(values)
    shared, got = rw.training.jax.TrainState(params(), optimizer), []
    for _ in range(10):
        loss, gradients = loss_and_gradients(values, X, Y)
        more = {"value": loss, "grad": gradients, "value_fn": value_fn}
        changes, state = optimizer.update(gradients, state, values, **more)
        values = optax.apply_updates(values, changes)
        want.append(float(loss))
        loss, gradients = loss_and_gradients(shared.params, X, Y)
        more = {"value": loss, "grad": gradients, "value_fn": value_fn}
        shared.apply_gradients(gradients, **more)
        got.append(float(loss))
    np.testing.assert_allclose(got, want, rtol=1e-4)  # each search ends where rounding lets it


def test_replicas_in_sync_take_no_functions() -> None:
    """Each would search along the loss of its own examples, and their copies would part."""
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        state = rw.training.jax.TrainState({"w": jnp.ones(3)}, optax.lbfgs(), strategy)

        def step() -> None:
            more: dict[str, Any] = {
                "value": 3.0,
                "grad": {"w": jnp.ones(3)},
                "value_fn": lambda tree: tree["w"].sum(),
            }
            state.apply_gradients({"w": jnp.ones(3)}, **more)

        with pytest.raises(rw.errors.ConfigurationError, match="value_fn="):
            strategy.run(step)
    finally:
        rw.config.set_logical_cpu_devices(1)
    np.testing.assert_array_equal(state.params["w"], 1)


def test_a_transformation_that_cannot_be_jitted_runs_without() -> None:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        scale = 0.5 if float(updates["w"][0]) > 0 else 0.1
        return jax.tree.map(lambda g: -scale * g, updates), state

    optimizer = optax.GradientTransformation(lambda _: optax.EmptyState(), update)
    state = rw.training.jax.TrainState({"w": jnp.ones(3)}, optimizer)
    state.apply_gradients({"w": jnp.ones(3)})
    state.apply_gradients({"w": -jnp.ones(3)})
    np.testing.assert_allclose(state.params["w"], 0.6)


def test_a_function_of_the_programs_that_is_called_as_one_of_optaxs_is_not_taken_for_it() -> None:
    def scale(step_size: float) -> Any:
        def update_fn(updates: Any, state: Any, params: Any = None) -> Any:
            def scaled(path: Any, g: Any) -> Any:
                return 0 * g if any(k.key == "bias" for k in path) else step_size * g

            return jax.tree_util.tree_map_with_path(scaled, updates), state

        update_fn.__qualname__ = "scale.<locals>.update_fn"
        return optax.GradientTransformation(lambda _: optax.EmptyState(), update_fn)

    tree = {"w": jnp.ones(3), "bias": jnp.ones(3)}
    state = rw.training.jax.TrainState(tree, scale(-0.5))
    assert state.worker_reason
    state.apply_gradients(tree)
    np.testing.assert_array_equal(state.params["w"], 0.5)
    np.testing.assert_array_equal(state.params["bias"], 1)


# -- leaves ------------------------------------------------------------------------------------


def test_the_parameters_of_lookahead_are_refused_before_the_first_step() -> None:
    pair = optax.LookaheadParams.init_synced(params())
    with pytest.raises(ValueError, match="takes the gradients of"):
        rw.training.jax.TrainState(pair, optax.lookahead(optax.sgd(0.1), 3, 0.5))


def test_complex_parameters_are_refused_before_the_first_step() -> None:
    with pytest.raises(ValueError, match="'w' of params is an array of complex64"):
        rw.training.jax.TrainState({"w": jnp.zeros(3, jnp.complex64)}, optax.sgd(0.1))


def test_a_gradient_of_a_python_number_says_what_to_write() -> None:
    state = rw.training.jax.TrainState({"w": jnp.zeros(3), "b": 0.0}, optax.sgd(0.1))
    with pytest.raises(ValueError, match=r"make it a jnp\.asarray"):
        state.apply_gradients({"w": jnp.ones(3), "b": jnp.ones(())})


def test_float64_of_numpy_is_what_jax_makes_of_it() -> None:
    state = rw.training.jax.TrainState({"w": np.zeros(3)}, optax.sgd(0.1))
    assert state.store.pull()["w"].dtype == np.float32


def test_a_state_that_the_servers_have_cannot_be_assigned() -> None:
    state = rw.training.jax.TrainState({"w": np.zeros(3)}, optax.sgd(0.1))
    assert state.opt_state is None
    with pytest.raises(ValueError, match="runs on the servers"):
        state.opt_state = ()


def test_assigned_parameters_are_refused_by_what_the_optimizer_can_do_instead() -> None:
    """As WGAN clips its weights after each step."""

    def clip(tree: Any) -> Any:
        return jax.tree.map(lambda value: jnp.clip(value, -0.2, 0.2), tree)

    def clipped(updates: Any, values: Any) -> Any:
        return jax.tree.map(lambda u, p: jnp.clip(p + u, -0.2, 0.2) - p, updates, values)

    optimizer = optax.chain(optax.sgd(0.1), optax.stateless(clipped))
    state = rw.training.jax.TrainState(params(), optimizer, rw.distribute.ParameterServerStrategy())
    with pytest.raises(rw.errors.ConfigurationError, match=r"optax\.stateless"):
        state.params = clip(state.params)
    values = params()
    for _ in range(10):
        one_step(state, "")
        _, gradients = loss_and_gradients(values, X, Y)
        values = clip(jax.tree.map(lambda p, g: p - 0.1 * g, values, gradients))
    for mine, theirs in zip(jax.tree.leaves(state.params), jax.tree.leaves(values), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_a_step_in_a_jitted_function_says_to_take_it_out() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    for name, optimizer in (("servers", optax.sgd(0.1)), ("worker", optax.amsgrad(0.1))):
        state = rw.training.jax.TrainState(params(), optimizer, strategy, name=name)
        with pytest.raises(rw.errors.ConfigurationError, match="outside of it"):
            jax.jit(lambda state=state: one_step(state, ""))()
        one_step(state, "")  # whose parameters are no part of the function that was traced


def test_parameters_that_a_jitted_function_reads_can_be_read_after_it() -> None:
    state = rw.training.jax.TrainState(params(), optax.sgd(0.1))
    first = jax.jit(lambda: sum(leaf.sum() for leaf in jax.tree.leaves(state.params)))()
    again = sum(leaf.sum() for leaf in jax.tree.leaves(state.params))
    np.testing.assert_allclose(first, again, rtol=1e-5)
