"""Spans of this process: what was done when, for whom, and in which trace.

A trace is one sampled step of a program, or one save of a checkpoint, over all tasks that take
part: its spans name the trace and their parent, and a message carries both to the next task (W3C
Trace Context: 16 bytes for the trace, 8 for the span). Names are those of a step's parts
(``step_times.py``) and of :data:`CATALOGUE`. The last spans are kept in a ring; who wants each as
it ends, such as an exporter, listens.

Of a step that is not sampled there are no spans, and nothing here is called.
"""

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from enum import StrEnum
from typing import Any, NamedTuple

MOST = 4096
"""Spans that are kept. A sampled step has a dozen in each task."""

CATALOGUE: Mapping[str, str] = {
    "step": "A step of the program, from the end of the one before. What no part of it covers is "
    "`compute`, the program's own.",
    "data": "The program waits for its next batch.",
    "pull": "Values are read from the ps: on the worker the wait, and an exchange with each ps; on "
    "a ps what it does for that.",
    "push": "Gradients and writes go to the ps, and values may come back: spans as of `pull`.",
    "others": "The program waits for other tasks.",
    "checkpoint": "In a step: a push that waits for a cut. On the chief a save, and on a ps its "
    "part of one.",
    "lock": "On a ps: the wait for a block that another step changes or reads.",
    "apply": "On a ps: the update of a block.",
    "answer": "On a ps: the answer is sent, and values with it.",
    "heartbeat": "The heartbeat after a sampled step, on the task and on the chief.",
}
"""Meaning of each name, for people."""

_IDS = 16, 8  # bytes of a trace's id, and of a span's


class Context(NamedTuple):
    """Place of a span.

    Attributes:
        trace: Id of the trace, 16 bytes.
        span: Id of the span, 8 bytes.
    """

    trace: bytes
    span: bytes

    def to_wire(self) -> bytes:
        """Return the bytes that a message has."""
        return self.trace + self.span

    def child(self) -> "Context":
        """Make the place of a span of the same trace."""
        return Context(self.trace, os.urandom(_IDS[1]))


def new_context() -> Context:
    """Make the place of a span with which a trace begins."""
    return Context(os.urandom(_IDS[0]), os.urandom(_IDS[1]))


def context_from_wire(data: bytes) -> Context | None:
    """Read a message's bytes; None: there are none, or they are no context."""
    if len(data) != sum(_IDS):
        return None
    return Context(data[: _IDS[0]], data[_IDS[0] :])


class SpanRole(StrEnum):
    """Whether a span is of one task alone, asks another one, or is the other one's part."""

    INTERNAL = "internal"
    CLIENT = "client"
    SERVER = "server"


class Span(NamedTuple):
    """A span that has ended.

    Attributes:
        name: Name from :data:`CATALOGUE`.
        context: Place of the span.
        parent: Id of the span that it is a part of; empty: the trace begins with it.
        start_ns: Time since 1970. Unit: nanoseconds.
        end_ns: End, likewise.
        kind: Role of the span.
        task: Short name of the task.
        fields: Numbers and short texts.
    """

    name: str
    context: Context
    parent: bytes
    start_ns: int
    end_ns: int
    kind: SpanRole
    task: str
    fields: Mapping[str, Any]


_ring: deque[Span] = deque(maxlen=MOST)  # appending is atomic, and drops the oldest
listeners: list[Callable[[Span], None]] = []
"""Called with each span as it ends, in the thread of what it measures. Must not wait or raise."""


def record(span: Span) -> None:
    """Keep a span, and tell those that listen. From any thread."""
    _ring.append(span)
    for listen in listeners:
        listen(span)


def recent() -> list[Span]:
    """List the spans that are kept, in the order of their ends."""
    return list(_ring)


def epoch_offset_ns(now_ns: Callable[[], int]) -> int:
    """Find what to add to a clock's readings for the time since 1970. Unit: nanoseconds.

    Two clocks cannot be read at once: of three tries the one with the least time between counts.
    """
    tries = []
    for _ in range(3):
        before, at, after = now_ns(), time.time_ns(), now_ns()
        tries.append((after - before, at - (before + after) // 2))
    return min(tries)[1]


# -- Spans around calls, of which there are few ------------------------------------------------

_current: ContextVar[Context | None] = ContextVar("span", default=None)


def current() -> bytes:
    """Return the place of the span that this thread is in, as a message has it; empty: in none."""
    context = _current.get()
    return b"" if context is None else context.to_wire()


@contextmanager
def measured(
    name: str, task: str, place: Context, parent: bytes = b"", kind: SpanRole = SpanRole.INTERNAL
) -> Iterator[None]:
    """Measure what is done meanwhile, as one span.

    Args:
        name: Name from :data:`CATALOGUE`.
        task: Short name of the task.
        place: Place of the span.
        parent: Id of the span that it is a part of; empty: the trace begins with it.
        kind: Role of the span.
    """
    fields: dict[str, Any] = {}
    token, start_ns, began = _current.set(place), time.time_ns(), time.perf_counter_ns()
    try:
        yield
    except BaseException as error:
        fields["error"] = type(error).__name__
        raise
    finally:
        _current.reset(token)
        end_ns = start_ns + time.perf_counter_ns() - began
        record(Span(name, place, parent, start_ns, end_ns, kind, task, fields))


@contextmanager
def part_of(
    parent: Context | None, name: str, task: str, kind: SpanRole = SpanRole.SERVER
) -> Iterator[bytes]:
    """Measure a part of a span; yields its place as a message has it.

    Args:
        parent: Place of the span; None: nothing is measured, and the place is empty.
        name: Name from :data:`CATALOGUE`.
        task: Short name of the task.
        kind: Role of the part.
    """
    if parent is None:
        yield b""
        return
    place = parent.child()
    with measured(name, task, place, parent.span, kind):
        yield place.to_wire()
