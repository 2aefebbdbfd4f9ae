"""A port where Prometheus reads a task's metrics, in plaintext, which cannot be used up.

It has its own sockets and threads: probes, peers and steps do not wait for it, nor it for them. A
client that sends nothing costs a descriptor (:mod:`~ropewalk.net.listener`), one that asks too
often gets the page of a moment ago (:mod:`~ropewalk.net.metrics_page`).
"""

import logging
import time
from typing import TYPE_CHECKING, cast

from ..core.errors import AddressInUseError
from ..core.process.rare_log import RareLog
from ..core.settings import Settings
from ..core.task import TaskId
from .host import bind_address
from .http_arrival import HttpArrival
from .listener import Listener
from .stream import SocketStream
from .tcp import listen_tcp, split_address, tcp_stream
from .tls.stream import TlsStream

if TYPE_CHECKING:
    from .metrics_page import Collect, MetricsPage

log = logging.getLogger(__name__)

_ANSWERS = 4  # at once; more are refused
_BACKLOG = 64
_REQUEST_S = 5.0
_ANSWER_S = 5.0


class MetricsPort:
    """Serves the metrics of one task, if its settings name a port.

    Args:
        task: Task of this process, for messages.
        address: The task's, or its cluster's: tells whether this is on loopback.
        settings: Settings, for the port and the address to bind.
        collect: Reads the task's counters, in a thread of this port.
    """

    def __init__(self, task: TaskId, address: str, settings: Settings, collect: "Collect") -> None:
        self._task = task
        self._address = address
        self._settings = settings
        self._collect = collect
        self._page: MetricsPage | None = None
        self._listener: Listener | None = None
        self._failures = RareLog(log)

    def start(self) -> None:
        """Answer from now on.

        Raises:
            AddressInUseError: The port is taken.
        """
        if not self._settings.metrics_port:
            return
        # Loaded where it is used: 0.1 s.
        from .metrics_page import MetricsPage

        self._page = MetricsPage(self._collect)
        host = bind_address(self._address or ":0", self._settings).rpartition(":")[0]
        where = f"{host}:{self._settings.metrics_port}"
        try:
            listening = listen_tcp(*split_address(where), _BACKLOG)
        except OSError as error:
            raise AddressInUseError(
                f"{self._task} cannot listen at {where} for metrics ({error.strerror or error}): "
                "the port is taken by another process. Stop it, or give another --metrics-port",
                task=self._task,
                address=where,
            ) from error
        self._listener = Listener(
            self._answer, None, _ANSWERS, _REQUEST_S, make_arrival=HttpArrival
        )
        self._listener.add(listening, tcp_stream)
        self._listener.start()
        log.debug("metrics at %s", where)

    def stop(self) -> None:
        """Stop answering. Idempotent."""
        if self._listener is not None:
            self._listener.stop()

    def _answer(self, stream: SocketStream | TlsStream, request: bytes) -> None:
        try:
            # Loaded where it is used: Python's HTTP takes 0.02 s.
            from .metrics_answer import answer_to

            stream.send(answer_to(request, self._read), time.monotonic() + _ANSWER_S)
        except OSError as error:
            log.debug("an answer with metrics broke off: %s", error)
        finally:
            stream.close()

    def _read(self, accept: str) -> tuple[bytes, str]:
        """Read the counters; returns (the page, its content type).

        Raises:
            TimeoutError: The counters cannot be read for now.
        """
        page = cast("MetricsPage", self._page)
        try:
            return page.render(accept)
        except TimeoutError:
            raise
        except Exception as error:  # a failed scrape must be reported, and must not end the port
            self._failures.warning(
                "the metrics cannot be read: %s: %s", type(error).__name__, error
            )
            raise TimeoutError("the metrics cannot be read; the task's log says why") from error
