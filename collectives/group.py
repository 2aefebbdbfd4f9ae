"""A group of synchronous workers: its ring, and what happens when a worker is lost.

A worker whose process ends breaks its links, which its neighbours notice at once; the one after it
passes the failure on round the ring, so that every survivor's error names the same worker. A worker
that hangs keeps its links open: a call that waits for long probes all workers (``diagnosis.py``).
"""

import atexit
import logging
import os
import secrets
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ..cluster.resolved import ResolvedTask
from ..cluster.roles import workers_of
from ..core import error_table
from ..core.arrays import Array, as_dtype
from ..core.buffers import BufferPools
from ..core.errors import PeerLostError, ShapeMismatchError, WindlassError
from ..core.settings import Settings
from ..core.task import Incarnation, TaskId
from ..core.waiting import WaitLog
from .call import CollectiveCall
from .diagnosis import (
    Answer,
    RingWorkers,
    StalledCall,
    diagnose,
    first_failure,
    join_timeout_error,
    peer_lost_error,
)
from .peers import borrow_server, forget_ring, release_server
from .ring import STREAM_CHUNK_BYTES, Ring
from .ring_frames import (
    Call,
    Head,
    Kind,
    Receiver,
    RingMember,
    RingProgress,
    Sender,
    dtype_number,
)
from .slot_link import SlotSender
from .worker_client import WorkerClient

if TYPE_CHECKING:
    from .server import CollectiveServer

log = logging.getLogger(__name__)

# Of this process; a restarted one draws another. No larger than those that a chief gives out.
_GENERATION = secrets.randbits(40)
_PROBE_S = 3.0
_LINGER_S = 5.0  # a neighbour that computes reads its frames later
_NOTHING: Array = np.zeros(0, np.uint8)


