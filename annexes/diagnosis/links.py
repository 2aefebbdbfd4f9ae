"""The ways from a task to its peers, measured when they are asked about: how long there and back,
and how many bytes a second.

Nothing of it is in the protocol. There and back is the greeting that each connection begins with,
or a call that does nothing. Bytes are a megabyte in a call that takes that much: an answer of a ps,
or a worker's to a question that nobody has asked, which the chief drops.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ...client.ps.control import PsControl
from ...core.errors import RopewalkError
from ...core.settings import Settings
from ...core.task import Incarnation
from ...net.dial import Dialer
from ...net.endpoint import WHO
from ...proto.v1 import session_pb2
from ...worker.joining import JoinedTask

LINKS, ECHO = "links", "echo"
"""Kinds of questions: how a task reaches its peers, and an answer of so many bytes."""

_TIMES = 5
_BYTES = 512 * 1024
_TIMEOUT_S = 2.0  # of one attempt

Link = dict[str, Any]
"""A way to a peer: ``round_trip_s``, ``bytes_per_s`` if that was measured, ``way``; ``error``."""


def links_of(joined: JoinedTask) -> dict[str, Link]:
    """Measure the ways of a task that has joined: to its chief, and to the ps of its session.

    Args:
        joined: The task.
    """
    links = {"the chief": _measured(lambda: _to_chief(joined))}
    session = joined.session()
    for peer in session.peers if session is not None else ():
        if address := getattr(peer, "address", ""):  # one in this process has none
            link = _measured(partial(_greeted, address, joined.who, joined.settings))
            links[peer.task.short] = {**link, "way": peer.description.partition(" ")[0]}
    return links


def links_to_ps(ps: PsControl, settings: Settings) -> dict[str, Link]:
    """Measure the way from the chief to a ps.

    Args:
        ps: The ps.
        settings: Settings of the chief.
    """
    size = _fitting(settings)
    small = _least(lambda: ps.ask(ECHO, "0", timeout_s=_TIMEOUT_S))
    large = _least(lambda: ps.ask(ECHO, str(size), timeout_s=_TIMEOUT_S))
    return {"the chief": _link(small, large, size)}


def echo(size: str, settings: Settings) -> dict[str, str]:
    """Answer with so many bytes, as many as a link is measured with at most."""
    return {"echo": " " * min(int(size or 0), _fitting(settings))}


def _fitting(settings: Settings) -> int:
    return min(_BYTES, settings.max_message_bytes // 4)


def _measured(measure: Callable[[], Link]) -> Link:
    try:
        return measure()
    except (RopewalkError, OSError) as error:
        return {"error": str(error)}


def _to_chief(joined: JoinedTask) -> Link:
    def send(size: int) -> None:
        joined.chief.answer_question(joined.who, 0, b" " * size, "", timeout_s=_TIMEOUT_S)

    size = _fitting(joined.settings)
    return _link(_least(lambda: send(0)), _least(lambda: send(size)), size)


def _greeted(address: str, who: Incarnation, settings: Settings) -> Link:
    return {"round_trip_s": min(_greetings(address, who, settings))}


def _greetings(address: str, who: Incarnation, settings: Settings) -> Iterator[float]:
    for _ in range(_TIMES):
        dialer = Dialer(address, address, session_pb2.Hello(service=WHO), who, settings)
        with contextlib.closing(dialer.tcp(_TIMEOUT_S)) as connection:
            began = time.perf_counter()
            dialer.greet(connection, _TIMEOUT_S)
            yield time.perf_counter() - began


def _least(work: Callable[[], object]) -> float:
    """Measure how long something takes at best: what else the machine does is no link."""
    took = list[float]()
    for _ in range(_TIMES):
        began = time.perf_counter()
        work()
        took.append(time.perf_counter() - began)
    return min(took)


def _link(small_s: float, large_s: float, size: int) -> Link:
    return {"round_trip_s": small_s, "bytes_per_s": size / max(large_s - small_s, 1e-6)}
