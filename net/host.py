"""What a task serves at its one address."""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from ..core.errors import AddressInUseError, UnauthenticatedError
from ..core.metric_catalogue import Sample
from ..core.settings import Settings
from ..core.task import TaskId
from ..core.task_metrics import connection_samples
from .auth.guard import Guard
from .auth.mode import SecurityMode, is_loopback
from .descriptors import most_grpc_connections, raise_limit
from .endpoint import Endpoint, Service, refuse_greeting
from .health import Health
from .listener import GREETING_TIMEOUT_S, Listener
from .newcomers import Newcomers
from .pass_through import PassThrough
from .probe_port import ProbePort
from .shared_memory import unavailable
from .stream import SocketStream
from .tcp import listen_tcp, split_address, tcp_stream
from .tls.accept import TlsServer
from .tls.files import credential_files
from .tunnel import METHOD, serve_tunnels
from .unary import Servicer, add_service, admit
from .unix import UnixStream, unix_stream

_BACKLOG = 512
_LOOKERS = 8  # who greets to see who is there, where there are no sessions
_GRPC_CONNECTIONS = 64  # beside two for each worker
_MAX_SILENT = 32  # tunnels that have not greeted
_WAITING_CALLS = 512  # beyond the threads
_CALLS_PER_CONNECTION = 64  # a task has a few: a tunnel, a heartbeat, definitions
_METADATA_BYTES = 16 * 1024
_IDLE_S = 60.0  # without any call; a client that comes back connects anew


def bind_address(address: str, settings: Settings) -> str:
    """Where to listen for a task whose peers know it as ``address``.

    The advertised name may be a Kubernetes Service, which no machine can bind; so a task that is
    not on loopback listens on every interface.
    """
    host, _, port = address.rpartition(":")
    everywhere = "0.0.0.0"  # noqa: S104 - the guard asks who is there
    listen = settings.host or (host if is_loopback(host) else everywhere)
    if listen.count(":") > 1 and not listen.startswith("["):
        listen = f"[{listen}]"  # an IPv6 address
    return f"{listen}:{port}"


def _server_options(settings: Settings) -> list[tuple[str, int]]:
    """What a gRPC server accepts of its clients."""
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", settings.max_message_bytes),
        ("grpc.max_concurrent_streams", _CALLS_PER_CONNECTION),
        ("grpc.max_metadata_size", _METADATA_BYTES),
        ("grpc.absolute_max_metadata_size", 2 * _METADATA_BYTES),
        # A connection on which nothing is called, or not even HTTP/2 is spoken, is closed.
        ("grpc.server_handshake_timeout_ms", int(GREETING_TIMEOUT_S * 1000)),
        ("grpc.max_connection_idle_ms", int(_IDLE_S * 1000)),
        # Clients look after silent connections; let them, but not more often than they need.
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
    ]


