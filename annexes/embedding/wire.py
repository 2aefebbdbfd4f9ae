"""Options of growing tables as messages, and back."""

from typing import Any

from google.protobuf import struct_pb2

from ...core.errors import ConfigurationError, RefusedError
from ...core.rules.update_rules import UpdateRule
from ...proto.v1 import ps_pb2
from .options import (
    Admission,
    Chance,
    NormClipping,
    Order,
    Sightings,
    SketchedSightings,
    TableOptions,
)

_ORDERS: dict[Order, Any] = {
    "least_recent": ps_pb2.EVICTION_LEAST_RECENT,
    "least_frequent": ps_pb2.EVICTION_LEAST_FREQUENT,
}
_FROM_WIRE: dict[int, Order] = {int(number): order for order, number in _ORDERS.items()}


def table_to_wire(options: TableOptions, rule: struct_pb2.Struct) -> ps_pb2.TableOptions:
    """Encode options of a table as a message.

    Args:
        options: Options to write.
        rule: Update rule of the table as a message.
    """
    message = ps_pb2.TableOptions(
        rule=rule,
        unknown_is_zero=options.unknown == "zeros",
        max_unseen_steps=options.max_unseen_steps or 0,
        row_norm=options.clipping.row_norm or 0.0,
        table_norm=options.clipping.table_norm or 0.0,
        memory_bytes=options.memory_bytes or 0,
    )
    if options.evicts is not None:
        message.evicts = _ORDERS[options.evicts]
    match options.admission:
        case Sightings(count, candidates):
            message.sightings.count, message.sightings.max_candidates = count, candidates
        case SketchedSightings(count, counters):
            message.sketch.count, message.sketch.counters = count, counters
        case Chance(probability):
            message.chance = probability
        case None:
            pass
    return message


def table_from_wire(message: ps_pb2.TableOptions, rule: UpdateRule) -> TableOptions:
    """Decode the options of a table; the ps checks their numbers when it makes the table.

    Args:
        message: Message to read.
        rule: The update rule in it.

    Raises:
        RefusedError: They are no options of a table.
    """
    if message.evicts and message.evicts not in _FROM_WIRE:
        raise RefusedError(f"number {message.evicts} stands for no order of eviction")
    try:
        clipping = NormClipping(message.row_norm or None, message.table_norm or None)
    except ConfigurationError as error:
        raise RefusedError(str(error)) from error
    return TableOptions(
        rule=rule,
        unknown="zeros" if message.unknown_is_zero else "initial",
        admission=_admission_from_wire(message),
        max_unseen_steps=message.max_unseen_steps or None,
        evicts=_FROM_WIRE.get(message.evicts),
        clipping=clipping,
        memory_bytes=message.memory_bytes or None,
    )


def _admission_from_wire(message: ps_pb2.TableOptions) -> Admission | None:
    kind = message.WhichOneof("admission")
    if kind == "sightings":
        return Sightings(message.sightings.count, message.sightings.max_candidates)
    if kind == "sketch":
        return SketchedSightings(message.sketch.count, message.sketch.counters)
    return Chance(message.chance) if kind == "chance" else None
