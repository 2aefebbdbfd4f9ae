"""What the tests of synchronous workers share: settings by kind of link."""

from windlass.net.shared_memory import unavailable

NO_MEMORY = {"shared_memory": False}
# By rank: over shared memory, then to one that has none, then through gRPC.
KINDS: dict[str, list[dict[str, bool]]] = {
    "shm": [{}],
    "tcp": [NO_MEMORY],
    "grpc": [{"shared_memory": False, "tcp_sessions": False}],
    "mixed": [{}, {}, {"shared_memory": False, "tcp_sessions": False}, NO_MEMORY],
}
if unavailable():
    del KINDS["shm"], KINDS["mixed"]