class DaemonThreads(futures.Executor):
    """A thread for each call; the end of the process waits for none. Who calls bounds them.

    Args:
        name: Of the threads.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "futures.Future[Any]":
        """Call ``fn`` in a thread of its own."""
        future: futures.Future[Any] = futures.Future()

        def run() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:  # noqa: BLE001 - whoever asks for the result gets it
                future.set_exception(error)

        threading.Thread(target=run, name=self._name, daemon=True).start()
        return future


class TaskHost:
    """Everything a task serves, at its one address: sessions and links, gRPC, and health.

    Args:
        task: Who serves, for messages.
        threads: Most gRPC calls at once, beside tunnels.
        settings: For bounds, the address to bind and the health port.
        calls: The methods of each service.
        guard: Lets callers in.
        sessions: What greeted connections are for; see :class:`~windlass.net.endpoint.Endpoint`.
        max_sessions: Most greeted connections at once, tunnels included.
        daemon: The process may end while calls are under way.
        routed: Forwards connections; see :class:`~windlass.net.listener.Listener`.
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
        daemon: bool = False,
        routed: Callable[[socket.socket, bytes], None] | None = None,
    ) -> None:
        self._task = task
        self._settings = settings
        self._guard = guard
        self._health = Health()
        # grpc does not end the threads of a pool it was given.
        name = f"{task.short}-rpc"
        # A tunnel keeps its thread; all tunnels there may be leave those of other calls alone.
        tunnels = max_sessions + _MAX_SILENT if sessions else 0
        self._pools: list[Any] = [
            DaemonThreads(name)
            if daemon
            else futures.ThreadPoolExecutor(threads + tunnels, thread_name_prefix=name)
        ]
        self._newcomers = [Newcomers(max(1, threads // 2), GREETING_TIMEOUT_S)]
        self._server = grpc.server(
            self._pools[0],
            # Calls beyond a pool wait in it; beyond this they are refused, and tried again.
            maximum_concurrent_rpcs=threads + tunnels + (0 if daemon else _WAITING_CALLS),
            options=_server_options(settings),
        )
        raise_limit()
        wanted = _GRPC_CONNECTIONS + 2 * settings.max_sessions
        self._pass_through = PassThrough(most_grpc_connections(wanted))
        origin_of = self._pass_through.origin_of
        for service, methods in calls.items():
            add_service(self._server, service, methods, guard, origin_of, self._newcomers[0])
        self._health.add_to(self._server)
        self._probes: ProbePort | None = None
        self._tls: TlsServer | None = None
        self._newcomers.append(Newcomers(_MAX_SILENT, GREETING_TIMEOUT_S))
        self.endpoint = Endpoint(
            task, settings, sessions or {}, guard, self._newcomers[1], max_sessions or _LOOKERS
        )
        if sessions:
            serve_tunnels(
                self._server,
                self.endpoint.serve,
                settings.chunk_bytes,
                lambda context: admit(guard, METHOD, context, origin_of).principal,
            )
        # Those that a greeted peer no longer needs make room a moment later.
        self._listener = Listener(
            self._serve_greeted,
            self._pass_through.accept,
            (max_sessions or _LOOKERS) + _MAX_SILENT,
            GREETING_TIMEOUT_S,
            routed,
        )
        self.port = 0

    def start(self, address: str) -> None:
        """Listen at ``address`` (host:port; port 0 picks one) and say SERVING.

        Raises:
            AddressInUseError: The port is taken.
            ConfigurationError: Nothing says how callers show who they are, or ``socket_dir``
                cannot be used.
        """
        try:
            self._start(address)
        except BaseException:
            self.stop(0)
            raise

    def _start(self, address: str) -> None:
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
                self._pass_through.tls = self._tls = self._tls_server()
        except BaseException:
            listening.close()
            raise
        self._listener.add(listening, tcp_stream)
        self._pass_through.listen(self._server.add_insecure_port)
        self._server.start()
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
        tls = TlsServer(files, str(self._task), mutual=mutual, timeout_s=GREETING_TIMEOUT_S)
        tls.check()
        return tls

    def _serve_greeted(self, stream: SocketStream, received: bytes) -> None:
        """Serve a connection that begins as ours do, through TLS unless it is of this machine."""
        if self._tls is None or isinstance(stream, UnixStream):
            self.endpoint.serve(stream, received)
            return
        try:
            secured = self._tls.accept(stream, received, refuse_greeting)
        except (OSError, UnauthenticatedError):  # it has logged why
            return
        self.endpoint.serve(secured)

    def samples(self) -> Iterator[Sample]:
        """Who has come, for Prometheus."""
        listener = self._listener
        return connection_samples(listener.served, listener.refused, self._guard.refusals)

    def drain(self) -> None:
        """Say NOT_SERVING; calls go on."""
        self._health.set(serving=False)

    def stop(self, grace_s: float = 0.5) -> None:
        """Refuse new calls, give running ones ``grace_s``, then cut them and every session."""
        self._listener.stop()
        if self._tls is not None:
            self._tls.stop()
        stopped = self._server.stop(grace_s)
        if self._probes is not None:
            self._probes.stop()
        self.endpoint.stop()
        stopped.wait(grace_s + 5)
        for newcomers in self._newcomers:
            newcomers.stop()
        self._pass_through.stop()
        for pool in self._pools:
            pool.shutdown(wait=False)

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
