"""Loops that programs write with Keras' optimizers, as in its guides and TensorFlow's tutorials."""

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers import processes

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras' variables, NumPy 2
]

STEPS = 60
X = np.random.default_rng(0).normal(size=(STEPS, 32, 8)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, size=(STEPS, 32))


@pytest.fixture(scope="module")
def keras() -> Any:
    """On JAX, or as KERAS_BACKEND says."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    pytest.importorskip(os.environ["KERAS_BACKEND"])
    return pytest.importorskip("keras")


def made(keras: Any, strategy: Any, make: Callable[[Any], Any]) -> tuple[Any, Any]:
    """A model and an optimizer, of a scope or of none."""
    keras.utils.set_random_seed(0)
    with nullcontext() if strategy is None else strategy.scope():
        layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        return model, make(keras.optimizers)


def step_of(keras: Any, model: Any, optimizer: Any, *, graph: bool = False) -> Callable[..., Any]:
    """A step, as the guide for the framework below Keras writes it."""
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    if keras.backend.backend() == "torch":
        import torch

        def of_torch(x: Any, y: Any) -> Any:
            loss = loss_of(y, model(x))
            model.zero_grad()
            loss.backward()
            weights = list(model.trainable_weights)
            with torch.no_grad():
                optimizer.apply([weight.value.grad for weight in weights], weights)
            return loss.detach()

        return of_torch
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        def of_tensorflow(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return tf.function(of_tensorflow) if graph else of_tensorflow
    import jax

    optimizer.build(model.trainable_variables)
    state = [
        [variable.value for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]
    state.append([variable.value for variable in optimizer.variables])

    def loss_and_updates(trainable: Any, others: Any, x: Any, y: Any) -> Any:
        predicted, others = model.stateless_call(trainable, others, x, training=True)
        return loss_of(y, predicted), others

    def pure(state: Any, x: Any, y: Any) -> Any:
        trainable, others, of_optimizer = state
        gradient = jax.value_and_grad(loss_and_updates, has_aux=True)
        (loss, others), gradients = gradient(trainable, others, x, y)
        trainable, of_optimizer = optimizer.stateless_apply(of_optimizer, gradients, trainable)
        return loss, [trainable, others, of_optimizer]

    compiled = jax.jit(pure) if graph else pure

    def of_jax(x: Any, y: Any) -> Any:
        loss, state[:] = compiled(state, x, y)
        return loss

    return of_jax


def losses(
    keras: Any, strategy: Any, make: Callable[[Any], Any], *, graph: bool, run: bool
) -> list[float]:
    model, optimizer = made(keras, strategy, make)
    step = step_of(keras, model, optimizer, graph=graph)
    if strategy is not None and run:
        return [float(strategy.run(step, (x, y))) for x, y in zip(X, Y, strict=True)]
    return [float(step(x, y)) for x, y in zip(X, Y, strict=True)]


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "adam": lambda o: o.Adam(1e-2),
    "amsgrad": lambda o: o.Adam(1e-2, amsgrad=True),  # runs on the worker
    "schedule": lambda o: o.SGD(o.schedules.CosineDecay(0.1, STEPS)),
}


@pytest.mark.parametrize(
    ("name", "graph", "run"),
    [
        ("adam", True, False),
        ("adam", False, True),
        ("adam", True, True),
        ("amsgrad", True, False),
        ("schedule", True, False),
    ],
)
def test_a_loop_has_the_losses_of_keras_alone(
    keras: Any, name: str, graph: bool, run: bool
) -> None:
    """Sums in another order: 1e-5."""
    make, strategy = OPTIMIZERS[name], rw.distribute.ParameterServerStrategy()
    alone = losses(keras, None, make, graph=graph, run=False)
    shared = losses(keras, strategy, make, graph=graph, run=run)
    np.testing.assert_allclose(shared, alone, atol=1e-5)
    assert strategy.global_step == STEPS


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_gradients_that_are_applied_to_variables_make_the_values_of_keras_alone(
    keras: Any, name: str
) -> None:
    """Also on JAX, outside of a compiled function, and around a change by hand; rounding: 1e-6."""

    def trained(strategy: Any) -> list[Any]:
        model, optimizer = made(keras, strategy, OPTIMIZERS[name])
        weights = model.trainable_variables
        optimizer.build(weights)
        for step in range(4):
            if step == 2:
                weights[0].assign(keras.ops.convert_to_numpy(weights[0]) / 2)
            given = [keras.ops.full(weight.shape, 1.0 + step) for weight in weights]
            optimizer.apply(given, weights)
        return [keras.ops.convert_to_numpy(weight) for weight in weights]

    shared = trained(rw.distribute.ParameterServerStrategy())
    for ours, theirs in zip(shared, trained(None), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


def test_averages_that_a_loop_on_jax_keeps_to_itself_are_told_once(
    keras: Any, caplog: pytest.LogCaptureFixture
) -> None:
    if keras.backend.backend() != "jax":
        pytest.skip("elsewhere they are in variables, and shared")
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.BatchNormalization()])
        model.add(keras.layers.Dense(4))
        optimizer = keras.optimizers.SGD(0.1)
    step = step_of(keras, model, optimizer)
    for x, y in zip(X[:3], Y[:3], strict=True):
        step(x, y)
    every = [record.getMessage() for record in caplog.records]
    (told,) = [each for each in every if "moving averages" in each]
    assert "moving_mean' and 1 more" in told
    assert "compile and fit" in told


def test_a_model_without_an_input_shape_is_shared_when_a_batch_has_built_it(keras: Any) -> None:
    if keras.backend.backend() == "jax":
        pytest.skip("its guide builds the optimizer, which needs the weights, before the loop")
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4)])
        optimizer = keras.optimizers.SGD(0.1)
    step = step_of(keras, model, optimizer, graph=True)
    for x, y in zip(X[:3], Y[:3], strict=True):
        strategy.run(step, (x, y))
    assert strategy.global_step == 3


def test_fit_builds_a_model_beside_an_optimizer_for_a_loop(keras: Any) -> None:
    """While Keras looks for shapes, a model that is built has no values that could be shared."""

    class Net(keras.Model):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = keras.layers.Dense(4), keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.last(self.first(x))

    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        loop = keras.optimizers.Adam(0.01)
        model = Net()
        model.compile("sgd", "mse")
    loss = model.fit(X[0], Y[0], epochs=5, verbose=0).history["loss"]
    assert loop.iterations == 0
    assert strategy.global_step == 5
    assert loss[-1] < loss[0]


def test_an_optimizer_made_outside_of_the_scope_shares_a_model_of_it(keras: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    model, _ = made(keras, strategy, lambda _: None)
    step = step_of(keras, model, keras.optimizers.SGD(0.1))
    step(X[0], Y[0])
    assert strategy.global_step == 1


def test_an_optimizer_of_no_scope_is_as_it_was(keras: Any) -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    model, optimizer = made(keras, None, OPTIMIZERS["adam"])
    step_of(keras, model, optimizer)(X[0], Y[0])
    assert strategy.global_step == 0
    assert int(optimizer.iterations) == (0 if keras.backend.backend() == "jax" else 1)


def test_several_replicas_of_a_process_add_up_in_run(keras: Any) -> None:
    """Each divides its loss by the global batch, as in tf.distribute."""
    if keras.backend.backend() == "jax":
        pytest.skip("a loop carries its state, which replicas cannot share")
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        model, optimizer = made(keras, strategy, lambda o: o.SGD(0.1))
        twin, other = made(keras, None, lambda o: o.SGD(0.1))
        step = step_of(keras, model, optimizer)
        strategy.run(step, (X[0], Y[0]))
    finally:
        rw.config.set_logical_cpu_devices(1)
    plain = step_of(keras, twin, other)
    other.learning_rate = 0.2  # the same batch on both
    plain(X[0], Y[0])
    for mine, theirs in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_what_cannot_be_shared_in_a_compiled_function_is_an_error(keras: Any) -> None:
    if keras.backend.backend() == "torch":
        pytest.skip("it compiles no step")
    rw.config.set_logical_cpu_devices(2)
    try:
        strategy = rw.distribute.MirroredStrategy()
        model, optimizer = made(keras, strategy, lambda o: o.SGD(0.1))
        # TensorFlow gives an error of its own for whatever is raised while it traces.
        with pytest.raises(Exception, match="cannot wait for each other"):
            step_of(keras, model, optimizer, graph=True)(X[0], Y[0])
    finally:
        rw.config.set_logical_cpu_devices(1)


WORKERS = """\
import sys
sys.path[:0] = {path}
import keras
import numpy as np
import ropewalk as rw
from test_bridges_keras_loops import X, Y, made, step_of

