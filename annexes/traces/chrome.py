"""Spans as a file that Perfetto and Chrome show: one process for each task. Pure.

The format is Chrome's "Trace Event Format": complete events (``X``) on a track of a task, and flow
events (``s``, ``f``) from an exchange of a worker to the part of the ps in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

_ORDER = ("chief", "worker", "evaluator", "ps")


@dataclass(frozen=True, slots=True)
class SeenSpan:
    """A span as a task has told it.

    Attributes:
        name: Name of the span.
        trace: Id of the trace, hexadecimal.
        span: Id of the span, hexadecimal.
        parent: Id of the span that it is a part of; empty: the trace begins with it.
        start_ns: Time since 1970 on the task's machine. Unit: nanoseconds.
        end_ns: End, likewise.
        kind: ``internal``, ``client`` or ``server``.
        task: Short name of the task.
        fields: Further facts.
        host: Machine of the task.
    """

    name: str
    trace: str
    span: str
    parent: str
    start_ns: int
    end_ns: int
    kind: str
    task: str
    fields: Mapping[str, Any]
    host: str = ""


def seen_spans(answer: Mapping[str, Any]) -> list[SeenSpan]:
    """Read the spans of a task's answer.

    Raises:
        ValueError: They are something else.
    """
    try:
        spans = [SeenSpan(*[*row, str(answer.get("host", ""))]) for row in answer["spans"]]
        if all(isinstance(time, int) for each in spans for time in (each.start_ns, each.end_ns)):
            return spans
    except (KeyError, TypeError) as error:
        raise ValueError(f"an answer has no spans: {error}") from error
    raise ValueError("an answer has spans without times")


def chosen(spans: Iterable[SeenSpan], traces: Iterable[str]) -> list[SeenSpan]:
    """Choose the spans of some traces, and of saves that went on meanwhile, each once."""
    wanted = set(traces)
    every = {each.span: each for each in spans}
    steps = [each for each in every.values() if each.trace in wanted]
    if not steps:
        return []
    first = min(each.start_ns for each in steps)
    last = max(each.end_ns for each in steps)
    saves = {
        each.trace
        for each in every.values()
        if each.name == "checkpoint" and not each.parent
        and each.start_ns < last and each.end_ns > first
    }  # fmt: skip
    return [each for each in every.values() if each.trace in wanted | saves]


def aligned(spans: Sequence[SeenSpan]) -> list[SeenSpan]:
    """Move what another machine has measured into the span that waited for it.

    Clocks of two machines differ by more than a step takes. A part on another machine that does
    not lie in its parent is moved to the parent's middle with all of its own parts, as Jaeger has
    it.
    """
    by_id = {each.span: each for each in spans}
    moves: dict[str, int] = {}
    for each in spans:
        parent = by_id.get(each.parent)
        if each.kind != "server" or parent is None or parent.host == each.host:
            continue
        if not (parent.start_ns <= each.start_ns and each.end_ns <= parent.end_ns):
            middle = (parent.start_ns + parent.end_ns) // 2
            moves[each.span] = middle - (each.start_ns + each.end_ns) // 2
    shifts = ((each, moves.get(each.span, moves.get(each.parent, 0))) for each in spans)
    return [
        replace(each, start_ns=each.start_ns + by_ns, end_ns=each.end_ns + by_ns)
        for each, by_ns in shifts
    ]


def unanswered(spans: Iterable[SeenSpan]) -> int:
    """Count the exchanges of which the ps has told nothing."""
    every = list(spans)
    parents = {each.parent for each in every if each.kind == "server"}
    return sum(each.kind == "client" and each.span not in parents for each in every)


def chrome_trace(spans: Sequence[SeenSpan]) -> dict[str, Any]:
    """Write spans as a trace of Chrome.

    Args:
        spans: Spans, whose clocks are aligned.
    """
    by_id = {each.span: each for each in spans}
    tasks = sorted({each.task for each in spans}, key=_rank)
    processes = {task: number for number, task in enumerate(tasks, 1)}
    zero = min((each.start_ns for each in spans), default=0)
    tracks: dict[tuple[str, str], int] = {}
    events: list[dict[str, Any]] = []
    for each in sorted(spans, key=lambda each: (each.start_ns, -each.end_ns)):
        track = _track(each, by_id)
        thread = tracks.setdefault((each.task, track), len(tracks) + 1)
        place = {"pid": processes[each.task], "tid": thread}
        start, end = (each.start_ns - zero) / 1000, (each.end_ns - zero) / 1000
        about = {"trace": each.trace, "span": each.span, "parent": each.parent, **each.fields}
        events.append(
            {"ph": "X", "name": each.name, "cat": each.kind, "ts": start, "dur": end - start,
             **place, "args": about}
        )  # fmt: skip
        flow = {"name": each.name, "cat": "exchange", "ts": start, **place}
        if each.kind == "client":
            events.append({"ph": "s", "id": each.span, **flow})
        elif each.kind == "server":
            events.append({"ph": "f", "bp": "e", "id": each.parent, **flow})
    names = [_named("process_name", processes[task], 0, task) for task in tasks]
    names += [
        _named("thread_name", processes[task], thread, track)
        for (task, track), thread in tracks.items()
    ]
    return {"displayTimeUnit": "ms", "traceEvents": [*names, *events]}


def _rank(task: str) -> tuple[int, str, int]:
    kind, _, index = task.partition(":")
    rank = _ORDER.index(kind) if kind in _ORDER else len(_ORDER)
    return rank, kind, int(index) if index.isdigit() else 0


def _named(what: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": process, "tid": thread, "args": {"name": name}}


def _track(each: SeenSpan, by_id: Mapping[str, SeenSpan]) -> str:
    """Name the track of a span: what lies on one track lies inside of, or beside each other."""
    parent = by_id.get(each.parent)
    if each.name in ("heartbeat", "checkpoint") and each.kind != "internal":
        return f"{each.name} of {parent.task}" if parent and parent.task != each.task else each.name
    if each.kind == "client":
        return f"to {each.fields.get('peer', '?')}"
    if each.kind == "server":
        return f"from {each.fields.get('peer', '?')}"
    if parent is not None and parent.kind == "server":
        return _track(parent, by_id)
    return "saves" if each.name == "checkpoint" and not each.parent else "steps"
