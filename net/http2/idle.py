"""Connections that no thread reads for a while: pings and resets are answered all the same.

A tunnel's connection is read by the thread that waits for its bytes. While that thread computes, an
HTTP/2 proxy may ask whether this side is alive, and calls that share the connection go on. One
thread of the process looks at such connections twice a second, as long as there are any.
"""

import logging
import threading
import time

from ...core.process.threads import new_thread
from ..stream import NEVER
from .link import Http2Link

log = logging.getLogger(__name__)

_PERIOD_S = 0.5
_READS = 16  # per look: data that a busy thread will read itself stays in the kernel


class IdleLinks:
    """Reads connections that no other thread reads. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[Http2Link, float] = {}  # until when, on the clock of time.monotonic
        self._is_running = False

    def watch(self, link: Http2Link) -> None:
        """Read a connection when no other thread does, until :meth:`forget` or its end."""
        self._add(link, NEVER)

    def see_out(self, link: Http2Link, until: float) -> None:
        """Close a connection once the other side has ended its calls, at ``until`` at the latest.

        Closing it at once, with frames of the peer unread, would reset it, and what was sent last
        could be lost.
        """
        if link.broken or not link.streams:
            self.forget(link)
            link.close()
        else:
            self._add(link, until)

    def forget(self, link: Http2Link) -> None:
        """Stop reading it: another thread does from now on."""
        with self._lock:
            self._watched.pop(link, None)

    def _add(self, link: Http2Link, until: float) -> None:
        with self._lock:
            self._watched[link] = until
            if not self._is_running:
                new_thread("idle-links", self._run, failed=self._failed).start()
                self._is_running = True

    def _failed(self, _: BaseException) -> None:
        """Let the next connection start a new thread, which reads the others, too."""
        with self._lock:
            self._is_running = False

    def _run(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(_PERIOD_S)
            with self._lock:
                watched = list(self._watched.items())
                if not watched:
                    self._is_running = False
                    return
            for link, until in watched:
                if until != NEVER and (link.broken or not link.streams or time.monotonic() > until):
                    link.close()
                # Its owner closes a broken one.
                if not _goes_on(link) or (link.broken and until == NEVER):
                    self.forget(link)


def _goes_on(link: Http2Link) -> bool:
    """Read what has come; return whether the connection is still to be watched."""
    try:
        if link.reading.is_driven:
            return False
        if not link.broken and time.monotonic() - link.reading.last_read >= _PERIOD_S:
            for _ in range(_READS):
                if not link.reading.receive_now():
                    break
    except OSError as error:
        link.fail(str(error))
    except Exception:  # one connection's failure does not concern the others
        log.exception("a connection could not be read")
        link.fail("it could not be read")
    return not link.is_closed


idle_links = IdleLinks()
"""Idle links of this process."""
