"""The formats that variables are exported in, each as its own framework reads it.

All of them begin with one safetensors file, put together part by part. PyTorch's and Orbax' are
made of that file mapped into memory, so what they take is pages of a file, which the system drops
where memory is short.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..core import annexes
from ..core.arrays.dtypes import Array, DType
from ..core.checkpoint.tensor_file import read_header
from ..core.errors import ConfigurationError
from .extras import require

SUFFIXES = {"safetensors": ".safetensors", "torch": ".pt", "orbax": "", "keras": ".keras"}
"""The ending of a format's file; Orbax writes a folder."""
_FORMATS = {
    ".safetensors": "safetensors", ".pt": "torch", ".pth": "torch", ".keras": "keras",
}  # fmt: skip


def format_of(target: Path, said: str | None) -> str:
    """Choose the format, as it was said or as the target's ending says.

    Raises:
        ValueError: There is none of that name, or the ending says none.
    """
    if said is not None and said not in SUFFIXES:
        raise ValueError(f"format={said!r}; it is one of {', '.join(SUFFIXES)}")
    chosen = said or _FORMATS.get(target.suffix)
    if chosen is None:
        raise ValueError(
            f"{target} may be of any format; end it in {', '.join(_FORMATS)}, or say the format: "
            f"{', '.join(SUFFIXES)}"
        )
    if chosen == "keras" and target.suffix != ".keras":
        raise ValueError(f"{target} must end in .keras, as Keras wants it")
    return chosen


def check_installed(name: str) -> None:
    """Check that what a format needs is here.

    Raises:
        MissingExtraError: It is not; says which extra to install.
    """
    if name in ("torch", "keras"):
        require(name, name)
    if name == "orbax":
        require("orbax.checkpoint", "orbax")


@contextmanager
def mapped(path: Path) -> Iterator[dict[str, Array]]:
    """Map the arrays of a safetensors file, read-only, by name; valid in the block."""
    with path.open("rb") as stream:
        begin, specs, offsets = read_header(stream, path=str(path))
    yield {
        name: np.memmap(path, spec.dtype, "r", begin + offsets[name], spec.shape)
        if spec.num_bytes
        else np.zeros(spec.shape, spec.dtype)
        for name, spec in specs.items()
    }


def mapped_npy(path: Path) -> Array:
    """Map the array of a ``.npy`` file, read-only, into memory.

    Raises:
        ValueError: It is no such file, or one with objects.
        OSError: It cannot be read.
    """
    array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    return array


def scratch_array(path: Path, shape: tuple[int, ...], dtype: DType) -> Array:
    """Make an array in a file, for what may be larger than memory."""
    return np.memmap(path, dtype, "w+", shape=shape)


def write_torch(arrays: Mapping[str, Array], target: Path) -> None:
    """Write a dictionary of tensors, as ``torch.load`` reads it: the state of a module by its
    names.
    """
    annexes.the("export_file", "torch_bridge", "a file of PyTorch").write(arrays, target)


def write_orbax(arrays: Mapping[str, Array], target: Path) -> None:
    """Write a tree of dictionaries, as Orbax' ``StandardCheckpointer`` restores it.

    Raises:
        ValueError: The names make no tree: one begins another.
    """
    orbax = require("orbax.checkpoint", "orbax")
    with orbax.StandardCheckpointer() as checkpointer:
        checkpointer.save(target.resolve(), nested(arrays))


def nested(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Nest names as paths: ``layers/0/w`` is ``["layers"]["0"]["w"]``.

    Raises:
        ValueError: One is another's beginning, or has a part that is no name of a file: none, ``.``
            or ``..``.
    """
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *folders, last = name.split("/")
        if {"", ".", ".."} & {*folders, last}:
            raise ValueError(f"{name!r} is no path of names; rename the variable")
        inner = tree
        for folder in folders:
            inner = inner.setdefault(folder, {})
            if not isinstance(inner, dict):
                break
        if not isinstance(inner, dict) or last in inner:
            raise ValueError(f"{name!r} and another name make no tree: one is the other's path")
        inner[last] = array
    return tree


def write_keras(arrays: Mapping[str, Array], target: Path, model: Any) -> None:
    """Write a model with these weights, as ``keras.models.load_model`` reads it.

    Args:
        arrays: Arrays by the paths of the model's weights.
        target: Ends in ``.keras``.
        model: Built; its weights are overwritten.

    Raises:
        ConfigurationError: There is no model, or it has other weights than these.
    """
    if model is None:
        raise ConfigurationError(
            "a .keras file has a model beside its weights: give model=, built, or --model "
            "MODULE:FUNCTION that makes it"
        )
    for variable in model.trainable_variables:
        if variable.path not in arrays:
            names = ", ".join(list(arrays)[:8])
            raise ConfigurationError(
                f"{model.name!r} has a weight {variable.path!r}, and what is exported has {names}; "
                "give the model that was trained, and names= or prefix= if it had a name",
                variable=variable.path,
            )
    for variable in model.weights:
        array = arrays.get(variable.path)
        if array is None:
            continue  # an average or a counter that each worker has for itself
        if tuple(variable.shape) != array.shape:
            raise ConfigurationError(
                f"{variable.path!r} has the shape {tuple(variable.shape)} in {model.name!r}, and "
                f"{array.shape} in what is exported",
                variable=variable.path,
            )
        variable.assign(np.asarray(array))
    optimizer = getattr(model, "optimizer", None)
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)  # else Keras warns of it when it loads the file
    model.save(target)


WRITERS: Mapping[str, Callable[[Mapping[str, Array], Path], None]] = {
    "torch": write_torch,
    "orbax": write_orbax,
}
