"""A group of workers in sync: its ring, and what happens when one of them is gone.

A call that waits looks after the others from time to time. A worker whose process ended breaks its links,
which its neighbours see at once; the one behind it passes the news on round the ring, so that every
survivor's error names the same worker. One that hangs does not answer a probe.
"""

import atexit
import logging
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..cluster.resolved import ResolvedTask
from ..cluster.roles import workers_of
from ..core import error_table
from ..core.arrays import Array, as_dtype
from ..core.buffers import BufferPools
from ..core.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    JoinTimeoutError,
    PeerLostError,
    ShapeMismatchError,
    WindlassError,
)
from ..core.settings import Settings
from ..core.task import Incarnation, TaskId
from .peers import borrow_server, give_back, never_formed
from .ring import STREAM_CHUNK_BYTES, Ring
from .ring_frames import (
    Call,
    Head,
    Kind,
    Progress,
    Receiver,
    RingMember,
    Sender,
    dtype_number,
    unpack_head,
)
from .slot_link import SlotSender
from .worker_client import WorkerClient

if TYPE_CHECKING:
    from .server import CollectiveServer

log = logging.getLogger(__name__)

_GENERATION = secrets.randbits(63)  # of this process: a restarted one is another one
_PROBE_S = 3.0
_LINGER_S = 5.0  # a neighbour that computes reads what was sent to it later
_NOTHING: Array = np.zeros(0, np.uint8)