class CollectiveGroup:
    """This worker's end of a ring. One thread at a time makes calls, in the same order on all
    workers.

    Args:
        task: This worker; its cluster's chief and workers are the group, in this order.
        settings: Timeouts, bounds, and whether memory may be shared.
        timeout_s: A call that waits longer for a worker fails; None or 0: no limit while it
            answers.
        still_wanted: Called during waits; raises to end them.
    """

    def __init__(
        self,
        task: ResolvedTask,
        settings: Settings,
        *,
        timeout_s: float | None = None,
        still_wanted: Callable[[], None] = lambda: None,
    ) -> None:
        self.task = task.task
        self._settings = settings
        self._timeout_s = timeout_s
        self._still_wanted = still_wanted
        # Without a cluster this process is the only worker.
        members = workers_of(task.spec) or [task.task]
        addresses = [task.address_of(member) for member in workers_of(task.spec)]
        self.workers = RingWorkers(task.task, members, addresses)
        self._ring = Ring(members.index(task.task), len(members))
        self._lock = threading.Lock()
        self._sequence = 0
        self._doing = ""
        self._waiting = False
        self._failure: WindlassError | None = None
        self._clients: dict[int, WorkerClient] = {}
        self.sender: Sender | None = None
        self.receiver: Receiver | None = None
        self._buffers = BufferPools()
        self._number = 0
        self._server: CollectiveServer | None = None
        self._join_deadline: float | None = None  # while the ring is being formed
        self._server_address = task.address

    @property
    def rank(self) -> int:
        """This worker's rank."""
        return self._ring.rank

    @property
    def size(self) -> int:
        """Number of workers."""
        return self._ring.size

    @property
    def members(self) -> Sequence[TaskId]:
        """The workers, by rank."""
        return self.workers.members

    @property
    def next_rank(self) -> int:
        """Rank of the worker that this one sends to."""
        return (self.rank + 1) % self.size

    @property
    def previous_rank(self) -> int:
        """Rank of the worker that this one receives from."""
        return (self.rank - 1) % self.size

    @property
    def transport(self) -> str:
        """The kind of the link to the next worker."""
        return self.sender.description if self.sender is not None else "none"

    # -- open and close ----------------------------------------------------------------------

    def open(self) -> None:
        """Form the ring, waiting for late workers until the join timeout.

        Raises:
            AddressInUseError: This worker's port is taken.
            JoinTimeoutError: A worker did not come.
        """
        if self.size == 1:
            return
        addresses = self.workers.addresses
        server, self._number = borrow_server(
            self.task, self._server_address, addresses, self._settings
        )
        self._server = server
        self._join_deadline = time.monotonic() + self._settings.join_timeout_s
        try:
            self._form(server)
        except BaseException:
            forget_ring(self._server_address, addresses)
            raise
        self._join_deadline = None
        _open_groups.add(self)
        log.info(
            "synchronous worker %d of %d; %s to %s",
            self.rank,
            self.size,
            self.transport,
            self.members[self.next_rank].short,
        )

    def _form(self, server: "CollectiveServer") -> None:
        server.set_probe(self._number, self._progress)
        member = RingMember(self._number, self.rank, self.size)
        who = Incarnation(self.task, _GENERATION, self._settings.job_id)
        timeout_s = self._settings.join_timeout_s
        began = time.monotonic()
        try:
            self.sender = self._client(self.next_rank).open_link(
                who, member, timeout_s=timeout_s, still_wanted=self._still_wanted
            )
        except PeerLostError as error:
            raise join_timeout_error(self.workers, self.next_rank, timeout_s, error) from error
        waits = WaitLog(self.task, limit_s=timeout_s, limit="join_timeout_s")
        previous = self.previous_rank
        while self.receiver is None:
            self._still_wanted()
            waits.tick(f"{self.members[previous]} ({self.workers.addresses[previous]}) to join")
            self.receiver = server.incoming.take(self._number, self.previous_rank, 0.2)
            if self.receiver is None and time.monotonic() - began > timeout_s:
                raise join_timeout_error(self.workers, self.previous_rank, timeout_s)
        streams = np.zeros(self.size, np.int64)
        streams[self.rank] = self.transport != SlotSender.description
        if self.all_reduce(streams, timeout_s=0).any():  # all workers need one chunk size
            self._ring = replace(self._ring, chunk_bytes=STREAM_CHUNK_BYTES)
        self._sequence = 0  # the program's own calls are numbered from 1

    def _client(self, rank: int) -> WorkerClient:
        if rank not in self._clients:
            self._clients[rank] = WorkerClient(
                self.members[rank], self.workers.addresses[rank], self._settings
            )
        return self._clients[rank]

    def close(self) -> None:
        """Leave the ring. Workers that still wait for this one get an error that says so."""
        with self._lock:
            sender, self.sender = self.sender, None
            receiver, self.receiver = self.receiver, None
        _open_groups.discard(self)
        if sender is not None:
            error = sys.exc_info()[1]
            if error is not None:
                self.leave(error)  # closed on the way out of a program that fails
            is_intact = self._failure is None
            if is_intact:
                self._notify(sender, Kind.BYE, _NOTHING)
            sender.close(_LINGER_S if is_intact else 1.0)
        if receiver is not None:
            receiver.close()
        for client in self._clients.values():
            client.close()
        self._buffers = BufferPools()
        if self._server is not None:
            self._server.forget_probe(self._number)
            self._server = None
            release_server(self._server_address)

    # -- calls -------------------------------------------------------------------------------

    def all_reduce(
        self, values: Array, *, divisor: int | None = None, timeout_s: float | None = None
    ) -> Array:
        """The sum of an array over the workers, in its dtype; the same bits on each.

        Args:
            values: array, of one shape and dtype on all workers.
            divisor: Divides the sum, for floats; None: no division.
            timeout_s: Overrides the group's; 0: no limit.

        Raises:
            PeerLostError: A worker is lost.
            CollectiveTimeoutError: A worker did not reach the call in time.
            CollectiveMismatchError: A neighbour is in another call.
        """
        given = _contiguous(values)
        out = self._buffers.take(given.nbytes).view(given.dtype).reshape(given.shape)
        with self._call(Call.ALL_REDUCE, given, timeout_s) as link:
            self._ring.all_reduce(link, given.reshape(-1), out.reshape(-1), divisor)
        return out

    def reduce_scatter(self, values: Array, *, timeout_s: float | None = None) -> Array:
        """This worker's part of the sum of a flat array; see :func:`ring.bounds` for the cuts.

        Raises:
            WindlassError: As :meth:`all_reduce`.
        """
        given = _contiguous(values).reshape(-1)
        with self._call(Call.REDUCE_SCATTER, given, timeout_s) as link:
            return self._ring.reduce_scatter(link, given)

    def all_gather(self, values: Array, *, timeout_s: float | None = None) -> list[Array]:
        """Every worker's array, by rank. They may differ in shape along the first axis.

        Raises:
            ShapeMismatchError: They differ elsewhere.
            WindlassError: As :meth:`all_reduce`.
        """
        given = _contiguous(values)
        # Shapes first: the number of axes, then their extents, padded to one length on all workers.
        header = np.full(_MAX_AXES + 1, -1, np.int64)
        header[0] = given.ndim
        header[1 : 1 + given.ndim] = given.shape
        with self._call(Call.ALL_GATHER, header, timeout_s) as link:
            headers = self._ring.all_gather(link, header, [header.size] * self.size)
        shapes = [tuple(int(x) for x in row[1 : 1 + int(row[0])]) for row in headers]
        self._check_gathered(shapes)
        with self._call(Call.ALL_GATHER, given, timeout_s, compare=False) as link:
            flat = self._ring.all_gather(
                link, given.reshape(-1), [int(np.prod(shape)) for shape in shapes]
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
        """The array of worker ``root``; the others pass one of the same shape and dtype.

        Raises:
            WindlassError: As :meth:`all_reduce`.
        """
        given = _contiguous(values)
        out = given if self.rank == root else np.empty_like(given)
        with self._call(Call.BROADCAST, given, timeout_s) as link:
            self._ring.broadcast(link, out.reshape(-1), root)
        return out

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Wait until every worker has made this call.

        Raises:
            WindlassError: As :meth:`all_reduce`.
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
            WindlassError: As :meth:`all_reduce`.
        """
        self._raise_if_broken()
        limit = (self._timeout_s if timeout_s is None else timeout_s) or None
        with self._lock:
            self._sequence += 1
            self._doing, self._waiting = doing, True
        began = probed = time.monotonic()
        waits = self.wait_log(limit, began)
        event, poll_s = threading.Event(), 20e-6
        try:
            while not is_done():
                event.wait(poll_s)
                poll_s = min(2 * poll_s, 1e-3)
                waits.tick("the other workers", doing)
                if time.monotonic() - probed > self._probe_after_s(limit):
                    error = self.diagnose_timeout(began, limit, self.next_rank)
                    if error is not None:
                        raise self.fail(error)
                    probed = time.monotonic()
        except BaseException as error:
            self.leave(error)
            raise
        finally:
            self.end_call()

    def _probe_after_s(self, limit: float | None) -> float:
        return min(self._settings.lease_s, limit or self._settings.lease_s)

    def _call(
        self, call: Call, array: Array, timeout_s: float | None, *, compare: bool = True
    ) -> CollectiveCall:
        self._raise_if_broken()
        number = dtype_number(as_dtype(array.dtype))
        try:
            self._still_wanted()
        except WindlassError as error:
            self.leave(error)
            raise
        with self._lock:
            self._sequence += 1
            elements = array.size if compare else 0
            head = Head(self._sequence, elements, 0, Kind.DATA, call, number)
            self._doing = f"{call.name.lower()} of {array.size} {array.dtype.name}"
            self._waiting = True
        limit = (self._timeout_s if timeout_s is None else timeout_s) or None
        return CollectiveCall(self, head, limit, self._probe_after_s(limit))

    def _raise_if_broken(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self.sender is None and self.size > 1:
            raise self.closed_error()

    # -- failures ----------------------------------------------------------------------------

    def end_call(self) -> None:
        """The current call does not wait any more."""
        with self._lock:
            self._waiting = False

    def _progress(self) -> RingProgress:
        """The answer to another worker's probe, in a thread of grpc."""
        with self._lock:
            return RingProgress(self._sequence, self._doing, self._waiting, self._failure)

    def fail(self, error: WindlassError) -> WindlassError:
        """Break the ring and pass the error on; returns the ring's first one."""
        with self._lock:
            if self._failure is not None:
                return self._failure
            self._failure = error
            sender, receiver = self.sender, self.receiver
        if sender is not None:
            self._notify(sender, Kind.ABORT, np.frombuffer(error_table.to_bytes(error), np.uint8))
            sender.close()
        if receiver is not None:
            receiver.close()
        return error

    def leave(self, error: BaseException) -> None:
        """Break the ring, as this worker ends a call with ``error``, e.g. Ctrl-C.

        No further call is possible: it would read frames of the interrupted one.
        """
        if self._failure is None:
            why = error.message if isinstance(error, WindlassError) else type(error).__name__
            self.fail(
                PeerLostError(
                    f"{self.task} left after call {self._sequence}: {why}",
                    task=self.task,
                    peer=self.task,
                )
            )

    def _notify(self, sender: Sender, kind: Kind, payload: Array) -> None:
        head = Head(self._sequence, 0, payload.size, kind, Call.NONE, 0)
        try:
            sender.send(head.pack(), payload, 0.5)
        except OSError as error:
            log.debug("could not send %s to the next worker: %s", kind.name, error)

    def peer_lost_error(self, rank: int, why: str) -> PeerLostError:
        """The error for a worker that is lost in the current call."""
        return peer_lost_error(self.workers, rank, why, self._sequence, self._doing)

    def diagnose_timeout(
        self, began: float, timeout_s: float | None, suspect: int
    ) -> WindlassError | None:
        """Ask all workers why a call makes no progress; None: it should wait on.

        Args:
            began: When the call began to wait.
            timeout_s: Its limit.
            suspect: Rank of the worker it waits for.
        """
        self._still_wanted()
        call = StalledCall(
            self._sequence,
            self._doing,
            suspect,
            began,
            timeout_s,
            self._join_deadline,
            self._settings.join_timeout_s,
        )
        return diagnose(self._probe_all(), self.workers, call, now=time.monotonic())

    def wait_log(self, timeout_s: float | None, began: float) -> WaitLog:
        """For a call of this worker that waits, by the system's clock since ``began``."""
        limit = "timeout_seconds" if timeout_s else "a worker that does not answer is an error"
        return WaitLog(self.task, limit_s=timeout_s, limit=limit, began=began)

    def agree(self, text: str) -> list[str]:
        """What every worker says, by rank: a short text, cut at 500 bytes.

        Raises:
            WindlassError: As :meth:`all_reduce`.
        """
        said = np.zeros(_TEXT_BYTES, np.uint8)
        data = np.frombuffer(text.encode()[:_TEXT_BYTES], np.uint8)
        said[: data.size] = data
        with self._call(Call.ALL_GATHER, said, None) as link:
            all_said = self._ring.all_gather(link, said, [said.size] * self.size)
        return [bytes(one).rstrip(b"\0").decode(errors="replace") for one in all_said]

    def closed_error(self) -> PeerLostError:
        """The error for a call on a closed ring."""
        return PeerLostError(f"{self.task}: the ring is closed", task=self.task)

    def reported_failure(self) -> WindlassError | None:
        """What broke the ring, from another worker whose message about it may be lost."""
        return first_failure(self._probe_all().values())

    def _probe_all(self) -> dict[int, Answer]:
        others = [rank for rank in range(self.size) if rank != self.rank]
        clients = [self._client(rank) for rank in others]

        def ask(client: WorkerClient) -> Answer:
            try:
                return client.progress(self._number, _PROBE_S)
            except WindlassError as error:
                return error

        with ThreadPoolExecutor(min(16, len(others)), thread_name_prefix="probe") as pool:
            return dict(zip(others, pool.map(ask, clients), strict=True))


_MAX_AXES = 8
_TEXT_BYTES = 500
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
