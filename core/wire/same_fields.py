"""Messages and dataclasses whose fields have the same names. For what is sent now and then."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

_Value = TypeVar("_Value")
_Message = TypeVar("_Message")


def from_message(kind: type[_Value], message: Any, **others: Any) -> _Value:
    """Make a dataclass of the values of a message's fields, and ``others`` where those differ."""
    return kind(**_values(kind, message, others), **others)


def to_message(kind: Callable[..., _Message], value: Any, **others: Any) -> _Message:
    """Make a message of the values of a dataclass's fields, and ``others`` where those differ."""
    return kind(**_values(value, value, others), **others)


def _values(declared: Any, source: Any, others: dict[str, Any]) -> dict[str, Any]:
    return {f.name: getattr(source, f.name) for f in fields(declared) if f.name not in others}
