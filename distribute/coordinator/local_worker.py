"""The worker of a coordinator that is alone in its process: closures run in a thread of it."""

import queue
import threading
from collections.abc import Callable, Sequence

from ...client.worker.closure_link import Events, Frame
from ...cluster.roles import WORKER
from ...core.task import TaskId
from ..strategies.parameter_server import ParameterServerStrategy
from .closure_runner import ClosureRunner


class LocalWorker:
    """See :class:`~windlass.client.worker.closure_link.ClosureLink`.

    Args:
        strategy: The coordinator's, which closures use as well.
        events: Told what happens.
    """

    def __init__(self, strategy: ParameterServerStrategy, events: Events) -> None:
        self.worker = TaskId(WORKER, 0)
        self.connections = 1
        self._events = events
        self._known: set[int] = set()
        self._frames: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()  # bounded: in flight
        self._runner = ClosureRunner(0, strategy.extended.runtime, strategy)
        self._thread = threading.Thread(target=self._run, name="closures", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()
        self._events.ready(self)

    def send(self, number: int, frames: Callable[[set[int]], Sequence[Frame]]) -> None:  # noqa: ARG002
        """Have the thread do what frames say."""
        for frame in frames(self._known):
            self._frames.put(frame)

    def close(self) -> None:
        """End the thread, after what it has been told."""
        self._frames.put(None)

    def _run(self) -> None:
        while (frame := self._frames.get()) is not None:
            message, parts = frame
            done = self._runner.handle(message, parts)
            if done is not None:
                answer, results = done
                # As if they had travelled: the closure may go on with its arrays.
                self._events.answered(answer, [memoryview(bytearray(part)) for part in results])
