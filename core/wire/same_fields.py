"""Messages and dataclasses whose fields have the same names. For what is sent now and then."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from enum import Enum
from typing import Any, Generic, TypeVar

from ..errors import RefusedError

# -- Enums of ours, and the numbers that stand for their members in messages -------------------


_Member = TypeVar("_Member", bound=Enum)


class EnumCodes(Generic[_Member]):
    """The members of an enum as a message has them.

    Args:
        members: The enum.
        module: Generated module that has the numbers.
        prefix: Prefix of the numbers' names.
    """

    def __init__(self, members: Iterable[_Member], module: Any, prefix: str) -> None:
        self._numbers = {member: getattr(module, f"{prefix}_{member.name}") for member in members}
        self._members = {number: member for member, number in self._numbers.items()}

    def to_wire(self, member: _Member) -> Any:
        """Return the number that stands for a member."""
        return self._numbers[member]

    def from_wire(self, number: int) -> _Member:
        """Return the member that a number stands for.

        Raises:
            RefusedError: It stands for none.
        """
        member = self._members.get(number)
        if member is None:
            names = ", ".join(map(str, self._numbers))
            raise RefusedError(
                f"number {number} in a message stands for none of {names}", value=number
            )
        return member


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
