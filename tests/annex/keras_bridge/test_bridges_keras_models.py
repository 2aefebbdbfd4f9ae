"""Several models of Keras that share layers: each variable is shared once, as Keras has it."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

import ropewalk as rw

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = X.sum(axis=1, keepdims=True)
REAL = np.random.default_rng(1).normal(size=(100, 32, 4)).astype(np.float32) + 1
NOISE = np.random.default_rng(2).normal(size=(100, 32, 3)).astype(np.float32)

Scope = Callable[[], AbstractContextManager[Any]]


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    pytest.importorskip(os.environ["KERAS_BACKEND"])
    return pytest.importorskip("keras")


def values(model: Any) -> Any:
    return np.concatenate([np.ravel(value) for value in model.get_weights()])


def test_a_model_holds_a_network_and_its_clone(keras: Any) -> None:
    """As those that follow a network by averages do. Their weights have the same paths."""

    class Twins(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)], name="net")
            self.other = keras.models.clone_model(self.one)

        def call(self, x: Any) -> Any:
            return self.one(x) - 2 * self.other(x)

    def trained(scope: Scope) -> tuple[Any, Any]:
        keras.utils.set_random_seed(0)
        with scope():
            model = Twins()
            model.compile(keras.optimizers.Adam(0.01), "mse")
        return model, model.fit(X, Y, epochs=10, shuffle=False, verbose=0).history["loss"]

    strategy = rw.distribute.ParameterServerStrategy()
    (_, alone), (model, shared) = trained(nullcontext), trained(strategy.scope)
    np.testing.assert_allclose(shared, alone, rtol=1e-5)
    names = rw.training.keras.shared_weights(model).store.names
    firsts = [name for name in names if name.startswith("net/")]
    assert len(firsts) == 2
    assert {f"{model.name}/{name}" for name in firsts} == {*names} - {*firsts}


def adversaries(keras: Any, optimizer: Any, scope: Scope) -> tuple[Any, Any, Any]:
    """A discriminator, a generator, and both in one model: each compiled for itself."""
    layers = keras.layers
    keras.utils.set_random_seed(0)
    with scope():
        critic = keras.Sequential(
            [keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(1, "sigmoid")], name="critic"
        )
        maker = keras.Sequential(
            [keras.Input((3,)), layers.Dense(8, "tanh"), layers.Dense(4)], name="maker"
        )
        critic.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
        critic.trainable = False
        both = keras.Sequential([keras.Input((3,)), maker, critic], name="both")
        both.compile(optimizer, "binary_crossentropy")
    return critic, maker, both


def contest(keras: Any, critic: Any, maker: Any, both: Any) -> list[tuple[float, float]]:
    ones, zeros = np.ones((32, 1)), np.zeros((32, 1))
    losses = []
    for real, noise in zip(REAL, NOISE, strict=True):
        made = keras.ops.convert_to_numpy(maker(noise))
        critic.trainable = True
        of_critic = critic.train_on_batch(
            np.concatenate([real, made]), np.concatenate([ones, zeros])
        )
        critic.trainable = False
        losses.append((float(of_critic), float(both.train_on_batch(noise, ones))))
    return losses


@pytest.mark.parametrize("where", ["here", "on-servers", "in-sync"])
def test_the_schedule_of_each_model_goes_by_its_own_updates(keras: Any, where: str) -> None:
    """The job's steps are those of all models: of a cross-validation, or of fits in turn."""

    def program(scope: Scope) -> list[Any]:
        models = []
        for _ in range(2):
            keras.utils.set_random_seed(0)
            with scope():
                model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(1)])
                rate = keras.optimizers.schedules.CosineDecay(0.1, 12)
                model.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse")
            models.append(model)
        for model in (*models, models[0]):
            model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0)
        assert [int(model.optimizer.iterations) for model in models] == [16, 8]
        return [values(model) for model in models]

    def shared() -> list[Any]:
        return program(rw.distribute.ParameterServerStrategy().scope)

    if where == "in-sync":
        found = program(rw.distribute.MultiWorkerMirroredStrategy().scope)
    elif where == "on-servers":
        with rw.testing.LocalCluster(workers=0, ps=2) as cluster:
            found = next(iter(cluster.run(shared).values()))
    else:
        found = shared()
    np.testing.assert_allclose(found, program(nullcontext), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("amsgrad", [False, True], ids=["on-the-servers", "on-the-worker"])
def test_a_layer_in_two_compiled_models_trains_as_in_keras_alone(keras: Any, amsgrad: bool) -> None:
    """200 steps, of two optimizers in turn. float32: the two sum in another order."""
    strategy = rw.distribute.ParameterServerStrategy()
    curves, models = [], []
    scopes: list[Scope] = [nullcontext, strategy.scope]
    for scope in scopes:
        optimizer = keras.optimizers.Adam(1e-2, amsgrad=amsgrad)
        models.append(adversaries(keras, optimizer, scope))
        curves.append(contest(keras, *models[-1]))
    np.testing.assert_allclose(curves[1], curves[0], atol=1e-5)
    critic, _, both = models[1]
    assert strategy.global_step == 200
    of_critic = rw.training.keras.shared_weights(critic).store
    of_both = rw.training.keras.shared_weights(both).store
    assert set(of_critic.names) < set(of_both.names)
    assert all(of_both.variables[name] is of_critic.variables[name] for name in of_critic.names)


def test_two_optimizers_of_the_same_weights_have_a_state_each(keras: Any) -> None:
    """The second one runs on the worker: the servers keep one state of each variable."""

    def trained(scope: Scope) -> tuple[list[float], list[Any]]:
        keras.utils.set_random_seed(0)
        with scope():
            given = keras.Input((8,))
            base = keras.layers.Dense(8, "tanh")(given)
            heads = [keras.Model(given, keras.layers.Dense(1)(base)) for _ in range(2)]
            for head in heads:
                head.compile(keras.optimizers.Adam(1e-2), "mse")
        losses = [
            float(head.train_on_batch(X, factor * Y))
            for _ in range(100)
            for head, factor in zip(heads, (0.1, 0.2), strict=True)
        ]
        return losses, heads

    alone, _ = trained(nullcontext)
    losses, shared = trained(rw.distribute.ParameterServerStrategy().scope)
    np.testing.assert_allclose(losses, alone, rtol=1e-5, atol=1e-5)
    assert rw.training.keras.shared_weights(shared[0]).worker_reason is None
    reason = rw.training.keras.shared_weights(shared[1]).worker_reason
    assert reason is not None
    assert "another optimizer updates, too" in reason


@pytest.mark.parametrize("amsgrad", [False, True], ids=["on-the-servers", "on-the-worker"])
def test_a_train_step_on_jax_may_have_a_second_optimizer(keras: Any, amsgrad: bool) -> None:
    """Whose state the model has among its own variables, since Keras hands over that of one."""
    if keras.backend.backend() != "jax":
        pytest.skip("the others give a train_step no state")
    import jax

    class Adversaries(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.critic = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.maker = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])
            self.built = True

        def compile(self, optimizer: Any) -> None:
            super().compile(optimizer)
            self.other = keras.optimizers.Adam(1e-2, amsgrad=amsgrad)
            self.other.build(self.critic.trainable_variables)
            optimizer.build(self.maker.trainable_variables)
            self.state_of_other = list(self.other.variables)

        def train_step(self, state: Any, real: Any) -> Any:
            (*critic, kernel, bias), others, of_optimizer, metrics = state
            at = {id(v): place for place, v in enumerate(self.non_trainable_variables)}
            places = [at[id(variable)] for variable in self.other.variables]

            def gap(critic: Any, maker: Any, sign: float) -> Any:
                made, _ = self.maker.stateless_call(maker, [], real[:, :3])
                ours, _ = self.critic.stateless_call(critic, [], real)
                theirs, _ = self.critic.stateless_call(critic, [], made)
                return sign * jax.numpy.mean(jax.nn.tanh(ours) - jax.nn.tanh(theirs))

            maker = [kernel, bias]
            gradients = jax.grad(gap)(critic, maker, -1.0)
            of_other = [others[place] for place in places]
            critic, of_other = self.other.stateless_apply(of_other, gradients, critic)
            loss, gradients = jax.value_and_grad(gap, 1)(critic, maker, 1.0)
            maker, of_optimizer = self.optimizer.stateless_apply(of_optimizer, gradients, maker)
            others = list(others)
            for place, value in zip(places, of_other, strict=True):
                others[place] = value
            return {"loss": loss}, ([*critic, *maker], others, of_optimizer, metrics)

    def trained(scope: Scope) -> tuple[list[float], Any]:
        keras.utils.set_random_seed(0)
        with scope():
            model = Adversaries()
            model.compile(keras.optimizers.Adam(1e-2))
        fit = {"batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(REAL.reshape(-1, 4), **fit).history["loss"], values(model.critic)

    strategy = rw.distribute.ParameterServerStrategy()
    (losses, critic), (alone, critic_alone) = trained(strategy.scope), trained(nullcontext)
    np.testing.assert_allclose(losses, alone, atol=1e-5)
    np.testing.assert_allclose(critic, critic_alone, atol=1e-4)
    assert strategy.global_step == 200


def test_a_gan_without_a_call_trains_as_in_keras_alone(keras: Any) -> None:
    """As Keras' guide writes it for TensorFlow; on JAX and PyTorch it sets ``built``, too."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("Keras asks for a model that is built")
    import tensorflow as tf

    class Gan(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.critic = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            self.maker = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4)])

        def compile(self, of_critic: Any, of_maker: Any) -> None:
            super().compile()
            self.of_critic, self.of_maker = of_critic, of_maker

        def train_step(self, real: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                gap = tf.reduce_mean(
                    tf.tanh(self.critic(real)) - tf.tanh(self.critic(self.maker(real[:, :3])))
                )
                lost = -gap
            for optimizer, part, loss in (
                (self.of_critic, self.critic, lost),
                (self.of_maker, self.maker, gap),
            ):
                weights = part.trainable_weights
                optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
            return {"gap": gap}

    def trained(scope: Scope) -> tuple[list[float], Any]:
        keras.utils.set_random_seed(0)
        with scope():
            model = Gan()
            model.compile(keras.optimizers.Adam(1e-2), keras.optimizers.Adam(1e-2))
        fit = {"batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0}
        return model.fit(REAL.reshape(-1, 4), **fit).history["gap"], values(model.critic)

    strategy = rw.distribute.ParameterServerStrategy()
    (gaps, critic), (alone, critic_alone) = trained(strategy.scope), trained(nullcontext)
    np.testing.assert_allclose(gaps, alone, atol=1e-5)
    np.testing.assert_allclose(critic, critic_alone, atol=1e-4)
    assert strategy.global_step == 200


def test_a_clone_of_a_model_has_weights_of_its_own(keras: Any) -> None:
    """A student that begins as its teacher: equal paths, other variables."""
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        given = keras.Input((8,))
        teacher = keras.Model(given, keras.layers.Dense(1, name="last")(given), name="teacher")
        student = keras.models.clone_model(teacher)
        for model in (teacher, student):
            model.compile("sgd", "mse")
    before = values(teacher)
    student.fit(X, Y, verbose=0)
    np.testing.assert_array_equal(values(teacher), before)
    stores = [rw.training.keras.shared_weights(model).store for model in (teacher, student)]
    assert not set(stores[0].names) & set(stores[1].names)


def test_what_one_model_learns_is_no_change_by_hand_to_another(keras: Any) -> None:
    """Else the chief would overwrite, with its copy, what other workers pushed since."""
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        base = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        whole = keras.Sequential([keras.Input((8,)), base, keras.layers.Dense(1)])
        base.compile("sgd", "mse")
        whole.compile("sgd", "mse")
    whole.train_on_batch(X, Y)
    shared = rw.training.keras.shared_weights(base)
    assert not shared.backend.changed()
    base.set_weights([value + 1 for value in base.get_weights()])
    base.fit(X, np.zeros((64, 4)), verbose=0)
    np.testing.assert_array_equal(values(whole)[:36], values(base))


def test_a_table_in_two_models_is_one(keras: Any) -> None:
    ids = np.arange(64).reshape(16, 4) % 10
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        table = rw.training.keras.Embedding(10, 2)
        models = []
        for _ in range(2):
            given = keras.Input((4,), dtype="int32")
            flat = keras.layers.Flatten()(table(given))
            models.append(keras.Model(given, keras.layers.Dense(1)(flat)))
            models[-1].compile("sgd", "mse")
    for model in models * 2:
        model.fit(ids, ids[:, :1], verbose=0)
    readers = [rw.training.keras.shared_weights(model).readers for model in models]
    assert readers[0] == readers[1]
    assert strategy.global_step == 4
