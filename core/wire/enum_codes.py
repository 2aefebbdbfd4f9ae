"""Enums of ours, and the numbers that stand for their members in messages."""

from collections.abc import Iterable
from enum import Enum
from typing import Any, Generic, TypeVar

from ..errors import RefusedError

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
