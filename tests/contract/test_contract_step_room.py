"""What the sessions of one caller hold on a ps: room for steps, and for how long."""

import select
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import numpy as np
import pytest

from helpers.ps_peers import ASSIGN, Ps, Worker, get, put, remote, vector, worker_settings
from helpers.waiting import scaled, wait_until
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.client.ps.step import Exchange
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.net.connection import Connection, temporary
from ropewalk.proto.v1 import session_pb2

SIZE = 6 * 1024**2  # elements; more bytes than sockets hold
READS = vector("w", SIZE)


def fill(ps: Ps) -> None:
    """Have a worker make the variable."""
    worker = ps.worker(5, request_timeout_s=scaled(20))
    worker.define(READS)
    worker.push(put(READS, ASSIGN, np.ones(SIZE, np.float32)))
    ps.leave(worker)


def connection_of(worker: Worker) -> Connection:
    assert isinstance(worker.peer, RemotePs)
    session = worker.peer._session
    assert session is not None
    return session._connection


_under_way: list[Exchange] = []


def ask(worker: Worker) -> None:
    """Have the values sent, and wait until they begin to come; they are not read."""
    exchange = worker.peer.step(worker.request(gets=[get(READS)]))
    next(exchange)
    next(exchange)
    _under_way.append(exchange)
    came, _, _ = select.select([connection_of(worker).stream.fileno()], [], [], scaled(20))
    assert came


def test_steps_of_one_caller_share_its_room_whatever_sessions_they_are_in(
    start: Callable[..., Ps],
) -> None:
    ps = start("tcp", max_step_bytes=40 * 1024**2, request_timeout_s=scaled(20))
    fill(ps)
    slow, again, other = ps.worker(0), ps.worker(0), ps.worker(1)
    ask(slow)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(again.value, READS)
        assert other.value(READS)[-1] == 1
        assert not threading.Event().wait(0.2)
        assert not waits.done()
        ps.leave(slow)
        assert waits.result(scaled(20))[-1] == 1


def ask_in_part(worker: Worker) -> None:
    """Begin to name rows."""
    entry = session_pb2.KeptEntry(variable="w", rows=1000)
    message = session_pb2.ClientMessage(keep_rows=session_pb2.KeepRows(entries=[entry]))
    connection = connection_of(worker)
    connection.frame(message.SerializeToString(), 8000, temporary).finish()


@pytest.mark.annex("embedding")
@pytest.mark.parametrize("stops", [ask, ask_in_part], ids=["reading", "sending"])
def test_a_reader_that_stops_half_way_is_not_served_for_ever(
    start: Callable[..., Ps], stops: Callable[[Worker], None]
) -> None:
    from ropewalk.annexes.embedding.server.readers import Readers

    ps = start("tcp", request_timeout_s=scaled(1))  # long enough for what comes before it stops
    fill(ps)
    served = ps.store.part(Readers)
    reader = Incarnation(TaskId("reader", 7), 1)
    with closing(remote("tcp", ps.address, reader, worker_settings("tcp"))) as peer:
        peer.connect(scaled(5.0))
        client = Worker(peer)
        client.define(READS, create=False)
        assert len(served._wanted) == 1
        stops(client)
        # A second for each 4 MiB that it has to take, beside the timeout.
        wait_until(lambda: not served._wanted, 60, "the session to end")


@pytest.mark.annex("embedding")
def test_a_reader_that_asks_nothing_keeps_its_session(start: Callable[..., Ps]) -> None:
    from ropewalk.annexes.embedding.server.readers import Readers

    ps = start("tcp", request_timeout_s=0.05)
    fill(ps)
    reader = Incarnation(TaskId("reader", 7), 1)
    with closing(remote("tcp", ps.address, reader, worker_settings("tcp"))) as peer:
        peer.connect(scaled(5.0))
        client = Worker(peer)
        client.define(READS, create=False)
        for _ in range(2):
            assert not threading.Event().wait(0.3)
            assert client.pull(get(READS))[0][-1] == 1
        assert len(ps.store.part(Readers)._wanted) == 1
