"""Nested structures of arrays as bytes, without pickle: what a closure returns.

The structure is JSON, its arrays and byte strings are parts beside it, so that large ones travel
as they are. A reader gets plain data, whatever the other side sent.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..arrays.dtypes import Array, describe_dtype, described_dtype
from ..errors import RefusedError

_MAX_DEPTH = 64


def to_parts(value: Any) -> tuple[bytes, list[memoryview]]:
    """Take apart a structure of dicts, lists, tuples, arrays, strings and numbers.

    Arrays of other frameworks become NumPy's.

    Returns:
        (the structure, its parts)

    Raises:
        TypeError: It has something else in it; says where.
    """
    parts: list[memoryview] = []
    return json.dumps(_describe(value, parts, "the result", 0)).encode(), parts


def from_parts(structure: bytes, parts: Sequence[memoryview]) -> Any:
    """Rebuild what :func:`to_parts` took apart. Arrays are views of the parts.

    Raises:
        RefusedError: It is not in that form.
    """
    try:
        left = iter(parts)
        value = _build(json.loads(structure), left)
        if next(left, None) is not None:
            raise ValueError("more parts than arrays")
    except (ValueError, TypeError, OverflowError, RecursionError, StopIteration) as error:
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
    try:
        dtype = describe_dtype(array.dtype)
    except TypeError:
        raise TypeError(f"{where} is an array of {array.dtype}, which cannot be sent") from None
    parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return ["array", dtype, array.shape]


def _build(described: Any, parts: Iterator[memoryview]) -> Any:
    if not isinstance(described, list):
        if isinstance(described, dict):
            raise ValueError("an object is no kind of value")
        return described
    match described:
        case ["bytes"]:
            return bytes(next(parts))
        case ["array", dtype, [*shape]]:
            return _array(dtype, shape, next(parts))
        case ["dict", [*items]]:
            return {_build(key, parts): _build(item, parts) for key, item in items}
        case ["list", [*items]]:
            return [_build(item, parts) for item in items]
        case ["tuple", [*items]]:
            return tuple([_build(item, parts) for item in items])  # of a list: it may stop
    raise ValueError(f"{str(described[:1])[:40]} begins no kind of value")


def _array(dtype: object, shape: Sequence[object], part: memoryview) -> Array:
    extents = [extent for extent in shape if type(extent) is int and extent >= 0]
    if len(extents) != len(shape):
        raise ValueError(f"{str(shape)[:40]} is no shape")
    return np.frombuffer(part, described_dtype(dtype)).reshape(extents)
