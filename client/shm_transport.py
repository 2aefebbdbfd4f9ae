"""The ``shm`` transport: values of a ps on this machine are handed over in shared memory.

The session goes through the ps's local socket; it carries steps without their payload. A large push is
gathered into a segment of ours, where the ps reads it in place; a large pull is copied straight out of the
ps's memory, under the sequence lock of each block, but for blocks that did not change. Small ones travel in
the message, which is faster than both. What cannot be shared (another machine, another user, a container of
its own) goes through the stream, and the status says why.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..core.arrays import Array, DType, as_bytes
from ..core.copying import copy_into
from ..core.definitions import ShardDefinition, ShardKey
from ..core.errors import RefusedError, SegmentError, WindlassError
from ..core.pieces import Piece
from ..core.shared_memory import (
    FIRST_SEGMENT_BYTES,
    HEADER_BYTES,
    Segment,
    SegmentAddress,
    unavailable,
)
from ..core.steps import HeldShard, MemoryLocation, PushResult, StepRequest, WireLayout
from ..core.task import TaskId
from ..core.update_rules import UpdateRule
from .stream_transport import StreamTransport

log = logging.getLogger(__name__)

_SMALL_BYTES = 64 * 1024  # up to this the message itself carries the payload
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


@dataclass(slots=True)
class _DirectPull:
    """A pull layout whose values are read from the ps's memory.

    Attributes:
        layout: The layout.
        num_bytes: Of all its values.
        copies: Made at the first pull, when the spans are known.
        seen: The sequence of each copy's block when it was read last.
    """

    layout: WireLayout
    num_bytes: int
    copies: tuple[_Copy, ...] | None = None
    seen: list[int] | None = None


class ShmTransport:
    """See :class:`~windlass.client.transport.PsTransport`.

    Args:
        stream: The session with the ps.
    """

    def __init__(self, stream: StreamTransport) -> None:
        self._stream = stream
        self._why_not = unavailable()
        self._memory: dict[ShardKey, tuple[MemoryLocation, int, DType]] = {}
        self._theirs: dict[SegmentAddress, Segment] = {}
        self._mine: Segment | None = None
        self._pulls: dict[int, tuple[WireLayout, _DirectPull | None]] = {}
        self._request: StepRequest | None = None
        self._pull: _DirectPull | None = None

    @property
    def task(self) -> TaskId:
        """The ps."""
        return self._stream.task

    @property
    def description(self) -> str:
        """How bytes travel, and why not in shared memory if they do not."""
        return f"{self._stream.description} ({self._why_not})" if self._why_not else "shm"

    @property
    def shares_memory(self) -> bool:
        """Yes, unless it turned out not to be possible."""
        return not self._why_not

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
                shard = item.shard
                self._memory[shard.key] = (item.memory, shard.num_bytes, shard.variable.dtype)
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
        lean = request
        if request.pull is not None and not request.pull_rows:
            self._pull = self._direct(request.pull)
        if self._pull is not None:
            lean = replace(lean, pull=None, direct_bytes=self._pull.num_bytes)
        size = request.payload_bytes
        if size > _SMALL_BYTES and not self._why_not and self._stream.allows(size):
            try:
                lean = replace(
                    lean, segment=self._put(request, size), segment_bytes=size, detached=False
                )
            except OSError as error:
                self._give_up(f"no segment of {size} bytes: {error.strerror}")
        self._stream.send(lean)

    def receive(
        self, into: Sequence[memoryview], previous: Sequence[memoryview] | None = None
    ) -> PushResult:
        """Finish the step; copy what it pulls."""
        request, self._request = self._request, None
        if request is None:
            raise RuntimeError("receive without send")
        direct, self._pull = self._pull, None
        if direct is None:
            return self._receive(request, request, into, previous)
        result = self._receive(request, replace(request, pull=None), (), None)
        moved = self._read(direct, into, in_place=previous is into)
        if moved is None:
            self._stream.send(StepRequest(pull=request.pull))
            again = self._stream.receive(into)
            return replace(result, global_step=again.global_step, pulled_bytes=again.pulled_bytes)
        return replace(result, pulled_bytes=moved)

    def _receive(
        self,
        request: StepRequest,
        without_segment: StepRequest,
        into: Sequence[memoryview],
        previous: Sequence[memoryview] | None,
    ) -> PushResult:
        try:
            return self._stream.receive(into, previous)
        except SegmentError as error:
            # Nothing of the step was applied; from now on payloads go through the stream.
            self._give_up(error.message)
            if request.detached and self._mine is not None:
                # The caller has its arrays back; what they held is in the segment.
                start = HEADER_BYTES + request.payload_bytes - request.value_bytes
                own = self._mine.memory[start : start + request.value_bytes]
                without_segment = replace(
                    without_segment, values=[Piece([own], own.dtype, own.size)]
                )
            self._stream.send(without_segment)
            return self._stream.receive(into, previous)
        except WindlassError:
            # The ps may be reading the push yet: what comes next must not be written over it.
            if self._mine is not None:
                self._mine.close()
                self._mine = None
            raise

    def abort(self, error: WindlassError) -> None:
        """Make a running and every later call raise ``error``."""
        self._stream.abort(error)

    def close(self) -> None:
        """End the session; memory goes with the last array of it."""
        self._stream.close()
        for segment in (*self._theirs.values(), *([self._mine] if self._mine else [])):
            segment.close()
        self._pulls.clear()

    # -- pushing -----------------------------------------------------------------------------

    def _put(self, request: StepRequest, size: int) -> SegmentAddress:
        segment = self._mine
        if segment is None or HEADER_BYTES + size > segment.num_bytes:
            if segment is not None:
                segment.close()
            segment = self._mine = Segment.create(max(size, FIRST_SEGMENT_BYTES))
        start = HEADER_BYTES
        for numbers in (*request.push_rows, *request.pull_rows):
            stop = start + numbers.nbytes
            segment.memory[start:stop] = np.frombuffer(as_bytes(numbers), np.uint8)
            start = stop
        for piece in request.values:
            stop = start + piece.num_bytes
            piece.write(segment.memory[start:stop])
            start = stop
        return segment.address

    # -- pulling -----------------------------------------------------------------------------

    def _direct(self, layout: WireLayout) -> _DirectPull | None:
        """How to read a pull from here, if it is large and all of it can be read."""
        if self._why_not:
            return None
        known = self._pulls.get(layout.layout_id)
        if known is None or known[0] is not layout:
            known = (layout, self._plan(layout))
            self._pulls[layout.layout_id] = known
        return known[1]

    def _plan(self, layout: WireLayout) -> _DirectPull | None:
        total = 0
        for entry in layout.entries:
            place = self._memory.get((entry.variable, entry.part))
            if place is None or entry.dtype not in (None, place[2]):
                return None
            total += place[1]
        return _DirectPull(layout, total) if total > _SMALL_BYTES else None

    def _read(self, pull: _DirectPull, into: Sequence[memoryview], *, in_place: bool) -> int | None:
        """Copy a pull out of the ps's memory.

        Returns:
            Bytes that were copied; None if it is not possible now.
        """
        if pull.copies is None:
            try:
                pull.copies = self._copies(pull.layout, [len(target) for target in into])
            except RefusedError as error:
                self._give_up(error.message)
                return None
        before = pull.seen if in_place else None
        pull.seen = None
        targets = [np.frombuffer(target, np.uint8) for target in into]
        deadline = time.monotonic() + _READ_TIMEOUT_S
        seen, moved = [], 0
        for index, copy in enumerate(pull.copies):
            last = before[index] if before is not None else -1
            sequence = _read_one(copy, targets[copy.span], last, deadline)
            if sequence is None:
                return None
            moved += copy.source.size if sequence != last else 0
            seen.append(sequence)
        pull.seen = seen
        return moved

    def _copies(self, layout: WireLayout, spans: Sequence[int]) -> tuple[_Copy, ...]:
        """Which bytes go where; neighbours in memory become one copy."""
        copies: list[_Copy] = []
        span, start = 0, 0
        for entry in layout.entries:
            place, size, _ = self._memory[entry.variable, entry.part]
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


def _read_one(copy: _Copy, span: Array, last: int, deadline: float) -> int | None:
    """One copy under a sequence lock: repeated while somebody writes, up to the deadline.

    Returns:
        The sequence of what is there now, ``last`` if that is there already; None: no luck in time.
    """
    target = span[copy.start : copy.stop]
    while True:
        before = int(copy.sequence[0])
        if before == last:
            return last
        if not before & 1:
            copy_into(target, copy.source)
            if int(copy.sequence[0]) == before:
                return before
        if time.monotonic() > deadline:
            return None
        time.sleep(0)  # let the writer on
