"""Events of this process: a ring of the last ones, and the catalogue of their names.

A log line is for people and changes its words; an event has a name that stays, and fields. What is
logged as an event says so where it is logged, and is in the ring at any log level::

    log.warning("%s; reconnecting", error, extra=event("ps.broken", peer=peer, error=error))

Lines without a name are kept as ``log.line``. ``docs/events.md`` shows the catalogue.
"""

import json
import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

MOST = 4096
"""Events that are kept. A task that goes well has some in an hour."""

_MOST_CHARACTERS = 300  # of a field, so that the ring stays below 8 MB whatever errors say

CATALOGUE: Mapping[str, str] = {
    "caller.refused": "A caller was refused: of another job, without a right, or of another "
    "version.",
    "certificate.read": "Files of certificates have changed and were read again.",
    "certificate.unusable": "Changed files of certificates cannot be used; those before are.",
    "checkpoint.damaged": "A checkpoint is damaged, and an older one is taken.",
    "checkpoint.failed": "A checkpoint could not be saved.",
    "checkpoint.removed": "A checkpoint that a killed job left incomplete was removed.",
    "checkpoint.restored": "The job goes on from a checkpoint.",
    "checkpoint.saved": "A checkpoint is whole.",
    "chief.back": "The chief answers again.",
    "chief.lost": "A ps has had no chief for `orphan_timeout_s`, and ends.",
    "chief.silent": "The chief has not answered for a lease; the task goes on without it.",
    "closure.process_ended": "The process that runs closures was ended.",
    "connection.slow": "A peer is reached by a slower connection than was to be expected.",
    "job.ended": "The job is over, for this task: its phase, and why.",
    "job.failed": "The chief has ended the job as failed.",
    "job.resumed": "A chief goes on with a job that the ps have kept.",
    "job.stopping": "The job was asked to stop.",
    "kernel.compiled": "A kernel was compiled; until then NumPy did its work.",
    "log.line": "A log line without a name of its own.",
    "program.ended": "The program has ended: outcome, exit code, message.",
    "ps.broken": "The session with a ps broke; the task connects anew and repeats the step.",
    "ps.came": "A ps has come to the running job.",
    "ps.reconnected": "The step that a broken session cut off is answered.",
    "ps.silent": "A ps does not answer the chief.",
    "push.refused": "A step with NaN or infinite gradients was refused.",
    "share.failover": "A share was without a leader, and another ps leads it now.",
    "share.led": "Another ps leads a share of the variables.",
    "share.move_failed": "A move of a share has failed.",
    "share.moved": "Another ps leads a share, as was asked for.",
    "signal.received": "A signal asks the task to end.",
    "spans.lost": "Spans were not sent: too many at a time, or the collector did not take them.",
    "step.slow": "A step took over three times as long as 99 of 100 take at most; `part` says "
    "where. One in a second.",
    "steps.lost": "Acknowledged steps are lost: the last checkpoint is older.",
    "task.began": "The process of the task began.",
    "task.finished": "The chief has heard how a task ended: outcome and message.",
    "task.gave_up": "The task has lost its job or its place, and ends.",
    "task.joined": "A task has registered; on the chief, `of` says which.",
    "task.lost": "The chief has not heard of a task for its lease.",
    "thread.failed": "A thread of the task has failed.",
    "tracker.failed": "A tracker of experiments has not got numbers of the job.",
    "wait.long": "The task waits for something or somebody for long.",
    "wait.over": "A long wait is over.",
}
"""Meaning of each name, for people."""


class Event(NamedTuple):
    """An event.

    Attributes:
        at: Time, in seconds since 1970.
        name: Name from :data:`CATALOGUE`.
        fields: Numbers and short texts.
    """

    at: float
    name: str
    fields: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """Return the event as JSON has it."""
        return {"at": round(self.at, 6), "event": self.name, **self.fields}


_task = ""
_ring: deque[Event] = deque(maxlen=MOST)  # appending is atomic, and drops the oldest
_counted = 0
_NUMBERS = frozenset({int, float, bool})


def begin(task: str, **fields: Any) -> None:
    """Say which task this process is, for log lines, and keep that it began."""
    global _task  # noqa: PLW0603 - a process has one task
    _task = task
    record("task.began", task=task, **fields)


def own_task() -> str:
    """Return the task of this process; empty: none has begun."""
    return _task


def record(name: str, /, **fields: Any) -> Mapping[str, Any]:
    """Keep an event; returns its fields as they are kept. From any thread.

    Args:
        name: Name from :data:`CATALOGUE`.
        fields: Facts, such as to whom it happened; anything but numbers is kept as text, so that an
            error keeps no frames alive.
    """
    global _counted  # noqa: PLW0603 - a lost count in a race costs one write of the file at most
    for key, value in fields.items():
        if type(value) not in _NUMBERS:
            fields[key] = str(value)[:_MOST_CHARACTERS]
    _ring.append(Event(time.time(), name, fields))
    _counted += 1
    return fields


def event(name: str, /, **fields: Any) -> dict[str, Any]:
    """Keep an event that is logged as well; returns what its log record is given as ``extra``."""
    return {"event": name, "event_fields": record(name, **fields)}


def recent(most: int = MOST) -> list[Event]:
    """List the last events, the oldest first."""
    return list(_ring)[-most:]


def lines(most_bytes: int) -> str:
    """Write the last events as lines of JSON, as many of them as fit into so many bytes."""
    written = list[str]()
    for each in reversed(_ring.copy()):
        line = f"{json.dumps(each.as_json(), ensure_ascii=False)}\n"
        most_bytes -= len(line.encode(errors="replace"))
        if most_bytes < 0:
            break
        written.append(line)
    return "".join(reversed(written))


def count() -> int:
    """Count the events of this process, with those that are not kept any more."""
    return _counted


def event_of(line: logging.LogRecord) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the fields of the event that a log line is about, or none."""
    return getattr(line, "event", ""), getattr(line, "event_fields", {})


class EventHandler(logging.Handler):
    """Keeps log lines that are about no event, as ``log.line``."""

    def emit(self, line: logging.LogRecord) -> None:
        """Keep a line."""
        if not event_of(line)[0]:
            record("log.line", level=line.levelname, text=line.getMessage())
