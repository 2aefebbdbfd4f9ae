"""States and reports: the words everybody uses."""

import pytest

from ropewalk.core.report import PsCounters, TaskReport
from ropewalk.core.task import Outcome, Phase, State


@pytest.mark.parametrize(
    ("phase", "over"),
    [
        (Phase.RUNNING, False),
        (Phase.STOPPING, False),
        (Phase.DONE, True),
        (Phase.STOPPED, True),
        (Phase.FAILED, True),
    ],
    ids=str,
)
def test_everybody_leaves_when_a_job_is_done_stopped_or_failed(phase: Phase, over: bool) -> None:
    assert phase.is_over is over


@pytest.mark.parametrize("outcome", list(Outcome), ids=str)
def test_every_outcome_is_a_state_of_a_task(outcome: Outcome) -> None:
    assert State(outcome.value).value == outcome.value


def test_a_task_that_has_done_nothing_reports_nothing() -> None:
    assert TaskReport() == TaskReport(steps=0, global_step=0, metrics={}, transports=())
    assert PsCounters() == PsCounters(pushes=0, shards=0, value_bytes=0, sessions=0)


def test_reports_do_not_share_their_metrics() -> None:
    assert TaskReport().metrics is not TaskReport().metrics
