"""Rows about PyTorch: a module on a GPU trains as it does alone, whatever its step is made of."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import ropewalk as rw

from ..programs import is_played, same, torch_device
from ..rows import Skip
from ..rows import row as any_row

row = partial(any_row, only_one=True)

_PAGE = "docs/pytorch.md"
_X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
_Y = np.sin(_X @ np.random.default_rng(1).normal(size=(8, 1))).astype(np.float32)
_STRATEGIES: dict[str, Callable[[], Any]] = {
    "ps": rw.distribute.ParameterServerStrategy,
    "in sync": rw.distribute.MultiWorkerMirroredStrategy,
}
_STEPS = 30


def _module() -> Any:
    import torch

    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)
    return torch.nn.Sequential(*layers).to(torch_device())


def _batch() -> tuple[Any, Any]:
    import torch

    return tuple(torch.from_numpy(each).to(torch_device()) for each in (_X, _Y))


def _shared(optimizer: Any, module: Any, make: Callable[[], Any] | None, **options: Any) -> Any:
    """An optimizer under a strategy; None: as it is."""
    if make is None:
        return optimizer
    return rw.training.torch.DistributedOptimizer(optimizer, make(), module=module, **options)


def _compared(losses: Callable[[Callable[[], Any] | None], list[float]], rtol: float = 1e-3) -> str:
    """Compare the losses under each strategy with those without one."""
    alone = losses(None)
    for name, make in _STRATEGIES.items():
        same(losses(make), alone, f"losses under {name}", rtol=rtol)
    return f"{len(alone)} steps, loss {alone[0]:.3f} to {alone[-1]:.3f}"


def _plain(
    make_optimizer: Callable[[Any], Any],
    make: Callable[[], Any] | None,
    forward: Callable[[Any, Any], Any] = lambda module, x: module(x),
    module: Any = None,
    **options: Any,
) -> list[float]:
    """Losses of a plain loop."""
    module, (x, y) = module if module is not None else _module(), _batch()
    optimizer, found = _shared(make_optimizer(module), module, make, **options), []
    for _ in range(_STEPS):
        optimizer.zero_grad()
        loss = (forward(module, x).float() - y).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    devices = {each.device.type for each in module.state_dict().values()}
    assert devices == {torch_device()}, f"the module is on {devices}"
    return found


@row(_PAGE, wanted="the losses alone", needs=["torch"], limit_s=90)
def optimizers() -> str:
    """A module on a GPU has the losses that it has alone, with optimizers of PyTorch."""
    import torch

    names = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
    for name in names:

        def losses(make: Callable[[], Any] | None, name: str = name) -> list[float]:
            kind = getattr(torch.optim, name)
            return _plain(lambda module: kind(module.parameters(), 0.01), make)

        _compared(losses)
    return f"{', '.join(names)}; {_STEPS} steps"


@row(_PAGE, wanted="the losses alone", needs=["torch"])
def on_worker() -> str:
    """So it has with an optimizer that runs on the worker."""
    import torch

    def losses(make: Callable[[], Any] | None) -> list[float]:
        options: dict[str, Any] = {"deltas": "always"} if make is not None else {}
        return _plain(lambda m: torch.optim.Adam(m.parameters(), 0.01), make, **options)

    return _compared(losses)


@row(_PAGE, wanted="the losses alone", needs=["torch"])
def groups() -> str:
    """So it has with two groups of parameters, of rates of their own."""
    import torch

    def made(module: Any) -> Any:
        first, last = list(module[0].parameters()), list(module[2].parameters())
        return torch.optim.SGD([{"params": first}, {"params": last, "lr": 0.2}], lr=0.05)

    return _compared(lambda make: _plain(made, make))


@row(_PAGE, wanted="the losses alone, within 5 %", needs=["torch"])
def half_precision() -> str:
    """A module in bfloat16 trains, by float32 moments on the servers."""
    import warnings

    import torch

    warnings.simplefilter("ignore")  # that curves differ a little

    def losses(make: Callable[[], Any] | None) -> list[float]:
        return _plain(
            lambda m: torch.optim.SGD(m.parameters(), 0.05), make,
            lambda module, x: module(x.bfloat16()), _module().bfloat16(),
        )  # fmt: skip

    return _compared(losses, rtol=0.05)


@row(_PAGE, wanted="the losses alone", needs=["torch"])
def channels_last() -> str:
    """Weights in another memory order keep it, and train."""
    import torch

    def losses(make: Callable[[], Any] | None) -> list[float]:
        torch.manual_seed(0)
        layers = (
            torch.nn.Unflatten(1, (2, 2, 2)), torch.nn.Conv2d(2, 4, 2), torch.nn.Flatten(),
            torch.nn.Linear(4, 1),
        )  # fmt: skip
        module = torch.nn.Sequential(*layers).to(torch_device(), memory_format=torch.channels_last)
        found = _plain(lambda m: torch.optim.SGD(m.parameters(), 0.05), make, module=module)
        assert module[1].weight.is_contiguous(memory_format=torch.channels_last)
        return found

    return _compared(losses)


@row(_PAGE, wanted="the losses alone", needs=["torch"])
def amp() -> str:
    """Under autocast, with a GradScaler, a step with infinities is left out, as it is alone."""
    import torch

    device = torch_device()
    half = torch.float16 if device == "cuda" else torch.bfloat16

    def losses(make: Callable[[], Any] | None) -> list[float]:
        module, (x, y) = _module(), _batch()
        optimizer = _shared(torch.optim.SGD(module.parameters(), 0.05), module, make)
        scaler, found = torch.amp.GradScaler(device, init_scale=64.0), []
        for number in range(_STEPS):
            optimizer.zero_grad()
            with torch.autocast(device, half):
                loss = (module(x) - y).square().mean()
            scaler.scale(loss * (float("inf") if number == 3 else 1.0)).backward()
            scaler.step(optimizer)
            scaler.update()
            found.append(loss.item())
        assert scaler.get_scale() == 32, f"the scale is {scaler.get_scale()}"
        return found

    return _compared(losses, rtol=1e-2)


@row(_PAGE, wanted="the losses alone", needs=["torch"], limit_s=150)
def compiled() -> str:
    """A module that `torch.compile` has compiled trains as it does alone."""
    import torch

    kinds: dict[str, dict[str, Any]] = {
        "default": {},
        "reduce-overhead": {"mode": "reduce-overhead"},
    }
    if is_played():
        kinds = {"eager": {"backend": "eager"}}
    for options in kinds.values():

        def losses(
            make: Callable[[], Any] | None, options: dict[str, Any] = options
        ) -> list[float]:
            module = _module()
            forward = torch.compile(module, **options)
            return _plain(
                lambda m: torch.optim.Adam(m.parameters(), 0.01), make,
                lambda _, x: forward(x), module,
            )  # fmt: skip

        _compared(losses)
    return ", ".join(kinds)


@row(_PAGE, wanted="the losses alone", needs=["torch"], on_card=True)
def graph() -> str:
    """A CUDA graph of forward and backward is replayed, and its gradients are shared."""
    import torch

    def losses(make: Callable[[], Any] | None) -> list[float]:
        module, (x, y) = _module(), _batch()
        optimizer = _shared(torch.optim.SGD(module.parameters(), 0.05), module, make)
        stream, captured = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # as the page of torch.cuda.graphs has it
            for _ in range(3):
                (module(x) - y).square().mean().backward()
        torch.cuda.current_stream().wait_stream(stream)
        module.zero_grad(set_to_none=True)  # so that a replay makes gradients, and adds nothing up
        with torch.cuda.graph(captured):
            loss = (module(x) - y).square().mean()
            loss.backward()
        found = []
        for _ in range(_STEPS):
            captured.replay()
            found.append(loss.item())
            optimizer.step()
        return found

    return _compared(losses)


@row(_PAGE, wanted="the losses alone", needs=["torch"], on_card=True)
def late_gradient() -> str:
    """A gradient that is late, on the program's stream, is waited for."""
    import torch

    def losses(make: Callable[[], Any] | None) -> list[float]:
        def late(module: Any, x: Any) -> Any:
            torch.cuda._sleep(20_000_000)  # some 10 ms
            return module(x)

        return _plain(lambda m: torch.optim.SGD(m.parameters(), 0.05), make, late)

    return _compared(losses)


