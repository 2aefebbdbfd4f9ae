"""The ps's door for workers of its own machine and user: a Unix socket beside the gRPC port.

It has a name in the abstract namespace, which goes with the process: nothing is left behind, whoever is
killed. A session learns the name from its ``Welcome`` and goes on here; the frames are the same
(``core/frames.py``).
"""

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator

from ...core import error_table
from ...core.errors import WindlassError
from ...core.frame_socket import FrameSocket, peer_user
from ...core.frames import field
from ...core.settings import Settings
from ...proto.v1 import ps_pb2
from .servicer import STREAMS_PER_SEAT, Frames

log = logging.getLogger(__name__)

_RETRY_S = 0.1
_FAILURE = ps_pb2.ExchangeResponse.FAILURE_FIELD_NUMBER


class LocalSocket:
    """Accepts sessions; each has a thread, as on gRPC's side, and their number is bounded there.

    Args:
        serve: Answers a session's frames.
        settings: For the bounds.
    """

    def __init__(self, serve: Callable[[Frames], Frames], settings: Settings) -> None:
        self._serve = serve
        self._settings = settings
        self._lock = threading.Lock()
        self._sessions: set[FrameSocket] = set()
        self._listener: socket.socket | None = None
        # Not to be guessed, so that nobody can be there before us.
        self.name = f"windlass-{secrets.token_hex(16)}"

    def start(self) -> None:
        """Listen."""
        listener = self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(f"\0{self.name}")
        listener.listen(self._settings.max_sessions)
        threading.Thread(target=self._accept, args=(listener,), name="local", daemon=True).start()

    def stop(self) -> None:
        """End every session, and accept none any more. Idempotent."""
        with self._lock:
            listener, self._listener = self._listener, None
            sessions = list(self._sessions)
        if listener is not None:
            # Closing alone does not wake a thread in accept.
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for frames in sessions:
            frames.cancel()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:
                if self._listener is None:
                    return  # stopped
                log.warning("a session could not be accepted: %s", error)
                threading.Event().wait(_RETRY_S)  # no descriptor is left; one may be soon
                continue
            if peer_user(connection) != os.getuid():
                connection.close()
                continue
            frames = FrameSocket(connection, self._settings.max_message_bytes)
            with self._lock:
                # As many as the servicer hears out, to tell them why they may not stay.
                room = len(self._sessions) < STREAMS_PER_SEAT * self._settings.max_sessions
                welcome = room and self._listener is not None
                if welcome:
                    self._sessions.add(frames)
            if not welcome:
                frames.close()
                continue
            threading.Thread(target=self._run, args=(frames,), name="session", daemon=True).start()

    def _run(self, frames: FrameSocket) -> None:
        try:
            for answer in self._serve(_received(frames)):
                frames.send(answer)
        except WindlassError as error:
            _say(frames, error)
        except OSError as error:
            log.debug("a session broke off: %s", error)
        except Exception as error:
            log.exception("a session failed")
            _say(frames, error)
        finally:
            frames.cancel()
            frames.close()
            with self._lock:
                self._sessions.discard(frames)


def _received(frames: FrameSocket) -> Iterator[bytes | bytearray]:
    while (frame := frames.receive()) is not None:
        yield frame


def _say(frames: FrameSocket, error: Exception) -> None:
    try:
        frames.send(field(_FAILURE, error_table.to_detail(error).SerializeToString()))
    except OSError:
        log.debug("nobody hears why a session ends: %s", error)
