"""Nested structures of arrays as bytes, without pickle: what a closure returns.

The structure is JSON, its arrays and byte strings are parts beside it, so that large ones travel
as they are. Whoever reads it gets plain data, whatever the other side sent.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .arrays import BFLOAT16, Array, DType
from .errors import RefusedError

_KINDS = "biufcSUmM"  # of NumPy's dtypes; bfloat16 is known by its name
_MAX_DEPTH = 64


def to_parts(value: Any) -> tuple[bytes, list[memoryview]]:
    """A structure of dicts, lists, tuples, arrays, strings and numbers.

    Arrays of other frameworks become NumPy's.

    Returns:
        (the structure, its parts)

    Raises:
        TypeError: It has something else in it; says where.
    """
    parts: list[memoryview] = []
    return json.dumps(_describe(value, parts, "the result", 0)).encode(), parts


def from_parts(structure: bytes, parts: Sequence[memoryview]) -> Any:
    """What :func:`to_parts` took apart. Arrays are views of the parts.

    Raises:
        RefusedError: It is not in that form.
    """
    try:
        left = iter(parts)
        value = _build(json.loads(structure), left)
        if next(left, None) is not None:
            raise ValueError("more parts than arrays")
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, StopIteration) as error:
        raise RefusedError(f"a result cannot be read: {error}") from error
    return value


def _describe(value: Any, parts: list[memoryview], where: str, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise TypeError(f"{where} is nested more than {_MAX_DEPTH} deep")
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, bytes | bytearray):
        parts.append(memoryview(value))
        return ["bytes"]
    if isinstance(value, Mapping):
        items = [
            [
                _describe(key, parts, f"a key of {where}", depth + 1),
                _describe(item, parts, f"{where}[{key!r}]", depth + 1),
            ]
            for key, item in value.items()
        ]
        return ["dict", items]
    if isinstance(value, list | tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        items = [
            _describe(item, parts, f"{where}[{number}]", depth + 1)
            for number, item in enumerate(value)
        ]
        return [kind, items]
    return _describe_array(value, parts, where)


def _describe_array(value: Any, parts: list[memoryview], where: str) -> Any:
    if not hasattr(value, "__array__") and not hasattr(value, "__dlpack__"):
        raise TypeError(
            f"{where} is a {type(value).__name__}, which cannot be sent: closures return arrays, "
            "numbers and strings, in lists, tuples and dicts"
        )
    array = np.asarray(value)
    if array.dtype.kind not in _KINDS and array.dtype != BFLOAT16:
        raise TypeError(f"{where} is an array of {array.dtype}, which cannot be sent")
    parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return ["array", array.dtype.name if array.dtype == BFLOAT16 else array.dtype.str, array.shape]


def _build(described: Any, parts: Any) -> Any:
    if not isinstance(described, list):
        return described
    kind, *rest = described
    if kind == "bytes":
        return bytes(next(parts))
    if kind == "array":
        return _array(rest[0], rest[1], next(parts))
    if kind == "dict":
        return {_build(key, parts): _build(item, parts) for key, item in rest[0]}
    if kind in ("list", "tuple"):
        items = [_build(item, parts) for item in rest[0]]
        return items if kind == "list" else tuple(items)
    raise ValueError(f"{kind!r} is no kind of value")


def _array(name: str, shape: Sequence[int], part: memoryview) -> Array:
    dtype: DType = BFLOAT16 if name == BFLOAT16.name else np.dtype(name)
    if dtype.kind not in _KINDS and dtype != BFLOAT16:
        raise ValueError(f"no result has the dtype {name!r}")
    return np.frombuffer(part, dtype).reshape(shape)
