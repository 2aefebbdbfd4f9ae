"""What is wrong with the arguments of a rule or schedule, in a sentence.

Pydantic's own text takes four lines, names its documentation, and calls an argument that there is
not an extra input.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ValidationError


def describe_argument_error(
    kind: type[BaseModel],
    given: Mapping[str, Any],
    error: ValidationError,
    also: Mapping[str, str] | None = None,
) -> str:
    """The first problem with ``given``.

    Args:
        kind: What was to be made of them.
        given: The arguments by name.
        error: Of pydantic.
        also: Argument -> what it may be besides, as the end of the sentence.
    """
    problem = error.errors()[0]
    message = problem["msg"].replace("Input should", "it should").removeprefix("Value error, ")
    if not problem["loc"]:  # several arguments do not agree
        return f"{kind.__name__}: {message}"
    name = str(problem["loc"][0])
    known = ", ".join(field for field in kind.model_fields if field != "name")
    if problem["type"] == "extra_forbidden":
        return f"{kind.__name__} has no argument {name!r}; it has {known}"
    if problem["type"] == "missing":
        return f"{kind.__name__} needs the argument {name!r}; it has {known}"
    more = (also or {}).get(name, "")
    return f"{kind.__name__}({name}={given.get(name)!r}) is not allowed: {message}{more}"
