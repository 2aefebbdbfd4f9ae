"""``rw.training.export``: variables as a file of another framework, from checkpoints or live."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..core.arrays.any_framework import to_host
from ..core.arrays.dtypes import as_bytes, num_rows
from ..core.checkpoint import CheckpointReader
from ..core.checkpoint.export import is_of_model, tensors_of, warn_of_tables, write_tensors
from ..core.checkpoint.tensor_file import TensorSpec
from ..core.errors import CheckpointError, StorageError, UnknownVariableError
from ..core.files.new_path import new_path
from ..distribute.reading import load_checkpoint
from ..distribute.variables.variable import Variable
from .export_formats import WRITERS, check_installed, format_of, mapped, write_keras

_BLOCK_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _ExportSource:
    """The source of an export.

    Attributes:
        specs: Specifications of the arrays.
        parts: Returns an array's bytes in order, by its name.
        writes: Whether this task is the one that writes.
    """

    specs: Sequence[TensorSpec]
    parts: Callable[[str], Iterable[memoryview]]
    writes: bool = True

    def chosen(self, names: Iterable[str] | None, prefix: str) -> "_ExportSource":
        """Select some of it, under names without the prefix."""
        by_name = {spec.name: spec for spec in self.specs}
        wanted = [name for name in by_name if name.startswith(prefix)]
        if names is not None:
            wanted = [prefix + name for name in names]
        if missing := [name for name in wanted if name not in by_name]:
            raise UnknownVariableError(
                f"there is no {missing[0]!r} to export; there is {_some(by_name)}",
                variable=missing[0],
            )
        if not wanted:
            raise UnknownVariableError(
                f"nothing to export begins with {prefix!r}; there is {_some(by_name)}"
            )
        specs = [replace(by_name[name], name=name.removeprefix(prefix)) for name in wanted]
        return _ExportSource(specs, lambda name: self.parts(prefix + name), self.writes)


def export(
    source: Any,
    target: str | Path,
    *,
    format: str | None = None,  # noqa: A002 - as people say it
    model: Any = None,
    names: Iterable[str] | None = None,
    prefix: str = "",
    overwrite: bool = False,
) -> list[str]:
    """Write variables to a file, or a folder, that another framework reads without Ropewalk.

    ``safetensors``: one file of arrays. ``torch``: a state_dict, for ``torch.load`` and a module's
    ``load_state_dict``. ``orbax``: a tree of dictionaries, for ``StandardCheckpointer().restore``.
    ``keras``: ``model`` with these weights, for ``keras.models.load_model``. Optimizers' slots and
    states are left out, and so are the sums of metrics.

    What is cut over several ps is put together a few MiB at a time. Formats other than safetensors
    take room on the disk for the variables twice while they are written. What is written appears
    whole or not at all.

    Args:
        source: A checkpoint, or a model directory, whose newest one it is; or what is in memory: an
            ``ArrayStore``, a bridge's state or optimizer or ``shared_weights``, variables, or
            arrays by name. Of a job in which all workers call this, the chief writes.
        target: A path of this machine. Its folder exists.
        format: Format of the file; None: as the target's ending says: ``.safetensors``, ``.pt``,
            ``.pth``, ``.keras``.
        model: Model for ``keras``: built, of the same layers. Its weights are overwritten.
        names: Names of the variables; None: all.
        prefix: Only those that begin with it, under names without it.
        overwrite: Whether to replace what is there.

    Returns:
        The names in the file.

    Raises:
        ValueError: The format is not known, or the names do not fit it.
        FileExistsError: The target is there, and is not to be replaced.
        UnknownVariableError: There is no such variable.
        MissingExtraError: The format's package is not installed.
        ConfigurationError: ``model`` is missing or has other weights.
        CheckpointError: The checkpoint is missing or damaged.
        StorageError: The target cannot be written.
    """
    path = Path(target)
    if "://" in str(target):
        raise ValueError(f"{target} is no path of this machine; export to one, and copy it")
    kind = format_of(path, format)
    check_installed(kind)
    chosen = _source_of(source).chosen(names, prefix)
    exported = [spec.name for spec in chosen.specs]
    if not chosen.writes:
        return exported
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} is there already; to replace it give overwrite=True")
    try:
        with new_path(path, overwrite=overwrite) as temporary:
            _write(chosen, temporary, kind, model)
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}; its folder must exist, be "
            "writable, and have room for the variables twice",
            path=path,
        ) from error
    return exported


def _write(chosen: _ExportSource, temporary: Path, kind: str, model: Any) -> None:
    if kind == "safetensors":
        write_tensors(temporary, chosen.specs, chosen.parts)
        return
    whole = temporary.with_name(f"{temporary.name}-arrays")
    try:
        write_tensors(whole, chosen.specs, chosen.parts)
        with mapped(whole) as arrays:
            if kind == "keras":
                write_keras(arrays, temporary, model)
            else:
                WRITERS[kind](arrays, temporary)
    finally:
        whole.unlink(missing_ok=True)


def _source_of(source: Any) -> _ExportSource:
    if isinstance(source, str | Path):
        return _of_checkpoint(str(source))
    if isinstance(source, CheckpointReader):
        return _ExportSource(tensors_of(source), source.parts)
    store = getattr(source, "store", source)
    variables = getattr(store, "variables", store)
    if isinstance(variables, Variable):
        variables = [variables]
    if not isinstance(variables, Mapping):
        variables = {variable.name: variable for variable in variables}
    return _of_memory(variables)


def _of_checkpoint(path: str) -> _ExportSource:
    try:
        reader = load_checkpoint(path)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error.message}. Give a checkpoint, or a model directory with one", path=path
        ) from error
    warn_of_tables(reader)
    return _ExportSource(tensors_of(reader), reader.parts)


def _of_memory(values: Mapping[str, Any]) -> _ExportSource:
    strategies = [value.strategy for value in values.values() if isinstance(value, Variable)]
    writes = not strategies or bool(strategies[0].extended.should_checkpoint)
    arrays = {
        name: value if isinstance(value, Variable) else np.asarray(to_host(value))
        for name, value in values.items()
        if is_of_model(name)
    }
    specs = [
        TensorSpec(name, tuple(array.shape), np.dtype(array.dtype))
        for name, array in arrays.items()
    ]
    return _ExportSource(specs, lambda name: parts_of(arrays[name]), writes)


def parts_of(value: Any, most_bytes: int = _BLOCK_BYTES) -> Iterator[memoryview]:
    """Yield a value's bytes; of a large variable some rows at a time.

    Args:
        value: Variable or array.
        most_bytes: Size of a part, if a row is not larger.
    """
    if not isinstance(value, Variable):
        yield as_bytes(np.ascontiguousarray(value))
        return
    size = int(np.prod(value.shape)) * value.dtype.itemsize
    rows = num_rows(tuple(value.shape))
    if size <= most_bytes or len(value.shape) < 1:
        yield as_bytes(np.ascontiguousarray(to_host(value.read_value())))
        return
    step = max(1, rows * most_bytes // size)
    for first in range(0, rows, step):
        block = value.sparse_read(np.arange(first, min(first + step, rows)))
        yield as_bytes(np.ascontiguousarray(to_host(block)))


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(map(repr, ordered[:8])) + (", …" if len(ordered) > 8 else "")
