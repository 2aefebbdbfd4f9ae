"""What a bridge costs: a step of a framework alone, and the same step with shared parameters.

    python -m benchmarks.bridges

A step is forward, backward and Adam. "ps here": the servers are in the program's process, as where
a program runs alone. "ps": in a process of its own, over shared memory. "prefetch": the same, by a
strategy that does not wait for its push. "exchange": what the store below takes of "ps", given
arrays: pushing, Adam on the server, and pulling. "empty": a round trip of the session that moves
nothing, below which no step with a ps of its own can be. The cases take turns, since a machine is
not equally busy all the time; PyTorch has one thread. Frameworks that are not installed are left
out; `make test-bridges` installs all of them, into .venv-bridges.
"""

import argparse
import importlib.util
import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import windlass as wl
from benchmarks.running import connected, measure, parameter_servers, settings_of
from windlass.distribute.runtime import ClusterRuntime

# name -> (examples, inputs, hidden units); about 0.1 and 5 ms on one core
ROUNDS = 5
MODELS = {"small": (64, 64, 64), "5 ms": (512, 256, 768)}
Step = Callable[[], object]


@contextmanager
def strategies() -> Iterator[dict[str, wl.distribute.ParameterServerStrategy | None]]:
    """None, one with its ps here, one whose ps is a process, one that does not wait for that."""
    here = wl.distribute.ParameterServerStrategy()
    task, settings = here.extended.runtime.task, settings_of("shm")
    with (
        parameter_servers(1) as addresses,
        connected(addresses, "shm") as waiting,
        connected(addresses, "shm", index=1) as fetching,
    ):
        yield {
            "alone": None,
            "ps here": here,
            "ps": wl.distribute.ParameterServerStrategy(
                runtime=ClusterRuntime(task, settings, waiting)
            ),
            "prefetch": wl.distribute.ParameterServerStrategy(
                runtime=ClusterRuntime(task, settings, fetching), prefetch=True
            ),
        }


def arrays(model: str) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """First values, and a batch."""
    examples, inputs, hidden = MODELS[model]
    rng = np.random.default_rng(0)
    shapes = [(inputs, hidden), (hidden,), (hidden, 10), (10,)]
    values = [rng.normal(size=shape).astype(np.float32) / 16 for shape in shapes]
    x, y = rng.normal(size=(examples, inputs)), rng.normal(size=(examples, 10))
    return values, x.astype(np.float32), y.astype(np.float32)


def jax_step(model: str, strategy: Any) -> Step:
    """Of optax' Adam."""
    import jax
    import jax.numpy as jnp
    import optax

    first, x, y = arrays(model)
    optimizer = optax.adam(1e-3)

    def loss_of(p: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ p[0] + p[1]) @ p[2] + p[3] - y) ** 2)

    compute = jax.jit(jax.value_and_grad(loss_of))
    params = [jnp.asarray(value) for value in first]
    if strategy is not None:
        state = wl.training.jax.TrainState(params, optimizer, strategy, name=f"jax {model}")
        return lambda: state.apply_gradients(compute(state.params)[1])
    held = [params, optimizer.init(params)]

    def update(params: Any, opt_state: Any, gradients: Any) -> Any:
        changes, opt_state = optimizer.update(gradients, opt_state)
        return optax.apply_updates(params, changes), opt_state

    apply = jax.jit(update)

    def step() -> None:
        held[:] = apply(held[0], held[1], compute(held[0])[1])
        held[0][0].block_until_ready()

    return step


def torch_step(model: str, strategy: Any) -> Step:
    """Of torch.optim's Adam."""
    import torch

    torch.set_num_threads(1)  # those of a second one spin where the ps would run
    first, inputs, wanted = arrays(model)
    x, y = torch.tensor(inputs), torch.tensor(wanted)
    hidden, out = torch.nn.Linear(*first[0].shape), torch.nn.Linear(*first[2].shape)
    module = torch.nn.Sequential(hidden, torch.nn.Tanh(), out)
    optimizer: Any = torch.optim.Adam(module.parameters(), 1e-3)
    if strategy is not None:
        optimizer = wl.training.torch.DistributedOptimizer(
            optimizer, strategy, module=module, name=f"torch {model}"
        )

    def step() -> None:
        optimizer.zero_grad()
        (module(x) - y).square().mean().backward()
        optimizer.step()

    return step


def keras_step(model: str, strategy: Any) -> Step:
    """Of Keras' Adam, by ``train_on_batch``."""
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import keras

    first, x, y = arrays(model)
    layers = [keras.Input(x.shape[1:]), keras.layers.Dense(len(first[1]), "tanh")]
    network = keras.Sequential([*layers, keras.layers.Dense(10)])
    network.compile("adam", "mse")
    if strategy is not None:
        wl.training.keras.distribute(network, strategy, name=f"keras {model}")
    return lambda: network.train_on_batch(x, y)


def exchange(model: str, strategy: Any, name: str) -> Step:
    """The store alone."""
    first, _, _ = arrays(model)
    tree = {str(i): value for i, value in enumerate(first)}
    adam = wl.optimizers.Adam(1e-3, corrected_epsilon=True)
    store = wl.training.ArrayStore(tree, adam, strategy, name=name)
    gradients = {name: np.asarray(value) for name, value in store.pull().items()}
    return lambda: store.exchange(gradients)


def empty(strategy: Any) -> Step:
    """A round trip of the session below all of it."""
    session = strategy.extended.runtime.session
    return lambda: session.step(step_increment=1)


BRIDGES = {"jax": jax_step, "keras": keras_step, "torch": torch_step}


def times_of(steps: list[Step], budget_s: float) -> list[float]:
    """Medians of several steps, which take turns. Unit: milliseconds."""
    rounds = [[measure(step, budget_s / ROUNDS).median_ms for step in steps] for _ in range(ROUNDS)]
    return [statistics.median(column) for column in zip(*rounds, strict=True)]


def main() -> None:
    """Measure, print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--budget-s", type=float, default=2, help="per case")
    arguments = parser.parse_args()
    console = Console(width=max(100, Console().width))
    table = Table(title="A training step: ms", title_justify="left")
    for column in (
        "framework", "step", "alone", "ps here", "ps", "prefetch", "exchange", "empty",
    ):  # fmt: skip
        table.add_column(column, justify="right", no_wrap=True)
    with strategies() as places:
        for framework, make in BRIDGES.items():
            if importlib.util.find_spec(framework) is None:
                table.add_row(framework, "not installed")
                continue
            for model in MODELS:
                steps = [make(model, strategy) for strategy in places.values()]
                steps.append(exchange(model, places["ps"], f"store {framework} {model}"))
                steps.append(empty(places["ps"]))
                alone, *bridged, store, floor = times_of(steps, arguments.budget_s)
                table.add_row(
                    framework,
                    model,
                    f"{alone:.2f}",
                    *(f"{each:.2f} ({each - alone:+.2f})" for each in bridged),
                    f"{store:.2f}",
                    f"{floor:.2f}",
                )
    console.print(table)


if __name__ == "__main__":
    main()
