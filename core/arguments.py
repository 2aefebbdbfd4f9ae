"""Checks of arguments: sentences about what is wrong with them, and whole or real numbers."""

import operator
from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

# -- Sentences about what is wrong with the arguments of a rule or schedule --------------------
# Pydantic's own text takes four lines, names its documentation, and calls an argument that there
# is not an extra input.


class ArgumentTypeError(TypeError, ValueError):
    """An argument has a type that is not allowed.

    It is a ValueError as well: a rule that another task has sent is refused by that.
    """


def check_types(
    kind: type[BaseModel], given: Mapping[str, Any], also: Mapping[str, str] | None = None
) -> None:
    """Refuse text for a number, and a bool for one: pydantic would convert both.

    A rate that a program has read from a file of settings would work as ``"0.1"`` here and in no
    other framework, and ``Adam(True)`` is a mistake.

    Args:
        kind: The rule or schedule to be made of the arguments.
        given: The arguments by name.
        also: Argument -> what it may be besides, as the end of the sentence.

    Raises:
        ArgumentTypeError: Says which argument, and what to give instead.
    """
    for name, value in given.items():
        field = kind.model_fields.get(name)
        types = set(_types(field.annotation)) if field is not None else set()
        if str in types or not types & {bool, int, float}:
            continue
        takes_bool = bool in types
        for item in value if isinstance(value, list | tuple) else (value,):
            if not isinstance(item, str | bytes | bool) or (takes_bool and isinstance(item, bool)):
                continue
            wanted = "True or False" if takes_bool else f"a number{(also or {}).get(name, '')}"
            raise ArgumentTypeError(
                f"{kind.__name__}({name}={value!r}) is not allowed: {item!r} is a "
                f"{type(item).__name__}, give {wanted}"
            )


def _types(annotation: Any) -> Iterator[Any]:
    yield annotation
    for inner in get_args(annotation):
        yield from _types(inner)


def argument_error(
    kind: type[BaseModel],
    given: Mapping[str, Any],
    error: ValidationError,
    also: Mapping[str, str] | None = None,
) -> ValueError:
    """Make the error to raise for the first problem with ``given``; see :func:`_describe`."""
    wrong_type = error.errors()[0]["type"].endswith("_type")
    return (ArgumentTypeError if wrong_type else ValueError)(_describe(kind, given, error, also))


def _describe(
    kind: type[BaseModel],
    arguments: Mapping[str, Any],
    error: ValidationError,
    also: Mapping[str, str] | None = None,
) -> str:
    """Describe the first problem with the arguments.

    Args:
        kind: The class to be made of them.
        arguments: The arguments by name.
        error: The error from pydantic.
        also: Argument -> other values that it may have, as the end of the sentence.
    """
    problem = error.errors()[0]
    message = problem["msg"].replace("Input should", "it should").removeprefix("Value error, ")
    if not problem["loc"]:  # several arguments do not agree
        return f"{kind.__name__}: {message}"
    name = str(problem["loc"][0])
    names = ", ".join(field for field in kind.model_fields if field != "name")
    if problem["type"] == "extra_forbidden":
        return f"{kind.__name__} has no argument {name!r}; it has {names}"
    if problem["type"] == "missing":
        return f"{kind.__name__} needs the argument {name!r}; it has {names}"
    more = (also or {}).get(name, "")
    return f"{kind.__name__}({name}={arguments.get(name)!r}) is not allowed: {message}{more}"


# -- Arguments that count something: a typed error at the call, not a comparison that fails later --


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
