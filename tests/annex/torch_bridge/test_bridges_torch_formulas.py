"""Optimizers of PyTorch take PyTorch's own steps, with an epsilon so large that its place shows.

In float64: 1e-8 leaves room for the product of momenta that PyTorch's NAdam keeps in float32, and
for nothing that a formula does in another way.
"""

from typing import Any

import numpy as np
import pytest

import ropewalk as rw

torch: Any = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),  # of the first sparse tensor
]

STEPS = 200
ROWS, WIDTH = 12, 3
DECAY: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.1}
DENSE: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd-decay": ("SGD", DECAY),
    "sgd-momentum": ("SGD", {**DECAY, "momentum": 0.9}),
    "sgd-nesterov": ("SGD", {**DECAY, "momentum": 0.9, "nesterov": True}),
    "sgd-dampening": ("SGD", {**DECAY, "momentum": 0.9, "dampening": 0.3}),
    "adagrad": ("Adagrad", {"lr": 0.05}),
    "adagrad-epsilon": ("Adagrad", {**DECAY, "eps": 1e-2, "initial_accumulator_value": 0.1}),
    "adagrad-rate": ("Adagrad", {**DECAY, "eps": 1e-2, "lr_decay": 0.05}),
    "rmsprop": ("RMSprop", {**DECAY, "eps": 1e-2}),
    "rmsprop-both": ("RMSprop", {**DECAY, "eps": 1e-2, "centered": True, "momentum": 0.5}),
    "adam": ("Adam", {**DECAY, "eps": 1e-2}),
    "amsgrad": ("Adam", {**DECAY, "eps": 1e-2, "amsgrad": True}),
    "adamw": ("AdamW", {**DECAY, "eps": 1e-2}),
    "adamw-amsgrad": ("AdamW", {**DECAY, "eps": 1e-2, "amsgrad": True}),
    "nadam": ("NAdam", {**DECAY, "eps": 1e-2, "momentum_decay": 1.0}),
    "nadam-slower": ("NAdam", {**DECAY, "eps": 1e-2}),
    "nadam-decoupled": (
        "NAdam",
        {**DECAY, "eps": 1e-2, "momentum_decay": 1.0, "decoupled_weight_decay": True},
    ),
    "radam": ("RAdam", {**DECAY, "eps": 1e-2}),
    "adadelta": ("Adadelta", {**DECAY, "eps": 1e-2}),
    "adamax": ("Adamax", {**DECAY, "eps": 1e-2}),
}
SPARSE: dict[str, tuple[str, dict[str, Any]]] = {
    "sgd": ("SGD", {"lr": 0.05}),
    "sgd-momentum": ("SGD", {"lr": 0.05, "momentum": 0.9}),
    "sgd-nesterov": ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "sgd-dampening": ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3}),
    "adagrad": ("Adagrad", {"lr": 0.05, "eps": 1e-2, "initial_accumulator_value": 0.1}),
    "adagrad-rate": ("Adagrad", {"lr": 0.05, "eps": 1e-2, "lr_decay": 0.05}),
    "adam": ("SparseAdam", {"lr": 0.05, "eps": 1e-2}),
}


def trained(
    kind: str, options: dict[str, Any], *, shared: bool, scale: float = 1.0, sparse: bool = False
) -> Any:
    """A parameter after steps of given gradients, some of whose elements are zero."""
    random = np.random.default_rng(7)
    parameter = torch.nn.Parameter(torch.from_numpy(random.normal(size=(ROWS, WIDTH))))
    optimizer = getattr(torch.optim, kind)([parameter], **options)
    if shared:
        strategy = rw.distribute.ParameterServerStrategy()
        optimizer = rw.training.torch.DistributedOptimizer(optimizer, strategy)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    for _ in range(STEPS):
        if sparse:
            ids = torch.from_numpy(random.integers(0, ROWS, size=(1, 5)))  # some repeat
            values = torch.from_numpy(random.normal(size=(5, WIDTH)))
            parameter.grad = torch.sparse_coo_tensor(ids, values, (ROWS, WIDTH))
        else:
            gradient = random.normal(size=(ROWS, WIDTH)) * random.integers(0, 2, (ROWS, WIDTH))
            parameter.grad = torch.from_numpy(gradient * scale)
        optimizer.step()
        schedule.step()
    return parameter.detach().numpy()


def assert_as_alone(kind: str, options: dict[str, Any], **more: Any) -> None:
    np.testing.assert_allclose(
        trained(kind, options, shared=True, **more),
        trained(kind, options, shared=False, **more),
        rtol=0,
        atol=1e-8,
    )


@pytest.mark.parametrize(("kind", "options"), DENSE.values(), ids=DENSE.keys())
def test_steps_are_those_of_pytorch(kind: str, options: dict[str, Any]) -> None:
    assert_as_alone(kind, options)


@pytest.mark.parametrize(("kind", "options"), SPARSE.values(), ids=SPARSE.keys())
def test_steps_of_some_rows_are_those_of_pytorch(kind: str, options: dict[str, Any]) -> None:
    assert_as_alone(kind, options, sparse=True)


def test_gradients_as_small_as_epsilon_are_divided_as_by_pytorch() -> None:
    """Those of padded sequences are: the default of 1e-10 counts."""
    assert_as_alone("Adagrad", {"lr": 0.05}, scale=1e-10)


@pytest.mark.parametrize("kind", ["Adam", "AdamW", "NAdam"])
def test_parameters_that_are_updated_in_turn_have_counts_of_their_own_as_in_pytorch(
    kind: str,
) -> None:
    def trained_in_turn(*, shared: bool) -> list[float]:
        gradients = np.random.default_rng(0).normal(size=20)
        parameters = [torch.nn.Parameter(torch.ones(1, dtype=torch.float64)) for _ in range(2)]
        options = {"momentum_decay": 1.0} if kind == "NAdam" else {}
        optimizer = getattr(torch.optim, kind)(parameters, lr=0.1, **options)
        if shared:
            strategy = rw.distribute.ParameterServerStrategy()
            optimizer = rw.training.torch.DistributedOptimizer(optimizer, strategy)
        for i, gradient in enumerate(gradients):
            optimizer.zero_grad()
            parameters[i % 3 == 0].grad = torch.full((1,), gradient, dtype=torch.float64)
            optimizer.step()
        return [parameter.item() for parameter in parameters]

    assert trained_in_turn(shared=True) == pytest.approx(trained_in_turn(shared=False), abs=1e-8)
