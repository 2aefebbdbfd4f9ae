"""The trace of a sampled step, as the clock of its task measures it.

A clock adds the time of each part to a list. That of a sampled step is a :class:`StepTrace`, which
makes a span of each addition, so a clock does nothing more for any step than to ask once at its
end whether the next one is sampled.
"""

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol, TypeVar

from .spans import Context, Span, SpanRole, epoch_offset_ns, new_context, record

MOST_SPANS = 256
"""Spans of a step in one task; what is beyond is counted in the field ``left_out``."""

_Result = TypeVar("_Result")


class StepSampler(Protocol):
    """Says which steps of a task are traced. Used by the thread that makes them.

    Attributes:
        task: Short name of the task.
    """

    task: str

    def next_is_sampled(self) -> bool:
        """Return whether the next step is traced. Called once for each step."""

    def ended(self, trace: "StepTrace") -> None:
        """Take the trace of a step that has ended; all spans of it but late answers are kept."""


class StepTrace(list[int]):
    """Times of the parts of a sampled step, each of which becomes a span.

    Args:
        task: Short name of the task.
        names: Names of the parts, by number; the last one is the whole step, the one before it
            what is left to the program.
        now_ns: The clock's time. Unit: nanoseconds.
    """

    def __init__(self, task: str, names: Sequence[str], now_ns: Callable[[], int]) -> None:
        super().__init__([0] * len(names))
        self.context: Context = new_context()
        self._task, self._names, self._clock_ns = task, names, now_ns
        self._offset_ns = epoch_offset_ns(now_ns)
        self._read = 0
        self._parts: list[tuple[int, int]] = []  # end, and time without parts inside
        self._count = 0

    def now(self) -> int:
        """Read the clock; a part that is added next ends at this time."""
        self._read = self._clock_ns()
        return self._read

    def __setitem__(self, part: Any, total: Any) -> None:
        """Take the sum of a part, which ends now."""
        end, spent = self._read, total - self[part]
        super().__setitem__(part, total)
        if part == len(self) - 1:
            left_out = max(0, self._count - MOST_SPANS)
            fields = {"left_out": left_out} if left_out else {}
            self._keep(self._names[part], self.context, b"", end - spent, end, fields=fields)
        elif part < len(self) - 2:
            start = self._start(end, spent)
            self._parts.append((end, spent))
            self._add(self._names[part], self.context.child(), start, end)

    def _start(self, end: int, spent: int) -> int:
        """Find when a part began that ends now: before those that were measured inside it."""
        start = end - spent
        for inner_end, inner_spent in reversed(self._parts):
            if inner_end <= start:
                break
            start -= inner_spent
        return start

    def _add(
        self,
        name: str,
        place: Context,
        start: int,
        end: int,
        kind: SpanRole = SpanRole.INTERNAL,
        **fields: Any,
    ) -> None:
        self._count += 1
        if self._count <= MOST_SPANS:
            self._keep(name, place, self.context.span, start, end, kind, fields)

    def _keep(
        self,
        name: str,
        place: Context,
        parent: bytes,
        start: int,
        end: int,
        kind: SpanRole = SpanRole.INTERNAL,
        fields: Any = None,
    ) -> None:
        zero = self._offset_ns
        record(Span(name, place, parent, zero + start, zero + end, kind, self._task, fields or {}))

    def exchange(
        self,
        part: int,
        peer: str,
        place: Context,
        exchange: Generator[None, None, _Result],
        began: int,
    ) -> Generator[None, None, _Result]:
        """Carry on an exchange with a peer, which is a span from now until it is answered.

        Args:
            part: Number of the part that it is.
            peer: Short name of the peer.
            place: Place of the span, which the peer was told.
            exchange: Rest of the exchange.
            began: Time at which it began, on the clock. Unit: nanoseconds.
        """
        fields = {"peer": peer}
        try:
            return (yield from exchange)
        except BaseException as error:
            fields["error"] = type(error).__name__
            raise
        finally:
            self._add(self._names[part], place, began, self._clock_ns(), SpanRole.CLIENT, **fields)
