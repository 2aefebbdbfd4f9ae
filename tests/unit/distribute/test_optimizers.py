"""Optimizers as programs use them: hyperparameters that change, clipping, rules of one's own.

Every case runs with parameter servers (one, and three with a cut variable) and without.
"""

import importlib
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step, Write
from ropewalk.core.errors import RefusedError
from ropewalk.core.rules.known_rules import import_rules, rule_from_dict
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire import codec
from ropewalk.core.wire.steps import Operation, StepRequest
from ropewalk.distribute import ParameterServerStrategy, partitioners
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.distribute.optimizers import SGD, Adagrad, Adam, CosineDecay, RMSprop, register_rule
from ropewalk.distribute.runtime import local_runtime
from ropewalk.server.ps.store import Store

ONES = np.ones(6, np.float32)

untyped: Any = rw.optimizers  # as a program without a type checker has it


def with_servers(ps: int) -> Any:
    alone: Any = ParameterServerStrategy().extended
    cut = partitioners.FixedShardsPartitioner(ps) if ps > 1 else None
    runtime = local_runtime(alone.runtime.task, num_ps=ps)
    return ParameterServerStrategy(variable_partitioner=cut, runtime=runtime)


STRATEGIES: dict[str, Callable[[], Any]] = {
    "one-ps": lambda: with_servers(1),
    "three-ps": lambda: with_servers(3),
    "mirrored": rw.distribute.MirroredStrategy,
    "default": rw.distribute.get_strategy,
}
strategies = pytest.mark.parametrize("make", STRATEGIES.values(), ids=STRATEGIES.keys())


def variable(strategy: Any, value: Any = None) -> rw.Variable:
    with strategy.scope():
        return rw.Variable(np.zeros(6, np.float32) if value is None else value, name="w")


def apply(strategy: Any, optimizer: rw.optimizers.Optimizer, w: rw.Variable, g: Any = -ONES) -> Any:
    strategy.run(lambda: optimizer.apply_gradients([(g, w)]))
    return w.numpy()


@strategies
def test_an_assigned_rate_counts_from_the_next_update_on(make: Callable[[], Any]) -> None:
    strategy = make()
    w, optimizer = variable(strategy), SGD(1.0)
    seen = []
    rates: tuple[Any, ...] = (None, 0.5, None, 2, np.float32(0.25))
    for rate in rates:
        if rate is not None:
            optimizer.learning_rate = rate
        seen.append(float(apply(strategy, optimizer, w)[5]))
    assert seen == [1, 1.5, 2, 4, 4.25]
    assert optimizer.learning_rate == 0.25
    assert optimizer.iterations == 5
    assert optimizer.variables == (w,)


@strategies
def test_other_scalars_change_too_and_slots_go_on(make: Callable[[], Any]) -> None:
    strategy = make()
    w, optimizer = variable(strategy), SGD(1.0, momentum=0.5)
    apply(strategy, optimizer, w)
    optimizer.momentum = 0.25
    assert apply(strategy, optimizer, w)[0] == 1 + 1.25
    optimizer.clipvalue = 0.5
    assert apply(strategy, optimizer, w)[0] == 2.25 + (0.25 * 1.25 + 0.5)
    optimizer.clipvalue = None
    assert optimizer.clipvalue is None


@strategies
def test_a_callable_rate_is_asked_at_each_update(make: Callable[[], Any]) -> None:
    strategy = make()
    w, optimizer = variable(strategy), SGD(lambda step: step + 1.0)
    assert [float(apply(strategy, optimizer, w)[0]) for _ in range(3)] == [1, 3, 6]
    assert float(optimizer.learning_rate) == 4, "that of the step to come"
    rate = SimpleNamespace(now=0.5)
    optimizer.learning_rate = lambda: rate.now
    assert apply(strategy, optimizer, w)[0] == 6.5
    rate.now = 0.25
    assert apply(strategy, optimizer, w)[0] == 6.75
    optimizer.learning_rate = 1.0
    assert apply(strategy, optimizer, w)[0] == 7.75
    optimizer.learning_rate = CosineDecay(2.0, 100)
    expected = 7.75 + CosineDecay(2.0, 100)(6)
    np.testing.assert_allclose(apply(strategy, optimizer, w)[0], expected, rtol=1e-6)


