"""Files of PyTorch."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from ...core.arrays.dtypes import Array
from .tensors import to_tensor


def write(arrays: Mapping[str, Array], target: Path) -> None:
    """Write a dictionary of tensors, as ``torch.load`` reads it.

    Args:
        arrays: Array of each name.
        target: The file.
    """
    torch.save({name: to_tensor(np.asarray(array)) for name, array in arrays.items()}, target)
