"""How long a ps stays without a chief."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from helpers.clock import ManualClock
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.server.ps.server import PsServer


class EndsLater(ManualClock):
    """A clock that asks a ps to end after so many seconds."""

    def __init__(self, after_s: float) -> None:
        super().__init__()
        self._after_s = after_s
        self.server: PsServer | None = None

    def wait(self, event: Any, timeout_s: float) -> bool:
        if self.now() >= self._after_s and self.server is not None:
            self.server.lease.draining = True
        return super().wait(event, timeout_s)


@pytest.fixture
def ps() -> Iterator[Callable[..., PsServer]]:
    with ExitStack() as stack:

        def make(**settings: Any) -> PsServer:
            clock = EndsLater(1000)
            server = PsServer(TaskId("ps", 0), Settings(orphan_timeout_s=300, **settings), clock)
            stack.callback(server.stop, 0)
            clock.server = server
            return server

        yield make


def lead(server: PsServer) -> None:
    server.lease.renew(Incarnation(TaskId("chief", 0), 1), "chief:2222", 10)


def test_a_ps_without_a_chief_leaves_after_the_timeout(ps: Callable[..., PsServer]) -> None:
    server = ps()
    assert server.wait() is ExitCode.LEFT_EARLY
    assert 300 <= server.lease.silent_s < 301


def test_one_that_may_stay_does_and_says_so_once(
    ps: Callable[..., PsServer], caplog: pytest.LogCaptureFixture
) -> None:
    server = ps(stay_without_chief=True)
    with caplog.at_level(logging.INFO):
        assert server.wait() is ExitCode.LEFT_EARLY
    assert server.lease.silent_s >= 1000
    lines = [line for line in caplog.messages if "chief" in line]
    assert sum("staying until one comes" in line for line in lines) == 1
    assert "staying" in lines[-1]  # and no more about a wait


def test_one_that_lost_its_chief_leaves_all_the_same(ps: Callable[..., PsServer]) -> None:
    server = ps(stay_without_chief=True)
    lead(server)
    assert server.wait() is ExitCode.LEFT_EARLY
    assert 300 <= server.lease.silent_s < 301