def test_schedules_of_keras_and_optax_are_callables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERAS_BACKEND", "numpy")
    keras, optax = importlib.import_module("keras"), importlib.import_module("optax")
    arguments = {"decay_steps": 4, "decay_rate": 0.5}
    of_keras = keras.optimizers.schedules.ExponentialDecay(0.5, **arguments)
    of_optax = optax.exponential_decay(0.5, 4, 0.5)
    values = []
    for rate in (of_keras, of_optax, rw.optimizers.ExponentialDecay(0.5, 4, 0.5)):
        strategy = with_servers(1)
        w, optimizer = variable(strategy), SGD(rate)
        values.append([apply(strategy, optimizer, w)[0] for _ in range(5)])
    np.testing.assert_allclose(values[0], values[2], rtol=1e-5)
    np.testing.assert_allclose(values[1], values[2], rtol=1e-5)


def test_optimizers_with_other_hyperparameters_share_a_step() -> None:
    strategy = with_servers(1)
    with strategy.scope():
        a, b = rw.Variable([0.0], name="a"), rw.Variable([0.0], name="b")
    first, second = SGD(1.0), SGD(1.0)
    second.learning_rate = 0.5

    def step() -> None:
        first.apply_gradients([([-1.0], a)])
        second.apply_gradients([([-1.0], b)])

    strategy.run(step)
    strategy.run(step)
    assert (a[0], b[0], strategy.global_step) == (2, 1, 2)


