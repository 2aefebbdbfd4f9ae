"""``cupy``, as far as Ropewalk and its tests go; see ``helpers.strict_cupy``."""

from types import SimpleNamespace

import numpy as np

from . import cuda
from .arrays import ndarray
from .functions import (
    arange,
    array,
    as_numpys,
    asarray,
    ascontiguousarray,
    asnumpy,
    clip,
    concatenate,
    empty,
    from_dlpack,
    full,
    ndim,
    norm,
    ones,
    shape,
    zeros,
)
from .ufuncs import Ufunc

__version__ = "14.2.0"

_NUMPYS = (
    "all allclose any argmax argsort array_equal bincount broadcast_to copyto cumsum dot einsum "
    "empty_like expand_dims full_like isclose linspace mean moveaxis nonzero ones_like outer prod "
    "repeat result_type searchsorted sort squeeze stack sum take tensordot tile transpose unique "
    "vstack hstack where zeros_like"
)
_KINDS = (
    "bool_ dtype finfo float16 float32 float64 iinfo inf int16 int32 int64 int8 newaxis pi uint16 "
    "uint32 uint64 uint8"
)

for _name in _NUMPYS.split():
    globals()[_name] = as_numpys(_name)
for _name in _KINDS.split():
    globals()[_name] = getattr(np, _name)
for _name in dir(np):
    if isinstance(getattr(np, _name), np.ufunc):
        globals().setdefault(_name, Ufunc(getattr(np, _name)))
linalg = SimpleNamespace(norm=norm)

__all__ = [
    "arange",
    "array",
    "asarray",
    "ascontiguousarray",
    "asnumpy",
    "clip",
    "concatenate",
    "cuda",
    "empty",
    "from_dlpack",
    "full",
    "linalg",
    "ndarray",
    "ndim",
    "ones",
    "shape",
    "zeros",
]
