"""How a ps hears that its job is over, and what it does after it."""

from collections.abc import Iterator

import pytest

from helpers.ps_peers import SETTINGS, Ps, vector
from ropewalk.client.ps.control import PsControl
from ropewalk.cluster.access import Principal
from ropewalk.core.errors import PeerLostError
from ropewalk.core.task import Incarnation, Phase, TaskId
from ropewalk.net.this_machine import free_ports
from ropewalk.server.ps.server import PsServer

CALL_S = 10.0
WHO = Incarnation(TaskId("chief", 0), 1, "first")
NEXT = Incarnation(TaskId("chief", 0), 1, "second")


@pytest.fixture
def ps() -> Iterator[Ps]:
    made = Ps("tcp")
    yield made
    made.close()


@pytest.fixture
def control(ps: Ps) -> Iterator[PsControl]:
    made = PsControl(ps.task, ps.address, ps.settings, Principal("chief", index=0))
    made.attach(WHO, "127.0.0.1:1", lease_s=600, timeout_s=CALL_S)
    yield made
    made.close()


def test_a_ps_that_began_again_and_has_nothing_of_a_job_that_failed_waits_for_the_next_chief(
    ps: Ps, control: PsControl
) -> None:
    control.end_job(Phase.FAILED, "ps:0 restarted", timeout_s=CALL_S, began_again=True)
    assert ps.server is not None
    assert not ps.server.lease.ended.is_set()
    found = control.find_job(timeout_s=CALL_S)
    assert (found.job, found.chief_address) == ("", "")
    control.attach(NEXT, "127.0.0.1:2", lease_s=600, timeout_s=CALL_S)  # of another job, too


@pytest.mark.parametrize(
    ("phase", "began_again", "has_variables"),
    [
        pytest.param(Phase.FAILED, True, True, id="it has variables of that job"),
        pytest.param(Phase.FAILED, False, False, id="it was part of that job"),
        pytest.param(Phase.DONE, True, False, id="the job is done"),
    ],
)
def test_any_other_ps_ends_with_its_job(
    ps: Ps, control: PsControl, phase: Phase, began_again: bool, has_variables: bool
) -> None:
    if has_variables:
        ps.worker().create(vector())
    control.end_job(phase, "", timeout_s=CALL_S, began_again=began_again)
    assert ps.server is not None
    assert ps.server.lease.ended.is_set()
    assert ps.server.lease.phase is phase


@pytest.mark.parametrize("says", ["that the job is over", "that its lease goes on"])
def test_a_ps_that_was_asked_before_it_listened_hears_the_chiefs_last_word(says: str) -> None:
    [port] = free_ports(1)
    task, address = TaskId("ps", 0), f"127.0.0.1:{port}"
    control = PsControl(task, address, SETTINGS, Principal("chief", index=0))
    server = PsServer(task, SETTINGS)
    try:
        for _ in range(20):  # after some the channel makes a pause before it tries again
            with pytest.raises(PeerLostError):
                control.find_job(timeout_s=CALL_S)
        server.start(address)
        if says == "that the job is over":
            control.end_job(Phase.DONE, "", timeout_s=CALL_S)
            assert server.lease.ended.is_set()
        else:
            control.attach(WHO, "127.0.0.1:1", lease_s=600, timeout_s=CALL_S, is_last=True)
    finally:
        control.close()
        server.stop()
