"""Fixtures of ps over every connection, and of hosts that listen: what contracts are tried on."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ropewalk.core.settings import Settings
from ropewalk.net.host import TaskHost

from .hosts import SETTINGS, Serve, make_host
from .ps_peers import CONNECTIONS, REMOTE, Ps


@pytest.fixture(params=CONNECTIONS)
def ps(request: pytest.FixtureRequest) -> Iterator[Ps]:
    """A ps that is reached over each connection."""
    made = Ps(request.param, max_step_bytes=4 * 1024**2, chunk_bytes=4096)
    yield made
    made.close()


@pytest.fixture
def local() -> Ps:
    """The one in process, for what a session does alike whatever carries its steps."""
    return Ps("local")


@pytest.fixture(params=REMOTE)
def kind(request: pytest.FixtureRequest) -> str:
    """A connection that can break."""
    return str(request.param)


@pytest.fixture
def start() -> Iterator[Callable[..., Ps]]:
    """``start(kind, index=0, **settings)``: a ps."""
    started: list[Ps] = []

    def make(kind: str, index: int = 0, **changes: Any) -> Ps:
        started.append(Ps(kind, index, **changes))
        return started[-1]

    yield make
    for ps in started:
        ps.close()


@pytest.fixture
def serve() -> Iterator[Serve]:
    """``serve(settings, address, **arguments)``: a host that listens, stopped at the end."""
    hosts: list[TaskHost] = []

    def serve(
        settings: Settings = SETTINGS["tcp"], address: str = "127.0.0.1:0", **arguments: Any
    ) -> TaskHost:
        hosts.append(make_host(settings, **arguments))
        hosts[-1].start(address)
        return hosts[-1]

    yield serve
    for host in hosts:
        host.stop(0)
