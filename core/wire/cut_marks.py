"""Cuts on the wire: marks, which say up to which push a worker's belong to one, and values."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from ...proto.v1 import ps_pb2
from ..arrays.dtypes import Array, as_bytes
from ..task import Incarnation
from . import codec


@dataclass(frozen=True, slots=True)
class CutMark:
    """The end of a worker's part in a cut.

    Attributes:
        sequence: Number of its last push to this share, outside closures.
        pushes: Number of its steps in which it has pushed to any share: the same on all of them.
    """

    sequence: int
    pushes: int


Marks = Mapping[Incarnation, CutMark]
"""The mark of each worker that a cut is of, on one share."""


@dataclass(frozen=True, slots=True)
class Elements:
    """A range of elements of a variable.

    Attributes:
        shape: Shape of the whole variable.
        start: The first element, in the whole variable.
        values: 1-D.
    """

    variable: str
    shape: tuple[int, ...]
    start: int
    values: Array


def elements_to_wire(part: Elements) -> ps_pb2.CutValues:
    """Encode a range of elements as a message."""
    return ps_pb2.CutValues(
        variable=part.variable,
        full_shape=part.shape,
        dtype=codec.dtype_to_wire(part.values.dtype),
        start=part.start,
        values=as_bytes(part.values).tobytes(),
    )


def elements_from_wire(message: ps_pb2.CutValues) -> Elements:
    """Decode a range of elements from a message."""
    values = np.frombuffer(message.values, codec.dtype_from_wire(message.dtype))
    return Elements(message.variable, tuple(message.full_shape), message.start, values)


def marks_to_wire(marks: Marks) -> list[ps_pb2.CutMark]:
    """Encode marks as messages."""
    messages = []
    for who, mark in marks.items():
        message = ps_pb2.CutMark(sequence=mark.sequence, pushes=mark.pushes)
        codec.set_sender(message, who)
        messages.append(message)
    return messages


def marks_from_wire(messages: Iterable[ps_pb2.CutMark]) -> dict[Incarnation, CutMark]:
    """Decode marks from messages."""
    return {codec.sender_of(mark): CutMark(mark.sequence, mark.pushes) for mark in messages}
