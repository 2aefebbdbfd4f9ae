"""A store of named arrays: trees in and out, the rule's updates, deltas of several workers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.calls import Calls
from ropewalk.core.errors import ConfigurationError, UnknownVariableError
from ropewalk.distribute.base.moved_average import MovedAverage
from ropewalk.engine.update_kernel import UpdateKernel
from ropewalk.training import ArrayStore
from ropewalk.training.array_store import ModelStep

F32 = np.float32


def tree() -> dict[str, Any]:
    return {
        "layers": [
            {"w": np.ones((3, 2), F32), "b": np.zeros(2, F32)},
            {"w": np.full((2, 1), 2, F32)},
        ],
        "scale": np.array(4, F32),
    }


def ones_like(values: Any) -> Any:
    return {
        "layers": [
            {name: np.ones_like(v) for name, v in layer.items()} for layer in values["layers"]
        ],
        "scale": np.ones_like(values["scale"]),
    }


STRATEGIES: dict[str, Callable[[], rw.distribute.Strategy]] = {
    "servers": rw.distribute.ParameterServerStrategy,
    "mirrored": rw.distribute.MirroredStrategy,
    "default": rw.distribute.get_strategy,
}
each_strategy = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())


@each_strategy
def test_names_are_paths_and_values_come_back_as_the_tree(make: Callable[[], Any]) -> None:
    store = ArrayStore(tree(), rw.optimizers.SGD(0.5), make(), name="net")
    assert sorted(store.names) == [
        "net/layers/0/b", "net/layers/0/w", "net/layers/1/w", "net/scale",
    ]  # fmt: skip
    values = store.pull()
    assert values["layers"][1]["w"].tolist() == [[2], [2]]
    assert list(store.pull(["net/scale"])) == ["net/scale"]


@each_strategy
def test_a_push_applies_the_rule_and_a_delta_is_added(make: Callable[[], Any]) -> None:
    store = ArrayStore(tree(), rw.optimizers.SGD(0.5), make())
    store.push(ones_like(tree()))
    store.push_delta({"layers/1/w": np.full((2, 1), 10, F32)})
    values = store.pull()
    assert values["layers"][0]["w"].tolist() == np.full((3, 2), 0.5).tolist()
    assert values["layers"][1]["w"].tolist() == [[11.5], [11.5]]
    store.assign({"scale": np.array(7, F32)})
    assert store.pull(["scale"])["scale"] == 7


@each_strategy
def test_an_exchange_is_one_step_and_brings_what_came_of_it(make: Callable[[], Any]) -> None:
    store = ArrayStore({"w": np.zeros(3, F32)}, rw.optimizers.SGD(1.0), make())
    for number in range(1, 4):
        values = store.exchange({"w": np.ones(3, F32)})
        assert values["w"].tolist() == [-number] * 3
    if isinstance(store.strategy, rw.distribute.ParameterServerStrategy):
        assert store.step == 3


def test_an_exchange_takes_one_round_trip_per_server() -> None:
    def program() -> int:
        strategy = rw.distribute.ParameterServerStrategy()
        store = ArrayStore(
            {f"w{i}": np.zeros(3, F32) for i in range(20)}, rw.optimizers.SGD(1.0), strategy
        )
        gradients = {name: np.ones(3, F32) for name in store.names}
        store.exchange(gradients)  # binds the rule
        before = [server.store.counters().pushes for server in cluster.servers]
        sent = strategy.extended.runtime.progress.pushes
        for _ in range(10):
            store.exchange(gradients)
        assert strategy.extended.runtime.progress.pushes == sent + 10
        after = [server.store.counters().pushes for server in cluster.servers]
        return sum(after) - sum(before)

    with rw.testing.LocalCluster(workers=0, ps=2) as cluster:
        assert list(cluster.run(program).values()) == [20]


def test_deltas_of_several_workers_add_up_whatever_their_order() -> None:
    """Each worker's own optimizer, here a momentum of its own, adds what it has computed."""

    def program() -> float:
        strategy = rw.distribute.ParameterServerStrategy()
        store = ArrayStore({"w": np.zeros(4, F32)}, None, strategy)
        velocity, moved = 0.0, 0.0

        def update(gradients: dict[str, Any]) -> dict[str, Any]:
            nonlocal velocity, moved
            velocity = 0.5 * velocity + float(gradients["w"][0])
            moved -= 0.25 * velocity
            return {"w": np.full(4, -0.25 * velocity, F32)}

        for _ in range(20):
            store.exchange(
                ModelStep({"w": np.full(4, 1 + strategy.task_index, F32)}, update=update)
            )
        strategy.barrier()
        total = store.pull()["w"]
        assert len(set(total.tolist())) == 1
        return float(total[0]) - moved

    with rw.testing.LocalCluster(workers=2, ps=2) as cluster:
        others = list(cluster.run(program).values())
    # Everybody sees the sum of all three, so what the others moved adds up to twice the sum.
    velocity, moved = 0.0, 0.0
    for _ in range(20):
        velocity = 0.5 * velocity + 1
        moved -= 0.25 * velocity
    assert sum(others) == pytest.approx(2 * (1 + 2 + 3) * moved, rel=1e-5)


