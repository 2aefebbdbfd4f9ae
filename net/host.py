"""The ports of a task: the one at its address, and those for probes and for metrics alone."""

import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, cast

from google.protobuf.descriptor import ServiceDescriptor

from ..core.errors import AddressInUseError
from ..core.process.log_records import RareLog
from ..core.settings import Settings
from ..core.task import TaskId
from ..telemetry.catalogue import Sample
from ..telemetry.task_metrics import connection_samples
from .arrival import HttpArrival
from .auth.credentials import SecurityMode, bind_address, security_mode
from .auth.guard import Guard
from .auth.tls_files import credential_files
from .auth.tls_handshake import TlsServer
from .auth.tls_stream import TlsStream
from .endpoint import MAX_SILENT, Endpoint, Service, refusal_frame
from .http2.call import ServedCall
from .http2.peer import Accepted, Method
from .http2.server import Http2Server
from .http2.shares import CallPool
from .listener import GREETING_TIMEOUT_S, Listener
from .shared_memory import unavailable
from .sockets import (
    held_port,
    listen_for_probes,
    listen_tcp,
    split_address,
    tcp_stream,
    unix_stream,
)
from .stream import SocketStream
from .this_machine import most_grpc_connections, raise_limit
from .tunnel import METHOD, serve_tunnel
from .unary import GUESTS, Health, Servicer, accepted, admit, methods_of

if TYPE_CHECKING:
    from ..telemetry.metrics_page import Collect, MetricsPage

log = logging.getLogger(__name__)

_BACKLOG = 512
_LOOKERS = 8  # greetings that only ask for the task, where there are no sessions
_GRPC_CONNECTIONS = 64  # beside two for each worker
_WAITING_CALLS = 512  # beyond the threads
_LEASE_THREADS = 4  # a lease is renewed at once
_IDLE_S = 60.0

_PROBE_THREADS, _WAITING_PROBES = 2, 64
_PROBE_BYTES = 4096

_METRICS_ANSWERS = 4  # at once; more are refused
_METRICS_BACKLOG = 64
_METRICS_REQUEST_S = 5.0
_METRICS_ANSWER_S = 5.0


class TaskHost:
    """Everything that a task serves at its one address: sessions and links, gRPC, and health.

    Args:
        task: The server, for messages.
        threads: Most gRPC calls at once, beside tunnels and calls that renew leases.
        settings: Settings, for bounds, the address to bind and the health port.
        calls: The methods of each service.
        guard: Admits callers.
        sessions: Services of greeted connections; see :class:`~ropewalk.net.endpoint.Endpoint`.
        max_sessions: Most greeted connections at once, tunnels included.
        waits_for_news: Callers wait for seconds, so none waits for a thread as well.
        routed: Forwards connections; see :class:`~ropewalk.net.listener.Listener`.
        is_replicated: See :class:`~ropewalk.net.unary.Health`.
        idle_s: Time without any call after which a connection is closed; a client that comes back
            connects anew. Unit: seconds.
        greeting_timeout_s: Time for the first bytes of a connection. Unit: seconds.
    """

    def __init__(
        self,
        task: TaskId,
        *,
        threads: int,
        settings: Settings,
        calls: Mapping[ServiceDescriptor, Servicer],
        guard: Guard,
        sessions: Mapping[str, Service] | None = None,
        max_sessions: int = 0,
        waits_for_news: bool = False,
        routed: Callable[[socket.socket, bytes], None] | None = None,
        is_replicated: Callable[[], bool] = lambda: True,
        idle_s: float = _IDLE_S,
        greeting_timeout_s: float = GREETING_TIMEOUT_S,
    ) -> None:
        self._task = task
        self._settings = settings
        self._guard = guard
        self._health = Health(is_replicated)
        name = f"{task.short}-rpc"
        raise_limit()
        self.endpoint = Endpoint(task, settings, sessions or {}, guard, max_sessions or _LOOKERS)
        self._probes: ProbePort | None = None
        # Calls beyond a pool's threads wait; beyond this they are refused, and tried again. Callers
        # that wait for news have threads at once, those that renew a lease as well.
        waiting = 0 if waits_for_news else _WAITING_CALLS
        leases = threads if waits_for_news else _LEASE_THREADS
        most_sessions = max_sessions or _LOOKERS
        self._calls = Http2Server(
            self._methods(calls, has_sessions=bool(sessions)),
            CallPool(name, threads, waiting),
            CallPool(f"{name}-leases", leases, waiting),
            limit=most_grpc_connections(_GRPC_CONNECTIONS + 2 * settings.max_sessions),
            tunnels=most_sessions + MAX_SILENT,
            most_bytes=settings.max_message_bytes,
            idle_s=idle_s,
            groups=GUESTS,
        )
        # Connections that a greeted peer no longer needs are closed a moment later.
        self._listener = Listener(
            self.endpoint.serve,
            self._calls,
            most_sessions + MAX_SILENT,
            greeting_timeout_s,
            routed,
            refusal=refusal_frame,
        )
        self.port = 0

    def _methods(
        self, calls: Mapping[ServiceDescriptor, Servicer], *, has_sessions: bool
    ) -> dict[str, Method]:
        methods = self._health.methods()
        for service, servicer in calls.items():
            methods.update(methods_of(service, servicer, self._guard))
        if has_sessions:
            methods[METHOD] = self._open_tunnel
        return methods

    def _open_tunnel(self, call: ServedCall) -> Accepted:
        visitor, metadata = admit(self._guard, call)

        def serve(left: Callable[[], None]) -> None:
            call.begin_stream(metadata)
            chunk_bytes = self._settings.chunk_bytes
            serve_tunnel(call, visitor.principal, chunk_bytes, self.endpoint.serve, left)

        return accepted(visitor, serve=serve)

    def start(self, address: str) -> None:
        """Listen at ``address`` (host:port; port 0 picks one) and report SERVING.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: No way to authenticate callers is set, or ``socket_dir`` cannot be
                used.
        """
        try:
            self._start(address)
        except BaseException:
            self.stop(0)
            raise

    def _start(self, address: str) -> None:
        # First: it is wrong whether the port is free or not.
        security_mode(self._settings, address, self._settings.host)
        where = bind_address(address, self._settings)
        host, port = split_address(where)
        try:
            listening = listen_tcp(host, port, _BACKLOG)
        except OSError as error:
            raise self._in_use(where, error.strerror or str(error)) from error
        self.port = listening.getsockname()[1]
        try:
            self._guard.begin(address, listening.getsockname()[0], self.port)
            if self._guard.mode.encrypts:
                self._listener.tls = self._tls_server()
        except BaseException:
            listening.close()
            raise
        self._listener.add(listening, tcp_stream)
        self._calls.start()
        if self._settings.shared_memory and not unavailable():
            for unix_socket in self.endpoint.listen_unix(_BACKLOG):
                self._listener.add(unix_socket, unix_stream)
        self._listener.start()
        if self._settings.health_port:
            self._serve_probes(f"{where.rpartition(':')[0]}:{self._settings.health_port}")
        self._health.set(serving=True)

    def _tls_server(self) -> TlsServer:
        mutual = self._guard.mode is SecurityMode.MTLS
        files = credential_files(self._settings, mutual=mutual)
        tls = TlsServer(files, str(self._task), mutual=mutual)
        tls.check()
        return tls

    def samples(self) -> Iterator[Sample]:
        """Yield counters of connections and refusals, for Prometheus."""
        listener = self._listener
        return connection_samples(listener.served, listener.refused, self._guard.refusals)

    def drain(self) -> None:
        """Report NOT_SERVING; calls go on."""
        self._health.set(serving=False)

    def stop(self, grace_s: float = 0.5) -> None:
        """Refuse new calls, wait ``grace_s`` for running ones, then end them and every session."""
        self._listener.stop()
        self._calls.stop(grace_s)
        if self._probes is not None:
            self._probes.stop()
        self.endpoint.stop()

    def _serve_probes(self, where: str) -> None:
        probes = ProbePort(self._health)
        try:
            probes.start(where)
        except OSError as error:
            probes.stop()
            raise self._in_use(where, "the port for health probes") from error
        self._probes = probes

    def _in_use(self, where: str, why: str) -> AddressInUseError:
        return AddressInUseError(
            f"{self._task} cannot listen at {where} ({why}): the port is taken by another process, "
            "or the address is not this machine's. Stop the other process or give the task another "
            "port",
            task=self._task,
            address=where,
        )


