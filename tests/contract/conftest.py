"""Both ends of a connection over every stream, ps over every connection, and tasks that listen."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from helpers.connections import LIMIT, MakePair, Pair
from helpers.served import kind, local, ps, serve, start
from helpers.streams import (
    KINDS,
    StreamPair,
    stream_pairs,
)
from ropewalk.net.connection import Connection

__all__ = ["kind", "local", "ps", "serve", "start"]


@pytest.fixture(scope="module", params=KINDS)
def make(request: pytest.FixtureRequest) -> Iterator[MakePair]:
    with stream_pairs(request.param) as make:
        yield make


@pytest.fixture(scope="module")
def make_unix() -> Iterator[MakePair]:
    with stream_pairs("unix") as make:
        yield make


@pytest.fixture
def streams(make: MakePair) -> Iterator[StreamPair]:
    left, right = make()
    with closing(left), closing(right):
        yield left, right


@pytest.fixture
def pair(streams: StreamPair) -> Iterator[Pair]:
    """The one who dialled, and the one who was called."""
    with (
        closing(Connection(streams[0], LIMIT, "the server")) as left,
        closing(Connection(streams[1], LIMIT, "the client")) as right,
    ):
        yield left, right