def test_an_own_optimizer_runs_in_an_exchange_under_a_mirrored_strategy() -> None:
    strategy = rw.distribute.MirroredStrategy()
    store = ArrayStore({"w": np.zeros(2, F32)}, None, strategy, mean=True)
    store.exchange(ModelStep({"w": np.ones(2, F32)}, update=lambda g: {"w": -g["w"]}))
    assert store.pull()["w"].tolist() == [-1, -1]


@pytest.mark.parametrize(("mean", "expected"), [(True, -2.0), (False, -4.0)], ids=["mean", "sum"])
def test_two_replicas_reduce_gradients_and_what_their_optimizer_is_given(
    mean: bool, expected: float
) -> None:
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        rule = ArrayStore(
            {"w": np.zeros(2, F32)}, rw.optimizers.SGD(1.0), strategy, name="rule", mean=mean
        )
        own = ArrayStore({"w": np.zeros(2, F32)}, None, strategy, name="own", mean=mean)
        asked: list[int] = []

        def update(gradients: dict[str, Any]) -> dict[str, Any]:
            asked.append(1)
            return {name: -g for name, g in gradients.items()}

        def step() -> None:
            context = rw.distribute.get_replica_context()
            assert context is not None
            gradient = np.full(2, 1 + 2 * context.replica_id_in_sync_group, F32)
            rule.push({"rule/w": gradient})
            own.push_by(update, {"own/w": gradient})

        strategy.run(step)
        assert asked == [1]
        assert rule.pull()["w"].tolist() == own.pull()["w"].tolist() == [expected] * 2
        with pytest.raises(RuntimeError, match="2 replicas in this process"):
            rule.exchange({"rule/w": np.ones(2, F32)})
    finally:
        rw.config.set_logical_cpu_devices(1)


@pytest.mark.parametrize("name", ["MirroredStrategy", "ParameterServerStrategy"])
def test_a_store_of_a_worker_is_given_what_its_replicas_made_together(name: str) -> None:
    """Gradients, rows and deltas count once; each exchange is one step."""
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy: Any = getattr(rw.distribute, name)()
        with strategy.scope():
            table: Any = rw.Variable(np.zeros((4, 2), F32), name="table")
        rule = rw.optimizers.SGD(1.0)
        store = ArrayStore(
            {"w": np.zeros(3, F32), "average": np.zeros(1, F32)},
            {"w": rule, "table": rule},
            strategy,
            mean=True,
            of_worker=True,
            tables={"table": table},
        )
        rows = {"table": rw.IndexedSlices(np.ones((2, 2), F32), np.array([1, 1]))}
        ones = {"w": np.ones(3, F32)}
        values = store.exchange(
            ModelStep(ones, rows=rows, assigned={"average": np.full(1, 7, F32)})
        )
        assert values["w"].tolist() == [-1, -1, -1]
        assert values["average"].tolist() == [7]
        assert store.pull_rows("table", [0, 1])[:, 0].tolist() == [0, -2]
        values = store.exchange(ModelStep(ones, update=lambda g: {"w": 10 * g["w"]}, rows=rows))
        assert values["w"].tolist() == [9, 9, 9]
        assert store.pull_rows("table", [1])[0, 0] == -4
        assert strategy.global_step == 2
    finally:
        rw.config.set_logical_cpu_devices(1)


