"""Pulled values: one buffer, and an array for each variable that is asked for."""

from collections.abc import Iterator, Mapping

import numpy as np

from ...core.arrays.dtypes import Array, DType

ValueSpan = tuple[int, int, tuple[int, ...], DType, DType]
"""A variable's place in the buffer: start, stop (bytes), shape, dtype there, its own dtype."""


class Values(Mapping[str, Array]):
    """Pulled variables by name, as read-only arrays that stay as they are.

    An array is made when it is asked for: ten thousand of them would cost more than their bytes.
    """

    __slots__ = ("_buffer", "_made", "_spans")

    def __init__(self, spans: Mapping[str, ValueSpan], buffer: Array) -> None:
        self._spans = spans
        self._buffer = buffer.view()
        self._buffer.flags.writeable = False  # and so is every array of it
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        value = self._made.get(name)
        if value is None:
            start, _, shape, wire, dtype = self._spans[name]
            # Half the time of a slice, its view and the view's shape.
            value = np.ndarray(shape, wire, self._buffer, start)
            if wire != dtype:
                value = value.astype(dtype)
                value.flags.writeable = False
            self._made[name] = value
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._spans

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)