class CollectiveGroup:
    """This worker's end of a ring. Calls are made by one thread at a time, in one order everywhere.

    Args:
        task: Who this is; its cluster's chief and workers are the group, in this order.
        settings: Timeouts, bounds, and whether memory may be shared.
        timeout_s: A call that waits longer for a worker fails; None or 0: it waits while the worker lives.
        still_wanted: Called while waiting; raises to give up.
    """

    def __init__(
        self,
        task: ResolvedTask,
        settings: Settings,
        *,
        timeout_s: float | None = None,
        still_wanted: Callable[[], None] = lambda: None,
    ) -> None:
        self._task = task.task
        self._settings = settings
        self._timeout_s = timeout_s
        self._still_wanted = still_wanted
        # Without a cluster this process is all of it.
        self._members = workers_of(task.spec) or [task.task]
        self._addresses = [task.address_of(member) for member in workers_of(task.spec)]
        self._ring = Ring(self._members.index(task.task), len(self._members))
        self._lock = threading.Lock()
        self._sequence = 0
        self._doing = ""
        self._waiting = False
        self._failure: WindlassError | None = None
        self._clients: dict[int, WorkerClient] = {}
        self._sender: Sender | None = None
        self._receiver: Receiver | None = None
        self._buffers = BufferPools()
        self._number = 0
        self._server: CollectiveServer | None = None
        self._forming_until = 0.0
        self._server_address = task.address

    @property
    def rank(self) -> int:
        """This worker's number."""
        return self._ring.rank

    @property
    def size(self) -> int:
        """Workers."""
        return self._ring.size

    @property
    def members(self) -> Sequence[TaskId]:
        """The workers, by rank."""
        return self._members

    @property
    def transport(self) -> str:
        """How bytes travel to the next worker."""
        return self._sender.description if self._sender is not None else "none"

    # -- life --------------------------------------------------------------------------------

    def open(self) -> None:
        """Form the ring, waiting for workers that are late.

        Raises:
            AddressInUseError: This worker's port is taken.
            JoinTimeoutError: A worker did not come.
        """
        if self.size == 1:
            return
        server, self._number = borrow_server(
            self._task, self._server_address, self._addresses, self._settings
        )
        self._server = server
        self._forming_until = time.monotonic() + self._settings.join_timeout_s
        try:
            self._form(server)
        except BaseException:
            never_formed(self._server_address, self._addresses)
            raise
        self._forming_until = 0.0
        _open_groups.add(self)
        log.info(
            "worker %d of %d in sync; %s to %s",
            self.rank,
            self.size,
            self.transport,
            self._members[(self.rank + 1) % self.size].short,
        )

    def _form(self, server: "CollectiveServer") -> None:
        server.set_probe(self._number, self._progress)
        member = RingMember(self._number, self.rank, self.size)
        who = Incarnation(self._task, _GENERATION)
        after = (self.rank + 1) % self.size
        before = (self.rank - 1) % self.size
        timeout_s = self._settings.join_timeout_s
        began = time.monotonic()
        try:
            self._sender = self._client(after).open_link(
                who, member, timeout_s=timeout_s, still_wanted=self._still_wanted
            )
        except PeerLostError as error:
            raise self._nobody(after, error) from error
        while self._receiver is None:
            self._still_wanted()
            self._receiver = server.incoming.take(self._number, before, 0.2)
            if self._receiver is None and time.monotonic() - began > timeout_s:
                raise self._nobody(before, None)
        streams = np.zeros(self.size, np.int64)
        streams[self.rank] = self.transport != SlotSender.description
        if self.all_reduce(streams, timeout_s=0).any():  # chunks are of one size on all workers
            self._ring = replace(self._ring, chunk_bytes=STREAM_CHUNK_BYTES)
        self._sequence = 0  # calls are numbered as the program makes them

    def _nobody(self, rank: int, error: WindlassError | None) -> JoinTimeoutError:
        missing = self._members[rank]
        return JoinTimeoutError(
            f"{self._task} waited {self._settings.join_timeout_s:g} s (join_timeout_s) for {missing} at "
            f"{self._addresses[rank]} to join the ring{f'; the last answer: {error}' if error else ''}. "
            "Is it "
            "started, with the same cluster and program?",
            task=self._task,
            missing=missing,
        )

    def _client(self, rank: int) -> WorkerClient:
        if rank not in self._clients:
            self._clients[rank] = WorkerClient(
                self._members[rank], self._addresses[rank], self._settings
            )
        return self._clients[rank]

    def close(self) -> None:
        """Leave. Workers that still wait for this one get an error that says so."""
        with self._lock:
            sender, self._sender = self._sender, None
            receiver, self._receiver = self._receiver, None
        _open_groups.discard(self)
        if sender is not None:
            in_order = self._failure is None
            if in_order:
                self._tell(sender, Kind.BYE, _NOTHING)
            sender.close(_LINGER_S if in_order else 1.0)
        if receiver is not None:
            receiver.close()
        for client in self._clients.values():
            client.close()
        self._buffers = BufferPools()
        if self._server is not None:
            self._server.forget_probe(self._number)
            self._server = None
            give_back(self._server_address)

    # -- calls -------------------------------------------------------------------------------

    def all_reduce(
        self, values: Array, *, divisor: int | None = None, timeout_s: float | None = None
    ) -> Array:
        """The sum of an array over the workers, in its dtype; the same bits on each.

        Args:
            values: array, of one shape and dtype on all workers.
            divisor: What the sum is divided by; None: nothing. For floats.
            timeout_s: Instead of the group's; 0: none.

        Raises:
            PeerLostError: A worker is gone.
            CollectiveTimeoutError: One took too long.
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
        # As many numbers on each worker as arrays may have axes: ranks may differ, too, and say so.
        facts = np.full(_MAX_AXES + 1, -1, np.int64)
        facts[0] = given.ndim
        facts[1 : 1 + given.ndim] = given.shape
        with self._call(Call.ALL_GATHER, facts, timeout_s) as link:
            everyones = self._ring.all_gather(link, facts, [facts.size] * self.size)
        shapes = [tuple(int(x) for x in row[1 : 1 + int(row[0])]) for row in everyones]
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
                for member, shape in zip(self._members, shapes, strict=True)
            )
            raise ShapeMismatchError(
                f"values to gather differ in more than their first axis: {shown}", task=self._task
            )

    def broadcast(self, values: Array, root: int = 0, *, timeout_s: float | None = None) -> Array:
        """The array of worker ``root``; the others give one of the same shape and dtype.

        Raises:
            WindlassError: As :meth:`all_reduce`.
        """
        given = _contiguous(values)
        out = given if self.rank == root else np.empty_like(given)
        with self._call(Call.BROADCAST, given, timeout_s) as link:
            self._ring.broadcast(link, out.reshape(-1), root)
        return out

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Wait until every worker is here.

        Raises:
            WindlassError: As :meth:`all_reduce`.
        """
        one = np.ones(1, np.int64)
        with self._call(Call.BARRIER, one, timeout_s) as link:
            self._ring.all_reduce(link, one, one)

    def watch(
        self, is_done: Callable[[], bool], doing: str, *, timeout_s: float | None = None
    ) -> None:
        """Wait for work beside the ring that needs every worker, and look after them meanwhile.

        Args:
            is_done: Whether it is; soon asked again.
            doing: For messages.
            timeout_s: Instead of the group's.

        Raises:
            WindlassError: As :meth:`all_reduce`.
        """
        self._raise_if_broken()
        limit = (self._timeout_s if timeout_s is None else timeout_s) or None
        patience_s = min(self._settings.lease_s, limit or self._settings.lease_s)
        with self._lock:
            self._sequence += 1
            self._doing, self._waiting = doing, True
        began = looked = time.monotonic()
        pause, pause_s = threading.Event(), 20e-6
        try:
            while not is_done():
                pause.wait(pause_s)
                pause_s = min(2 * pause_s, 1e-3)
                now = time.monotonic()
                if now - looked > patience_s:
                    error = self._judge(now - began, limit, (self.rank + 1) % self.size)
                    if error is not None:
                        raise self._fail(error)
                    looked = time.monotonic()
        except BaseException as error:
            self._left(error)
            raise
        finally:
            self._done()

    def _call(
        self, call: Call, array: Array, timeout_s: float | None, *, compare: bool = True
    ) -> "_Call":
        self._raise_if_broken()
        number = dtype_number(as_dtype(array.dtype))
        try:
            self._still_wanted()
        except WindlassError as error:
            self._left(error)
            raise
        with self._lock:
            self._sequence += 1
            elements = array.size if compare else 0
            head = Head(self._sequence, elements, 0, Kind.DATA, call, number)
            self._doing = f"{call.name.lower()} of {array.size} {array.dtype.name}"
            self._waiting = True
        limit = self._timeout_s if timeout_s is None else timeout_s
        return _Call(self, head, limit or None)

    def _raise_if_broken(self) -> None:
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._sender is None and self.size > 1:
            raise self._closed()

    # -- what goes wrong ---------------------------------------------------------------------

    def _done(self) -> None:
        with self._lock:
            self._waiting = False

    def _progress(self) -> Progress:
        """What a probe of another worker is answered, in grpc's thread."""
        with self._lock:
            return Progress(self._sequence, self._doing, self._waiting, self._failure)

    def _fail(self, error: WindlassError) -> WindlassError:
        """Break the ring, and pass on why."""
        with self._lock:
            if self._failure is not None:
                return self._failure
            self._failure = error
            sender, receiver = self._sender, self._receiver
        if sender is not None:
            self._tell(sender, Kind.ABORT, np.frombuffer(error_table.to_bytes(error), np.uint8))
            sender.close()
        if receiver is not None:
            receiver.close()
        return error

    def _left(self, error: BaseException) -> None:
        """This worker leaves, by Ctrl-C perhaps: tell the others, and begin no further call.

        It may be in the middle of one, and the next would read its frames.
        """
        if self._failure is None:
            why = error.message if isinstance(error, WindlassError) else type(error).__name__
            self._fail(
                PeerLostError(
                    f"{self._task} left after call {self._sequence}: {why}",
                    task=self._task,
                    peer=self._task,
                )
            )

    def _tell(self, sender: Sender, kind: Kind, payload: Array) -> None:
        head = Head(self._sequence, 0, payload.size, kind, Call.NONE, 0)
        try:
            sender.send(head.pack(), payload, 0.5)
        except OSError as error:  # it is gone, or takes nothing any more
            log.debug("the next worker does not hear it: %s", error)

    def _lost(self, rank: int, why: str) -> PeerLostError:
        member = self._members[rank]
        return PeerLostError(
            f"{member} at {self._addresses[rank]} is lost ({why}) in call {self._sequence}, {self._doing}; "
            "a synchronous job needs every worker. Restart it: all workers resume from the last checkpoint",
            task=member,
            peer=member,
            call=self._sequence,
        )

    def _judge(
        self, waited_s: float, timeout_s: float | None, suspect: int
    ) -> WindlassError | None:
        """A call has waited for long: who is to blame? None: nobody, wait on."""
        self._still_wanted()
        answers = self._probe_all()
        for answer in answers.values():
            if isinstance(answer, Progress) and answer.failure is not None:
                return answer.failure
        silent = [rank for rank, answer in answers.items() if not isinstance(answer, Progress)]
        if self._forming_until:  # who does not answer may not have started yet
            overdue = time.monotonic() > self._forming_until
            return self._nobody((silent or [suspect])[0], None) if overdue else None
        if silent:
            return self._lost(silent[0], f"it does not answer: {answers[silent[0]]}")
        if timeout_s is None or waited_s < timeout_s:
            return None
        progress = {
            rank: answer for rank, answer in answers.items() if isinstance(answer, Progress)
        }
        late = [rank for rank, answer in progress.items() if answer.calls < self._sequence]
        rank = late[0] if late else suspect
        where = ""
        if rank in progress:
            answer = progress[rank]
            verb = "is in" if answer.waiting else "has finished"
            where = f" It {verb} call {answer.calls}{f', {answer.doing}' if answer.doing else ''}."
        return CollectiveTimeoutError(
            f"{self._task} waited {waited_s:.1f} s (timeout_seconds {timeout_s:g}) for "
            f"{self._members[rank]} in call "
            f"{self._sequence}, {self._doing}.{where} Every worker must make the same calls; if it only "
            "computes "
            "for long, raise timeout_seconds",
            task=self._members[rank],
            call=self._sequence,
            timeout_s=timeout_s,
        )

    def _closed(self) -> PeerLostError:
        return PeerLostError(f"{self._task}: the ring is closed", task=self._task)

    def _reported(self) -> WindlassError | None:
        """What broke the ring for a worker that is still there: its own news may have got lost."""
        for answer in self._probe_all().values():
            if isinstance(answer, Progress) and answer.failure is not None:
                return answer.failure
        return None

    def _probe_all(self) -> dict[int, Progress | WindlassError]:
        others = [rank for rank in range(self.size) if rank != self.rank]
        clients = [self._client(rank) for rank in others]

        def ask(client: WorkerClient) -> Progress | WindlassError:
            try:
                return client.progress(self._number, _PROBE_S)
            except WindlassError as error:
                return error

        with ThreadPoolExecutor(min(16, len(others)), thread_name_prefix="probe") as pool:
            return dict(zip(others, pool.map(ask, clients), strict=True))


