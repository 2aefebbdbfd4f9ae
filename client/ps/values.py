"""Pulled values: one buffer, and an array for each variable that is asked for."""

from collections.abc import Iterator, Mapping

from ...core.arrays import Array, DType

Place = tuple[int, int, tuple[int, ...], DType, DType]
"""Where a variable is in the buffer: start, stop (bytes), shape, dtype there, dtype of the variable."""


class Values(Mapping[str, Array]):
    """Pulled variables by name, as read-only arrays that stay as they are.

    An array is made when it is asked for: ten thousand of them would cost more than their bytes.
    """

    __slots__ = ("_buffer", "_made", "_places")

    def __init__(self, places: Mapping[str, Place], buffer: Array) -> None:
        self._places = places
        self._buffer = buffer
        self._made: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        value = self._made.get(name)
        if value is None:
            start, stop, shape, wire, dtype = self._places[name]
            value = self._buffer[start:stop].view(wire).reshape(shape)
            if wire != dtype:
                value = value.astype(dtype)
            value.flags.writeable = False
            self._made[name] = value
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)
