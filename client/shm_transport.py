"""The ``shm`` transport: values of a ps on this machine are handed over in shared memory.

The stream stays; it carries steps without their payload. A large push is copied into a segment of ours,
where the ps reads it in place; a large pull is copied straight out of the ps's memory, under the sequence
lock of each block. Small ones travel in the message, which is faster than both. What cannot be shared
(another machine, another user, a container of its own) goes through the stream, and the status says why.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core import codec
from ..core.arrays import Array
from ..core.copying import copy_into
from ..core.definitions import ShardDefinition, ShardKey
from ..core.errors import RefusedError, SegmentError, WindlassError
from ..core.shared_memory import HEADER_BYTES, Segment, SegmentAddress, unavailable
from ..core.steps import HeldShard, MemoryLocation, PushResult, StepRequest, WireLayout
from ..core.task import TaskId
from ..core.update_rules import UpdateRule
from .grpc_transport import GrpcTransport

log = logging.getLogger(__name__)

_SMALL_BYTES = 64 * 1024  # up to this the message itself carries the payload
_FIRST_SEGMENT_BYTES = 1024 * 1024
_READ_TIMEOUT_S = (
    0.25  # a block that is always being written is asked for through the stream instead
)


@dataclass(frozen=True, slots=True)
class _Copy:
    """Bytes ``source`` go to ``[start, stop)`` of the span; valid if ``sequence`` did not move."""

    source: Array
    sequence: Array
    span: int
    start: int
    stop: int


class ShmTransport:
    """See :class:`~windlass.client.transport.PsTransport`.

    Args:
        stream: The session with the ps.
    """

    def __init__(self, stream: GrpcTransport) -> None:
        self._stream = stream
        self._why_not = unavailable()
        self._memory: dict[ShardKey, tuple[MemoryLocation, int]] = {}
        self._theirs: dict[SegmentAddress, Segment] = {}
        self._mine: Segment | None = None
        self._copies: dict[int, tuple[_Copy, ...]] = {}
        self._request: StepRequest | None = None
        self._pull: WireLayout | None = None

    @property
    def task(self) -> TaskId:
        """The ps."""
        return self._stream.task

    @property
    def description(self) -> str:
        """How bytes travel, and why not in shared memory if they do not."""
        return f"{self._stream.description} ({self._why_not})" if self._why_not else "shm"

    def connect(self, timeout_s: float) -> None:
        """Open the session."""
        self._stream.connect(timeout_s)

    def define(
        self, shards: Sequence[ShardDefinition], *, create: bool, restore_from: str = ""
    ) -> list[HeldShard]:
        """Create shards, or look them up; learn where their memory is."""
        held = self._stream.define(shards, create=create, restore_from=restore_from)
        for item in held:
            if item.memory is not None:
                self._memory[item.shard.key] = (item.memory, item.shard.num_bytes)
        return held

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule."""
        self._stream.bind(variables, rule)

    def held_bytes(self) -> int:
        """Bytes of values on this ps, as of the last definition."""
        return self._stream.held_bytes()

    def expire(self, now: float) -> None:
        """Cancel a call that is past its deadline."""
        self._stream.expire(now)

    def send(self, request: StepRequest) -> None:
        """Begin a step: its payload into our segment if it is large, its message into the stream."""
        self._request, self._pull = request, None
        if request.pull is not None and not request.pull_rows and self._is_readable(request.pull):
            self._pull = request.pull
        lean = request
        if self._pull is not None:
            direct = sum(self._memory[e.variable, e.part][1] for e in self._pull.entries)
            lean = replace(request, pull=None, direct_bytes=direct)
        buffers = [
            *[codec.as_bytes(rows) for rows in (*request.push_rows, *request.pull_rows)],
            *request.values,
        ]
        size = codec.total_bytes(buffers)
        if size > _SMALL_BYTES and not self._why_not and self._stream.allows(size):
            try:
                lean = replace(lean, segment=self._put(buffers, size), segment_bytes=size)
            except OSError as error:
                self._give_up(f"no segment of {size} bytes: {error.strerror}")
        self._stream.send(lean)

    def receive(self, into: Sequence[memoryview]) -> PushResult:
        """Finish the step; copy what it pulls."""
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError("receive without send")
        targets: Sequence[memoryview] = () if self._pull is not None else into
        try:
            result = self._stream.receive(targets)
        except SegmentError as error:
            # Nothing of the step was applied; from now on payloads go through the stream.
            self._give_up(error.message)
            self._stream.send(replace(request, pull=None) if self._pull is not None else request)
            result = self._stream.receive(targets)
        if self._pull is not None and not self._read(self._pull, into):
            self._stream.send(StepRequest(pull=self._pull))
            result = replace(result, global_step=self._stream.receive(into).global_step)
        return result

    def abort(self, error: WindlassError) -> None:
        """Make a running and every later call raise ``error``."""
        self._stream.abort(error)

    def close(self) -> None:
        """End the session; memory goes with the last array of it."""
        self._stream.close()
        for segment in (*self._theirs.values(), *([self._mine] if self._mine else [])):
            segment.close()
        self._copies.clear()

    # -- pushing -----------------------------------------------------------------------------

    def _put(self, buffers: Sequence[memoryview], size: int) -> SegmentAddress:
        segment = self._mine
        if segment is None or HEADER_BYTES + size > segment.num_bytes:
            if segment is not None:
                segment.close()
            segment = self._mine = Segment.create(max(size, _FIRST_SEGMENT_BYTES))
        start = HEADER_BYTES
        for buffer in buffers:
            stop = start + len(buffer)
            copy_into(segment.memory[start:stop], np.frombuffer(buffer, np.uint8))
            start = stop
        return segment.address

    # -- pulling -----------------------------------------------------------------------------

    def _is_readable(self, layout: WireLayout) -> bool:
        """Whether a pull is large, and all of it can be read from here."""
        if self._why_not:
            return False
        known = [self._memory.get((entry.variable, entry.part)) for entry in layout.entries]
        if any(place is None for place in known):
            return False
        return sum(place[1] for place in known if place is not None) > _SMALL_BYTES

    def _read(self, layout: WireLayout, into: Sequence[memoryview]) -> bool:
        """Copy a pull out of the ps's memory; False if that is not possible now."""
        copies = self._copies.get(layout.layout_id)
        if copies is None:
            try:
                copies = self._plan(layout, [len(target) for target in into])
            except RefusedError as error:
                self._give_up(error.message)
                return False
            self._copies[layout.layout_id] = copies
        targets = [np.frombuffer(target, np.uint8) for target in into]
        deadline = time.monotonic() + _READ_TIMEOUT_S
        return all(_read_one(copy, targets[copy.span], deadline) for copy in copies)

    def _plan(self, layout: WireLayout, spans: Sequence[int]) -> tuple[_Copy, ...]:
        """Which bytes go where; neighbours in memory become one copy."""
        copies: list[_Copy] = []
        span, start = 0, 0
        for entry in layout.entries:
            place, size = self._memory[entry.variable, entry.part]
            while span < len(spans) and start == spans[span]:
                span, start = span + 1, 0
            memory = self._open(place.segment).memory
            sequence = memory[place.sequence_offset : place.sequence_offset + 8].view(np.int64)
            source = memory[place.offset : place.offset + size]
            last = copies[-1] if copies else None
            if (
                last is not None
                and last.span == span
                and last.sequence.ctypes.data == sequence.ctypes.data
                and last.source.ctypes.data + last.source.size == source.ctypes.data
            ):
                whole = memory[place.offset - last.source.size : place.offset + size]
                copies[-1] = replace(last, source=whole, stop=start + size)
            else:
                copies.append(_Copy(source, sequence, span, start, start + size))
            start += size
        return tuple(copy for copy in copies if copy.source.size)

    def _open(self, address: SegmentAddress) -> Segment:
        if address not in self._theirs:
            self._theirs[address] = Segment.open(address)
        return self._theirs[address]

    def _give_up(self, why: str) -> None:
        if not self._why_not:
            self._why_not = why
            log.info("%s: values go through the stream: %s", self.task.short, why)


def _read_one(copy: _Copy, span: Array, deadline: float) -> bool:
    """One copy under a sequence lock: repeated while somebody writes, up to the deadline."""
    target = span[copy.start : copy.stop]
    while True:
        before = int(copy.sequence[0])
        if not before & 1:
            copy_into(target, copy.source)
            if int(copy.sequence[0]) == before:
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0)  # let the writer on
