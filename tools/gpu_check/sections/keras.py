"""Rows about Keras: `fit` under a strategy is `fit` alone, on each backend."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import ropewalk as rw
from ropewalk.core.process.accelerators import count_gpus

from ..programs import logical_gpus, need_jax, same, torch_device
from ..rows import row as any_row

row = partial(any_row, only_one=True)

_PAGE = "docs/keras.md"
_X = np.random.default_rng(0).normal(size=(192, 8)).astype(np.float32)
_Y = np.sin(_X @ np.random.default_rng(1).normal(size=(8, 1))).astype(np.float32)


def _fitted(make: Callable[[], Any] | None, units: int = 16) -> list[float]:
    """Losses of ten epochs of three steps."""
    import contextlib

    import keras

    keras.utils.set_random_seed(0)
    with make().scope() if make is not None else contextlib.nullcontext():
        layers = keras.Input((8,)), keras.layers.Dense(units, "tanh"), keras.layers.Dense(1)
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.01), "mse")
    history = model.fit(_X, _Y, batch_size=64, epochs=10, shuffle=False, verbose=0).history
    return [float(loss) for loss in history["loss"]]


def _compared(strategies: dict[str, Callable[[], Any]], units: int = 16) -> str:
    alone = _fitted(None, units)
    for name, make in strategies.items():
        same(_fitted(make, units), alone, f"losses under {name}", rtol=2e-3)
    return f"{', '.join(strategies)}; loss {alone[0]:.3f} to {alone[-1]:.3f}"


_ALONE: dict[str, Callable[[], Any]] = {
    "ps": rw.distribute.ParameterServerStrategy,
    "one device": lambda: rw.distribute.OneDeviceStrategy("cpu:0"),
}


@row(_PAGE, wanted="the losses of fit alone", needs=["keras", "torch"], limit_s=90)
def on_torch() -> str:
    """On PyTorch `fit` under a strategy has the losses of `fit` alone."""
    os.environ["KERAS_BACKEND"] = "torch"
    torch_device()
    return _compared(_ALONE)


@row(_PAGE, wanted="the losses of fit alone", needs=["jax", "keras"], limit_s=90)
def on_jax() -> str:
    """On JAX `fit` under a strategy has the losses of `fit` alone."""
    need_jax()
    return _compared(_ALONE)


@row("docs/keras.md#several-devices", wanted="the losses of fit alone",
     needs=["cupy", "jax", "keras"], on_card=True, limit_s=90)  # fmt: skip
def logical_devices() -> str:
    """Two replicas on a GPU have the losses of one."""
    need_jax()
    with logical_gpus(2 * count_gpus()):
        return _compared({"Mirrored": rw.distribute.MirroredStrategy})


@row("docs/keras.md#several-devices", wanted="the losses of fit alone",
     needs=["cupy", "jax", "keras"], gpus=2, only_one=False, on_card=True, limit_s=120)  # fmt: skip
def several_gpus() -> str:
    """On several GPUs `fit` is one program for all, of weights of more than a megabyte too."""
    need_jax()
    return _compared({"Mirrored": rw.distribute.MirroredStrategy}, units=40_000)
