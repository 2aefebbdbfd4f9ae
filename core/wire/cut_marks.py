"""Marks of a cut: the number up to which each worker's pushes are in the values of all ps."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ...proto.v1 import ps_pb2
from ..task import Incarnation
from . import codec


@dataclass(frozen=True, slots=True)
class CutMark:
    """Where a worker's part in a cut ends.

    Attributes:
        sequence: Number of its last push to this share, outside closures.
        pushes: Number of its steps in which it has pushed to any share: the same on all of them.
    """

    sequence: int
    pushes: int


Marks = Mapping[Incarnation, CutMark]
"""The mark of each worker that a cut is of, on one share."""


def marks_to_wire(marks: Marks) -> list[ps_pb2.CutMark]:
    """Marks as messages."""
    messages = []
    for who, mark in marks.items():
        message = ps_pb2.CutMark(sequence=mark.sequence, pushes=mark.pushes)
        getattr(message, "from").CopyFrom(codec.incarnation_to_wire(who))
        messages.append(message)
    return messages


def marks_from_wire(messages: Iterable[ps_pb2.CutMark]) -> dict[Incarnation, CutMark]:
    """Marks from messages."""
    return {
        codec.incarnation_from_wire(getattr(each, "from")): CutMark(each.sequence, each.pushes)
        for each in messages
    }
