"""Where sessions go on that began at the gRPC port: a Unix socket, and a TCP port.

A worker learns of them from its ``Welcome``. The messages are the same; what carries them costs a fraction
(``core/frame_socket.py``).
"""

import logging
import socket
import threading
from itertools import islice

from ...core import error_table
from ...core.errors import WindlassError
from ...core.settings import Settings
from ...core.task import TaskId
from ...net.frame_socket import FrameSocket, frame_head
from ...net.frames import field
from ...net.listeners import LocalListener, TcpListener
from ...proto.v1 import ps_pb2
from .scratch import ScratchPool
from .servicer import STREAMS_PER_SEAT, ParameterServerServicer
from .wires import SocketWire

log = logging.getLogger(__name__)

_FAILURE = ps_pb2.ExchangeResponse.FAILURE_FIELD_NUMBER
_HELLO_TIMEOUT_S = 10.0
_HELLO_BYTES = 64 * 1024  # a hello has less than 1 KiB; anybody may say one


class Doors:
    """Accepts sessions; each has a thread, as on gRPC's side, and their number is bounded there.

    Args:
        task: The ps, for messages.
        servicer: Answers a session, and tells workers where the doors are.
        settings: For the bounds, and which doors there are.
    """

    def __init__(self, task: TaskId, servicer: ParameterServerServicer, settings: Settings) -> None:
        self._servicer = servicer
        self._settings = settings
        self._scratch = ScratchPool()
        self._lock = threading.Lock()
        self._stopped = False
        self._sessions: set[FrameSocket] = set()
        # As many as the servicer hears out, to tell them why they may not stay.
        limit = STREAMS_PER_SEAT * settings.max_sessions
        self.local = LocalListener(self._run_local, limit) if settings.shared_memory else None
        self.tcp = TcpListener(task, self._run_tcp, limit) if settings.tcp_sessions else None

    def start(self, host: str) -> None:
        """Listen; on ``host``, as the gRPC port does.

        Raises:
            AddressInUseError: ``session_port`` is taken.
        """
        if self.tcp is not None:
            port = self.tcp.start(host, self._settings.session_port)
            self._servicer.session_port = port
        if self.local is not None:
            self.local.start()
            self._servicer.local_socket = self.local.name

    def stop(self) -> None:
        """End every session, and accept none any more. Idempotent."""
        for listener in (self.local, self.tcp):
            if listener is not None:
                listener.stop()
        with self._lock:
            self._stopped = True
            sessions = list(self._sessions)
        for frames in sessions:
            frames.cancel()

    def _run_local(self, connection: socket.socket) -> None:
        self._run(connection, by_ticket=False)  # the system said whose it is

    def _run_tcp(self, connection: socket.socket) -> None:
        self._run(connection, by_ticket=True)

    def _run(self, connection: socket.socket, *, by_ticket: bool) -> None:
        frames = FrameSocket(connection, _HELLO_BYTES)
        with self._lock:
            self._sessions.add(frames)
            if self._stopped:
                frames.cancel()
        # For all of it: whoever says it byte by byte would have a thread for as long as it likes.
        patience = threading.Timer(_HELLO_TIMEOUT_S, frames.cancel)
        patience.daemon = True
        try:
            patience.start()
            pieces = self._servicer.serve(SocketWire(frames, self._scratch), by_ticket=by_ticket)
            for welcome in islice(pieces, 1):
                frames.write(welcome)
            patience.cancel()
            frames.max_message_bytes = self._settings.max_message_bytes
            for piece in pieces:
                frames.write(piece)
        except WindlassError as error:
            _say(frames, error)
        except OSError as error:
            log.debug("a session broke off: %s", error)
        except Exception as error:
            log.exception("a session failed")
            _say(frames, error)
        finally:
            patience.cancel()
            frames.close()
            with self._lock:
                self._sessions.discard(frames)


def _say(frames: FrameSocket, error: Exception) -> None:
    failure = field(_FAILURE, error_table.to_detail(error).SerializeToString())
    try:
        frames.write(frame_head(failure))
    except OSError:
        log.debug("nobody hears why a session ends: %s", error)
