"""Loops of Keras' guide for PyTorch: a model of Keras, and an optimizer of ``torch.optim``."""

import os
import re
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

os.environ.setdefault("KERAS_BACKEND", "jax")
if os.environ["KERAS_BACKEND"] != "torch":
    pytest.skip("Keras runs on another framework", allow_module_level=True)
torch: Any = pytest.importorskip("torch")
keras: Any = pytest.importorskip("keras")

Make = Callable[[Any], Any]

STEPS = 200
X = np.random.default_rng(0).normal(size=(STEPS, 32, 8)).astype(np.float32)
Y = np.random.default_rng(1).integers(0, 4, size=(STEPS, 32))


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, 1e-2)


def amsgrad(parameters: Any) -> Any:
    """Has no rule, so it runs on the worker."""
    return torch.optim.Adam(parameters, 1e-2, amsgrad=True)


def net() -> Any:
    layers = keras.layers
    return keras.Sequential(
        [keras.Input((8,)), layers.Dense(16, "tanh"), layers.BatchNormalization(), layers.Dense(4)]
    )


def made(strategy: Any, make: Make, *, inside: bool = False) -> tuple[Any, Any]:
    """A model, of a scope or of none, and an optimizer that is made there or after it."""
    keras.utils.set_random_seed(0)
    with nullcontext() if strategy is None else strategy.scope():
        model = net()
        optimizer = make(model.parameters()) if inside else None
    return model, optimizer or make(model.parameters())


def loss_of(made: Any, y: Any) -> Any:
    """Where the model is: on a GPU if Keras has found one."""
    return torch.nn.functional.cross_entropy(made, torch.tensor(y, device=made.device))


def step(model: Any, optimizer: Any, x: Any, y: Any) -> float:
    loss = loss_of(model(x, training=True), y)
    model.zero_grad()
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def losses(model: Any, optimizer: Any, steps: int = STEPS) -> list[float]:
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    found = []
    for x, y in zip(X[:steps], Y[:steps], strict=True):
        found.append(step(model, optimizer, x, y))
        schedule.step()
    return found


@pytest.mark.parametrize("inside", [True, False], ids=["in-the-scope", "after-it"])
@pytest.mark.parametrize(
    "make",
    [adam, amsgrad, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)],
    ids=["adam", "amsgrad", "decay"],
)
def test_a_loop_has_the_losses_and_averages_of_pytorch_alone(make: Make, inside: bool) -> None:
    """With a schedule, too. float32, in sums of another order: 1e-5."""
    strategy = rw.distribute.ParameterServerStrategy()
    plain, shared = made(None, make), made(strategy, make, inside=inside)
    np.testing.assert_allclose(losses(*shared), losses(*plain), atol=1e-5)
    for mine, theirs in zip(shared[0].get_weights(), plain[0].get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)
    assert strategy.global_step == STEPS


def test_variables_have_the_paths_of_keras_once() -> None:
    """Whatever trains them."""
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        model = net()
        model.compile("sgd", "mse")
    step(model, adam(model.parameters()), X[0], Y[0])
    shared = rw.training.keras.shared_weights(model)
    assert shared.store.names == sorted(weight.path for weight in model.weights)
    np.testing.assert_array_equal(
        shared.store.pull()[model.weights[0].path], model.get_weights()[0]
    )


def test_groups_have_rules_of_their_own_and_frozen_weights_stay() -> None:
    def make(parameters: Any) -> Any:
        first, *rest = parameters
        return torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": rest}], 0.01)

    plain = made(None, make)
    shared = made(rw.distribute.ParameterServerStrategy(), make, inside=True)
    for model, optimizer in (plain, shared):
        model.layers[0].trainable = False
        step(model, optimizer, X[0], Y[0])
        model.layers[0].trainable = True
        step(model, optimizer, X[1], Y[1])
    for mine, theirs in zip(shared[0].get_weights(), plain[0].get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_two_optimizers_in_turn_make_one_step_of_the_job() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        models = [net(), net()]
    optimizers = [adam(model.parameters()) for model in models]
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            step(model, optimizer, X[0], Y[0])
    assert strategy.global_step == 3


@pytest.mark.parametrize("make", [adam, amsgrad], ids=["on-the-servers", "on-the-worker"])
def test_closures_hooks_and_a_grad_scaler_are_as_ever(make: Make) -> None:
    ended: list[list[Any]] = []
    for strategy in (None, rw.distribute.ParameterServerStrategy()):
        model, optimizer = made(strategy, make)
        optimizer.register_step_pre_hook(
            lambda optimizer, *_: (
                torch.nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.01) and None
            )
        )
        device = model.trainable_variables[0].value.device
        scaler = torch.amp.GradScaler(device.type, init_scale=128.0)
        for number in range(5):
            loss = loss_of(model(X[number]), Y[number])
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            if number == 2:
                model.trainable_variables[0].value.grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
        assert optimizer.step(lambda: 3.0) == 3.0
        ended.append(model.get_weights())
    for mine, theirs in zip(*ended, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-5)


