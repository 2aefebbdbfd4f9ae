"""The iterator of a dataset, and the value that may not be there."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from ...core.errors import OutOfRangeError
from ...core.step_times import DATA, clock_here


@dataclass(frozen=True, slots=True)
class Optional:
    """A value that may not be there. As ``tf.experimental.Optional``."""

    _value: Any = None
    _there: bool = False

    def has_value(self) -> bool:
        """Return whether there is a value."""
        return self._there

    def get_value(self) -> Any:
        """Return the value.

        Raises:
            ValueError: There is none.
        """
        if not self._there:
            raise ValueError("the Optional has no value")
        return self._value


class DatasetIterator(Iterator[Any]):
    """An iterator of ``iter(dataset)``, with the methods of TensorFlow's.

    Args:
        elements: Elements that it gives.
    """

    __slots__ = ("_elements",)

    def __init__(self, elements: Iterator[Any]) -> None:
        self._elements = elements

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        clock = clock_here()
        began = clock.begin()
        element = next(self._elements)
        clock.end(DATA, began)
        return element

    def get_next(self) -> Any:
        """Take the next element.

        Raises:
            OutOfRangeError: After the last.
        """
        for element in self:
            return element
        raise OutOfRangeError("the dataset is at its end")

    def get_next_as_optional(self) -> Optional:
        """Take the next element, or an Optional without a value after the last."""
        for element in self._elements:
            return Optional(element, True)
        return Optional()
