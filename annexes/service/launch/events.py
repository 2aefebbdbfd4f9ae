"""The news of a node that its gateway has not confirmed: numbered, in order, within a bound."""

import threading
from collections import deque

from ....core.task import TaskId
from ....core.wire import codec
from ....proto.v1 import gateway_pb2

_MOST = 10_000  # then a producer waits: a task that prints faster than it is taken
_SENT = 1000
_SENT_BYTES = 1024 * 1024


class Events:
    """Lines of tasks, and their ends. To be used under the lock of ``changed``.

    Args:
        changed: Notified at every change. Held when this is made.

    Attributes:
        first: Number of the first event that is not confirmed.
    """

    def __init__(self, changed: threading.Condition) -> None:
        self._changed = changed
        self._waiting: deque[gateway_pb2.TaskEvent] = deque()
        self._is_over = False
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all: there is a new gateway, which counts from 1."""
        self._waiting.clear()
        self.first = 1
        self._changed.notify_all()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, event: gateway_pb2.TaskEvent) -> None:
        """Add one; waits while there are too many."""
        self._changed.wait_for(lambda: len(self._waiting) < _MOST or self._is_over)
        self._waiting.append(event)
        self._changed.notify_all()

    def batch(self) -> list[gateway_pb2.TaskEvent]:
        """Return the first events, as many as are sent at once."""
        batch, size = list[gateway_pb2.TaskEvent](), 0
        for event in self._waiting:
            size += event.ByteSize()
            if batch and (size > _SENT_BYTES or len(batch) >= _SENT):
                break
            batch.append(event)
        return batch

    def confirm(self, number: int) -> None:
        """Drop the events up to this number, which the gateway has."""
        while self._waiting and self.first <= number:
            self._waiting.popleft()
            self.first += 1
        self._changed.notify_all()

    def ends(self) -> set[tuple[str, TaskId]]:
        """List the tasks whose end is not confirmed, each as (job, task)."""
        return {
            (event.job, codec.task_from_wire(event.task))
            for event in self._waiting
            if event.WhichOneof("kind") == "exit_code"
        }

    def close(self) -> None:
        """Release all that wait."""
        self._is_over = True
        self._changed.notify_all()
