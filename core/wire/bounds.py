"""Bounds of the numbers and texts in messages.

Whoever can send a message can write anything into it, and what is believed once is kept: a global
step of 2**62 would name every later checkpoint, a generation of 2**64 - 1 would let no task
register again. So numbers are compared with what is possible where messages become values
(:mod:`~ropewalk.core.wire.codec`), before anything is stored or changed. A limit here is far beyond
what a real job reaches; limits that a job may reach are settings.
"""

from collections.abc import Mapping, Sized
from dataclasses import fields, replace
from typing import Any, TypeVar

from ..errors import RefusedError
from ..report import PsCounters, TableCounters
from ..task import TaskId

_Counters = TypeVar("_Counters", PsCounters, TableCounters)

MAX_NAME_BYTES = 1024  # of addresses, hosts and paths: a DNS name has at most 255
MAX_TYPE_BYTES = 64
MAX_JOB_ID_BYTES = 256  # 64 characters, see Settings.job_id
MAX_TEXT_BYTES = 4096  # of reasons and messages for people
MAX_ERROR_BYTES = 4096  # of an error's message, which gRPC sends twice, encoded, as metadata
MAX_FIELD_BYTES = 256  # of one value in an error's fields
MAX_FIELDS = 8

MAX_NAMES = 65_536  # of variables that are looked up by name, in one message
MAX_PID = 2**22  # Linux gives out none above
MAX_COUNT = 2**63 - 1  # of steps, pushes and bytes that a task reports
MAX_STEP = 2**53  # a global step, exact as a double
MAX_STEP_LEAD = 10**12  # of a worker's global step over the one a ps knows: years of steps
MAX_STEP_INCREMENT = 1_000_000
MAX_DIRECT_BYTES = 2**48  # of one pull from shared memory
MAX_LEASE_S = 86_400.0
MAX_GENERATION = 2**53  # a chief counts them, a million for each of its own restarts
MAX_LANES = 65_536  # of closures that are not over: a few for each worker
MAX_ATTEMPTS = 1024  # at one closure

LEAST_MESSAGE_BYTES = 64 * 1024  # what a peer takes; with less every byte would be a message

MAX_METRICS = 256
MAX_METRIC_NAME_BYTES = 256
MAX_TRANSPORTS = 4096
MAX_STEP_PARTS = 16
MAX_GPUS = 64  # of a task
MAX_SECONDS = 1e10  # of all steps of a task: centuries
MAX_HYPERPARAMETERS = 64
MAX_STRUCT_BYTES = 64 * 1024  # a schedule with its boundaries
MAX_DIMENSIONS = 32  # of a shape, as NumPy 1


def check_number(value: float, most: float, what: str, who: object, *, least: float = 0) -> None:
    """Check that a number is in ``[least, most]``; NaN is not.

    Raises:
        RefusedError: It is not; names who sent it, the number and the limit.
    """
    if not least <= value <= most:
        raise RefusedError(
            f"{who}: {what} is {value!r}; possible are {least} to {most}, so nothing of the "
            "request was done",
            task=who,
            value=value,
            limit=most,
        )


def check_text(text: str, most: int, what: str, who: object) -> str:
    """Check the length of a text.

    Args:
        text: Text of a message.
        most: Maximal length. Unit: bytes of UTF-8.
        what: Name of the text, for messages.
        who: Sender of the text.

    Raises:
        RefusedError: The text is longer.
    """
    # A character has at most four bytes: most texts need not be encoded.
    if len(text) * 4 > most and (size := len(text.encode(errors="replace"))) > most:
        raise RefusedError(
            f"{who}: {what} has {size} bytes, at most {most} are allowed: {shorten(text, 64)!r}",
            task=who,
            value=size,
            limit=most,
        )
    return text


def check_count(items: Sized, most: int, what: str, who: object) -> None:
    """Check how many there are of something.

    Raises:
        RefusedError: More than ``most``.
    """
    check_number(len(items), most, f"the number of {what}", who)


def check_generation(task: TaskId, generation: int) -> None:
    """Check a generation of a task.

    Raises:
        RefusedError: No task can have been given it.
    """
    if generation > MAX_GENERATION:
        raise RefusedError(
            f"{task}: generation {generation} is over {MAX_GENERATION}, which no chief gives out",
            task=task,
            value=generation,
            limit=MAX_GENERATION,
        )


def check_metrics(metrics: Mapping[str, float], who: object) -> None:
    """Check how many metrics a task reports, and their names; any value is allowed, NaN too.

    Raises:
        RefusedError: Too many, or too long a name.
    """
    check_count(metrics, MAX_METRICS, "metrics", who)
    for name in metrics:
        check_text(name, MAX_METRIC_NAME_BYTES, "the name of a metric", who)


def capped(counters: _Counters) -> _Counters:
    """Limit counters to what a message can say."""
    values = ((f.name, getattr(counters, f.name)) for f in fields(counters))
    large = [name for name, value in values if isinstance(value, int) and value > MAX_COUNT]
    most: dict[str, Any] = dict.fromkeys(large, MAX_COUNT)
    return replace(counters, **most)


def shorten(text: str, most: int) -> str:
    """Shorten a text to the beginning that fits ``most`` bytes of UTF-8, with dots behind."""
    if len(text) * 4 <= most:
        return text
    data = text.encode(errors="replace")
    if len(data) <= most:
        return text
    return data[: most - 4].decode(errors="ignore") + " …"