def test_workers_have_hyperparameters_of_their_own() -> None:
    store = Store(TaskId("ps", 0), Settings())
    alone: Any = ParameterServerStrategy().extended
    found = []
    for index, rate in enumerate((1.0, 0.25)):
        who = Incarnation(TaskId("worker", index), 1)
        session = ParameterSession([LocalPs(store.task, who, Settings(), store)], who, Settings())
        runtime = rw.distribute.runtime.ClusterRuntime(alone.runtime.task, Settings(), session)
        strategy = ParameterServerStrategy(runtime=runtime)
        w, optimizer = variable(strategy), SGD(1.0)
        optimizer.learning_rate = rate
        found.append((strategy, optimizer, w))
    seen = [float(apply(*found[index])[0]) for index in (0, 1, 0, 1)]
    assert seen == [1, 1.25, 2.25, 2.5]


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: Adam(-1), r"Adam\(learning_rate=-1\) is not allowed: it should be greater than"),
        (lambda: SGD(math.nan), "should be a finite number"),
        (lambda: Adam(beta_1=1.0), r"Adam\(beta_1=1.0\) is not allowed: it should be less than 1"),
        (lambda: SGD(clipnorm=0), r"clipnorm=0\) is not allowed: it should be greater than 0"),
        (lambda: SGD(lr=1), "SGD has no argument 'lr'; it has learning_rate,"),  # type: ignore[call-arg]
        (lambda: setattr(Adam(), "epsilon", -1), r"epsilon=-1\) is not allowed"),
        (lambda: setattr(SGD(), "momentum", 0.9), "momentum=0.9 needs other slot variables"),
        (lambda: setattr(Adagrad(), "initial_accumulator_value", 1), "how slot variables begin"),
        (lambda: apply(rw.distribute.get_strategy(), SGD(lambda: -1), variable(with_default())),
         "the callable for learning_rate returned -1.0 at step 0"),
    ],
)  # fmt: skip
def test_what_is_not_allowed_is_a_value_error_that_says_what_is(
    construct: Callable[[], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        construct()


@pytest.mark.parametrize(
    ("construct", "message"),
    [
        (lambda: untyped.Adam("0.1"), r"Adam\(learning_rate='0.1'\) is not allowed: "
         "'0.1' is a str, give a number, a schedule or a callable$"),
        (lambda: untyped.Adam(True), "True is a bool, give a number, a schedule"),
        (lambda: untyped.Adam(None), "valid number, or be a schedule or a callable"),
        (lambda: untyped.SGD([0.1]), "valid number, or be a schedule or a callable"),
        (lambda: untyped.SGD(momentum="0.9"), "'0.9' is a str, give a number$"),
        (lambda: untyped.SGD(nesterov="yes"), "'yes' is a str, give True or False$"),
        (lambda: untyped.SGD(clipnorm="1"), "'1' is a str, give a number$"),
        (lambda: setattr(Adam(), "learning_rate", "0.1"), "'0.1' is a str"),
        (lambda: setattr(Adam(), "epsilon", False), "False is a bool"),
        (lambda: untyped.ExponentialDecay("0.1", 100, 0.9), "initial_learning_rate='0.1'"),
        (lambda: untyped.PiecewiseConstantDecay(["1"], [1, 2]), "boundaries=.*'1' is a str"),
        (lambda: apply(rw.distribute.get_strategy(), SGD(lambda: "0.1"), variable(with_default())),
         "learning_rate returned '0.1', a str, at step 0"),
    ],
)  # fmt: skip
def test_text_and_bools_for_numbers_are_a_type_error_that_says_what_to_give(
    construct: Callable[[], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=message):
        construct()


def test_numbers_of_any_kind_are_taken() -> None:
    assert SGD(1).learning_rate == 1.0
    assert untyped.Adam(np.float32(0.5), epsilon=np.float64(1e-3)).learning_rate == 0.5
    assert untyped.SGD(0.1, momentum=np.array(0.5), nesterov=np.True_).momentum == 0.5


def with_default() -> Any:
    return rw.distribute.get_strategy()


@pytest.mark.parametrize("name", ["lr", "learning_rates", "name", "beta_1", "rule", "iterations"])
def test_unknown_attributes_raise_when_they_are_set(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(SGD(), name, 0.1)
    with pytest.raises(AttributeError, match="has no attribute 'lr'; its hyperparameters are"):
        SGD().lr  # noqa: B018


@strategies
def test_each_gradient_is_clipped_to_its_norm(make: Callable[[], Any]) -> None:
    strategy = make()
    with strategy.scope():
        a = rw.Variable(np.zeros(2, np.float32), name="a")
        b = rw.Variable(np.zeros((3, 1), np.float32), name="b")
    optimizer = SGD(1.0, clipnorm=1.0)
    rows = rw.IndexedSlices(np.array([[-2.0], [-1.0]], np.float32), np.array([1, 1]))

    def step() -> None:
        optimizer.apply_gradients([(np.array([-3.0, -4.0], np.float32), a), (rows, b)])

    strategy.run(step)
    np.testing.assert_allclose(a.numpy(), [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(b.numpy(), [[0], [1], [0]], rtol=1e-6)
    optimizer.clipnorm = 10.0
    strategy.run(step)
    np.testing.assert_allclose(a.numpy(), [3.6, 4.8], rtol=1e-6)


# -- rules of one's own ------------------------------------------------------------------------


def leaky(w: Any, g: Any, slots: dict[str, Any], h: Any) -> Any:
    """Momentum that leaks, times the number of the update."""
    m = slots["m"] = h.leak * slots["m"] + g
    return w - h.learning_rate * h.t * m


Leaky = register_rule("Leaky", leaky, slots={"m": 1.0}, learning_rate=1.0, leak=0.5)


@strategies
def test_a_rule_of_ones_own_runs_where_the_variables_are(make: Callable[[], Any]) -> None:
    strategy = make()
    w, optimizer = variable(strategy), Leaky(leak=0.25, clipvalue=0.5)
    assert apply(strategy, optimizer, w)[0] == -(0.25 - 0.5)
    optimizer.leak = 0.0
    optimizer.learning_rate = 2.0
    assert apply(strategy, optimizer, w)[5] == 0.25 + 2 * 2 * 0.5
    with pytest.raises(ValueError, match=r"Leaky\(learning_rate=-1\.0\)"):
        optimizer.learning_rate = -1.0


def test_a_rule_of_ones_own_takes_rows() -> None:
    strategy = with_servers(2)
    w = variable(strategy, np.zeros((4, 2), np.float32))
    rows = rw.IndexedSlices(-np.ones((2, 2), np.float32), np.array([3, 0]))
    apply(strategy, Leaky(leak=0.0), w, rows)
    assert w.numpy().tolist() == [[1, 1], [0, 0], [0, 0], [1, 1]]


def test_registering_again_is_nothing_new_and_another_rule_of_the_name_is_refused() -> None:
    register_rule("Leaky", leaky, slots={"m": 1.0}, learning_rate=1.0, leak=0.5)
    with pytest.raises(ValueError, match="another update rule 'Leaky' is registered"):
        register_rule("Leaky", leaky, slots={"m": 0.0}, learning_rate=1.0, leak=0.5)
    for name in ("Adam", "my rule"):
        with pytest.raises(ValueError, match="cannot name a rule"):
            register_rule(name, leaky)


@pytest.mark.parametrize("name", ["clipnorm", "t", "rate", "scalars"])
def test_a_hyperparameter_with_the_name_of_what_all_rules_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"Mine: the hyperparameter '{name}' has the name of"):
        register_rule("Mine", leaky, slots={}, **{name: 0.5})


def test_a_process_that_does_not_know_a_rule_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"no update rule 'Theirs'.*ROPEWALK_RULE_MODULES"):
        rule_from_dict({"name": "Theirs", "learning_rate": 1.0})
    with pytest.raises(rw.errors.ConfigurationError, match=r"no_such_module cannot be imported"):
        import_rules("no_such_module")


@pytest.mark.parametrize(
    "wrong",
    [lambda w, g, s, h: g[:1], lambda w, g, s, h: 1 / 0],
    ids=["shape", "error"],
)
def test_a_rule_that_fails_is_named(wrong: Callable[..., Any], request: Any) -> None:
    name = f"Wrong{request.node.callspec.id}"
    strategy = with_servers(1)
    with pytest.raises(RefusedError, match=f"the update rule '{name}'"):
        apply(strategy, register_rule(name, wrong)(), variable(strategy))


# -- on the wire -------------------------------------------------------------------------------


def test_hyperparameters_travel_with_the_push_and_cost_nothing_otherwise() -> None:
    plain = codec.step_to_wire(StepRequest(), 1, 0, early_reply=False)
    assert not plain.HasField("hyperparameters")
    assert codec.hyperparameters_of(plain) is None
    given = {"learning_rate": CosineDecay(0.1, 7).model_dump(mode="json"), "momentum": 1 / 3}
    message = codec.step_to_wire(StepRequest(hyperparameters=given), 1, 0, early_reply=False)
    assert codec.hyperparameters_of(message) == given


def test_a_push_with_wrong_hyperparameters_is_refused_whole() -> None:
    strategy = with_servers(1)
    w = variable(strategy)
    apply(strategy, RMSprop(0.1), w)
    session, before = strategy.extended.runtime.session, w.numpy()
    for wrong in ({"rho": 2.0}, {"centered": True}, {"beta_1": 0.5}):
        with pytest.raises(RefusedError, match="changes hyperparameters: RMSprop"):
            session.step(Step([Write(Operation.APPLY, {"w": ONES}, hyperparameters=wrong)]))
    np.testing.assert_array_equal(w.numpy(), before)


@pytest.mark.parametrize(
    ("pairs", "got"),
    [
        pytest.param(lambda w: [(w, np.ones(3))], r"got \(\w*Variable, ndarray\)", id="swapped"),
        pytest.param(lambda w: [w], r"got \w*Variable", id="variables alone"),
        pytest.param(lambda w: [(np.ones(3),)], r"got \(ndarray\)", id="gradients alone"),
        pytest.param(lambda w: [(np.ones(3), "w")], r"got \(ndarray, str\)", id="a name"),
    ],
)
def test_what_is_no_pair_of_gradient_and_variable_is_said(
    pairs: Callable[[Any], Any], got: str
) -> None:
    w = variable(with_default())
    with pytest.raises(TypeError, match=r"takes pairs of a gradient and its variable.*" + got):
        SGD(1.0).apply_gradients(pairs(w))