strategy = rw.distribute.{strategy}()
keras.utils.set_random_seed(strategy.task_index)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
    optimizer = keras.optimizers.SGD(0.1)
first = model.get_weights()[0].sum()
step = step_of(keras, model, optimizer, graph=True)
for x, y in zip(X[:20], Y[:20]):
    float(step(x, y))
strategy.barrier()
print("first", float(first), "steps", strategy.global_step, flush=True)
"""


@pytest.mark.parametrize(
    ("strategy", "steps"), [("ParameterServerStrategy", 40), ("MultiWorkerMirroredStrategy", 20)]
)
def test_workers_begin_with_the_chiefs_values_and_count_together(
    keras: Any, tmp_path: Path, strategy: str, steps: int
) -> None:
    """However each is seeded."""
    program = tmp_path / "train.py"
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    program.write_text(WORKERS.replace("{strategy}", strategy).replace("{path}", repr(path)))
    servers = 1 if strategy.startswith("Param") else 0
    code, output, errors = processes.run_workers(
        program, ps=servers, KERAS_BACKEND=keras.backend.backend()
    )
    assert code == 0, output + errors
    said = (line.split() for line in output.splitlines())
    lines = [words for words in said if {"first", "steps"} <= {*words}]
    assert len(lines) >= 2, output
    # One worker may have made steps when the other begins: they leave this sum as it is.
    assert np.ptp([float(line[line.index("first") + 1]) for line in lines]) < 1e-4
    # A gradient that a worker made of its own first values, before the chief's came, is left out.
    assert max(int(line[line.index("steps") + 1]) for line in lines) in (steps, steps - 1)


DIVERGES = """\
import sys
sys.path[:0] = {path}
import keras
import numpy as np
import ropewalk as rw
from test_bridges_keras_loops import X, Y, made, step_of

