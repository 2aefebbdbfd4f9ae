"""Requests to the Kubernetes API by a pod's own service account, with the standard library alone.

For the few writes of a chief: the official client is 126 MB, an extra, and not in the image. Every
request has a connection of its own and a bound; the token is read again each time, since it is
renewed every hour.
"""

import http.client
import json
import ssl
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..core.errors import AccessError, ConfigurationError, NotFoundError, PeerLostError
from ..core.outside_text import read_json
from ..core.settings import read_environment

ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_MOST_BYTES = 1024 * 1024  # of an answer


def cluster_url() -> str:
    """Find the address of the API server inside a pod; empty: this process is in none."""
    host, port = (read_environment(f"KUBERNETES_SERVICE_{name}") for name in ("HOST", "PORT"))
    inside = f"[{host}]" if ":" in host else host
    return f"https://{inside}:{port or 443}" if host else ""


class PodAccount:
    """Sends requests as a pod's service account. Thread-safe.

    Args:
        url: Address of the API server.
        folder: Folder with ``token`` and ``ca.crt``.
        timeout_s: Bound of connecting and of each answer. Unit: seconds.
    """

    def __init__(self, url: str, folder: Path = ACCOUNT_FOLDER, timeout_s: float = 3.0) -> None:
        self._url = urlsplit(url)
        self._folder = folder
        self._timeout_s = timeout_s

    def send(self, method: str, path: str, body: Any, content_type: str) -> None:
        """Send one request; its answer is not wanted.

        Raises:
            AccessError: There is no token, or the account may not do this.
            NotFoundError: There is no such object.
            ConfigurationError: The API server refuses it otherwise.
            PeerLostError: The API server does not answer, or asks to come back later.
        """
        self._request(method, path, json.dumps(body).encode(), {"Content-Type": content_type})

    def read(self, path: str) -> Any:
        """Read an object.

        Raises:
            RopewalkError: As :meth:`send`.
        """
        text = self._request("GET", path, None, {})
        try:
            return read_json(text)
        except ValueError as error:
            raise PeerLostError(f"GET {path}: the answer is cut, or no JSON") from error

    def _request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str]
    ) -> bytes:
        headers = {**headers, "Accept": "application/json"}
        try:
            headers["Authorization"] = f"Bearer {(self._folder / 'token').read_text().strip()}"
        except OSError as error:
            raise AccessError(f"this pod has no service account: {error}") from error
        try:
            connection = self._connect()
            try:
                connection.request(method, path, body, headers)
                with connection.getresponse() as answer:
                    status, text = answer.status, answer.read(_MOST_BYTES)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise PeerLostError(f"the Kubernetes API does not answer: {error}") from error
        _check(status, text, f"{method} {path}")
        return text

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self._url.hostname or "", self._url.port
        if self._url.scheme == "http":
            return http.client.HTTPConnection(host, port, timeout=self._timeout_s)
        trusted = ssl.create_default_context(cafile=str(self._folder / "ca.crt"))
        # Of many clusters the certificate lacks what RFC 5280 asks for, and Python 3.13 by itself.
        trusted.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return http.client.HTTPSConnection(host, port, timeout=self._timeout_s, context=trusted)


def _check(status: int, text: bytes, what: str) -> None:
    if status < 300:
        return
    try:
        said = str(read_json(text)["message"])
    except (ValueError, KeyError, TypeError):
        said = text[:200].decode(errors="replace")
    message = f"{what}: {status} {said}"
    if status in (401, 403):
        raise AccessError(message)
    if status == 404:
        raise NotFoundError(message)
    if status == 429 or status >= 500:
        raise PeerLostError(message)
    raise ConfigurationError(message)
