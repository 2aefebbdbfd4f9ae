"""Programs of PyTorch whose optimizers call a closure; run by itself, a worker in sync."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import ropewalk as rw

X = torch.tensor(np.random.default_rng(0).normal(size=(32, 4)), dtype=torch.float64)
Y = torch.sin(2 * X.sum(1, keepdim=True))
Share = Callable[[Any, Any], Any]


class Sharp(torch.optim.Optimizer):  # type: ignore[misc]
    """Sharpness-aware minimization: the gradient at a worse point decides."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> Any:
        """Take the gradient at a worse point than the parameters are."""
        loss = closure()
        trained = [p for group in self.param_groups for p in group["params"]]
        before = [p.detach().clone() for p in trained]
        norm = torch.stack([p.grad.norm() for p in trained]).norm()
        with torch.no_grad():
            for p in trained:
                p.add_(0.05 * p.grad / norm)
        closure()
        with torch.no_grad():
            for p, old in zip(trained, before, strict=True):
                p.copy_(old - self.param_groups[0]["lr"] * p.grad)
        return loss


MAKE: dict[str, Callable[[Any], Any]] = {
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=5),
    "wolfe": lambda p: torch.optim.LBFGS(p, max_iter=5, line_search_fn="strong_wolfe"),
    "sharp": lambda p: Sharp(p, 0.1),
    "amsgrad": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True),
}


def train(case: str, share: Share, mine: slice = slice(None)) -> list[float]:
    """Losses of six steps, and sums of the parameters.

    Args:
        case: A key of ``MAKE``.
        share: Is given optimizer and module, and returns the optimizer to train with.
        mine: This worker's part of the batch.
    """
    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)
    ).double()
    optimizer = share(MAKE[case](module.parameters()), module)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(module(X[mine]), Y[mine])
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure)) for _ in range(6)]
    return losses + [float(p.detach().sum()) for p in module.parameters()]


def shared_by(strategy: Any) -> Share:
    """Share an optimizer under a strategy."""
    wrapped = rw.training.torch.DistributedOptimizer
    return lambda optimizer, module: wrapped(optimizer, strategy, module=module)


if __name__ == "__main__":
    strategy = rw.distribute.MultiWorkerMirroredStrategy()
    mine = slice(strategy.extended.input_pipeline_id, None, 2)
    print("found", json.dumps({case: train(case, shared_by(strategy), mine) for case in MAKE}))
