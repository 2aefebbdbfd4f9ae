"""What the tests of synchronous workers share: settings by kind of link."""

from typing import Any

from helpers.tls_files import tls_settings
from ropewalk.net.shared_memory import unavailable

NO_MEMORY = {"shared_memory": False}
# By rank: over shared memory, then to one that has none, then through gRPC.
KINDS: dict[str, list[dict[str, Any]]] = {
    "shm": [{}],
    "tcp": [NO_MEMORY],
    "tls": [{**NO_MEMORY, **tls_settings("worker", None)}],
    "grpc": [{"shared_memory": False, "tcp_sessions": False}],
    "mixed": [{}, {}, {"shared_memory": False, "tcp_sessions": False}, NO_MEMORY],
}
if unavailable():
    del KINDS["shm"], KINDS["mixed"]
