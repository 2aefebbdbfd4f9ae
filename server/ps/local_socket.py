"""The ps's door for workers of its own machine and user: a Unix socket beside the gRPC port.

A session learns its name from its ``Welcome`` and goes on here; the frames are the same (``core/frames.py``).
"""

import logging
import socket
import threading
from collections.abc import Callable, Iterator

from ...core import error_table
from ...core.errors import WindlassError
from ...core.frame_socket import FrameSocket
from ...core.frames import field
from ...core.settings import Settings
from ...proto.v1 import ps_pb2
from ..local_listener import LocalListener
from .servicer import STREAMS_PER_SEAT, Frames

log = logging.getLogger(__name__)

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
        self._stopped = False
        self._sessions: set[FrameSocket] = set()
        # As many as the servicer hears out, to tell them why they may not stay.
        self._listener = LocalListener(self._run, STREAMS_PER_SEAT * settings.max_sessions)

    @property
    def name(self) -> str:
        """In the abstract namespace."""
        return self._listener.name

    def start(self) -> None:
        """Listen."""
        self._listener.start()

    def stop(self) -> None:
        """End every session, and accept none any more. Idempotent."""
        self._listener.stop()
        with self._lock:
            self._stopped = True
            sessions = list(self._sessions)
        for frames in sessions:
            frames.cancel()

    def _run(self, connection: socket.socket) -> None:
        frames = FrameSocket(connection, self._settings.max_message_bytes)
        with self._lock:
            self._sessions.add(frames)
            if self._stopped:
                frames.cancel()
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
