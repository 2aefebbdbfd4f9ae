"""Programs of JAX, PyTorch and Keras that ``benchmarks.bridges`` measures, each as a step.

A case is a function of a strategy, or of None for the framework alone, that returns the step.
"""

import importlib.util
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Literal

import numpy as np

import ropewalk as rw

Step = Callable[[], object]
Case = Callable[[Any], Step]

# name -> (examples, inputs, hidden units); about 0.1 and 5 ms on one core
MODELS = {"small": (64, 64, 64), "5 ms": (512, 256, 768)}


def arrays(model: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """First values of a network with one hidden layer, and a batch."""
    examples, inputs, hidden = MODELS[model]
    rng = np.random.default_rng(0)
    shapes = [(inputs, hidden), (hidden,), (hidden, 10), (10,)]
    values = [rng.normal(size=shape).astype(np.float32) / 16 for shape in shapes]
    x, y = rng.normal(size=(examples, inputs)), rng.normal(size=(examples, 10))
    return values, x.astype(np.float32), y.astype(np.float32)


# -- JAX -------------------------------------------------------------------------------------


def _jax_step(
    params: Any, compute: Any, strategy: Any, name: str, *, on_worker: bool = False
) -> Step:
    """A step of optax' Adam.

    Args:
        params: The tree.
        compute: Gradients of it.
        strategy: As of a case.
        name: Unique.
        on_worker: Whether the optimizer stays on the worker.
    """
    import jax
    import optax

    optimizer = optax.adam(1e-3)
    if strategy is not None:
        state = rw.training.jax.TrainState(
            params, optimizer, strategy, name=name, deltas="always" if on_worker else "allow"
        )
        return lambda: state.apply_gradients(compute(state.params))
    held = [params, optimizer.init(params)]

    def update(params: Any, opt_state: Any, gradients: Any) -> Any:
        changes, opt_state = optimizer.update(gradients, opt_state)
        return optax.apply_updates(params, changes), opt_state

    apply = jax.jit(update)

    def step() -> None:
        held[:] = apply(held[0], held[1], compute(held[0]))
        jax.tree.map(lambda each: each.block_until_ready(), held[0])

    return step


def jax_dense(model: str, strategy: Any, *, on_worker: bool = False) -> Step:
    """A list of four arrays."""
    import jax
    import jax.numpy as jnp

    first, x, y = arrays(model)

    def loss_of(p: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ p[0] + p[1]) @ p[2] + p[3] - y) ** 2)

    params = [jnp.asarray(value) for value in first]
    name = f"jax {model} {on_worker}"
    return _jax_step(params, jax.jit(jax.grad(loss_of)), strategy, name, on_worker=on_worker)


def jax_nnx(strategy: Any) -> Step:
    """A module of Flax NNX, split into its graph and its parameters."""
    import jax
    from flax import nnx

    _, x, y = arrays("small")
    rngs = nnx.Rngs(0)
    module = nnx.Sequential(nnx.Linear(64, 64, rngs=rngs), nnx.tanh, nnx.Linear(64, 10, rngs=rngs))
    graph, params = nnx.split(module)

    def loss_of(params: Any) -> Any:
        return ((nnx.merge(graph, params)(x) - y) ** 2).mean()

    return _jax_step(params, jax.jit(jax.grad(loss_of)), strategy, "nnx")


# -- PyTorch ---------------------------------------------------------------------------------


def _shared(optimizer: Any, strategy: Any, module: Any, name: str) -> Any:
    """An optimizer of PyTorch, under the strategy if there is one."""
    if strategy is None:
        return optimizer
    return rw.training.torch.DistributedOptimizer(optimizer, strategy, module=module, name=name)


