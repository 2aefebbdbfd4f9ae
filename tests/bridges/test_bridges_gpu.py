"""PyTorch and JAX on a GPU: the same curves as alone, whatever makes the step.

Skipped without a GPU. Each case trains as the program does without Ropewalk, and beside it. The
servers' steps compute on the host, where sums have another order: 1e-4 is 1,000 units in the last
place of float32, of which 30 steps make some dozens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ropewalk as rw

torch: Any = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.bridges,
    pytest.mark.gpu("torch"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks"),
]

STEPS = 30
X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
Y = np.sin(X @ np.random.default_rng(1).normal(size=(8, 1))).astype(np.float32)
IDS = np.random.default_rng(2).integers(0, 50, (64, 3))
Strategies = Callable[[], rw.distribute.Strategy]
STRATEGIES: dict[str, Strategies] = {
    "ps": rw.distribute.ParameterServerStrategy,
    "in sync": rw.distribute.MultiWorkerMirroredStrategy,
}


class WithRows(torch.nn.Module):  # type: ignore[misc]
    """Sparse gradients, and averages of batches."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = torch.nn.EmbeddingBag(50, 8, mode="sum", sparse=True)
        self.norm = torch.nn.BatchNorm1d(16)
        self.out = torch.nn.Linear(16, 1)

    def forward(self, x: Any, ids: Any) -> Any:
        return self.out(self.norm(torch.cat([x, self.bag(ids)], 1)))


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.05),
    "on the worker": lambda p: torch.optim.SGD(p, 0.05, foreach=False),
}


def torch_losses(wrap: Callable[[Any, Any], Any], make: Callable[[Any], Any]) -> list[float]:
    torch.manual_seed(0)
    module = WithRows().cuda()
    optimizer = wrap(make(module.parameters()), module)
    x, ids, y = (torch.from_numpy(each).cuda() for each in (X, IDS, Y))
    found = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (module(x, ids) - y).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert all(each.is_cuda for each in module.state_dict().values())
    return found


@pytest.mark.parametrize("place", OPTIMIZERS)
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=list(STRATEGIES))
def test_a_module_on_a_gpu_has_the_curve_that_it_has_alone(make: Strategies, place: str) -> None:
    deltas: Any = "always" if place == "on the worker" else "allow"

    def wrap(optimizer: Any, module: Any) -> Any:
        return rw.training.torch.DistributedOptimizer(
            optimizer, make(), module=module, deltas=deltas
        )

    alone = torch_losses(lambda optimizer, _: optimizer, OPTIMIZERS[place])
    assert alone[-1] < alone[0] / 2
    np.testing.assert_allclose(torch_losses(wrap, OPTIMIZERS[place]), alone, rtol=1e-4)


def test_values_come_in_pinned_memory() -> None:
    """A copy to the GPU out of other memory takes five times as long."""
    module = torch.nn.Linear(512, 512).cuda()
    strategy = rw.distribute.ParameterServerStrategy()
    rw.training.torch.DistributedOptimizer(
        torch.optim.SGD(module.parameters(), 0.1), strategy, module=module
    )
    from ropewalk.core.arrays.buffers import host_memory

    assert torch.from_numpy(host_memory(1 << 20)).is_pinned()


@pytest.mark.gpu("jax")
@pytest.mark.parametrize("make", STRATEGIES.values(), ids=list(STRATEGIES))
def test_a_tree_of_jax_has_the_curve_that_it_has_alone(make: Strategies) -> None:
    jax: Any = pytest.importorskip("jax")
    optax: Any = pytest.importorskip("optax")

    def loss_of(p: Any) -> Any:
        return jax.numpy.mean((jax.numpy.tanh(X @ p["w"]) @ p["v"] - Y) ** 2)

    compute = jax.jit(jax.value_and_grad(loss_of))
    rng = np.random.default_rng(3)
    first = {"w": rng.normal(size=(8, 600)) / 8, "v": rng.normal(size=(600, 1)) / 60}
    params = {name: jax.numpy.asarray(value, np.float32) for name, value in first.items()}
    optimizer = optax.adam(1e-3)
    state, alone, ours = optimizer.init(params), [], []
    shared = rw.training.jax.TrainState(params, optimizer, make())
    for _ in range(STEPS):
        loss, gradients = compute(params)
        changes, state = optimizer.update(gradients, state)
        params = optax.apply_updates(params, changes)
        alone.append(float(loss))
        loss, gradients = compute(shared.params)
        shared.apply_gradients(gradients)
        ours.append(float(loss))
    np.testing.assert_allclose(ours, alone, rtol=1e-3)  # Adam divides by small numbers