def test_rows_alone_are_read_and_pushed_of_a_table_made_on_the_servers() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        table = rw.Variable(initializer="ones", shape=(1000, 4), name="table")
    store = ArrayStore({"table": table}, rw.optimizers.SGD(1.0), strategy)
    store.push({"table": rw.IndexedSlices(np.ones((2, 4), F32), np.array([3, 3]))})
    store.push_delta({"table": rw.IndexedSlices(np.ones((1, 4), F32), np.array([5]))})
    assert store.pull_rows("table", [3, 4, 5])[:, 0].tolist() == [-1, 1, 2]


def test_in_run_reads_are_of_the_step_and_pushes_travel_at_its_end() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    store = ArrayStore({"w": np.zeros(2, F32)}, rw.optimizers.SGD(1.0), strategy)

    def step() -> tuple[Any, Any]:
        before = store.pull()["w"]
        store.push({"w": np.ones(2, F32)})
        return before, store.pull()["w"]

    before, after = strategy.run(step)
    assert before.tolist() == after.tolist() == [0, 0]
    assert store.pull()["w"].tolist() == [-1, -1]
    with pytest.raises(RuntimeError, match="exchange is a step of its own"):
        strategy.run(lambda: store.exchange({"w": np.ones(2, F32)}))


def test_a_gradient_of_none_is_left_out_and_arrays_may_have_optimizers_of_their_own() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    store = ArrayStore(
        {"a": np.zeros(1, F32), "b": np.zeros(1, F32), "c": np.zeros(1, F32)},
        {"a": rw.optimizers.SGD(1.0), "b": rw.optimizers.SGD(0.5)},
        strategy,
    )
    values = store.exchange({"a": np.ones(1, F32), "b": np.ones(1, F32), "c": None})
    assert [float(values[name][0]) for name in "abc"] == [-1, -0.5, 0]
    with pytest.raises(ConfigurationError, match="'c' has no optimizer in this store"):
        store.push({"c": np.ones(1, F32)})


def test_mistakes_are_named() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    store = ArrayStore({"w": np.zeros(2, F32)}, rw.optimizers.SGD(1.0), strategy)
    with pytest.raises(UnknownVariableError, match="no array 'v'; it has 'w'"):
        store.push({"v": np.zeros(2, F32)})
    with pytest.raises(ValueError, match="not that of its values"):
        store.push([np.zeros(2, F32)])
    with pytest.raises(rw.errors.ShapeMismatchError, match="'w'"):
        store.exchange({"w": np.zeros(3, F32)})
    with pytest.raises(ValueError, match="two arrays of the tree have the name 'a/b'"):
        ArrayStore({"a": {"b": np.zeros(1)}, "a/b": np.zeros(1)}, None, strategy, name="")
    other = rw.distribute.MirroredStrategy()
    with pytest.raises(ValueError, match="under another strategy"):
        ArrayStore({"w": store.variables["w"]}, None, other)


