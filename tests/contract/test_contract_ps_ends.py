"""How a ps hears that its job is over, and what it does after it."""

from collections.abc import Iterator

import pytest

from helpers.ps_peers import Ps, vector
from ropewalk.client.ps.control import PsControl
from ropewalk.cluster.access.principal import Principal
from ropewalk.core.states import Phase
from ropewalk.core.task import Incarnation, TaskId

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
