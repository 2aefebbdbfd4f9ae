"""Questions about traces: trace the next steps, and which spans are kept."""

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

from ...core.errors import ConfigurationError
from ...core.outside_text import parse_number
from ...core.settings import Settings
from ...core.spans import Span, recent
from .heartbeat_part import traced_tasks

MOST_STEPS = 100
"""Steps of a task that can be asked for at once."""

LONGEST_S = 25
"""Longest time that a task waits for them; a question is open for half a minute."""


def _trace_steps(argument: str, settings: Settings, most: int) -> dict[str, Any]:  # noqa: ARG001
    """Trace the next steps of this task, and say which traces they are: ``3/10`` for 3 steps within
    10 s.
    """
    count_text, _, seconds_text = argument.partition("/")
    count, seconds = parse_number(count_text, MOST_STEPS), parse_number(seconds_text, LONGEST_S)
    if not count or seconds is None:
        raise ConfigurationError(
            f"{argument!r:.40}: from 1 to {MOST_STEPS} steps within {LONGEST_S} s can be asked for"
        )
    tasks = traced_tasks()
    asked = [task.ask(count) for task in tasks]
    until = time.monotonic() + seconds
    try:
        traces = [each.wait(max(0.0, until - time.monotonic())) for each in asked]
    finally:
        for task, each in zip(tasks, asked, strict=True):
            task.forget(each)
    return {"traces": [context.trace.hex() for each in traces for context in each]}


def _trace_spans(argument: str, settings: Settings, most: int) -> dict[str, Any]:  # noqa: ARG001
    """List the spans that this process keeps, the last ones that fit."""
    rows, left = list[Any](), most - 1000
    for span in reversed(recent()):
        row = as_row(span)
        left -= len(json.dumps(row)) + 2
        if left < 0:
            break
        rows.append(row)
    return {"spans": rows[::-1]}


def as_row(span: Span) -> list[Any]:
    """Return a span as JSON has it."""
    context = span.context
    return [
        span.name,
        context.trace.hex(),
        context.span.hex(),
        span.parent.hex(),
        span.start_ns,
        span.end_ns,
        span.kind,
        span.task,
        dict(span.fields),
    ]


ANSWERS: Mapping[str, Callable[[str, Settings, int], dict[str, Any]]] = {
    "trace-spans": _trace_spans,
    "trace-steps": _trace_steps,
}
"""Answers by the kind of the question."""
