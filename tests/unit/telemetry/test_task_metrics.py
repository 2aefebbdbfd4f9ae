"""Samples of what a task counts."""

from typing import Any, cast

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import Metric

from ropewalk.core.report import PsCounters, TableCounters, TaskReport
from ropewalk.core.step_times import StepPart
from ropewalk.core.task import Phase
from ropewalk.telemetry.catalogue import (
    CATALOGUE,
    CHIEF,
    CLUSTER_NODES,
    JOB_PHASE,
    JOB_TASKS,
    PROGRAMS,
    PS,
    PS_CONNECTIONS,
    REPORTED,
    TABLES,
    Sample,
    counted_samples,
)
from ropewalk.telemetry.metrics_page import families
from ropewalk.telemetry.task_metrics import (
    SaveCounters,
    cluster_samples,
    job_samples,
    report_samples,
    save_samples,
    step_samples,
)


def test_connections_are_counted_by_kind_and_reasons_are_no_labels() -> None:
    report = TaskReport(transports=("shm", "shm", "grpc (10.0.0.7: no plain connection)"))
    found = [each for each in report_samples(report) if each.metric is PS_CONNECTIONS]
    assert found == [Sample(PS_CONNECTIONS, 1, ("grpc",)), Sample(PS_CONNECTIONS, 2, ("shm",))]


def test_values_that_the_program_reported_are_shown_under_their_names() -> None:
    report = TaskReport(metrics={"loss": 0.5, "accuracy": 0.9})
    found = [each for each in report_samples(report) if each.metric is REPORTED]
    assert [(each.labels, each.value) for each in found] == [(("accuracy",), 0.9), (("loss",), 0.5)]


def test_the_times_of_steps_are_histograms_with_every_fourth_bound() -> None:
    part = StepPart("data", 0.5, (1, 0, 0, 0, 2, 4, *[0] * 55, 8))
    [found] = step_samples(TaskReport(step_parts=(part,)))
    assert (found.labels, found.total, len(found.buckets)) == (("data",), 0.5, 17)
    assert found.buckets[:3] == ((1.024e-6, 1), (4.096e-6, 3), (16.384e-6, 7))
    assert found.buckets[-1] == (float("inf"), 15)
    page = generate_latest(cast(Any, Collected(families([found])))).decode()
    assert 'ropewalk_step_seconds_bucket{le="4.096e-06",part="data"} 3.0' in page
    assert 'ropewalk_step_seconds_bucket{le="+Inf",part="data"} 15.0' in page
    assert 'ropewalk_step_seconds_sum{part="data"} 0.5' in page
    assert 'ropewalk_step_seconds_count{part="data"} 15.0' in page


class Collected:
    """A registry of the library, of metrics that are there."""

    def __init__(self, found: list[Metric]) -> None:
        self.found = found

    def collect(self) -> list[Metric]:
        return self.found


@pytest.mark.parametrize("phase", Phase, ids=str)
def test_a_job_is_in_one_phase(phase: Phase) -> None:
    tasks = [("ps", "alive"), ("worker", "alive"), ("worker", "alive"), ("worker", "lost")]
    found = list(job_samples(phase, tasks, global_step=3, goal_steps=0, age_s=1.5))
    assert [each.labels for each in found if each.metric is JOB_PHASE and each.value] == [(phase,)]
    counted = {each.labels: each.value for each in found if each.metric is JOB_TASKS}
    assert counted == {("ps", "alive"): 1, ("worker", "alive"): 2, ("worker", "lost"): 1}


def test_a_checkpoint_leaves_its_number_moment_and_duration() -> None:
    saves = SaveCounters()
    saves.done(at=1_700_000_000.0, duration_s=2.5)
    found = {each.metric.name: each.value for each in save_samples(saves, 40)}
    assert found == {
        "ropewalk_checkpoints_total": 1,
        "ropewalk_failed_checkpoints_total": 0,
        "ropewalk_checkpoint_under_way": False,
        "ropewalk_last_checkpoint_step": 40,
        "ropewalk_last_checkpoint_timestamp_seconds": 1_700_000_000.0,
        "ropewalk_last_checkpoint_duration_seconds": 2.5,
    }


@pytest.mark.parametrize("shown_by", [PROGRAMS, PS, TABLES, CHIEF])
def test_each_metric_of_counters_is_an_attribute_of_them(shown_by: str) -> None:
    """All of them, once; a name that counters lack would fail the whole page."""
    counters = {PROGRAMS: TaskReport(), PS: PsCounters(), TABLES: TableCounters("t", rows=7)}
    found = list(counted_samples(shown_by, counters.get(shown_by, SaveCounters()), "label"))
    assert [each.metric for each in found] == [
        metric for metric in CATALOGUE.values() if metric.counts and metric.shown_by == shown_by
    ]
    assert found
    assert {each.labels for each in found} == {("label",)}


def test_nodes_are_counted_by_state() -> None:
    found = list(cluster_samples([], ["alive", "lost", "alive"]))
    assert found == [Sample(CLUSTER_NODES, 2, ("alive",)), Sample(CLUSTER_NODES, 1, ("lost",))]
