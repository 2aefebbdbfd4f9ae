"""The one collective server of a process, shared by the rings of its strategies."""

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from zlib import crc32

from ..core.settings import Settings
from ..core.task import TaskId

if TYPE_CHECKING:
    from google.protobuf.descriptor import ServiceDescriptor

    from ..net.unary import Servicer
    from .server import CollectiveServer

_lock = threading.Lock()
_servers: "dict[str, tuple[CollectiveServer, int]]" = {}  # by address: (server, open rings)
_rings: dict[tuple[str, ...], int] = {}  # by own and all addresses: rings made


def borrow_server(
    task: TaskId, address: str, cluster: Sequence[str], settings: Settings
) -> "tuple[CollectiveServer, int]":
    """Find the server at this worker's address, started on first use, and the number of a new ring.

    Workers that create their strategies in the same order get the same numbers.

    Raises:
        AddressInUseError: The port is taken.
    """
    server = hold_server(task, address, settings)
    with _lock:
        mine = (address, *cluster)
        count = _rings[mine] = _rings.get(mine, 0) + 1
        return server, crc32(f"{','.join(cluster)} {count}".encode())


def hold_server(
    task: TaskId,
    address: str,
    settings: Settings,
    more: "Mapping[ServiceDescriptor, Servicer] | None" = None,
) -> "CollectiveServer":
    """Find the server at this worker's address, started on first use; to be released.

    Args:
        task: Task of this process.
        address: Address at which the worker listens.
        settings: Settings, for the bind rule and the bounds.
        more: Methods of further services, for a server that is started now.

    Raises:
        AddressInUseError: The port is taken.
    """
    # Imported late: workers of a parameter-server job do not need it.
    from .server import CollectiveServer

    with _lock:
        server, users = _servers.get(address, (None, 0))
        if server is None:
            server = CollectiveServer(task, settings, more)
            server.start(address)
        _servers[address] = (server, users + 1)
        return server


def forget_ring(address: str, cluster: Sequence[str]) -> None:
    """Reuse the last ring's number, since it was not formed: the next strategy tries it again."""
    with _lock:
        _rings[(address, *cluster)] -= 1


def release_server(address: str) -> None:
    """Release the server when a ring is closed or a job left; it stops with the last one."""
    with _lock:
        server, users = _servers.pop(address, (None, 0))
        if server is not None and users > 1:
            _servers[address] = (server, users - 1)
            return
    if server is not None:
        server.stop()
