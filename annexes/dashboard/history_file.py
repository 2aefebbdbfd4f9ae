"""The history of a job as a file in its model directory, put in place as a whole."""

import json
import logging
from collections.abc import Iterable, Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from ...core.outside_text import read_json
from ...core.process.events import Event
from .calls import PastJob
from .samples import MOST_SERIES, Samples, Stretch

if TYPE_CHECKING:  # loading what reads checkpoints takes as long as the page's own part
    from ...core.checkpoint.folder import Folder

log = logging.getLogger(__name__)

HISTORY_FILE = "history.json"
_MOST_BYTES = 64 * 1024 * 1024
_VERSION = 1


def history_bytes(samples: Samples, happened: Iterable[Event] = ()) -> bytes:
    """Write a history."""
    written = {
        "version": _VERSION,
        "names": samples.names,
        "samples": rows(samples.since()),
        "events": [each.as_json() for each in happened],
    }
    return json.dumps(written, separators=(",", ":")).encode()


def past_json(past: PastJob) -> dict[str, Any]:
    """Write a part of a history for the page."""
    return {
        "names": past.names,
        "samples": rows(past.samples),
        "events": [[round(at, 3), name, dict(fields)] for at, name, fields in past.events],
    }


def rows(samples: Iterable[Stretch]) -> list[list[Any]]:
    """Write samples as lists: their end, their length, and their numbers, with six digits.

    None where there is none; those that are no numbers are texts, such as ``nan``: browsers read no
    others.
    """
    return [
        [round(each.at, 3), round(each.seconds, 3), *map(_written, each.numbers())]
        for each in samples
    ]


def _written(value: float | None) -> float | str | None:
    if value is None:
        return None
    text = f"{value:.6g}"
    return float(text) if isfinite(value) else text


def history_of(data: bytes) -> tuple[Samples, list[Event]]:
    """Read a history.

    Raises:
        ValueError: It is none.
    """
    try:
        written = read_json(data)
        return _samples_of(written), [_event_of(**each) for each in written["events"]]
    except (KeyError, TypeError, IndexError) as error:
        raise ValueError(f"it is no history: {error}") from error


def _event_of(at: float, event: str, **fields: Any) -> Event:
    return Event(float(at), str(event), fields)


def _samples_of(written: Mapping[str, Any]) -> Samples:
    names = [str(name) for name in written["names"]][:MOST_SERIES]
    samples, before = Samples(), list[tuple[float, float, dict[str, float]]]()
    for at, seconds, *values in written["samples"]:
        pairs = zip(names, values, strict=False)
        numbers = {name: float(value) for name, value in pairs if value is not None}
        before.append((float(at), float(seconds), numbers))
    samples.begin_with(before)
    return samples


def read_history(folder: "Folder") -> tuple[Samples, list[Event]]:
    """Read the history of a model directory; an empty one if there is none, or it is damaged."""
    try:
        return history_of(folder.read(HISTORY_FILE, _MOST_BYTES))
    except FileNotFoundError:
        return Samples(), []
    except (OSError, ValueError) as error:
        log.warning("%s/%s is left aside: %s", folder.url, HISTORY_FILE, error)
        return Samples(), []
