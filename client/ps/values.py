"""Pulled values: one buffer, and an array for each variable that is asked for."""

from collections.abc import Iterator, Mapping

from ...core.arrays import Array, DType

ValueSpan = tuple[int, int, tuple[int, ...], DType, DType]
"""Where a variable is in the buffer: start, stop (bytes), shape, dtype there, its own dtype."""


class Values(Mapping[str, Array]):
    """Pulled variables by name, as read-only arrays that stay as they are.

    An array is made when it is asked for: ten thousand of them would cost more than their bytes.
    """

    __slots__ = ("_buffer", "_made", "_spans")

    def __init__(self, spans: Mapping[str, ValueSpan], buffer: Array) -> None:
        self._spans = spans
        self._buffer = buffer
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        value = self._made.get(name)
        if value is None:
            start, stop, shape, wire, dtype = self._spans[name]
            value = self._buffer[start:stop].view(wire).reshape(shape)
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
