"""The server of a task, at its one address."""

import socket
from collections.abc import Callable, Iterator, Mapping

from google.protobuf.descriptor import ServiceDescriptor

from ..core.errors import AddressInUseError
from ..core.settings import Settings
from ..core.task import TaskId
from ..telemetry.catalogue import Sample
from ..telemetry.task_metrics import connection_samples
from .auth.guard import Guard
from .auth.mode import SecurityMode, is_localhost, is_loopback, security_mode
from .descriptors import most_grpc_connections, raise_limit
from .endpoint import Endpoint, Service, refusal_frame
from .health import Health
from .http2.call import ServedCall
from .http2.peer import Accepted, Method
from .http2.server import Http2Server
from .http2.shares import CallPool
from .listener import GREETING_TIMEOUT_S, Listener
from .newcomers import Newcomers
from .probe_port import ProbePort
from .shared_memory import unavailable
from .tcp import listen_tcp, split_address, tcp_stream
from .tls.accept import TlsServer
from .tls.files import credential_files
from .tunnel import METHOD, serve_tunnel
from .unary import GUESTS, Servicer, accepted, admit, methods_of
from .unix import unix_stream

_BACKLOG = 512
_LOOKERS = 8  # greetings that only ask for the task, where there are no sessions
_GRPC_CONNECTIONS = 64  # beside two for each worker
_MAX_SILENT = 32  # tunnels that have not greeted
_WAITING_CALLS = 512  # beyond the threads
_LEASE_THREADS = 4  # a lease is renewed at once
_IDLE_S = 60.0  # without any call; a client that comes back connects anew


def bind_address(address: str, settings: Settings) -> str:
    """Choose where to listen for a task whose peers know it as ``address``.

    The advertised name may be a Kubernetes Service, which no machine can bind; so a task that is
    not on loopback listens on every interface.
    """
    host, _, port = address.rpartition(":")
    everywhere = "0.0.0.0"  # noqa: S104 - the guard asks who is there
    listen = settings.host or (host if is_loopback(host) else everywhere)
    if is_localhost(listen):
        listen = "localhost"  # which resolvers know without a server, unlike "localhost."
    if listen.count(":") > 1 and not listen.startswith("["):
        listen = f"[{listen}]"  # an IPv6 address
    return f"{listen}:{port}"


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
        is_replicated: See :class:`~ropewalk.net.health.Health`.
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
    ) -> None:
        self._task = task
        self._settings = settings
        self._guard = guard
        self._health = Health(is_replicated)
        name = f"{task.short}-rpc"
        raise_limit()
        self._newcomers = Newcomers(_MAX_SILENT, GREETING_TIMEOUT_S)
        self.endpoint = Endpoint(
            task, settings, sessions or {}, guard, self._newcomers, max_sessions or _LOOKERS
        )
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
            tunnels=most_sessions + _MAX_SILENT,
            most_bytes=settings.max_message_bytes,
            idle_s=_IDLE_S,
            groups=GUESTS,
        )
        # Connections that a greeted peer no longer needs are closed a moment later.
        self._listener = Listener(
            self.endpoint.serve,
            self._calls,
            most_sessions + _MAX_SILENT,
            GREETING_TIMEOUT_S,
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
        self._newcomers.stop()

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
