"""What was heard once and is said again, and callers that are refused all the time."""

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.callers import LET_IN, UNKNOWN, Caller, Way, read_answer
from helpers.fuzzing import Cost
from helpers.streams import own_threads
from helpers.waiting import scaled, wait_until
from ropewalk.cluster.access import Principal
from ropewalk.core.task import TaskId
from ropewalk.net.auth.credentials import dialled_address, key_of, since_boot_s
from ropewalk.net.auth.proof import Purpose, ask
from ropewalk.server.ps.server import PsServer

pytestmark = pytest.mark.timeout(120)

JOB, WHO = "mnist", Principal("worker", "mnist", 1)
GET_JOB = "/ropewalk.proto.v1.ParameterServer/GetJob"
MIB = 1024 * 1024


@pytest.fixture
def way(tmp_path: Path) -> Way:
    tmp_path.chmod(0o700)
    return Way("local", tmp_path, JOB)


@pytest.fixture
def servers(way: Way) -> Iterator[list[PsServer]]:
    made = [PsServer(TaskId("ps", index), way.settings("ps", index)) for index in range(2)]
    for server in made:
        server.start("127.0.0.1:0")
    yield made
    for server in made:
        server.stop(0)


@pytest.fixture
def callers(way: Way, servers: list[PsServer], tmp_path: Path) -> Iterator[list[Caller]]:
    with ExitStack() as stack:
        yield [
            stack.enter_context(Caller(way.shown(WHO), server.port, False, tmp_path))
            for server in servers
        ]


def say(caller: Caller, greeting: bytes) -> str:
    with caller.tcp() as connection:
        connection.sendall(greeting)
        return read_answer(connection).verdict


def test_a_greeting_counts_once_and_at_one_server(callers: list[Caller]) -> None:
    one, another = callers
    greeting = one.hello("ps")
    assert say(another, greeting) == UNKNOWN
    assert [say(one, greeting) for _ in range(3)] == [LET_IN, UNKNOWN, UNKNOWN]


def test_what_came_with_a_call_counts_once_and_at_one_server_for_one_method(
    callers: list[Caller],
) -> None:
    heard = callers[0].shown.authorization(GET_JOB, callers[0].port)
    for caller in callers:
        caller.shown = replace(caller.shown, authorization=lambda operation, port: heard)
    one, another = callers
    assert another.call(GET_JOB, b"") == UNKNOWN
    assert one.call(GET_JOB.replace("GetJob", "EndJob"), b"") == UNKNOWN
    assert one.greet_tcp("ps").verdict == UNKNOWN
    assert [one.call(GET_JOB, b"") for _ in range(2)] == [LET_IN, UNKNOWN]


def test_a_worker_joins_beside_a_thousand_connections_that_say_nothing(
    callers: list[Caller],
) -> None:
    one = callers[0]
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", one.port), 5)))
        began = time.monotonic()
        assert one.greet_tcp("ps").verdict == LET_IN
        assert one.call(GET_JOB, b"") == LET_IN
        assert time.monotonic() - began < scaled(5)


def test_constant_refusal_leaves_nothing_and_fills_no_log(
    way: Way, callers: list[Caller], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = callers[0]
    with ExitStack() as stack:
        strangers = [
            stack.enter_context(Caller(shown, one.port, False, tmp_path))
            for shown in way.strangers(WHO).values()
        ]

        def refuse(times: int) -> None:
            for _ in range(times):
                for stranger in strangers:
                    assert stranger.call(GET_JOB, b"") == UNKNOWN
                    assert stranger.greet_tcp("ps").verdict == UNKNOWN

        refuse(20)
        wait_until(lambda: "kernel-loader" not in own_threads(), 30)  # it takes memory of its own
        caplog.clear()
        before, began = Cost.of(os.getpid()), time.monotonic()
        refuse(40)
        took_s = time.monotonic() - began
    audits = [r for r in caplog.records if r.name == "ropewalk.audit"]
    assert len(audits) <= took_s + 2
    assert all(record.levelno == logging.WARNING for record in audits)
    wait_until(lambda: Cost.of(os.getpid()).is_near(before, 10 * MIB, 5, 10), 20)
    assert one.call(GET_JOB, b"") == LET_IN


@pytest.mark.parametrize("name", ["localhost", "localhost."])
def test_localhost_is_dialled_at_one_address_and_nobody_else_can_pass_it_on(
    way: Way, callers: list[Caller], name: str
) -> None:
    one = callers[0]
    address = dialled_address(way.settings("worker"), f"{name}:{one.port}")
    assert address == f"127.0.0.1:{one.port}"
    # What was said to another process, which has the same port at another address of the name.
    key = key_of(way.settings("worker"))
    said = ask(key, Purpose(GET_JOB, f"[::1]:{one.port}"), WHO, "0" * 32, since_boot_s())
    one.shown = replace(one.shown, authorization=lambda operation, port: said)
    assert one.call(GET_JOB, b"") == UNKNOWN
