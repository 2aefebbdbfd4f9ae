"""Arguments that count something: a typed error at the call, not a comparison that fails later."""

import operator
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
