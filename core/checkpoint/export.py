"""A checkpoint as one file other programs read: ``.safetensors`` or ``.npz``."""

from pathlib import Path

import numpy as np

from ..arrays import BFLOAT16
from ..errors import CheckpointError
from .reader import CheckpointReader


def export_checkpoint(checkpoint: str, target: str | Path) -> list[str]:
    """Write the whole variables of a checkpoint, verified, to one local file.

    Slot variables are left out: this is for using a model, not for going on with training.

    Args:
        checkpoint: Directory of the checkpoint.
        target: File to write, ``.safetensors`` or ``.npz``. An ``.npz`` has bfloat16 variables as
            float32.

    Returns:
        Names of the variables.

    Raises:
        ValueError: Another ending.
        CheckpointError: The checkpoint is damaged, or the file cannot be written.
    """
    path = Path(target)
    if path.suffix not in (".safetensors", ".npz"):
        raise ValueError(f"{path} must end in .safetensors or .npz")
    values = CheckpointReader(checkpoint).read_all()
    try:
        if path.suffix == ".safetensors":
            from safetensors.numpy import save_file

            save_file(values, path)
        else:
            plain = {
                name: value.astype(np.float32) if value.dtype == BFLOAT16 else value
                for name, value in values.items()
            }
            np.savez(path, **plain, allow_pickle=False)
    except OSError as error:
        raise CheckpointError(f"cannot write {path}: {error}", path=path) from error
    return sorted(values)
