"""The ``shm`` transport: values of a ps on this machine are handed over in shared memory.

The session goes through the ps's local socket; it carries steps without their payload. A large push is
gathered into a segment of ours, where the ps reads it in place; a large pull is copied straight out of the
ps's memory, under the sequence lock of each block, but for blocks that did not change. Small ones travel in
the message, which is faster than both. What cannot be shared (another machine, another user, a container of
its own) goes through the stream, and the status says why.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ...core.arrays import as_bytes
from ...core.definitions import ShardDefinition, ShardKey
from ...core.errors import RefusedError, SegmentError, WindlassError
from ...core.pieces import Piece
from ...core.steps import HeldShard, PushResult, SegmentAddress, StepRequest, WireLayout
from ...core.task import TaskId
from ...core.update_rules import UpdateRule
from ...net.shared_memory import (
    APPLIED,
    FIRST_SEGMENT_BYTES,
    HEADER_BYTES,
    WRITTEN,
    SharedSegment,
    unavailable,
    wait_for,
)
from .direct_pull import DirectPull, Place
from .stream_transport import StreamTransport

log = logging.getLogger(__name__)

_SMALL_BYTES = 64 * 1024  # up to this the message itself carries the payload
# From here on the ps begins while we still write, and we read what it is done with: both sides at work gain
# more than they lose by looking at each other's counters.
_ABREAST_BYTES = 2 * 1024 * 1024


class ShmTransport:
    """See :class:`~windlass.client.ps.transport.PsTransport`.

    Args:
        stream: The session with the ps.
    """

    def __init__(self, stream: StreamTransport) -> None:
        self._stream = stream
        self._why_not = unavailable()
        self._places: dict[ShardKey, Place] = {}
        self._theirs: dict[SegmentAddress, SharedSegment] = {}
        self._mine: SharedSegment | None = None
        self._mine_since = 0  # how often the stream had been connected then
        self._abreast = False  # the ps applies what we write while we write and read
        self._pulls: dict[int, tuple[WireLayout, DirectPull | None]] = {}
        self._request: StepRequest | None = None
        self._pull: DirectPull | None = None

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
                dtype = shard.variable.dtype
                self._places[shard.key] = Place(item.memory, shard.num_bytes, dtype)
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
        self._request, self._pull, self._abreast = request, None, False
        lean = request
        if request.pull is not None and not request.pull_rows:
            self._pull = self._direct(request.pull)
        if self._pull is not None:
            lean = replace(lean, pull=None, direct_bytes=self._pull.num_bytes)
        size = request.payload_bytes
        if size <= _SMALL_BYTES or self._why_not or not self._stream.allows(size):
            self._stream.send(lean)
            return
        try:
            segment = self._segment(size)
        except OSError as error:
            self._give_up(f"no segment of {size} bytes: {error.strerror}")
            self._stream.send(lean)
            return
        lean = replace(lean, segment=segment.address, segment_bytes=size, detached=False)
        segment.counters[WRITTEN] = segment.counters[APPLIED] = 0
        if size < _ABREAST_BYTES:
            _write(request, segment)
            self._stream.send(lean)
            return
        self._abreast = True
        try:
            self._stream.send(lean)
            _write(request, segment)
        except BaseException:
            self._stream.break_off()  # the ps waits for the rest
            self._drop_segment()
            raise

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
        try:
            reading = direct.begin(into, self._places, self._open, in_place=previous is into)
        except RefusedError as error:
            self._give_up(error.message)
            reading = None
        ready = direct.ready(request, self._places) if self._abreast else None
        if reading is not None and ready is not None:
            bounds = ready
            reading.go_on(lambda index: self._is_applied(bounds[index]))
        result = self._receive(request, replace(request, pull=None), (), None)
        if reading is not None and reading.go_on():
            return replace(result, pulled_bytes=reading.finish())
        self._stream.send(StepRequest(pull=request.pull))
        again = self._stream.receive(into)
        return replace(result, global_step=again.global_step, pulled_bytes=again.pulled_bytes)

    def _is_applied(self, payload_bytes: int) -> bool:
        """Wait until so much of the push is applied; False if the answer came first."""
        if self._mine is None:
            return False
        return wait_for(self._mine.counters, APPLIED, payload_bytes, self._stream.is_silent)

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
            self._drop_segment()
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

    def _segment(self, size: int) -> SharedSegment:
        connected = self._stream.times_connected
        if connected != self._mine_since:
            # A session that broke off may be at its last push yet, and say how much of it is applied.
            self._drop_segment()
        segment = self._mine
        if segment is None or HEADER_BYTES + size > segment.num_bytes:
            self._drop_segment()
            segment = self._mine = SharedSegment.create(max(size, FIRST_SEGMENT_BYTES))
        self._mine_since = connected
        return segment

    def _drop_segment(self) -> None:
        segment, self._mine = self._mine, None
        if segment is not None:
            segment.close()

    # -- pulling -----------------------------------------------------------------------------

    def _direct(self, layout: WireLayout) -> DirectPull | None:
        """How to read a pull from here, if it is large and all of it can be read."""
        if self._why_not:
            return None
        known = self._pulls.get(layout.layout_id)
        if known is None or known[0] is not layout:
            known = (layout, self._plan(layout))
            self._pulls[layout.layout_id] = known
        return known[1]

    def _plan(self, layout: WireLayout) -> DirectPull | None:
        total = 0
        for entry in layout.entries:
            place = self._places.get((entry.variable, entry.part))
            if place is None or entry.dtype not in (None, place.dtype):
                return None
            total += place.num_bytes
        return DirectPull(layout, total) if total > _SMALL_BYTES else None

    def _open(self, address: SegmentAddress) -> SharedSegment:
        if address not in self._theirs:
            self._theirs[address] = SharedSegment.open(address)
        return self._theirs[address]

    def _give_up(self, why: str) -> None:
        if not self._why_not:
            self._why_not = why
            log.info("%s: values go through the stream: %s", self.task.short, why)


def _write(request: StepRequest, segment: SharedSegment) -> None:
    """Put a step's payload into our segment, saying how far we are."""
    start = HEADER_BYTES
    for numbers in (*request.push_rows, *request.pull_rows):
        stop = start + numbers.nbytes
        segment.memory[start:stop] = np.frombuffer(as_bytes(numbers), np.uint8)
        start = stop
    for piece in request.values:
        stop = start + piece.num_bytes
        piece.write(segment.memory[start:stop])
        start = stop
        segment.counters[WRITTEN] = start - HEADER_BYTES
    segment.counters[WRITTEN] = start - HEADER_BYTES
