"""Payloads in shared memory, for a session over a Unix socket.

A large push is gathered into a segment of ours, where the ps reads it in place; a large pull is
copied straight out of the ps's memory, under the sequence lock of each block, but for blocks that
did not change. Rows of tables that grow only the ps can find: it gathers them into our segment.
Small ones travel behind the message, which is faster than all of these.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from ...core.arrays.dtypes import Array, as_bytes
from ...core.arrays.gather_buffer import GatherBuffer
from ...core.errors import RefusedError
from ...core.rules.definitions import ShardKey
from ...core.wire import codec
from ...core.wire.steps import (
    HEADER_BYTES,
    MOST_SEGMENTS,
    SMALL_BYTES,
    Encoding,
    MemoryRegion,
    StepRequest,
    WireLayout,
)
from ...net.connection import Connection
from ...net.dial import receive_message
from ...net.shared_memory import FIRST_SEGMENT_BYTES, WRITTEN, SharedSegment, answer_start
from ...proto.v1 import session_pb2
from .direct_pull import DirectPull, DirectRows

_FIND_BATCH = 4096  # shards that a message names
# From here on the ps begins while we still write, and we read what it is done with: both sides at
# work gain more than they lose by looking at each other's counters.
OVERLAPPED_BYTES = 2 * 1024 * 1024


class SharedPayloads:
    """Our segments and the slabs of a ps, for as long as a connection lasts.

    Args:
        connection: Passes files.
        keeps_pushes: Whether a push stays in its segment until the next one is answered, so that a
            ps which follows may be behind by one: there are two segments then.
    """

    def __init__(self, connection: Connection, *, keeps_pushes: bool = False) -> None:
        self._connection = connection
        self._keeps_pushes = keeps_pushes
        self._regions: dict[ShardKey, MemoryRegion | None] = {}  # None: in no memory of ours
        self._slabs: dict[int, SharedSegment] = {}
        self._pulls: dict[int, tuple[WireLayout, DirectPull | None]] = {}
        self._segments: dict[int, SharedSegment] = {}
        self._number = 0
        self._kept: int | None = None  # the segment of the last push

    @property
    def segment(self) -> SharedSegment | None:
        """Segment of the step under way, or of the last one that had one."""
        return self._segments.get(self._number)

    # -- pushing -----------------------------------------------------------------------------

    def prepare(
        self, payload_bytes: int, answer_bytes: int = 0
    ) -> tuple[SharedSegment, session_pb2.Segment | None]:
        """Prepare a segment with room for a payload, and for the values of an answer behind it.

        Args:
            payload_bytes: Size of the payload. Unit: bytes.
            answer_bytes: Size of the values. Unit: bytes.

        Returns:
            The segment, and the message that it has to be handed over with if it is a new one.

        Raises:
            OSError: The kernel refused.
        """
        if self._kept is not None:
            self._number = MOST_SEGMENTS - 1 - self._kept
        segment, num_bytes = self.segment, answer_start(payload_bytes) + answer_bytes
        if segment is not None and num_bytes <= segment.num_bytes:
            return segment, None
        self._drop(self._number)
        num_bytes = max(num_bytes - HEADER_BYTES, FIRST_SEGMENT_BYTES)
        segment = self._segments[self._number] = SharedSegment.create(num_bytes)
        return segment, session_pb2.Segment(number=self._number, num_bytes=segment.num_bytes)

    def placed(self, request: StepRequest) -> StepRequest:
        """Refer to the segment that was prepared in a step, whose payload is there."""
        if self._keeps_pushes and request.push is not None:
            self._kept = self._number
        return replace(
            request,
            in_segment=True,
            segment=self._number,
            segment_bytes=request.payload_bytes,
        )

    def drop_segments(self) -> None:
        """Forget our segments: the ps may yet be reading a push that failed, and others the one
        before it.
        """
        for number in list(self._segments):
            self._drop(number)

    def _drop(self, number: int) -> None:
        segment = self._segments.pop(number, None)
        if segment is not None:
            segment.close()

    # -- pulling -----------------------------------------------------------------------------

    def direct_pull(self, layout: WireLayout) -> DirectPull | None:
        """Find how to read a pull from here, if it is large and all of it can be read.

        Raises:
            OSError: The connection broke while the ps was asked where it is.
            RefusedError: A slab cannot be mapped.
        """
        entry = self._pulls.get(layout.layout_id)
        if entry is None or entry[0] is not layout:
            entry = (layout, self._plan(layout))
            self._pulls[layout.layout_id] = entry
        return entry[1]

    def direct_rows(self, layout: WireLayout, rows: Sequence[Array]) -> DirectRows | None:
        """Find how to read a pull of rows from here, if it is large and all of it can be read.

        Raises:
            OSError: The connection broke while the ps was asked where it is.
            RefusedError: A slab cannot be mapped.
        """
        regions = self._readable(layout, Encoding.ROWS)
        direct = DirectRows(layout, rows, regions, self._slabs) if regions else None
        if direct is None or direct.num_bytes <= SMALL_BYTES:
            return None
        self._map_slabs(regions.values())
        return direct

    def _plan(self, layout: WireLayout) -> DirectPull | None:
        if int(layout.sizes.sum()) <= SMALL_BYTES:
            return None
        regions = self._readable(layout, Encoding.DENSE)
        if not regions:
            return None
        total = sum(region.num_bytes for region in regions.values())
        self._map_slabs(regions.values())
        return DirectPull(layout, total, regions, self._slabs)

    def _readable(self, layout: WireLayout, encoding: Encoding) -> dict[ShardKey, MemoryRegion]:
        """Find the regions of a layout's shards; none if one cannot be read, or not as it is asked
        for.
        """
        if any(entry.encoding is not encoding for entry in layout.entries):
            return {}
        keys = [(entry.variable, entry.part) for entry in layout.entries]
        self._find([key for key in keys if key not in self._regions])
        regions = {}
        for entry, key in zip(layout.entries, keys, strict=True):
            region = self._regions[key]
            if region is None or entry.dtype not in (None, region.dtype):
                return {}
            regions[key] = region
        return regions

    def _find(self, keys: Sequence[ShardKey]) -> None:
        """Ask the ps where some shards are."""
        for start in range(0, len(keys), _FIND_BATCH):
            batch = keys[start : start + _FIND_BATCH]
            names = [session_pb2.ShardName(variable=name, part=part) for name, part in batch]
            asked = session_pb2.FindMemory(shards=names)
            ask = session_pb2.ClientMessage(find_memory=asked)
            self._connection.send([ask.SerializeToString()])
            message = receive_message(self._connection).found_memory
            regions = [codec.region_from_wire(region) for region in message.regions]
            if len(regions) != len(batch):
                raise RefusedError(f"asked where {len(batch)} shards are, {len(regions)} came")
            self._regions.update(zip(batch, regions, strict=True))

    def _map_slabs(self, regions: Iterable[MemoryRegion]) -> None:
        for region in regions:
            self._map(region.memory.slab)

    def _map(self, number: int) -> None:
        if number in self._slabs:
            return
        ask = session_pb2.ClientMessage(map_slab=session_pb2.MapSlab(number=number))
        self._connection.send([ask.SerializeToString()])
        answer = receive_message(self._connection).slab
        descriptor = self._connection.stream.take_descriptor()
        slab = SharedSegment.receive(descriptor, answer.num_bytes, writable=False)
        slab.close()  # the mapping stays
        if answer.number != number:
            raise RefusedError(f"asked for slab {number}, {answer.number} came")
        self._slabs[number] = slab

    def close(self) -> None:
        """Forget everything; memory goes with the last array of it."""
        self.drop_segments()
        self._slabs.clear()
        self._pulls.clear()


def write_gathered(request: StepRequest, segment: SharedSegment, *, all_of_it: bool) -> None:
    """Put into a segment what takes memory to gather; no message is sent yet.

    Args:
        request: The step.
        segment: Segment that takes the payload.
        all_of_it: The rest, too.
    """
    start = HEADER_BYTES
    for numbers in (*request.push_rows, *request.pull_rows):
        segment.memory[start : start + numbers.nbytes] = np.frombuffer(as_bytes(numbers), np.uint8)
        start += numbers.nbytes
    segment.counters[WRITTEN] = start - HEADER_BYTES  # the ps checks them while we write on
    for buffer in request.values:
        if all_of_it or not buffer.is_plain:
            buffer.write(segment.memory[start : start + buffer.num_bytes])
        start += buffer.num_bytes
    if all_of_it:
        segment.counters[WRITTEN] = start - HEADER_BYTES


def write_plain(request: StepRequest, segment: SharedSegment) -> None:
    """Put the rest into a segment, saying how far we are; nothing if all of it is there."""
    if segment.counters[WRITTEN] == request.payload_bytes:
        return
    start = HEADER_BYTES + request.payload_bytes - request.value_bytes
    for buffer in request.values:
        if buffer.is_plain:
            buffer.write(segment.memory[start : start + buffer.num_bytes])
        start += buffer.num_bytes
        segment.counters[WRITTEN] = start - HEADER_BYTES
    segment.counters[WRITTEN] = request.payload_bytes


def values_in_segment(request: StepRequest, segment: SharedSegment) -> list[GatherBuffer]:
    """View the values of a step, which the caller may change, where they are in a segment."""
    start = HEADER_BYTES + request.payload_bytes - request.value_bytes
    own = segment.memory[start : start + request.value_bytes]
    return [GatherBuffer([own], own.dtype, own.size)]
