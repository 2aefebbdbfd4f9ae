"""Tasks that have made their first step wait for those of the others."""

import logging
from typing import cast

import pytest

from ropewalk.client.chief.membership import Membership
from ropewalk.core.errors import JobStoppedError
from ropewalk.worker.joining import FirstSteps
from ropewalk.worker.lead.leader import JobLeader


class Played:
    """A membership that is held, and the leader of its job."""

    def __init__(self) -> None:
        self.is_held = True
        self.said = list[str]()

    def tell_first_steps(self) -> str:
        self.said.append("worker:1")
        return "worker:1"

    def end_first_steps(self) -> None:
        self.said.append("end")

    def wait_of(self, *, leads: bool, least_s: float = 10.0) -> FirstSteps:
        leader = cast("JobLeader", self) if leads else None
        return FirstSteps(cast("Membership", self), leader, least_s)


@pytest.fixture
def played() -> Played:
    return Played()


def test_the_chief_says_for_whom_it_waits_until_nobody_is_to_wait(played: Played) -> None:
    def look() -> None:
        played.is_held = len(played.said) < 2

    played.wait_of(leads=True).wait(look)
    assert played.said == ["worker:1"] * 3 + ["end"]


def test_who_is_not_held_does_not_wait(played: Played) -> None:
    played.is_held = False
    played.wait_of(leads=False).wait(lambda: pytest.fail("nothing to wait for"))


@pytest.mark.parametrize(("leads", "who"), [(True, "worker:1"), (False, "others")])
def test_a_step_that_does_not_come_is_not_waited_for_in_vain(
    played: Played,
    caplog: pytest.LogCaptureFixture,
    *,
    leads: bool,
    who: str,
) -> None:
    caplog.set_level(logging.INFO)
    played.wait_of(leads=leads, least_s=0.05).wait(lambda: None)
    assert caplog.messages == [f"goes on though {who} made no step within 0.05 s"]
    assert played.said[-1:] == (["end"] if leads else [])


def test_the_end_of_the_job_ends_the_wait(played: Played) -> None:
    def stop() -> None:
        raise JobStoppedError("asked to stop")

    with pytest.raises(JobStoppedError):
        played.wait_of(leads=True).wait(stop)
    assert played.said == ["end"]