def test_what_cannot_be_shared_is_an_error_before_the_first_step() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    refused = rw.errors.ConfigurationError
    model, optimizer = made(strategy, torch.optim.LBFGS)
    with pytest.raises(refused, match="take another optimizer"):
        optimizer.step(lambda: model(X[0]).sum())
    other = torch.nn.Linear(8, 1)
    both = torch.optim.Adam([*model.parameters(), *other.parameters()])
    with pytest.raises(refused, match=r"2 parameters of no such model.*an optimizer of their own"):
        both.step()
    stepped = adam(model.parameters())
    stepped.state[model.trainable_variables[0].value]["step"] = torch.tensor(3.0)
    with pytest.raises(refused, match="has a state already"):
        stepped.step()
    fine = adam(model.parameters())
    fine.step()
    with pytest.raises(refused, match="takes no further parameters"):
        fine.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})


def test_an_optimizer_of_no_scope_is_as_it_was() -> None:
    strategy = rw.distribute.ParameterServerStrategy()
    model, optimizer = made(None, adam)
    step(model, optimizer, X[0], Y[0])
    assert len(optimizer.state) == 6
    assert strategy.global_step == 0


WORKERS = """\
import sys
sys.path[:0] = {path}
import numpy as np
import ropewalk as rw
from test_bridges_keras_torch_optim import STEPS, X, Y, adam, amsgrad, keras, loss_of

strategy = rw.distribute.{strategy}()
for make in (adam, amsgrad):
    keras.utils.set_random_seed(strategy.task_index)
    with strategy.scope():
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        optimizer = make(model.parameters())
    first = [weight.copy() for weight in model.get_weights()]
    strategy.barrier()
    mine = slice(16 * strategy.task_index, 16 * strategy.task_index + 16)
    for x, y in zip(X, Y):
        loss = loss_of(model(x[mine]), y[mine])
        model.zero_grad()
        loss.backward()
        optimizer.step()
    strategy.barrier()
    if strategy.is_chief:
        np.savez(f"{make.__name__}.npz", *first, *model.get_weights())
print("steps", strategy.global_step, flush=True)
"""


@pytest.mark.parametrize("in_sync", [True, False], ids=["in-sync", "asynchronous"])
def test_workers_train_together(tmp_path: Path, in_sync: bool) -> None:
    """In sync each has half of every batch: the curve of one device."""
    program = tmp_path / "train.py"
    path = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    strategy = "MultiWorkerMirroredStrategy" if in_sync else "ParameterServerStrategy"
    program.write_text(WORKERS.replace("{strategy}", strategy).replace("{path}", repr(path)))
    code, output, errors = processes.run_workers(program, ps=0 if in_sync else 1)
    assert code == 0, output + errors
    made = max(int(count) for count in re.findall(r"steps (\d+)", output))
    # The two optimizers in turn make one step, where the first one ends and the other begins. Of
    # asynchronous workers one may begin when another has made steps, and leave out a gradient.
    assert made == 2 * STEPS - 1 if in_sync else 4 * STEPS - 4 <= made <= 4 * STEPS - 2
    for make in (adam, amsgrad) if in_sync else ():
        arrays = list(np.load(tmp_path / f"{make.__name__}.npz").values())
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4)])
        model.set_weights(arrays[:2])
        optimizer = make(model.parameters())
        for x, y in zip(X, Y, strict=True):
            step(model, optimizer, x, y)
        for mine, alone in zip(arrays[2:], model.get_weights(), strict=True):
            np.testing.assert_allclose(mine, alone, atol=1e-4)
