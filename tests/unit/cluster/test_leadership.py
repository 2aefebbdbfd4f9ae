"""Who leads, for a server that may not know the cluster: in every history, one chief for good."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropewalk.cluster.access import Leadership, Principal, may_follow, principal_of_task
from ropewalk.core.task import TaskId

CHIEF, OTHER, W0, W1 = (
    TaskId("chief", 0), TaskId("chief", 1), TaskId("worker", 0), TaskId("worker", 1)
)  # fmt: skip


@pytest.mark.parametrize(
    ("has_chief", "leader", "allowed"),
    [
        pytest.param(True, None, {CHIEF, OTHER}, id="a chief is known of"),
        pytest.param(False, None, {CHIEF, OTHER, W0}, id="nothing is known"),
        pytest.param(False, W0, {CHIEF, OTHER, W0}, id="worker 0 leads, for all that is known"),
        pytest.param(False, CHIEF, {CHIEF}, id="a chief has come"),
        pytest.param(True, CHIEF, {CHIEF}, id="the known chief has come"),
    ],
)
def test_who_may_lead(has_chief: bool, leader: TaskId | None, allowed: set[TaskId]) -> None:
    known = Leadership(has_chief, leader)
    everybody = [CHIEF, OTHER, W0, W1, TaskId("ps", 0), TaskId("evaluator", 0)]
    assert {task for task in everybody if known.allows(principal_of_task(task))} == allowed
    assert not known.allows(Principal("driver"))
    assert not known.allows(Principal("worker")), "of any index"
    assert known.allows(Principal("chief")), "of any index"


@given(st.lists(st.tuples(st.sampled_from([CHIEF, OTHER, W0, W1]), st.booleans()), max_size=30))
def test_in_every_history_the_first_chief_leads_for_good(
    history: list[tuple[TaskId, bool]],
) -> None:
    leader: TaskId | None = None
    led: list[TaskId] = []
    for newcomer, is_heard in history:
        if not Leadership(leader=leader).allows(principal_of_task(newcomer)):
            continue
        if leader in (None, newcomer) or may_follow(leader, newcomer, is_heard=is_heard):
            leader = newcomer
            led.append(newcomer)
    chiefs = [number for number, task in enumerate(led) if task.type == "chief"]
    assert set(led) <= {CHIEF, OTHER, W0}
    if chiefs:
        assert set(led[chiefs[0] :]) == {led[chiefs[0]]}
    asked = [task for task, _ in history]
    assert bool(chiefs) == any(task.type == "chief" for task in asked), "a chief always wins"
