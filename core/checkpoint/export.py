"""Whole variables as one file other programs read: ``.safetensors`` or ``.npz``."""

import logging
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np

from ..arrays.dtypes import BFLOAT16, as_dtype
from ..errors import CheckpointError
from ..files.new_path import new_path
from .reader import CheckpointReader
from .tensor_file import TensorFileWriter, TensorSpec

OPTIMIZER_STATE = "optimizer_state"
"""The part of a name that marks a variable as the state of an optimizer on a worker."""
JOB_STATE = "job_state"
"""The part of a name that marks a variable as something else that is no part of a model: the sums
of a metric, or what the workers of a job tell each other.
"""

log = logging.getLogger(__name__)

_NOT_A_NAME = "__metadata__"  # safetensors' own


def export_checkpoint(checkpoint: str, target: str | Path, *, overwrite: bool = True) -> list[str]:
    """Write the whole variables of a checkpoint, verified, to one local file.

    Slot variables, the state of optimizers that run on workers, the sums of metrics and growing
    tables are left
    out: this is for using a model, not for going on with training. A ``.safetensors`` file is put
    together from the pieces that ps have written, 4 MiB at a time, so tables may be larger than
    memory; an ``.npz`` takes memory for one variable at a time. The file appears whole or not at
    all. ``rw.training.export`` writes other formats.

    Args:
        checkpoint: Directory of the checkpoint.
        target: File to write, ``.safetensors`` or ``.npz``. An ``.npz`` has bfloat16 variables as
            float32.
        overwrite: Whether a file that is there is replaced.

    Returns:
        Names of the variables.

    Raises:
        ValueError: Another ending, or a variable has a name that the format has no place for.
        FileExistsError: The file is there, and is not to be replaced.
        CheckpointError: The checkpoint is damaged, or the file cannot be written.
    """
    path = Path(target)
    if path.suffix not in (".safetensors", ".npz"):
        raise ValueError(f"{path} must end in .safetensors or .npz")
    reader = CheckpointReader(checkpoint)
    warn_of_tables(reader)
    try:
        with new_path(path, overwrite=overwrite) as temporary:
            if path.suffix == ".safetensors":
                write_tensors(temporary, tensors_of(reader), reader.parts)
            else:
                _write_npz(temporary, reader)
    except FileExistsError:
        raise
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}", path=path) from error
    return [spec.name for spec in tensors_of(reader)]


def tensors_of(reader: CheckpointReader) -> list[TensorSpec]:
    """List names, shapes and dtypes of a checkpoint's variables that are parts of a model, by
    name.
    """
    return [
        TensorSpec(name, tuple(record.shape), as_dtype(record.dtype))
        for name, record in sorted(reader.manifest.variables.items())
        if is_of_model(name)
    ]


def warn_of_tables(reader: CheckpointReader) -> None:
    """Log which growing tables a checkpoint has: an export has arrays alone."""
    if reader.manifest.tables:
        log.warning(
            "%s has growing tables, which are not exported: %s",
            reader.path,
            ", ".join(sorted(reader.manifest.tables)),
        )


def is_of_model(name: str) -> bool:
    """Return whether a variable is a part of a model, not the state of an optimizer or of the
    job.
    """
    return not {OPTIMIZER_STATE, JOB_STATE} & set(name.split("/"))


def write_tensors(
    path: Path, specs: Sequence[TensorSpec], parts: Callable[[str], Iterable[memoryview]]
) -> None:
    """Write arrays, whose bytes come in parts, as a safetensors file.

    Args:
        path: Path of the file.
        specs: Specs of the arrays.
        parts: Returns the bytes of an array, by its name, in order.

    Raises:
        ValueError: An array has a name that safetensors keeps for itself.
        OSError: The file system refused.
    """
    if any(spec.name == _NOT_A_NAME for spec in specs):
        raise ValueError(f"safetensors has no arrays named {_NOT_A_NAME!r}; rename the variable")
    with path.open("wb") as stream:
        writer = TensorFileWriter(stream, specs)
        for spec in specs:
            writer.write_parts(parts(spec.name))
        writer.close()


def _write_npz(path: Path, reader: CheckpointReader) -> None:
    """Write as ``np.savez`` does, whose own arguments no variable may be called, and array by
    array.
    """
    names = [spec.name for spec in tensors_of(reader)]
    for name in names:
        # NumPy gives an array by its name, and without the ending of its entry.
        if "\0" in name or (name.endswith(".npy") and name.removesuffix(".npy") in names):
            raise ValueError(f"an .npz cannot tell {name!r} from another; rename the variable")
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            value = reader.read(name)
            plain = value.astype(np.float32) if value.dtype == BFLOAT16 else value
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, plain, allow_pickle=False)
