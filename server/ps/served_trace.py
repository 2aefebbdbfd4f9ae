"""The spans of a sampled step on a ps: waits for blocks, their updates, and the answer."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

from ...core.spans import Context, Span, SpanRole, epoch_offset_ns, record
from ...core.wire.steps import StepReply

if TYPE_CHECKING:
    from .session import Answer

_MOST_SPANS = 128  # of a step; what is beyond is counted


class ServedStep:
    """Measures a sampled step of a worker. Used by one thread.

    Args:
        parent: Span of the worker's exchange with this ps.
        task: Short name of the ps.
        worker: Short name of the worker.
        name: Name of the step's span, as the worker has it.
    """

    def __init__(self, parent: Context, task: str, worker: str, name: str) -> None:
        self._parent, self._place = parent, parent.child()
        self._task, self._worker, self._name = task, worker, name
        self._offset_ns = epoch_offset_ns(time.perf_counter_ns)
        self._count = 0

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Measure the whole step."""
        fields: dict[str, Any] = {"peer": self._worker}
        began = time.perf_counter_ns()
        try:
            yield
        except BaseException as error:
            fields["error"] = type(error).__name__
            raise
        finally:
            if (left_out := self._count - _MOST_SPANS) > 0:
                fields["left_out"] = left_out
            now, role = time.perf_counter_ns(), SpanRole.SERVER
            self._keep(self._name, self._place, self._parent.span, began, now, role, fields)

    @contextmanager
    def changing(self, locked: AbstractContextManager[None]) -> Iterator[None]:
        """Hold a block; measures the wait for it, and how long it is held.

        Args:
            locked: The lock of the block.
        """
        began = time.perf_counter_ns()
        with locked:
            got = time.perf_counter_ns()
            try:
                yield
            finally:
                done = time.perf_counter_ns()
        self.note("lock", began, got)
        self.note("apply", got, done)

    def note(self, name: str, start: int, end: int) -> None:
        """Keep a part of the step. Times are those of ``time.perf_counter_ns``."""
        self._count += 1
        if self._count <= _MOST_SPANS:
            place = self._place.child()
            self._keep(name, place, self._place.span, start, end, SpanRole.INTERNAL, {})

    def _keep(
        self,
        name: str,
        place: Context,
        parent: bytes,
        start: int,
        end: int,
        kind: SpanRole,
        fields: dict[str, Any],
    ) -> None:
        zero = self._offset_ns
        record(Span(name, place, parent, zero + start, zero + end, kind, self._task, fields))


class TracedAnswer:
    """Sends an answer, and measures that; see :class:`~ropewalk.server.ps.session.Answer`.

    Args:
        answer: Takes the answer.
        served: The step that it is of.
    """

    def __init__(self, answer: "Answer[Any]", served: ServedStep) -> None:
        self._answer, self._served = answer, served
        self.room, self.copy, self.write = answer.room, answer.copy, answer.write

    def begin(self, reply: StepReply) -> None:
        """Take the reply."""
        self._began = time.perf_counter_ns()
        self._answer.begin(reply)

    def finish(self) -> None:
        """End the answer, and keep its span."""
        self._answer.finish()
        self._served.note("answer", self._began, time.perf_counter_ns())