strategy = rw.distribute.ParameterServerStrategy()
model, optimizer = made(keras, strategy, lambda o: o.SGD(0.1))
step = step_of(keras, model, optimizer, graph=True)
for x, y in zip(X, Y):
    float(step(np.full_like(x, np.nan), y))
"""


def test_an_error_in_a_compiled_step_ends_the_process_with_its_exit_code(
    keras: Any, tmp_path: Path
) -> None:
    """Though the program sees an error of the framework."""
    program = tmp_path / "diverges.py"
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    program.write_text(DIVERGES.replace("{path}", repr(path)))
    backend = keras.backend.backend()
    code, output, errors = processes.run_workers(program, workers=1, ps=1, KERAS_BACKEND=backend)
    assert code == 6, output + errors
    assert "NonFiniteGradientError" in output + errors


CLIP = 0.15


def clipped(keras: Any, model: Any, step: Callable[..., Any], *, data: bool) -> Callable[..., Any]:
    """A step after which weights are clipped, as a critic's of Wasserstein are."""
    if keras.backend.backend() == "jax":
        return step

    def run(x: Any, y: Any) -> Any:
        loss = step(x, y)
        for variable in model.trainable_variables:
            if data:
                variable.value.data.clamp_(-CLIP, CLIP)
            else:
                variable.assign(keras.ops.clip(variable, -CLIP, CLIP))
        return loss

    return run


def clip_losses(keras: Any, strategy: Any, *, data: bool, part: slice) -> list[float]:
    model, optimizer = made(keras, strategy, OPTIMIZERS["adam"])
    step = step_of(keras, model, optimizer, graph=True)
    if keras.backend.backend() == "jax":
        step = jax_step_of(keras, model, optimizer)
    if keras.backend.backend() == "tensorflow" and data:
        import tensorflow as tf

        run = tf.function(clipped(keras, model, step, data=False))
    else:
        run = clipped(keras, model, step, data=data)
    return [float(run(x[part], y[part])) for x, y in zip(X, Y, strict=True)]


def jax_step_of(keras: Any, model: Any, optimizer: Any) -> Callable[..., Any]:
    import jax

    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer.build(model.trainable_variables)
    state = [[v.value for v in each] for each in (model.trainable_variables, optimizer.variables)]

    @jax.jit
    def pure(state: Any, x: Any, y: Any) -> Any:
        def loss(trainable: Any) -> Any:
            return loss_of(y, model.stateless_call(trainable, [], x)[0])

        value, gradients = jax.value_and_grad(loss)(state[0])
        trainable, of_optimizer = optimizer.stateless_apply(state[1], gradients, state[0])
        return value, [[jax.numpy.clip(v, -CLIP, CLIP) for v in trainable], of_optimizer]

    def step(x: Any, y: Any) -> Any:
        value, state[:] = pure(state, x, y)
        return value

    return step


