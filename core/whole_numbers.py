"""Arguments that count something: a typed error at the call, not a comparison that fails later."""

import operator
import re
from numbers import Real
from typing import Any

from .argument_errors import ArgumentTypeError


def whole_number(value: Any, name: str) -> int:
    """A count, out of any kind of integer.

    Args:
        value: What a program gave.
        name: The argument's, for the message.

    Raises:
        ArgumentTypeError: It is no integer: text, a float, or None.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"`{name}` must be a whole number, got {value!r}") from None


def real_number(value: Any, name: str) -> Any:
    """A number as it was given, of the argument ``name``; as :func:`whole_number` otherwise."""
    if not isinstance(value, Real):
        raise ArgumentTypeError(f"`{name}` must be a number, got {value!r}")
    return value


def parse_number(text: str, most: int) -> int | None:
    """The whole number that a text from outside is: digits of ASCII; None: none, or above ``most``.

    ``int`` takes other digits and blanks, and raises for thousands of digits.
    """
    number = int(text) if re.fullmatch(r"[0-9]{1,18}", text) else -1
    return number if 0 <= number <= most else None
