"""A collective call: the ring's link, with deadlines and the comparison of frame heads."""

import os
import time
from collections.abc import Callable
from typing import Any

from ...core.arrays.dtypes import Array
from ...core.errors import CollectiveMismatchError, RopewalkError
from ...core.process.waiting import FIRST_S, WaitLog
from ...core.wire import error_table
from .diagnosis import uneven_calls_error
from .links import RingLinks
from .stream_link import Head, RingFrameKind, unpack_head

_NEWS_S = 1.0  # after a connection broke: how long to wait for the previous worker's reason


class CollectiveCall:
    """Sends and receives the chunks of one call. See :class:`~ropewalk.annexes.ring.ring.Link`.

    When nothing moves for a while it asks the other workers for the reason.

    Args:
        links: Links of this worker.
        head: Head of every chunk, except for its length.
        timeout_s: A call that waits longer for a worker fails; None: no limit.
        probe_after_s: Time without progress until the other workers are asked. Unit: seconds.
    """

    def __init__(
        self, links: RingLinks, head: Head, timeout_s: float | None, probe_after_s: float
    ) -> None:
        self._links = links
        self._head = head
        self._timeout_s = timeout_s
        self._probe_after_s = probe_after_s
        self._heads: dict[int, bytes] = {}  # packed, by length

    def __enter__(self) -> "CollectiveCall":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        links = self._links
        try:
            if error is None and links.sender is not None:
                # The caller may change what was sent once the call is over.
                self._attempt(links.sender.flush, links.next_rank)
        except BaseException as late:
            error = late
            raise
        finally:
            links.end_call()
            if error is not None:
                links.leave(error)

    def send(self, payload: Array) -> None:
        """Send a chunk."""
        sender = self._links.sender
        if sender is None:
            raise self._links.closed_error()
        head = self._head_of(payload.size)
        self._attempt(
            lambda timeout_s: sender.send(head, payload, timeout_s), self._links.next_rank
        )

    def receive(self, num_bytes: int) -> Array:
        """Receive the next chunk, valid until :meth:`release`."""
        links = self._links
        if links.receiver is None:
            raise links.closed_error()
        frame = self._attempt(links.receiver.receive, links.previous_rank)
        if frame is None:
            why = "it closed the connection"
            raise links.fail(
                links.reported_failure() or links.peer_lost_error(links.previous_rank, why)
            )
        head: bytes = frame[0]
        data: Array = frame[1]
        if head != self._head_of(num_bytes) or data.size != num_bytes:
            raise links.fail(self._explain(unpack_head(head), data, num_bytes))
        return data

    def release(self) -> None:
        """Release the chunk received last, which is not needed any more."""
        if self._links.receiver is not None:
            self._links.receiver.release()

    def _head_of(self, num_bytes: int) -> bytes:
        head = self._heads.get(num_bytes)
        if head is None:
            head = self._heads[num_bytes] = self._head._replace(length=num_bytes).pack()
        return head

    def _explain(self, head: Head, data: Array, num_bytes: int) -> RopewalkError:
        """Make the error for a frame of another kind or another call."""
        workers, before = self._links.workers, self._links.previous_rank
        if head.kind is RingFrameKind.ABORT:
            return error_table.from_bytes(data.tobytes())
        if head.kind is RingFrameKind.BYE:
            return uneven_calls_error(
                workers, before, head.sequence, self._head.sequence, self._head.what
            )
        member = workers.members[before]
        return CollectiveMismatchError(
            f"{member} is in call {head.sequence}, {head.what} ({head.length} bytes "
            f"at a time), and {workers.task} in call {self._head.sequence}, "
            f"{self._head.what} ({num_bytes} bytes); every worker must make the same calls, in the "
            "same order, with arrays of the same shape",
            task=member,
            call=self._head.sequence,
        )

    def _attempt(self, transfer: Callable[[float], Any], rank: int) -> Any:
        """Repeat a transfer with ``rank`` until it succeeds or must fail."""
        links = self._links
        patience_s = min(self._probe_after_s, FIRST_S)
        began = probed = time.monotonic()
        waits: WaitLog | None = None
        while True:
            try:
                result = transfer(patience_s)
                if waits is not None:
                    waits.done()
                return result
            except TimeoutError:
                if waits is None:
                    waits = links.wait_log(self._timeout_s, began)
                member = links.workers.members[rank]
                waits.tick(f"{member}", f"call {self._head.sequence}, {self._head.what}")
                if (lost := links.lost_receiver()) is not None:
                    raise links.fail(lost) from None
                now = time.monotonic()
                if now - probed + 1e-3 < self._probe_after_s:
                    continue
                probed = now
                error = links.diagnose_timeout(began, self._timeout_s, rank)
                if error is not None:
                    raise links.fail(error) from None
            except OSError as error:
                why = f"the connection broke: {os.strerror(error.errno) if error.errno else error}"
                raise links.fail(
                    self._received_failure()
                    or links.reported_failure()
                    or links.peer_lost_error(rank, why)
                ) from error

    def _received_failure(self) -> RopewalkError | None:
        """Read why the previous worker left, or the failure it passed on, if any."""
        receiver = self._links.receiver
        if receiver is None:
            return None
        until = time.monotonic() + _NEWS_S
        while time.monotonic() < until:
            try:
                frame = receiver.receive(0.2)
            except TimeoutError:
                continue
            except OSError:
                return None
            if frame is None:
                return None
            head, data = frame
            received = unpack_head(head)
            if received.kind is not RingFrameKind.DATA:
                return self._explain(received, data, 0)
            receiver.release()
        return None