@pytest.mark.parametrize("data", [False, True], ids=["by-assign", "past-the-framework"])
def test_weights_that_are_clipped_after_each_step_stay_so(keras: Any, data: bool) -> None:
    """By an assignment; by ``Tensor.data``, or in a graph of TensorFlow, which count none."""
    strategy = rw.distribute.ParameterServerStrategy()
    every = slice(None)
    alone = clip_losses(keras, None, data=data, part=every)
    shared = clip_losses(keras, strategy, data=data, part=every)
    np.testing.assert_allclose(shared, alone, atol=1e-5)


@pytest.mark.parametrize("compiled", [False, True], ids=["loop", "fit"])
def test_weights_that_a_program_loads_before_it_trains_count(keras: Any, compiled: bool) -> None:
    """As those of a file do; the end of the scope, in which an optimizer was, has shared others."""

    def trained(strategy: Any) -> list[float]:
        model, optimizer = made(keras, strategy, lambda o: o.Adam(1e-2))
        model.set_weights([np.full_like(weight, 0.1) for weight in model.get_weights()])
        if compiled:
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
            x, y = np.concatenate(X), np.concatenate(Y)
            losses: list[float] = model.fit(x, y, shuffle=False, verbose=0).history["loss"]
            return losses
        step = step_of(keras, model, optimizer)
        return [float(step(x, y)) for x, y in zip(X[:5], Y[:5], strict=True)]

    shared = trained(rw.distribute.ParameterServerStrategy())
    np.testing.assert_allclose(shared, trained(None), atol=1e-5)


def test_a_layer_that_is_never_built_has_no_weights_to_wait_for(keras: Any) -> None:
    """A TextVectorization calls the table in it past its ``__call__``, which would build it."""

    class Scaled(keras.layers.Layer):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = keras.layers.Rescaling(2.0)

        def build(self, input_shape: Any) -> None:
            self.built = True

        def call(self, x: Any) -> Any:
            return self.inner.call(x)

    def loss(strategy: Any) -> float:
        keras.utils.set_random_seed(0)
        with nullcontext() if strategy is None else strategy.scope():
            model = keras.Sequential([keras.Input((8,)), Scaled(), keras.layers.Dense(1)])
            model.compile("adam", "mse")
        assert not model.layers[0].inner.built
        history = model.fit(X[0], Y[0], epochs=2, shuffle=False, verbose=0).history
        return float(history["loss"][-1])

    shared = loss(rw.distribute.ParameterServerStrategy())
    np.testing.assert_allclose(shared, loss(None), rtol=1e-5)


CLIPS = """\
import sys
sys.path[:0] = {path}
import keras
import ropewalk as rw
from test_bridges_keras_loops import clip_losses

strategy = rw.distribute.{strategy}()
half = slice(16 * strategy.task_index, 16 * strategy.task_index + 16)
losses = clip_losses(keras, strategy, data=False, part=half)
strategy.barrier()
print("last", *losses[-5:], flush=True)
"""


@pytest.mark.parametrize("strategy", ["ParameterServerStrategy", "MultiWorkerMirroredStrategy"])
def test_clipping_on_workers_counts_in_sync_and_else_is_an_error(
    keras: Any, tmp_path: Path, strategy: str
) -> None:
    """In sync all clip alike. Of asynchronous workers the chief's changes alone count."""
    program = tmp_path / "train.py"
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    program.write_text(CLIPS.replace("{strategy}", strategy).replace("{path}", repr(path)))
    in_sync = not strategy.startswith("Param")
    code, output, errors = processes.run_workers(
        program, ps=0 if in_sync else 1, KERAS_BACKEND=keras.backend.backend()
    )
    if not in_sync:
        assert code != 0
        assert "Write it as a constraint" in output + errors
        return
    assert code == 0, output + errors
    lines = [line.split(" last ")[1].split() for line in output.splitlines() if " last " in line]
    alone = clip_losses(keras, None, data=False, part=slice(None))
    mean = np.mean([list(map(float, line)) for line in lines[:2]], axis=0)
    np.testing.assert_allclose(mean, alone[-5:], atol=1e-4)