_MAX_AXES = 8
_open_groups: "weakref.WeakSet[CollectiveGroup]" = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """What was sent must arrive also if the program ends without closing its strategy."""
    for group in list(_open_groups):
        group.close()


# A forked child has the same sockets: what it closed at its end would be closed for its parent.
os.register_at_fork(after_in_child=_open_groups.clear)


def _contiguous(values: Array) -> Array:
    # NumPy's own makes a vector of a scalar.
    return np.ascontiguousarray(values).reshape(np.shape(values))


class _Call:
    """One collective call: the ring's link, with deadlines and the comparison of heads."""

    def __init__(self, group: CollectiveGroup, head: Head, timeout_s: float | None) -> None:
        self._group = group
        self._head = head
        self._timeout_s = timeout_s
        self._heads: dict[int, bytes] = {}
        patience = group._settings.lease_s
        self._patience_s = min(patience, timeout_s) if timeout_s is not None else patience

    def __enter__(self) -> "_Call":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        try:
            sender = self._group._sender
            if error is None and sender is not None:
                # What was sent may be changed when the call is over.
                self._patiently(sender.flush, (self._group.rank + 1) % self._group.size)
        except BaseException as late:
            error = late
            raise
        finally:
            self._group._done()
            if error is not None:
                self._group._left(error)

    def send(self, payload: Array) -> None:
        """Send a chunk."""
        group = self._group
        sender = group._sender
        if sender is None:
            raise group._closed()
        head = self._head_of(payload.size)
        self._patiently(
            lambda timeout_s: sender.send(head, payload, timeout_s), (group.rank + 1) % group.size
        )

    def receive(self, num_bytes: int) -> Array:
        """The next chunk, valid until :meth:`release`."""
        group = self._group
        receiver = group._receiver
        if receiver is None:
            raise group._closed()
        before = (group.rank - 1) % group.size
        frame = self._patiently(receiver.receive, before)
        if frame is None:
            raise group._fail(group._reported() or group._lost(before, "it closed the connection"))
        head: bytes = frame[0]
        data: Array = frame[1]
        if head != self._head_of(num_bytes) or data.size != num_bytes:
            raise group._fail(self._explain(unpack_head(head), data, num_bytes))
        return data

    def release(self) -> None:
        """The chunk received last is not needed any more."""
        receiver = self._group._receiver
        if receiver is not None:
            receiver.release()

    def _head_of(self, num_bytes: int) -> bytes:
        """What a chunk's head is, here and before."""
        head = self._heads.get(num_bytes)
        if head is None:
            head = self._heads[num_bytes] = replace(self._head, length=num_bytes).pack()
        return head

    def _explain(self, head: Head, data: Array, num_bytes: int) -> WindlassError:
        group = self._group
        before = (group.rank - 1) % group.size
        if head.kind is Kind.ABORT:
            return error_table.from_bytes(data.tobytes())
        if head.kind is Kind.BYE:
            return group._lost(
                before, f"its program ended after {head.sequence} calls, ours made one more"
            )
        return CollectiveMismatchError(
            f"{group._members[before]} is in call {head.sequence}, {head.what} ({head.length} bytes at "
            "a time), "
            f"and {group._task} in call {self._head.sequence}, {self._head.what} ({num_bytes} bytes); "
            "every worker "
            "must make the same calls, in the same order, with arrays of the same shape",
            task=group._members[before],
            call=self._head.sequence,
        )

    def _patiently(self, attempt: Callable[[float], Any], rank: int) -> Any:
        """Try until it succeeds, looking after the others when nothing happens for a while."""
        began = time.monotonic()
        while True:
            try:
                return attempt(self._patience_s)
            except TimeoutError:
                waited = time.monotonic() - began
                error = self._group._judge(waited, self._timeout_s, rank)
                if error is not None:
                    raise self._group._fail(error) from None
            except OSError as error:
                why = f"the connection broke: {os.strerror(error.errno) if error.errno else error}"
                group = self._group
                raise group._fail(
                    self._heard() or group._reported() or group._lost(rank, why)
                ) from error

    def _heard(self) -> WindlassError | None:
        """Why the ring broke, if the news has come from behind: that worker knows better who is gone."""
        receiver = self._group._receiver
        if receiver is None:
            return None
        until = time.monotonic() + 1.0
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
            if unpack_head(head).kind is Kind.ABORT:
                return error_table.from_bytes(data.tobytes())
            receiver.release()
        return None