@each_strategy
def test_a_second_store_of_the_same_names_has_variables_of_its_own(make: Callable[[], Any]) -> None:
    """As for each fold of a cross-validation: some names that are taken move all of them."""
    strategy = make()
    first = ArrayStore({"w": np.zeros(2, F32)}, rw.optimizers.SGD(1.0), strategy)
    second = ArrayStore(
        {"w": np.ones(2, F32), "b": np.ones(1, F32)}, rw.optimizers.SGD(1.0), strategy
    )
    assert second.names == ["b", "w"]
    if strategy is not rw.distribute.get_strategy():  # whose variables may have one name
        assert {v.name for v in second.variables.values()} == {"model_2/b", "model_2/w"}
    second.push({"w": np.ones(2, F32), "b": None})
    assert second.pull()["w"].tolist() == [0, 0]
    first.push({"w": np.ones(2, F32)})
    assert (first.pull()["w"].tolist(), second.pull()["w"].tolist()) == ([-1, -1], [0, 0])


@each_strategy
def test_where_a_creator_finds_variables_by_name_a_second_store_has_the_same(
    make: Callable[[], Any],
) -> None:
    """As the second training of an Estimator: it goes on with the variables of the first."""
    strategy, made = make(), dict[str, rw.Variable]()

    def find(next_creator: Callable[..., rw.Variable], **given: Any) -> rw.Variable:
        name = given["name"]
        return made[name] if name in made else made.setdefault(name, next_creator(**given))

    with rw.variable_creator_scope(find):
        first, second = (
            ArrayStore({"w": np.zeros(2, F32)}, rw.optimizers.SGD(1.0), strategy) for _ in range(2)
        )
    assert list(made) == ["w"]
    assert second.variables["w"] is first.variables["w"]


def test_gradients_in_any_order_are_updated_by_one_call_of_a_kernel(
    calls: Calls,
) -> None:
    """Small arrays stand in one block, in the store's order; pushed so, all are one update."""
    store = ArrayStore(
        {f"v{i}": np.ones(4, F32) for i in range(8)},
        rw.optimizers.Adam(0.1),
        rw.distribute.ParameterServerStrategy(),
    )
    gradients = {f"v{i}": np.full(4, i + 1, F32) for i in reversed(range(8))}
    store.exchange(gradients)
    kernels = calls.noted(UpdateKernel, "__call__")
    values = store.exchange(gradients)
    assert len(kernels) == 1
    np.testing.assert_allclose([values[f"v{i}"][0] for i in range(8)], 0.8, rtol=1e-4)


def test_with_prefetch_an_exchange_does_not_wait_for_its_push_and_none_is_lost() -> None:
    strategy = rw.distribute.ParameterServerStrategy(prefetch=True)
    store = ArrayStore({"w": np.zeros(4, F32)}, rw.optimizers.SGD(1.0), strategy)
    seen = [float(store.exchange({"w": np.ones(4, F32)})["w"][0]) for _ in range(10)]
    # Each brings what arrived meanwhile: at least what the step before the last one made.
    assert all(-step <= value <= 2 - step for step, value in enumerate(seen, 1))
    strategy.barrier()
    assert store.pull()["w"].tolist() == [-10] * 4


def test_deltas_that_are_not_finite_change_nothing_and_end_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker's optimizer would ruin the values of all."""
    monkeypatch.setenv("ROPEWALK_NONFINITE_LIMIT", "3")
    store = ArrayStore({"w": np.ones(4, F32)}, None, rw.distribute.ParameterServerStrategy())

    def update(gradients: dict[str, Any]) -> dict[str, Any]:
        return gradients

    for factor in (np.nan, np.nan, 1.0, np.inf, np.nan):  # never three in a row
        values = store.exchange(ModelStep({"w": np.full(4, factor, F32)}, update=update))
        assert np.isfinite(values["w"]).all()
    assert store.pull()["w"].tolist() == [2.0] * 4
    with pytest.raises(rw.errors.NonFiniteGradientError, match=r"an optimizer on the worker.*'w'"):
        store.exchange(ModelStep({"w": np.full(4, np.nan, F32)}, update=update))


