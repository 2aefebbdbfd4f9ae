"""The answer to one request for metrics, from memory to memory, without waiting."""

import io
import logging
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any, cast
from urllib.parse import urlsplit

log = logging.getLogger(__name__)

PATH = "/metrics"

Read = Callable[[str], tuple[bytes, str]]
"""Makes the page and its content type for a value of ``Accept``; raises TimeoutError if there is
none for now.
"""


def answer_to(request: bytes, read: Read) -> bytes:
    """Answer a request.

    Args:
        request: Unparsed head of the request.
        read: Makes the page.
    """
    written = io.BytesIO()
    _Answer(cast("Any", (request, written, read)), ("", 0), cast("Any", None))
    return written.getvalue()


class _Answer(BaseHTTPRequestHandler):
    """An answer to one request, read from memory and written into memory: waiting is the port's."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ropewalk", ""

    def setup(self) -> None:
        request, self.wfile, self._read = cast("Any", self.request)
        self.rfile = io.BytesIO(request)

    def finish(self) -> None:
        """Do nothing: the port closes the connection."""

    def handle(self) -> None:
        self.close_connection = True
        self.handle_one_request()

    def do_GET(self) -> None:
        if urlsplit(self.path).path not in (PATH, "/"):
            self.send_error(HTTPStatus.NOT_FOUND, f"metrics are at {PATH}")
            return
        try:
            body, content_type = self._read(self.headers.get("Accept", ""))
        except TimeoutError as error:
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
            return
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        log.debug(format, *args)
