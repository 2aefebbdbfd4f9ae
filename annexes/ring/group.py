"""Collective calls of synchronous workers over a ring, and the rings that a process has open."""

import atexit
import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.spec import workers_of
from ...core.arrays.buffers import BufferPools
from ...core.arrays.dtypes import Array, as_dtype
from ...core.errors import PeerLostError, RopewalkError, ShapeMismatchError
from ...core.process.waiting import WaitLog
from ...core.settings import Settings
from ...core.step_times import StepClock
from ...core.task import Incarnation, TaskId
from .diagnosis import RingWorkers, join_timeout_error
from .links import CollectiveCall, RingLinks
from .ring import STREAM_CHUNK_BYTES, Ring
from .server import borrow_server, forget_ring, release_server
from .slot_link import SlotSender
from .stream_link import (
    Call,
    Head,
    RingFrameKind,
    RingMember,
    dtype_number,
)

if TYPE_CHECKING:
    from .server import CollectiveServer

log = logging.getLogger(__name__)

# Of this process; a restarted one draws another. No larger than those that a chief gives out.
_GENERATION = secrets.randbits(40)
_MAX_AXES = 8
_TEXT_BYTES = 500


class CollectiveGroup:
    """A worker's end of a ring. One thread at a time makes calls, in the same order on all workers.

    Args:
        task: Task of this process; its cluster's chief and workers are the group, in this order.
        settings: Timeouts, bounds, and whether memory may be shared.
        timeout_s: A call that waits longer for a worker fails; None or 0: no limit while it
            answers.
        still_wanted: Called during waits; raises to end them.
        clock: Clock that measures the program's steps; None: nobody reads it.
    """

    def __init__(
        self,
        task: ResolvedTask,
        settings: Settings,
        *,
        timeout_s: float | None = None,
        still_wanted: Callable[[], None] = lambda: None,
        clock: StepClock | None = None,
    ) -> None:
        self.task = task.task
        self._settings = settings
        self._server_address = task.address
        # Without a cluster this process is the only worker.
        members = workers_of(task.spec) or [task.task]
        addresses = [task.address_of(member) for member in workers_of(task.spec)]
        self._workers = RingWorkers(task.task, members, addresses)
        self._ring = Ring(members.index(task.task), len(members))
        self._links = RingLinks(
            self._workers, settings, timeout_s, still_wanted, clock or StepClock()
        )
        self._buffers = BufferPools()
        self._server: CollectiveServer | None = None

    @property
    def rank(self) -> int:
        """Rank of this worker."""
        return self._ring.rank

    @property
    def size(self) -> int:
        """Number of workers."""
        return self._ring.size

    @property
    def members(self) -> Sequence[TaskId]:
        """The workers, by rank."""
        return self._workers.members

    @property
    def transport(self) -> str:
        """The kind of the link to the next worker."""
        sender = self._links.sender
        return sender.description if sender is not None else "none"

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._links.is_open

    # -- open and close ----------------------------------------------------------------------

    def open(self) -> None:
        """Form the ring, waiting for late workers until the join timeout.

        Raises:
            AddressInUseError: This worker's port is taken.
            JoinTimeoutError: A worker did not come.
        """
        if self.size == 1:
            return
        links, addresses = self._links, self._workers.addresses
        server, links.number = borrow_server(
            self.task, self._server_address, addresses, self._settings
        )
        self._server = server
        links.join_deadline = time.monotonic() + self._settings.join_timeout_s
        try:
            self._form(server)
        except BaseException:
            forget_ring(self._server_address, addresses)
            raise
        links.join_deadline = None
        _open_groups.add(self)
        log.info(
            "synchronous worker %d of %d; %s to %s",
            self.rank,
            self.size,
            self.transport,
            self.members[links.next_rank].short,
        )

    def _form(self, server: "CollectiveServer") -> None:
        links, workers = self._links, self._workers
        server.set_probe(links.number, links.progress)
        member = RingMember(links.number, self.rank, self.size)
        who = Incarnation(self.task, _GENERATION, self._settings.job_id)
        timeout_s = self._settings.join_timeout_s
        began = time.monotonic()

        def open_link() -> None:
            try:
                links.sender = links.client(links.next_rank).open_link(
                    who,
                    member,
                    timeout_s=timeout_s,
                    began=began,
                    still_wanted=links.still_wanted,
                )
            except PeerLostError as error:
                links.still_wanted()  # the job has failed meanwhile, maybe: that is no late worker
                raise join_timeout_error(workers, links.next_rank, timeout_s, error) from error

        open_link()
        waits = WaitLog(self.task, limit_s=timeout_s, limit="join_timeout_s")
        previous = links.previous_rank
        while links.receiver is None:
            links.still_wanted()
            waits.tick(f"{workers.members[previous]} ({workers.addresses[previous]}) to join")
            links.receiver = server.incoming.take(links.number, previous, 0.2)
            if links.sender is not None and links.sender.has_hung_up:
                links.sender.close(0.0)  # it was the worker of before, which has ended since
                open_link()
            if links.receiver is None and time.monotonic() - began > timeout_s:
                raise join_timeout_error(workers, previous, timeout_s)
        streams = np.zeros(self.size, np.int64)
        streams[self.rank] = self.transport != SlotSender.description
        if self.all_reduce(streams, timeout_s=0).any():  # all workers need one chunk size
            self._ring = replace(self._ring, chunk_bytes=STREAM_CHUNK_BYTES)
        links.count_from_one()  # the program's own calls

    def close(self) -> None:
        """Leave the ring. Workers that still wait for this one get an error that says so."""
        _open_groups.discard(self)
        # It may be closed on the way out of a program that fails.
        self._links.close(sys.exc_info()[1])
        self._buffers = BufferPools()
        if self._server is not None:
            self._server.forget_probe(self._links.number)
            self._server = None
            release_server(self._server_address)

    # -- calls -------------------------------------------------------------------------------

    def all_reduce(
        self, values: Array, *, divisor: int | None = None, timeout_s: float | None = None
    ) -> Array:
        """Sum an array over the workers, in its dtype; the same bits on each.

        Args:
            values: array, of one shape and dtype on all workers.
            divisor: Divides the sum, for floats; None: no division.
            timeout_s: Overrides the group's; 0: no limit.

        Raises:
            PeerLostError: A worker is lost.
            CollectiveTimeoutError: A worker did not reach the call in time.
            CollectiveMismatchError: A neighbour is in another call.
        """
        array = _contiguous(values)
        out = self._buffers.take(array.nbytes).view(array.dtype).reshape(array.shape)
        with self._call(Call.ALL_REDUCE, array, timeout_s) as link:
            self._ring.all_reduce(link, array.reshape(-1), out.reshape(-1), divisor)
        return out

    def all_gather(self, values: Array, *, timeout_s: float | None = None) -> list[Array]:
        """Gather every worker's array, by rank. They may differ in shape along the first axis.

        Raises:
            ShapeMismatchError: They differ elsewhere.
            RopewalkError: As :meth:`all_reduce`.
        """
        array = _contiguous(values)
        # Shapes first: the number of axes, then their extents, padded to one length on all workers.
        header = np.full(_MAX_AXES + 1, -1, np.int64)
        header[0] = array.ndim
        header[1 : 1 + array.ndim] = array.shape
        with self._call(Call.ALL_GATHER, header, timeout_s) as link:
            headers = self._ring.all_gather(link, header, [header.size] * self.size)
        shapes = [tuple(int(x) for x in row[1 : 1 + int(row[0])]) for row in headers]
        self._check_gathered(shapes)
        with self._call(Call.ALL_GATHER, array, timeout_s, compare=False) as link:
            flat = self._ring.all_gather(
                link, array.reshape(-1), [int(np.prod(shape)) for shape in shapes]
            )
        return [part.reshape(shape) for part, shape in zip(flat, shapes, strict=True)]

    def _check_gathered(self, shapes: Sequence[tuple[int, ...]]) -> None:
        if len({shape[1:] for shape in shapes}) > 1 or len({len(shape) for shape in shapes}) > 1:
            shown = ", ".join(
                f"{member.short} {shape}"
                for member, shape in zip(self.members, shapes, strict=True)
            )
            raise ShapeMismatchError(
                f"values to gather differ in more than their first axis: {shown}", task=self.task
            )

    def broadcast(self, values: Array, root: int = 0, *, timeout_s: float | None = None) -> Array:
        """Send the array of worker ``root`` to all; the others pass one of the same shape and
        dtype.

        Raises:
            RopewalkError: As :meth:`all_reduce`.
        """
        array = _contiguous(values)
        out = array if self.rank == root else np.empty_like(array)
        with self._call(Call.BROADCAST, array, timeout_s) as link:
            self._ring.broadcast(link, out.reshape(-1), root)
        return out

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Wait until every worker has made this call.

        Raises:
            RopewalkError: As :meth:`all_reduce`.
        """
        one = np.ones(1, np.int64)
        with self._call(Call.BARRIER, one, timeout_s) as link:
            self._ring.all_reduce(link, one, one)

    def watch(
        self, is_done: Callable[[], bool], doing: str, *, timeout_s: float | None = None
    ) -> None:
        """Wait for work outside the ring that needs every worker, and probe them meanwhile.

        Args:
            is_done: Whether the work is done; polled.
            doing: The work, for messages.
            timeout_s: Overrides the group's.

        Raises:
            RopewalkError: As :meth:`all_reduce`.
        """
        links = self._links
        links.begin_call(doing)
        limit, probe_after_s = links.limit_of(timeout_s)
        began = probed = time.monotonic()
        waits = links.wait_log(limit, began)
        event, poll_s = threading.Event(), 20e-6
        try:
            while not is_done():
                event.wait(poll_s)
                poll_s = min(2 * poll_s, 1e-3)
                waits.tick("the other workers", doing)
                if time.monotonic() - probed > probe_after_s:
                    error = links.diagnose_timeout(began, limit, links.next_rank)
                    if error is not None:
                        raise links.fail(error)
                    probed = time.monotonic()
        except BaseException as error:
            links.leave(error)
            raise
        finally:
            links.end_call()

    def agree(self, text: str) -> list[str]:
        """Exchange a short text, cut at 500 bytes, with every worker; returns the texts by rank.

        Raises:
            RopewalkError: As :meth:`all_reduce`.
        """
        mine = np.zeros(_TEXT_BYTES, np.uint8)
        data = np.frombuffer(text.encode()[:_TEXT_BYTES], np.uint8)
        mine[: data.size] = data
        with self._call(Call.ALL_GATHER, mine, None) as link:
            all_said = self._ring.all_gather(link, mine, [mine.size] * self.size)
        return [bytes(one).rstrip(b"\0").decode(errors="replace") for one in all_said]

    def from_first(self, text: str) -> str:
        """Send the first worker's text to all; what the others give does not matter.

        Raises:
            RopewalkError: As :meth:`all_reduce`.
        """
        mine = np.frombuffer(text.encode(), np.uint8)
        size = int(self.broadcast(np.array([mine.size]))[0])
        if not size:
            return ""
        text_bytes = self.broadcast(mine if self.rank == 0 else np.zeros(size, np.uint8))
        return bytes(text_bytes).decode()

    def _call(
        self, call: Call, array: Array, timeout_s: float | None, *, compare: bool = True
    ) -> CollectiveCall:
        number = dtype_number(as_dtype(array.dtype))
        sequence = self._links.begin_call(f"{call.name.lower()} of {array.size} {array.dtype.name}")
        head = Head(sequence, array.size if compare else 0, 0, RingFrameKind.DATA, call, number)
        return CollectiveCall(self._links, head, *self._links.limit_of(timeout_s))

    def fail(self, error: RopewalkError) -> None:
        """Break the ring and pass the error on."""
        self._links.fail(error)


_open_groups: "weakref.WeakSet[CollectiveGroup]" = weakref.WeakSet()


def leave_rings(why: str) -> None:
    """Tell the other workers that the program here failed, not that it has ended."""
    for group in list(_open_groups):
        group.fail(
            PeerLostError(
                f"the program of {group.task} failed: {why}", task=group.task, peer=group.task
            )
        )


def close_rings() -> None:
    """Leave every ring of this process, as its program is done."""
    for group in list(_open_groups):
        group.close()


@atexit.register
def _close_all() -> None:
    """Deliver what was sent when a program ends without closing its strategy."""
    failure = getattr(sys, "last_value", None)
    if failure is not None:  # a plain Python program that ends with an exception
        leave_rings(f"{type(failure).__name__}: {failure}")
    close_rings()


# A forked child shares its parent's sockets and must not shut them down.
os.register_at_fork(after_in_child=_open_groups.clear)


def _contiguous(values: Array) -> Array:
    # np.ascontiguousarray alone turns a scalar into a vector.
    return np.ascontiguousarray(values).reshape(np.shape(values))