@row(_PAGE, wanted="the losses alone", needs=["torch"])
def sparse() -> str:
    """Sparse gradients travel as rows; batch norm has averages."""
    import torch

    ids = np.random.default_rng(2).integers(0, 50, (64, 3))

    class WithRows(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bag = torch.nn.EmbeddingBag(50, 8, mode="sum", sparse=True)
            self.norm, self.out = torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 1)

        def forward(self, x: Any) -> Any:
            rows = self.bag(torch.from_numpy(ids).to(x.device))
            return self.out(self.norm(torch.cat([x, rows], 1)))

    def losses(make: Callable[[], Any] | None) -> list[float]:
        torch.manual_seed(0)
        module = WithRows().to(torch_device())
        return _plain(lambda m: torch.optim.SGD(m.parameters(), 0.05), make, module=module)

    return _compared(losses)


@row(_PAGE, wanted="pinned, at most 1.6 × the gradients", needs=["torch"], on_card=True)
def pinned() -> str:
    """Gradients are copied to pinned memory that takes little more than their bytes."""
    import torch

    from ropewalk.annexes.torch_bridge.host_copies import HostCopies

    torch_device()
    if not hasattr(torch.cuda, "host_memory_stats"):
        raise Skip("this PyTorch does not count pinned memory")
    tensors = {f"g{i}": torch.ones(1_100_000, device="cuda") for i in range(24)}
    before = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    copies = HostCopies()
    copies.gradients(tensors)
    if not (blocks := torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)):
        raise Skip("this PyTorch does not count pinned memory")
    ratio = (blocks - before) / sum(each.nbytes for each in tensors.values())
    assert ratio <= 1.6, f"{ratio:.2f} ×"
    return f"{ratio:.2f} × the gradients"
