"""Checkpoints of a PyTorch program alone: it goes on from them, a cluster does, and back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.resumed import resumed

torch: Any = pytest.importorskip("torch")
saving: Any = pytest.importorskip("ropewalk.annexes.estimator.saving")

pytestmark = pytest.mark.bridges

Make = Callable[[Any], Any]
MAKE: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, 1e-2),
    "adamw": lambda p: torch.optim.AdamW(p, 1e-2, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.02, initial_accumulator_value=0.1),
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.3),
    "rmsprop, without a rule": lambda p: torch.optim.RMSprop(p, 1e-2),
}
X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)


def net() -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(8, 16, bias=False), torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)]
    return torch.nn.Sequential(*layers)


def train(module: Any, optimizer: Any, steps: int) -> None:
    x = torch.from_numpy(X)
    for _ in range(steps):
        optimizer.zero_grad()
        (module(x) - x[:, :1].sin()).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()


def wrap(make: Make, module: Any, strategy: Any) -> Any:
    return rw.training.torch.DistributedOptimizer(
        make(module.parameters()), strategy, module=module
    )


def assert_equal(mine: Any, theirs: Any) -> None:
    for name, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value), name


def save(optimizer: Any, model_dir: Path) -> str:
    """As an Estimator saves what a program alone has learned."""
    strategy = optimizer.store.strategy
    own = saving.OwnCheckpoints(str(model_dir), saving.writer_for(strategy, {}), 0)
    return str(own.save(optimizer.store.step))


def went_on(path: str) -> Any:
    """A strategy of a program alone, as an Estimator begins it with a checkpoint."""
    strategy = rw.distribute.ParameterServerStrategy()
    strategy.extended.created.restore_from = path
    return strategy


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_a_program_alone_goes_on_from_its_checkpoint_to_the_bit(make: Make, tmp_path: Path) -> None:
    unbroken, first, second = net(), net(), net()
    optimizer = wrap(make, first, rw.distribute.ParameterServerStrategy())
    train(first, optimizer, 10)
    path = save(optimizer, tmp_path)
    train(second, wrap(make, second, went_on(path)), 10)
    train(unbroken, wrap(make, unbroken, rw.distribute.ParameterServerStrategy()), 20)
    assert_equal(second, unbroken)


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE.keys())
def test_a_cluster_goes_on_from_a_program_alone_and_back(make: Make, tmp_path: Path) -> None:
    alone, first, second, third = net(), net(), net(), net()
    optimizer = wrap(make, first, rw.distribute.ParameterServerStrategy())
    train(first, optimizer, 10)
    save(optimizer, tmp_path / "alone")
    in_cluster = wrap(make, second, resumed(tmp_path / "alone"))
    train(second, in_cluster, 10)
    path = save(in_cluster, tmp_path / "cluster")
    train(third, wrap(make, third, went_on(path)), 10)
    train(alone, make(alone.parameters()), 30)
    for name, value in alone.state_dict().items():
        torch.testing.assert_close(third.state_dict()[name], value, rtol=1e-4, atol=1e-5)