def _torch_network(model: str, *between: Any) -> tuple[Any, Any, Any]:
    """A module, and a batch; PyTorch has one thread: those of a second spin where the ps runs."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    first, x, y = arrays(model)
    hidden, out = torch.nn.Linear(*first[0].shape), torch.nn.Linear(*first[2].shape)
    module = torch.nn.Sequential(hidden, *between, torch.nn.Tanh(), out)
    return module, torch.tensor(x), torch.tensor(y)


def torch_dense(model: str, strategy: Any, *, kind: str = "Adam") -> Step:
    """Two layers."""
    import torch

    module, x, y = _torch_network(model)
    optimizer = getattr(torch.optim, kind)(module.parameters(), 1e-3)
    optimizer = _shared(optimizer, strategy, module, f"torch {model} {kind}")

    def step() -> None:
        optimizer.zero_grad()
        (module(x) - y).square().mean().backward()
        optimizer.step()

    return step


def torch_batch_norm(strategy: Any) -> Step:
    """Batch norm, whose averages are shared."""
    import torch

    torch.set_num_threads(1)
    module, x, y = _torch_network("small", torch.nn.BatchNorm1d(64))
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    optimizer = _shared(optimizer, strategy, module, "batch norm")

    def step() -> None:
        optimizer.zero_grad()
        (module(x) - y).square().mean().backward()
        optimizer.step()

    return step


def torch_gan(strategy: Any) -> Step:
    """Two networks, each with an optimizer."""
    import torch

    torch.set_num_threads(1)
    nn, loss_of = torch.nn, torch.nn.BCEWithLogitsLoss()
    generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))
    critic = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 1))
    real, noise = torch.randn(64, 2), torch.randn(64, 8)
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3)
    of_critic = torch.optim.Adam(critic.parameters(), 1e-3)
    of_generator = _shared(of_generator, strategy, generator, "generator")
    of_critic = _shared(of_critic, strategy, critic, "critic")

    def step() -> None:
        fake = generator(noise)
        of_critic.zero_grad()
        (loss_of(critic(real), ones) + loss_of(critic(fake.detach()), zeros)).backward()
        of_critic.step()
        of_generator.zero_grad()
        loss_of(critic(fake), ones).backward()
        of_generator.step()

    return step


def torch_bag(strategy: Any) -> Step:
    """An EmbeddingBag with sparse gradients, and a layer."""
    import torch

    torch.set_num_threads(1)
    bag = torch.nn.EmbeddingBag(10_000, 16, sparse=True, mode="sum")
    module = torch.nn.Sequential(bag, torch.nn.Linear(16, 1))
    ids, y = torch.randint(0, 10_000, (64, 10)), torch.randn(64, 1)
    optimizer = torch.optim.SGD(module.parameters(), 1e-3)
    optimizer = _shared(optimizer, strategy, module, "bag")

    def step() -> None:
        optimizer.zero_grad()
        (module(ids) - y).square().mean().backward()
        optimizer.step()

    return step


def torch_amp(strategy: Any) -> Step:
    """Two layers in bfloat16, with a GradScaler."""
    import torch

    module, x, y = _torch_network("small")
    optimizer = torch.optim.Adam(module.parameters(), 1e-3)
    optimizer = _shared(optimizer, strategy, module, "amp")
    scaler = torch.amp.GradScaler("cpu")

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = (module(x) - y).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    return step


# -- Keras -----------------------------------------------------------------------------------


def keras_dense(model: str, strategy: Any, *, on_worker: bool = False) -> Step:
    """``train_on_batch``."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    first, x, y = arrays(model)
    layers = [keras.Input(x.shape[1:]), keras.layers.Dense(len(first[1]), "tanh")]
    network = keras.Sequential([*layers, keras.layers.Dense(10)])
    network.compile("adam", "mse")
    if strategy is not None:
        deltas: Literal["always", "allow"] = "always" if on_worker else "allow"
        name = f"keras {model} {on_worker}"
        rw.training.keras.distribute(network, strategy, name=name, deltas=deltas)
    return lambda: network.train_on_batch(x, y)


CASES: dict[str, dict[str, Case]] = {
    "jax": {
        "Adam": partial(jax_dense, "small"),
        "Adam, 5 ms": partial(jax_dense, "5 ms"),
        "optax on the worker": partial(jax_dense, "small", on_worker=True),
        "Flax NNX": jax_nnx,
    },
    "keras": {
        "Adam": partial(keras_dense, "small"),
        "Adam, 5 ms": partial(keras_dense, "5 ms"),
        "Adam on the worker": partial(keras_dense, "small", on_worker=True),
    },
    "torch": {
        "Adam": partial(torch_dense, "small"),
        "Adam, 5 ms": partial(torch_dense, "5 ms"),
        "RMSprop, on the worker": partial(torch_dense, "small", kind="RMSprop"),
        "GAN, two Adam": torch_gan,
        "batch norm": torch_batch_norm,
        "sparse EmbeddingBag": torch_bag,
        "AMP": torch_amp,
    },
}


def cases(containing: str) -> Iterator[tuple[str, Case]]:
    """Cases of the frameworks that are installed, each with a name such as ``torch: AMP``.

    Args:
        containing: Part of the name.
    """
    for framework, found in CASES.items():
        if importlib.util.find_spec(framework) is None:
            continue
        for name, case in found.items():
            if containing in f"{framework}: {name}":
                yield f"{framework}: {name}", case
