"""Rows about JAX: a tree on a GPU trains as optax alone, on several devices too."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import ropewalk as rw

from ..programs import is_played, local, need_jax, same
from ..rows import row as any_row

row = partial(any_row, only_one=True)

_PAGE = "docs/jax.md"
_NEEDS = ["jax", "optax"]
_X = np.random.default_rng(0).normal(size=(64, 8)).astype(np.float32)
_Y = np.sin(_X @ np.random.default_rng(1).normal(size=(8, 1))).astype(np.float32)
_STRATEGIES: dict[str, Callable[[], Any]] = {
    "ps": rw.distribute.ParameterServerStrategy,
    "in sync": rw.distribute.MultiWorkerMirroredStrategy,
}


def _tree(dtype: Any = np.float32, width: int = 600) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    shapes = {"w": (8, width), "m": (width, width), "v": (width, 1)}  # of m 1.4 MB
    return {
        name: need_jax().numpy.asarray(rng.normal(size=shape) / shape[0], dtype)
        for name, shape in shapes.items()
    }


def _gradients() -> Callable[[Any], Any]:
    jax = need_jax()

    def loss_of(p: Any) -> Any:
        tanh = jax.numpy.tanh
        found = tanh(tanh(_X @ p["w"]) @ p["m"]) @ p["v"]
        return jax.numpy.mean((found.astype(np.float32) - _Y) ** 2)

    compiled: Callable[[Any], Any] = jax.jit(jax.value_and_grad(loss_of))
    return compiled


def _alone(make: Callable[[], Any], params: Any, steps: int) -> list[float]:
    import optax

    optimizer, compute, found = make(), _gradients(), []
    state = optimizer.init(params)
    for _ in range(steps):
        loss, gradients = compute(params)
        changes, state = optimizer.update(gradients, state, params)
        params = optax.apply_updates(params, changes)
        found.append(float(loss))
    return found


def _ours(make: Callable[[], Any], params: Any, strategy: Any, steps: int) -> list[float]:
    state, compute, found = rw.training.jax.TrainState(params, make(), strategy), _gradients(), []
    for _ in range(steps):
        loss, gradients = compute(state.params)
        state.apply_gradients(gradients)
        found.append(float(loss))
    return found


@row(_PAGE, wanted="the losses alone", needs=_NEEDS, limit_s=90)
def optimizers() -> str:
    """A tree on a GPU has the losses of optax alone, with leaves of more than a megabyte."""
    import optax

    kinds = {
        "adam": lambda: optax.adam(1e-3),
        "sgd": lambda: optax.sgd(0.05, momentum=0.9),
        "lion, on the worker": lambda: optax.chain(optax.scale_by_rms(), optax.scale(-1e-3)),
    }
    for kind, make in kinds.items():
        alone = _alone(make, _tree(), 20)
        for name, strategy in _STRATEGIES.items():
            same(_ours(make, _tree(), strategy(), 20), alone, f"{kind} under {name}", rtol=2e-3)
    return f"{', '.join(kinds)}; 20 steps"


@row(_PAGE, wanted="the losses alone, within 5 %", needs=_NEEDS)
def half_precision() -> str:
    """Leaves of bfloat16 train, by float32 moments on the servers."""
    import warnings

    import optax

    warnings.simplefilter("ignore")  # that curves differ a little
    dtype = need_jax().numpy.bfloat16
    alone = _alone(lambda: optax.sgd(0.05), _tree(dtype), 15)
    for name, strategy in _STRATEGIES.items():
        found = _ours(lambda: optax.sgd(0.05), _tree(dtype), strategy(), 15)
        same(found, alone, f"losses under {name}", rtol=0.05)
    return f"15 steps, loss {alone[0]:.3f} to {alone[-1]:.3f}"


@row(_PAGE, wanted="as without", needs=_NEEDS)
def donated() -> str:
    """Parameters that a program donates are there again at the next look."""
    import optax

    jax = need_jax()
    state = rw.training.jax.TrainState(
        _tree(), optax.sgd(0.05), rw.distribute.ParameterServerStrategy()
    )
    consumed = jax.jit(lambda tree: jax.tree.map(lambda leaf: leaf * 2, tree), donate_argnums=0)
    before = {name: np.array(leaf) for name, leaf in state.params.items()}
    consumed(state.params)
    for name, leaf in state.params.items():
        same(np.asarray(leaf), before[name], name)
    return f"{len(before)} leaves"


@row(_PAGE, wanted="as on one device", needs=_NEEDS, gpus=2, only_one=False)
def several_devices() -> str:
    """Gradients and arrays that are on all GPUs, replicated or in parts, are taken."""
    import optax

    jax = need_jax()
    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    kinds = {
        name: jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))
        for name, axes in {"replicated": (), "in parts": ("data",)}.items()
    }
    size = 300_000 * len(jax.devices())
    for name, sharding in kinds.items():
        gradient = jax.device_put(np.ones(size, np.float32), sharding)
        state = rw.training.jax.TrainState(
            {"w": jax.numpy.zeros(size)}, optax.sgd(0.5), rw.distribute.MirroredStrategy(["cpu:0"])
        )
        same(np.asarray(state.apply_gradients({"w": gradient})["w"]), np.full(size, -0.5), name)
        variable = rw.Variable(np.zeros(size, np.float32))
        variable.assign(gradient)
        same(variable.numpy(), np.ones(size), f"a variable, {name}")
    return f"{len(jax.devices())} devices"


_SHARING = """
import jax, jax.numpy as jnp, numpy as np, optax
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
state = rw.training.jax.TrainState({"w": jnp.zeros(500_000)}, optax.sgd(0.1), strategy)
gradient = jax.jit(lambda p: {"w": p["w"] - 1})
for _ in range(5):
    state.apply_gradients(gradient(state.params))
print("computed on", jax.default_backend(), flush=True)
"""


@row("docs/gpu.md", wanted="all end", needs=_NEEDS, only_one=False, limit_s=120)
def sharing() -> str:
    """Three tasks of JAX share the machine's GPUs, whose memory none takes for itself."""
    need_jax()
    output = local(_SHARING, "--workers", "2", "--ps", "1", XLA_PYTHON_CLIENT_PREALLOCATE="")
    where = "cpu" if is_played() else "gpu"
    assert output.count(f"computed on {where}") == 3, output[-300:]
    return "3 tasks"
