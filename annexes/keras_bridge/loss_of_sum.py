"""Whether a loss that a program wrote is a sum over the examples of a batch.

Workers in sync average their gradients, as is right for a mean. A sum of Keras says so
(``reduction="sum"``, see ``in_sync.refuse_sums``); one that a program wrote is found out by trying
it once on random examples before the first step: of a batch that is given twice a mean is the same,
and a sum is twice as large. So is one that is divided by a number of the program's, which is right
if that is the worker's own batch size; hence it is a warning.
"""

import functools
import logging
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from .frameworks import keras

log = logging.getLogger(__name__)


def warn_of_sum(model: Any, workers: int) -> None:
    """Have the first loss of a model tried, if the program wrote it.

    Args:
        model: Compiled model whose gradients are averaged.
        workers: Number of workers in sync.
    """
    is_own = not _is_of_keras(type(model).compute_loss)
    if not is_own and all(map(_is_of_keras, _losses_of(model))):
        return
    compute = model.compute_loss

    @functools.wraps(compute)
    def tried(*args: Any, **kwargs: Any) -> Any:
        object.__delattr__(model, "compute_loss")
        call = specs_of((args, kwargs))
        if called_apart(lambda: grows_with_examples(model, is_own, *call)):
            log.warning(
                "the loss of %r grows with the number of examples of a batch, as a sum does, and "
                "%d workers in sync average their gradients, so a step is 1/%d of that of one "
                "process, unless the loss is divided by the number of this worker's examples. "
                "Take the mean over examples, or have gradients added up: make and compile the "
                "model outside of the scope, and call "
                "rw.training.keras.distribute(model, strategy, mean=False)",
                model.name,
                workers,
                workers,
            )
        return compute(*args, **kwargs)

    if "compute_loss" not in vars(model):
        object.__setattr__(model, "compute_loss", tried)


def grows_with_examples(model: Any, is_own: bool, args: Any, kwargs: Any) -> bool:
    """Return whether the loss of a batch that is given twice is twice as large; no, if it cannot be
    tried.

    Args:
        model: Compiled model.
        is_own: Whether its ``compute_loss`` is the program's; else that of ``compile`` is tried.
        args: Arguments of ``compute_loss``, arrays as :class:`Spec`.
        kwargs: Keyword arguments of ``compute_loss``, in the form of ``args``.
    """
    arguments = dict(zip(("x", "y", "y_pred", "sample_weight"), args, strict=False)) | kwargs

    def loss(batch: Any) -> float:
        with keras.StatelessScope():
            batch = as_tensors(batch)
            if is_own:
                return float(number_of(type(model).compute_loss(model, **batch)))
            names = ("y", "y_pred", "sample_weight")
            return float(number_of(model._compile_loss(*(batch.get(name) for name in names))))

    try:
        batch = drawn(arguments, np.random.default_rng(0))
        once = loss(batch)
        twice = loss(keras.tree.map_structure(_twice, batch))
    except Exception as error:  # noqa: BLE001 - code of the program, on examples that are not its
        log.debug("the loss of %r cannot be tried on random examples: %s", model.name, error)
        return False
    return bool(once and np.isclose(twice, 2 * once, rtol=1e-3))


def _twice(leaf: Any) -> Any:
    return np.concatenate([leaf, leaf]) if isinstance(leaf, np.ndarray) and leaf.ndim else leaf


def _losses_of(model: Any) -> list[Any]:
    losses = keras.tree.flatten(getattr(model._compile_loss, "_user_loss", None))
    return [loss for loss in losses if callable(loss)]


def _is_of_keras(function: Any) -> bool:
    function = getattr(function, "fn", function)  # of a LossFunctionWrapper
    module = getattr(function, "__module__", None) or type(function).__module__
    return str(module).partition(".")[0] == "keras"


@dataclass(frozen=True, slots=True)
class Spec:
    """Shape and dtype of an array; sizes that are not known are 2."""

    shape: tuple[int, ...]
    dtype: str


def specs_of(tree: Any) -> Any:
    """Replace the arrays of a nested structure by specs."""
    return keras.tree.map_structure(_spec, tree)


def drawn(specs: Any, rng: np.random.Generator) -> Any:
    """Draw arrays of NumPy for the specs of a nested structure: below 1, and 0 or 1 of whole
    numbers.
    """
    return keras.tree.map_structure(lambda leaf: _drawn(leaf, rng), specs)


def as_tensors(tree: Any) -> Any:
    """Replace the arrays of a nested structure by tensors."""
    return keras.tree.map_structure(
        lambda leaf: keras.ops.convert_to_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf,
        tree,
    )


def number_of(value: Any) -> Array:
    """Read a tensor on the host."""
    return np.array(keras.ops.convert_to_numpy(value), np.float64)


def called_apart(function: Callable[[], Any]) -> Any:
    """Call a function where nothing is traced; Python's random numbers go on as without it."""
    state = random.getstate()
    try:
        with ThreadPoolExecutor(1, thread_name_prefix="try") as thread:
            return thread.submit(function).result()
    finally:
        random.setstate(state)


def _spec(leaf: Any) -> Any:
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        return leaf
    shape = tuple(2 if size is None else int(size) for size in leaf.shape)
    return Spec(shape, keras.backend.standardize_dtype(leaf.dtype))


def _drawn(leaf: Any, rng: np.random.Generator) -> Any:
    if not isinstance(leaf, Spec):
        return leaf
    is_float = keras.backend.is_float_dtype(leaf.dtype)
    numbers = rng.random(leaf.shape) if is_float else rng.integers(0, 2, leaf.shape)
    return numbers.astype("float32" if leaf.dtype == "bfloat16" else leaf.dtype)
