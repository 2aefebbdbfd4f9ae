"""The gateway's server: the one address of a standalone cluster."""

import logging
import secrets
import threading
from collections.abc import Iterator

from ...cluster.access import Leadership
from ...core.errors import said_of
from ...core.files.temporary import TemporaryFolder
from ...core.process.log_records import RareLog
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import Settings
from ...core.task import TaskId
from ...net.auth.guard import Guard
from ...net.host import HostedServer, TaskHost
from ...net.routes import Forwarder
from ...net.unary import servicer
from ...telemetry.catalogue import Sample
from .servicer import SERVICE, TICK_S, GatewayServicer
from .table import JobTable

log = logging.getLogger(__name__)


class GatewayServer(HostedServer):
    """Serves drivers and nodes.

    Args:
        task: The cluster's chief.
        table: The cluster.
        settings: Settings of the gateway.
    """

    def __init__(self, task: TaskId, table: JobTable, settings: Settings) -> None:
        self._folder = TemporaryFolder("ropewalk-gateway")
        self._forwarder = Forwarder()
        self.instance = secrets.token_hex(8)
        self._servicer = GatewayServicer(
            table,
            self._folder.present,
            self.instance,
            self._forwarder.ticket,
            max(1, settings.max_sessions // 4),  # of the threads that answer
        )
        self._host = TaskHost(
            task,
            threads=settings.max_sessions,
            waits_for_news=True,
            settings=settings,
            calls={SERVICE: servicer(SERVICE, self._servicer)},
            guard=Guard(
                task,
                settings,
                job=lambda: settings.job_id,
                leadership=lambda: Leadership(has_chief=True),
            ),
            routed=self._forwarder.accept,
        )
        self._stopping = threading.Event()
        self._losses = RareLog(log)
        self._ticks = new_thread("gateway", self._tick, failed=nobody_waits)

    def start(self, address: str) -> None:
        """Listen.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: Nothing says how callers show who they are.
        """
        super().start(address)
        self._ticks.start()

    def samples(self) -> Iterator[Sample]:
        """Yield the cluster's jobs and nodes, and the callers, for Prometheus."""
        yield from self._servicer.samples()
        yield from self._host.samples()

    def stop(self) -> None:
        """End: nodes that hear nothing any more end their tasks."""
        self._stopping.set()
        self._host.drain()
        self._servicer.stop()
        self._host.stop(0.5)
        self._forwarder.stop()
        if self._ticks.ident is not None:
            self._ticks.join()
        self._folder.remove()

    def _tick(self) -> None:
        while not self._stopping.wait(TICK_S):
            try:
                self._servicer.tick()
            except Exception as error:  # without ticks no job would ever end
                self._losses.warning("the gateway cannot tidy up: %s", said_of(error))
                log.debug("the gateway cannot tidy up", exc_info=True)
