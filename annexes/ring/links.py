"""The links of a worker in a ring: how far its calls are, and what happens when a worker is lost.

A worker whose process ends breaks its links, which its neighbours notice at once; the one after it
passes the failure on round the ring, so that every survivor's error names the same worker. A worker
that hangs keeps its links open, and one whose machine is gone leaves them so: a call that waits for
long probes all workers, and looks whether the process of one that does not answer is there
(``diagnosis.py``).
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.clock import Silence
from ...core.errors import CollectiveMismatchError, PeerLostError, RopewalkError
from ...core.process.waiting import FIRST_S, WaitLog
from ...core.settings import Settings
from ...core.step_times import OTHERS, StepClock
from ...core.wire import error_table
from .diagnosis import (
    Answer,
    NoAnswer,
    RingWorkers,
    StalledCall,
    diagnose,
    first_failure,
    peer_lost_error,
    uneven_calls_error,
)
from .stream_link import Call, Head, Receiver, RingFrameKind, RingProgress, Sender, unpack_head
from .worker_client import WorkerClient

log = logging.getLogger(__name__)

_PROBE_S = 3.0
_PORT_S = 2.0  # for a machine to take a connection: a lost packet is sent again after 1 s
_LINGER_S = 5.0  # a neighbour that computes reads its frames later
_NOTHING: Array = np.zeros(0, np.uint8)


class RingLinks:
    """The two links of a worker, the progress of its calls, and the failure that broke the ring.

    Args:
        workers: Workers of the ring.
        settings: Timeouts.
        timeout_s: A call that waits longer for a worker fails; None or 0: no limit while it
            answers.
        still_wanted: Called during waits; raises an exception to end them.
        clock: Clock that measures the program's steps.

    Attributes:
        sender: Sender to the next worker, while the ring is open.
        receiver: Receiver from the previous worker, while the ring is open.
        number: Number of the ring.
        join_deadline: Time until which workers may be missing; None: the ring is formed.
    """

    def __init__(
        self,
        workers: RingWorkers,
        settings: Settings,
        timeout_s: float | None,
        still_wanted: Callable[[], None],
        clock: StepClock,
    ) -> None:
        self.workers = workers
        self.still_wanted = still_wanted
        self._clock = clock
        self._began = 0  # the call, on the clock
        self._settings = settings
        self._timeout_s = timeout_s
        self.sender: Sender | None = None
        self.receiver: Receiver | None = None
        self.number = 0
        self.join_deadline: float | None = None
        self._lock = threading.Lock()
        self._sequence = 0
        self._doing = ""
        self._waiting = False
        self._failure: RopewalkError | None = None
        self._clients: dict[int, WorkerClient] = {}
        self._silences: dict[int, Silence] = {}  # of workers that have not answered in this call

    @property
    def next_rank(self) -> int:
        """Rank of the worker that this one sends to."""
        return (self.workers.rank + 1) % self.workers.size

    @property
    def previous_rank(self) -> int:
        """Rank of the worker that this one receives from."""
        return (self.workers.rank - 1) % self.workers.size

    @property
    def is_open(self) -> bool:
        """Whether calls can be made."""
        return self._failure is None and (self.sender is not None or self.workers.size == 1)

    def client(self, rank: int) -> WorkerClient:
        """Make a client for calls to another worker."""
        if rank not in self._clients:
            self._clients[rank] = WorkerClient(
                self.workers.members[rank],
                self.workers.addresses[rank],
                self._settings,
                self.workers.members[self.workers.rank],
            )
        return self._clients[rank]

    def close(self, error: BaseException | None) -> None:
        """Leave the ring: workers that still wait for this one get an error that says so.

        Args:
            error: Error with which the program of this worker fails, if it does.
        """
        with self._lock:
            sender, self.sender = self.sender, None
            receiver, self.receiver = self.receiver, None
        if sender is not None:
            if error is not None:
                self.leave(error)
            is_intact = self._failure is None
            if is_intact:
                self._notify(sender, RingFrameKind.BYE, _NOTHING)
            sender.close(_LINGER_S if is_intact else 1.0)
        if receiver is not None:
            receiver.close()
        for client in self._clients.values():
            client.close()

    # -- calls -------------------------------------------------------------------------------

    def begin_call(self, doing: str) -> int:
        """Begin a call, ``doing`` in messages; returns its number.

        Raises:
            RopewalkError: The ring is broken or closed, or the call was cancelled.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self.sender is None and self.workers.size > 1:
            raise self.closed_error()
        try:
            self.still_wanted()
        except RopewalkError as error:
            self.leave(error)
            raise
        with self._lock:
            self._sequence += 1
            self._doing, self._waiting = doing, True
            self._silences.clear()
            self._began = self._clock.begin()
            return self._sequence

    def end_call(self) -> None:
        """Note that the current call does not wait any more."""
        with self._lock:
            self._waiting = False
        self._clock.end(OTHERS, self._began)

    def count_from_one(self) -> None:
        """Give the next call number 1."""
        self._sequence = 0

    def limit_of(self, timeout_s: float | None) -> tuple[float | None, float]:
        """Compute a call's limit, and after what time without progress it asks the other workers.

        Args:
            timeout_s: The call's own; None: the ring's; 0: no limit.
        """
        limit = (self._timeout_s if timeout_s is None else timeout_s) or None
        return limit, min(self._settings.lease_s, limit or self._settings.lease_s)

    def progress(self) -> RingProgress:
        """Answer another worker's probe, in a thread of grpc."""
        with self._lock:
            return RingProgress(self._sequence, self._doing, self._waiting, self._failure)

    # -- failures ----------------------------------------------------------------------------

    def fail(self, error: RopewalkError) -> RopewalkError:
        """Break the ring and pass the error on; returns the ring's first one."""
        with self._lock:
            if self._failure is not None:
                return self._failure
            self._failure = error
            sender, receiver = self.sender, self.receiver
        if sender is not None:
            self._notify(
                sender, RingFrameKind.ABORT, np.frombuffer(error_table.to_bytes(error), np.uint8)
            )
            sender.close()
        if receiver is not None:
            receiver.close()
        return error

    def leave(self, error: BaseException) -> None:
        """Break the ring, as this worker ends a call with ``error``, e.g. Ctrl-C.

        No further call is possible: it would read frames of the interrupted one.
        """
        if self._failure is None:
            why = error.message if isinstance(error, RopewalkError) else type(error).__name__
            task = self.workers.task
            left = f"{task} left after call {self._sequence}: {why}"
            self.fail(PeerLostError(left, task=task, peer=task))

    def _notify(self, sender: Sender, kind: RingFrameKind, payload: Array) -> None:
        head = Head(self._sequence, 0, payload.size, kind, Call.NONE, 0)
        try:
            sender.send(head.pack(), payload, 0.5)
        except OSError as error:
            log.debug("could not send %s to the next worker: %s", kind.name, error)

    def peer_lost_error(self, rank: int, why: str) -> PeerLostError:
        """Make the error for a worker that is lost in the current call."""
        return peer_lost_error(self.workers, rank, why, self._sequence, self._doing)

    def lost_receiver(self) -> PeerLostError | None:
        """Make the error for a next worker that has ended while the ring is formed; None: it has
        not.

        A worker that is started again finds the one of before, which is about to end, too. When
        the ring is formed, one that has ended may have made all its calls.
        """
        sender = self.sender
        if self.join_deadline is None or sender is None or not sender.has_hung_up:
            return None
        return self.peer_lost_error(self.next_rank, "it closed the connection")

    def diagnose_timeout(
        self, began: float, timeout_s: float | None, suspect: int
    ) -> RopewalkError | None:
        """Ask all workers why a call makes no progress; None: it should wait on.

        Args:
            began: Time at which the call began to wait.
            timeout_s: Limit of the call.
            suspect: Rank of the worker it waits for.
        """
        self.still_wanted()
        call = StalledCall(
            self._sequence,
            self._doing,
            suspect,
            began,
            timeout_s,
            self.join_deadline,
            self._settings.join_timeout_s,
            self._settings.orphan_timeout_s,
        )
        answers = self._with_silences(self._probe_all())
        return diagnose(answers, self.workers, call, now=time.monotonic())

    def _with_silences(self, answers: dict[int, Answer]) -> dict[int, Answer]:
        """Add how long those that do not answer have been silent."""
        now, longest_look_s = time.monotonic(), self._settings.lease_s + _PROBE_S + _PORT_S
        heard = {rank for rank, answer in answers.items() if not isinstance(answer, NoAnswer)}
        for rank in heard & self._silences.keys():
            del self._silences[rank]
        updated = dict(answers)
        for rank, answer in answers.items():
            if not isinstance(answer, NoAnswer):
                continue
            if rank not in self._silences:
                self._silences[rank] = Silence(now - _PROBE_S, longest_look_s)
                self._tell_of(rank, answer)
            updated[rank] = replace(answer, silent_s=self._silences[rank].look(now))
        return updated

    def _tell_of(self, rank: int, answer: NoAnswer) -> None:
        if answer.is_there and not answer.is_stopped:
            log.warning(
                "%s does not answer, and its process is there: it is waited for (%s)",
                self.workers.members[rank],
                answer.error,
            )

    def wait_log(self, timeout_s: float | None, began: float) -> WaitLog:
        """Make the log for a call of this worker that waits, by the system's clock since
        ``began``.
        """
        limit = "timeout_seconds" if timeout_s else "a worker that is lost is an error"
        return WaitLog(self.workers.task, limit_s=timeout_s, limit=limit, began=began)

    def closed_error(self) -> PeerLostError:
        """Make the error for a call on a closed ring."""
        return PeerLostError(f"{self.workers.task}: the ring is closed", task=self.workers.task)

    def reported_failure(self) -> RopewalkError | None:
        """Ask the other workers for the failure that broke the ring, since a message about it may
        be lost.
        """
        return first_failure(self._probe_all().values())

    def _probe_all(self) -> dict[int, Answer]:
        others = [rank for rank in range(self.workers.size) if rank != self.workers.rank]
        for rank in others:
            self.client(rank)  # made by one thread
        with ThreadPoolExecutor(min(16, len(others)), thread_name_prefix="probe") as pool:
            return dict(zip(others, pool.map(self._probe, others), strict=True))

    def _probe(self, rank: int) -> Answer:
        client = self.client(rank)
        try:
            return client.progress(self.number, _PROBE_S)
        except PeerLostError as error:
            is_there = client.is_there(_PORT_S)
            return NoAnswer(error, is_there, is_there and self._is_stopped(rank))
        except RopewalkError as error:
            return NoAnswer(error)

    def _is_stopped(self, rank: int) -> bool:
        """Return whether a signal keeps a worker from running, as far as a link to it can tell."""
        ends = [(self.next_rank, self.sender), (self.previous_rank, self.receiver)]
        return any(end is not None and end.is_stopped for other, end in ends if other == rank)


# -- A collective call: the ring's link, with deadlines and the comparison of frame heads ------

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