# -- moving averages -------------------------------------------------------------------------


def moved(before: Any, x: float, decay: float = 0.25) -> MovedAverage:
    return MovedAverage(before, ((1 - decay) * before + decay * np.asarray(x, F32)), decay)


@each_strategy
def test_averages_go_on_from_where_a_step_took_them(make: Callable[[], Any]) -> None:
    store = ArrayStore(
        {"w": np.zeros(2, F32), "mean": np.full(2, 8, F32), "seen": np.array(0)},
        {"w": rw.optimizers.SGD(1.0, global_clipnorm=1.0)},
        make(),
    )
    for number in range(1, 4):
        values = store.pull()
        counted = MovedAverage(values["seen"], np.asarray(values["seen"] + 1), 0.0)
        values = store.exchange(
            ModelStep(
                {"w": np.full(2, 30, F32)},
                averages={"mean": moved(values["mean"], 4.0), "seen": counted},
            )
        )
        # The norm that is clipped is that of gradients alone.
        np.testing.assert_allclose(values["w"], -number * np.sqrt(0.5), rtol=1e-6)
        np.testing.assert_allclose(values["mean"], 4 + 4 * 0.75**number, rtol=1e-6)
        assert values["seen"] == number


@pytest.mark.parametrize("prefetch", [False, True], ids=["waits", "prefetch"])
def test_averages_travel_with_gradients_of_whatever_rate(prefetch: bool) -> None:
    """One push a step, and with ``prefetch`` none is waited for on their account."""
    strategy = rw.distribute.ParameterServerStrategy(prefetch=prefetch)
    rule = rw.optimizers.SGD(1.0)
    store = ArrayStore({"w": np.zeros(2, F32), "mean": np.zeros(2, F32)}, {"w": rule}, strategy)
    values = store.exchange({"w": np.ones(2, F32)})
    progress = strategy.extended.runtime.progress
    before = progress.pushes
    for number in range(1, 11):
        rule.learning_rate = 1 / number
        averages = {"mean": moved(values["mean"], 4.0)}
        values = store.exchange(ModelStep({"w": np.ones(2, F32)}, averages=averages))
    assert progress.pushes == before + 10
    strategy.barrier()
    np.testing.assert_allclose(store.pull()["mean"], 4 - 4 * 0.75**10, rtol=1e-6)
    assert strategy.global_step == 11


@pytest.mark.parametrize(
    "name",
    [
        "ParameterServerStrategy",
        pytest.param("MultiWorkerMirroredStrategy", marks=pytest.mark.annex("ring")),
    ],
)
@pytest.mark.parametrize("own", [False, True], ids=["rule", "own-optimizer"])
def test_nan_of_a_gradient_changes_no_average(own: bool, name: str) -> None:
    strategy: Any = getattr(rw.distribute, name)()
    first = {"w": np.ones(2, F32), "mean": np.ones(2, F32)}
    rule = {} if own else {"w": rw.optimizers.SGD(1.0)}
    store = ArrayStore(first, rule, strategy)
    for gradient, expected in ((np.nan, 1.0), (1.0, 1.25)):
        values = store.exchange(
            ModelStep(
                {"w": np.full(2, gradient, F32)},
                update=(lambda given: given) if own else None,
                averages={"mean": moved(first["mean"], 2.0)},
            )
        )
        assert values["mean"].tolist() == [expected] * 2


@pytest.mark.parametrize("gradient", [1.0, np.nan], ids=["of-an-average", "of-a-gradient"])
def test_nan_changes_no_average_and_no_value(gradient: float) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    first = {name: np.ones(2, F32) for name in ("w", "mean", "own")}
    store = ArrayStore(first, {"w": rw.optimizers.SGD(1.0)}, strategy)
    average = moved(first["mean"], 2.0 if np.isnan(gradient) else np.nan)
    values = store.exchange(ModelStep({"w": np.full(2, gradient, F32)}, averages={"mean": average}))
    assert {name: each.tolist() for name, each in values.items()} == {
        name: [1, 1] for name in first
    }
    assert strategy.global_step == 0
    values = store.exchange(
        ModelStep(
            {"w": np.full(2, gradient, F32)},
            averages={"mean": average},
            assigned={"own": np.full(2, 5, F32)},
        )
    )
    assert values["mean"].tolist() == [1, 1]
    assert values["own"].tolist() == [5, 5]