class HostedServer:
    """A server that listens by a :class:`TaskHost`."""

    _host: TaskHost

    def start(self, address: str) -> None:
        """Listen.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: Nothing says how callers show who they are.
        """
        self._host.start(address)

    @property
    def port(self) -> int:
        """Port at which it listens."""
        return self._host.port


class ProbePort:
    """Serves the health service at a port of its own, in plaintext, which strangers cannot exhaust.

    Args:
        health: Answers the probes.
    """

    def __init__(self, health: Health) -> None:
        self._calls = Http2Server(
            health.methods(),
            CallPool("health", _PROBE_THREADS, _WAITING_PROBES),
            limit=0,  # no caller is admitted: probes come from strangers
            most_bytes=_PROBE_BYTES,
            idle_s=_IDLE_S,
        )
        self._listener = Listener(lambda stream, _: stream.close(), self._calls, 1)

    def start(self, where: str) -> None:
        """Listen at host:port, or where the parent process does.

        Raises:
            OSError: The port is taken.
        """
        self._listener.add(held_port() or listen_for_probes(where), tcp_stream)
        self._calls.start()
        self._listener.start()

    def stop(self) -> None:
        """Stop answering."""
        self._listener.stop()
        self._calls.stop(0)


class MetricsPort:
    """Serves the metrics of one task, in plaintext, if its settings name a port.

    It has its own sockets and threads: probes, peers and steps do not wait for it, nor it for them.
    A client that sends nothing costs a descriptor, one that asks too often gets the page of a
    moment ago.

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
        from ..telemetry.metrics_page import MetricsPage

        self._page = MetricsPage(self._collect)
        host = bind_address(self._address or ":0", self._settings).rpartition(":")[0]
        where = f"{host}:{self._settings.metrics_port}"
        try:
            listening = listen_tcp(*split_address(where), _METRICS_BACKLOG)
        except OSError as error:
            raise AddressInUseError(
                f"{self._task} cannot listen at {where} for metrics ({error.strerror or error}): "
                "the port is taken by another process. Stop it, or give another --metrics-port",
                task=self._task,
                address=where,
            ) from error
        self._listener = Listener(
            self._answer, None, _METRICS_ANSWERS, _METRICS_REQUEST_S, make_arrival=HttpArrival
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
            from ..telemetry.metrics_page import answer_to

            stream.send(answer_to(request, self._read), time.monotonic() + _METRICS_ANSWER_S)
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
