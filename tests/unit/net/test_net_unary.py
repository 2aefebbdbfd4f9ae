"""Callers that were admitted have the bounds of their role."""

import pytest

from ropewalk.cluster.access import Principal
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.net.auth.guard import Guard, Visitor
from ropewalk.net.unary import accepted

GUARD = Guard(TaskId("ps", 0), Settings())


@pytest.mark.parametrize(
    ("who", "group", "is_short"),
    [
        pytest.param(Principal("reader", "mnist"), "reader", True, id="reader"),
        pytest.param(Principal("driver", "mnist"), "driver", False, id="driver"),
        pytest.param(Principal("worker", "mnist", 1), "", False, id="worker"),
        pytest.param(None, "", False, id="nobody in particular"),
    ],
)
def test_guests_share_a_part_of_a_processor_and_readers_send_little(
    who: Principal | None, group: str, is_short: bool
) -> None:
    call = accepted(Visitor(GUARD, who))
    assert (call.group, bool(call.most_bytes)) == (group, is_short)