def test_averages_of_a_layer_that_did_not_compute_stay_what_others_made_of_them() -> None:
    store = ArrayStore({"mean": np.zeros(2, F32)}, None, rw.distribute.ParameterServerStrategy())
    old = np.zeros(2, F32)
    store.exchange(ModelStep({}, averages={"mean": moved(old, 4.0)}))
    values = store.exchange(ModelStep({}, averages={"mean": MovedAverage(old, old.copy(), 0.25)}))
    assert values["mean"].tolist() == [1, 1]


def test_replicas_of_a_process_move_an_average_once() -> None:
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        rule = rw.optimizers.SGD(1.0)
        store = ArrayStore(
            {"w": np.zeros(2, F32), "mean": np.zeros(2, F32)}, {"w": rule}, strategy, of_worker=True
        )
        for update in (None, lambda given: given):
            values = store.pull()
            values = store.exchange(
                ModelStep(
                    {"w": np.ones(2, F32)},
                    update=update,
                    averages={"mean": moved(values["mean"], 4.0)},
                )
            )
        assert values["mean"].tolist() == [1.75, 1.75]
    finally:
        rw.config.set_logical_cpu_devices(1)


def test_an_optimizer_of_several_replicas_in_a_process_has_its_state_in_checkpoints() -> None:
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        with strategy.scope():
            state = rw.Variable(np.zeros((), F32), name="state", trainable=False)
        store = ArrayStore(
            {"w": np.zeros(2, F32)}, None, strategy, of_worker=True, tables={"state": state}
        )
        store.exchange(
            ModelStep(
                {"w": np.ones(2, F32)},
                update=lambda given: given,
                kept=lambda: {"state": np.array(7, F32)},
            )
        )
        assert state.numpy() == 7
    finally:
        rw.config.set_logical_cpu_devices(1)


def test_all_that_an_optimizer_of_the_worker_has_made_travels_in_one_push(
    calls: Calls,
) -> None:
    """Deltas of arrays, of arrays in parts and of rows, and what is overwritten beside them."""
    cut = rw.distribute.experimental.partitioners.FixedShardsPartitioner(2)
    strategy = rw.distribute.ParameterServerStrategy(variable_partitioner=cut)
    first = {"w": np.zeros((4, 2), F32), "b": np.zeros((), F32), "seen": np.zeros((), np.int64)}
    store = ArrayStore(first, None, strategy)
    made = {
        "w": rw.IndexedSlices(np.ones((3, 2)), np.array([1, 3, 1])),  # float64, and a row twice
        "b": np.asarray(2.0, F32),
    }
    session = strategy.extended.runtime.session
    pushes = calls.noted(session, "begin")
    values = store.exchange(
        ModelStep(
            {"b": np.ones((), F32)},
            update=lambda _: made,
            kept=lambda: {"seen": np.asarray(1, np.int64)},
        )
    )
    assert values["w"][:, 0].tolist() == [0, 2, 0, 1]
    assert (float(values["b"]), int(values["seen"])) == (2, 1)
    assert (len(pushes), strategy.global_step) == (1, 1)
    with pytest.raises(rw.errors.ShapeMismatchError, match=r"assign_add of 'b' .*shape \(3,\)"):
        store.exchange(ModelStep({}, update=lambda _: {"b": np.ones(3, F32)}))
    assert float(store.exchange(ModelStep({}, update=lambda _: {"b": np.ones((), F32)}))["b"]) == 3
