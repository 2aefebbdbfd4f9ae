"""Arguments that count something: a typed error at the call, not a comparison that fails later."""

import operator
from numbers import Real
from typing import Any

from .argument_errors import ArgumentTypeError


def whole_number(value: Any, name: str) -> int:
    """Convert any kind of integer to a count.

    Args:
        value: Number that a program has passed.
        name: The argument's, for the message.

    Raises:
        ArgumentTypeError: It is no integer: text, a float, or None.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ArgumentTypeError(f"`{name}` must be a whole number, got {value!r}") from None


def real_number(value: Any, name: str) -> Any:
    """Check a number, of the argument ``name``, and return it as it was given; as
    :func:`whole_number` otherwise.
    """
    if not isinstance(value, Real):
        raise ArgumentTypeError(f"`{name}` must be a number, got {value!r}")
    return value
