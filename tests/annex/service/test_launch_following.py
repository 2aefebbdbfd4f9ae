"""Following a job while its gateway comes and goes."""

import pytest

from ropewalk.annexes.service.calls import JobView, News
from ropewalk.annexes.service.submit_command import Following
from ropewalk.core.errors import PeerLostError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.launch.screen.plain import PlainDisplay


class Gateway:
    """Silent for some calls; the job ends when it was asked to stop."""

    address = "chief.example:2222"

    def __init__(self, silent: int) -> None:
        self.silent = silent
        self.stops: list[bool] = []

    def _hears(self) -> None:
        self.silent -= 1
        if self.silent >= 0:
            raise PeerLostError("no answer", peer=self.address)

    def follow(self, job: str, offset: int, *, wait_s: float, drives: bool) -> News:
        self._hears()
        state = "ended" if self.stops else "queued"
        ended = JobView(job, "n", state, "", 138, 0, 0, 0, {}, {}, {}, "", (), "")
        return News((), offset, 0, ended)

    def stop(self, job: str, reason: str, *, kill: bool) -> None:
        self._hears()
        self.stops.append(kill)


def following(gateway: Gateway, interrupts: int) -> Following:
    made = Following(
        gateway,  # type: ignore[arg-type]
        "j",
        PlainDisplay([TaskId("chief", 0)]),
        Settings(),
        retry_s=0.0,
    )
    made._interrupts = interrupts
    return made


def test_a_stop_that_the_gateway_did_not_hear_is_asked_for_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    gateway = Gateway(silent=5)
    assert following(gateway, 1).run().exit_code == 138
    assert gateway.stops == [False]
    assert capsys.readouterr().out.count("saving and stopping") == 1


def test_who_asks_twice_may_leave_a_gateway_that_does_not_answer() -> None:
    with pytest.raises(PeerLostError, match=r"`ropewalk attach j` goes on from here"):
        following(Gateway(silent=1000), 2).run()
