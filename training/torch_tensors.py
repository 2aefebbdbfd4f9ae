"""Tensors of PyTorch as arrays, and back; memory of the host is shared, not copied."""

import warnings
from typing import Any

import ml_dtypes
import numpy as np

from ..core.arrays import Array
from ..core.indexed_slices import IndexedSlices
from .extras import require

torch: Any = require("torch", "torch")

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


def to_array(tensor: Any) -> Array:
    """A dense tensor as an array: of the same memory on the host, copied there from a GPU."""
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    if tensor.dtype is torch.bfloat16:  # of which NumPy knows nothing
        array: Array = tensor.view(torch.int16).numpy().view(_BFLOAT16)
        return array
    return np.asarray(tensor.numpy())


def to_gradient(tensor: Any) -> Array | IndexedSlices:
    """A gradient; of a sparse one its rows, which may repeat."""
    if tensor.layout is not torch.sparse_coo:
        return to_array(tensor)
    if tensor.sparse_dim() != 1:
        return to_array(tensor.to_dense())
    rows = to_array(tensor._indices()[0])
    return IndexedSlices(to_array(tensor._values()), rows, tuple(tensor.shape))


def from_gradient(gradient: Array | IndexedSlices, parameter: Any) -> Any:
    """A gradient as the tensor that ``parameter.grad`` would be; rows as a sparse one."""
    if not isinstance(gradient, IndexedSlices):
        return to_tensor(gradient).to(parameter)
    rows, values = to_tensor(gradient.indices), to_tensor(gradient.values).to(parameter)
    return torch.sparse_coo_tensor(rows[None], values, parameter.shape)


def to_tensor(array: Array) -> Any:
    """An array as a tensor that is only read: of the same memory."""
    if array.dtype == _BFLOAT16:
        return to_tensor(array.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_dlpack(array)
    except BufferError:  # a NumPy before 2.1 exports no read-only memory
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.from_numpy(array)
