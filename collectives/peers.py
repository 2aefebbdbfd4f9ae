"""The one collective server of a process, shared by the rings of its strategies."""

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from ..core.settings import Settings
from ..core.task import TaskId

if TYPE_CHECKING:
    from .server import CollectiveServer

_lock = threading.Lock()
_servers: "dict[str, tuple[CollectiveServer, int]]" = {}  # address → (server, rings that use it)
_rings: dict[tuple[str, ...], int] = {}  # this address and all workers' → rings made so far


def borrow_server(
    task: TaskId, address: str, cluster: Sequence[str], settings: Settings
) -> "tuple[CollectiveServer, int]":
    """The server at this worker's address, started if it is not, and the number of a new ring.

    Numbers agree between workers of one cluster that create their strategies in the same order.

    Raises:
        AddressInUseError: The port is taken.
    """
    # Workers of a parameter-server job serve nothing, and load nothing for it.
    from .server import CollectiveServer

    with _lock:
        server, users = _servers.get(address, (None, 0))
        if server is None:
            server = CollectiveServer(task, settings)
            server.start(address)
        _servers[address] = (server, users + 1)
        mine = (address, *cluster)
        count = _rings[mine] = _rings.get(mine, 0) + 1
        return server, crc32(f"{','.join(cluster)} {count}".encode())


def never_formed(address: str, cluster: Sequence[str]) -> None:
    """The ring numbered last has not come about: a strategy that is made again tries the
    same one.
    """
    with _lock:
        _rings[(address, *cluster)] -= 1


def give_back(address: str) -> None:
    """A ring is closed; the last one takes the server with it."""
    with _lock:
        server, users = _servers.pop(address, (None, 0))
        if server is not None and users > 1:
            _servers[address] = (server, users - 1)
            return
    if server is not None:
        server.stop()
