"""Numbers with the methods that TensorFlow's variables have in the same place."""

from collections.abc import Callable
from typing import Any, Self

import numpy as np


class CountNow(int):
    """A count as of now, with ``numpy`` and ``read_value``."""

    def numpy(self) -> Any:
        """Read the number, as int64."""
        return np.int64(self)

    def read_value(self) -> Self:
        """Return the number."""
        return self

    value = read_value


class RateNow(float):
    """A learning rate as of now, with ``assign``, ``numpy`` and ``read_value``."""

    _assign: Callable[[Any], None]

    @classmethod
    def of(cls, rate: float, assign: Callable[[Any], None]) -> Self:
        """Make a rate.

        Args:
            rate: The number.
            assign: Sets the rate that counts from then on.
        """
        number = cls(rate)
        number._assign = assign
        return number

    def assign(self, rate: Any) -> None:
        """Set the optimizer's rate; this number stays as it is."""
        self._assign(rate)

    def numpy(self) -> Any:
        """Read the number, as float64."""
        return np.float64(self)

    def read_value(self) -> Self:
        """Return the number."""
        return self

    value = read_value

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)
