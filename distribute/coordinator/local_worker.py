"""The worker of a coordinator that is alone in its process: closures run in a thread of it."""

import logging
import queue
from collections.abc import Callable

from ...client.closure_link import Frame, Knowledge, LinkEvents, MakeFrames
from ...cluster.spec import WORKER
from ...core.errors import said_of
from ...core.process.threads import new_thread
from ...core.task import TaskId
from ...proto.v1 import session_pb2
from ..strategies.parameter_server import ParameterServerStrategy
from .closure_runner import ClosureRunner

log = logging.getLogger(__name__)


class LocalWorker:
    """See :class:`~ropewalk.client.closure_link.ClosureLink`.

    Args:
        strategy: The coordinator's, which closures use as well.
        events: Told what happens.
    """

    def __init__(self, strategy: ParameterServerStrategy, events: LinkEvents) -> None:
        self.worker = TaskId(WORKER, 0)
        self.connections = 0
        self.replicas = len(strategy.extended.replica_devices)
        self._strategy = strategy
        self._events = events
        self._closures: _Thread | None = None

    def start(self) -> None:
        """Begin."""
        self.connections += 1
        self._closures = _Thread(self.worker, self._strategy, self._events, self._failed)
        self._events.ready(self)

    def send(self, number: int, frames: MakeFrames) -> None:
        """Have the thread do what frames say."""
        if self._closures is None or number != self.connections:
            return
        try:
            self._closures.do(frames)
        except Exception as error:  # noqa: BLE001 - a message that cannot be made
            log.warning("a closure could not be sent: %s", said_of(error))
            self.drop()

    def drop(self) -> None:
        """Go on in a new thread: nothing ends the one whose closure does not end."""
        self.close()
        self._events.lost(self)
        self.start()

    def _failed(self, thread: "_Thread") -> None:
        if thread is self._closures and not thread.is_left:
            self.drop()

    def close(self) -> None:
        """End the thread, after what it has been told."""
        if self._closures is not None:
            self._closures.leave()


class _Thread:
    def __init__(
        self,
        worker: TaskId,
        strategy: ParameterServerStrategy,
        events: LinkEvents,
        failed: Callable[["_Thread"], None],
    ) -> None:
        self._worker = worker
        self._events = events
        self._known = Knowledge()
        self.is_left = False
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()  # bounded: in flight
        self._runner = ClosureRunner(0, strategy.extended.runtime, strategy)
        new_thread("closures", self._run, failed=lambda _: failed(self)).start()

    def do(self, frames: MakeFrames) -> None:
        for frame in frames(self._known):
            self._frames.put(frame)

    def leave(self) -> None:
        self.is_left = True
        self._frames.put(None)

    def _run(self) -> None:
        while (frame := self._frames.get()) is not None:
            message, parts = frame
            done = self._runner.handle(message, parts, self._began)
            if done is not None and not self.is_left:
                answer, results = done
                # As if they had travelled: the closure may go on with its arrays.
                copies = [memoryview(bytearray(part)) for part in results]
                self._events.answered(self._worker, answer, copies)

    def _began(self, answer: session_pb2.ClosureAnswer) -> None:
        if not self.is_left:
            self._events.answered(self._worker, answer, [])
