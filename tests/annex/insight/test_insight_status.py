"""The findings of a running job are in its status: a planted straggler, and a hot shard."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from helpers.waiting import scaled, wait_until
from ropewalk.annexes.insight.window import Window
from ropewalk.client.chief.calls import JobStatus
from ropewalk.cluster.job.members import Member
from ropewalk.core.report import PsCounters, TaskReport
from ropewalk.core.step_times import StepClock
from ropewalk.core.task import State, TaskId
from ropewalk.launch.screen.status_table import status_lines

_STEP_S, _SLOW_S = 0.004, 0.03


def trains(planted: str, is_over: threading.Event) -> None:
    """A worker's program, with a fault in its data, its computing or its network."""
    strategy = rw.distribute.ParameterServerStrategy()
    with strategy.scope():
        w = rw.Variable(np.zeros(8, np.float32), name="w")
        optimizer = rw.optimizers.SGD(0.01)

    def batches() -> Any:
        while not is_over.is_set():
            time.sleep(_SLOW_S if planted == "data" else 0)
            yield np.ones(8, np.float32)

    def step(gradient: Any) -> None:
        time.sleep(_SLOW_S if planted == "compute" else _STEP_S)
        optimizer.apply_gradients([(gradient, w)])

    if planted == "push":
        for peer in strategy.extended.runtime.session.peers:
            _delay(peer)
    for batch in rw.data.Dataset.from_generator(batches):
        strategy.run(step, args=(batch,))


def _delay(peer: Any) -> None:
    """Stand for a slow link: a message takes a while."""
    exchange = peer.step

    def late(*args: Any) -> Any:
        time.sleep(_SLOW_S)
        return exchange(*args)

    peer.step = late


def found(
    cluster: rw.testing.LocalCluster, run: Callable[[], object], is_over: threading.Event, kind: str
) -> JobStatus:
    """Run a job until its status has a finding, and return the status."""
    statuses: list[JobStatus] = []

    def look() -> bool:
        status = cluster.status()
        if status is not None and any(each.kind == kind for each in status.findings):
            statuses.append(status)
        return bool(statuses)

    program = threading.Thread(target=run)
    program.start()
    try:
        wait_until(look, scaled(60))
    finally:
        is_over.set()
        program.join(scaled(30))
    return statuses[0]


@pytest.mark.parametrize("planted", ["data", "compute", "push"])
def test_the_first_screen_names_the_straggler_and_what_it_is_slow_at(planted: str) -> None:
    is_over = threading.Event()
    with rw.testing.LocalCluster(workers=2, ps=1) as cluster:
        slow = {TaskId("worker", 1): lambda: trains(planted, is_over)}
        status = found(
            cluster,
            lambda: cluster.run_all(lambda: trains("", is_over), slow),
            is_over,
            "straggler",
        )
    [text] = [line for line in status_lines(status) if "× the median step" in line]
    assert text.startswith("worker:1: ")
    assert f"in {planted} (" in text


def test_the_first_screen_names_the_ps_with_the_hot_shard() -> None:
    is_over = threading.Event()

    def train() -> None:
        strategy = rw.distribute.ParameterServerStrategy(
            placement=rw.distribute.placement.round_robin
        )
        with strategy.scope():
            rw.Variable(np.zeros(8, np.float32), name="small")
            hot = rw.Variable(np.zeros((1000, 500), np.float32), name="hot")
            optimizer = rw.optimizers.SGD(0.01)
        gradient = np.ones((1000, 500), np.float32)
        while not is_over.is_set():
            strategy.run(lambda: optimizer.apply_gradients([(gradient, hot)]))
            time.sleep(0.02)

    with rw.testing.LocalCluster(workers=0, ps=2) as cluster:
        status = found(cluster, lambda: cluster.run(train), is_over, "hot_shard")
    [text] = [line for line in status_lines(status) if "of the bytes" in line]
    assert text.startswith("ps:1 moves 100% of the bytes of all 2 ps")
    assert "100% of its updates' bytes are hot's" in text


def member(counters: PsCounters) -> Member:
    return Member(TaskId("ps", 0), 0.0, State.ALIVE, counters=counters)


def test_the_window_has_a_minute_and_no_more_and_concludes_nothing_at_once() -> None:
    window = Window()
    assert window.findings([], 0.0) == []
    for second in range(1000):
        window.look([member(PsCounters(pushes=second))], float(second))
    moments = list(window._moments)
    assert [each.at for each in moments] == list(range(940, 1000, 5))
    assert [each.counters[TaskId("ps", 0)].pushes for each in moments] == list(range(940, 1000, 5))


def trainer(count: int, slow: int = 0) -> Member:
    """A worker that has made so many steps, of which the last ones took long."""
    now = [1]
    clock = StepClock(lambda: now[0])
    for number in range(count + 1):
        now[0] += 40_000_000 if number > count - slow else 4_000_000
        clock.step_ended()
    report = TaskReport(steps=count + 1, step_parts=clock.times().parts)
    return Member(TaskId("worker", slow and 1), 0.0, State.ALIVE, report=report)


def test_who_is_slow_since_a_moment_is_named_after_a_moment_and_not_after_a_minute() -> None:
    window = Window()
    for second in range(0, 61, 5):
        earlier = trainer(200 * second)
        window.look([earlier, replace(earlier, task=TaskId("worker", 1))], float(second))
    for second in (65, 70, 75):
        slow = 25 * (second - 60)
        both = [trainer(200 * second), trainer(200 * 60 + slow, slow=slow)]
        window.look(both, float(second))
    [found] = window.findings(both, 76.0)
    assert (found.kind, found.subject) == ("straggler", "worker:1")


def test_a_task_stands_since_its_last_step_and_one_that_serves_never_does() -> None:
    window = Window()
    for second in range(40):
        goes_on = trainer(200 * second)
        stands = replace(trainer(200 * min(second, 10)), task=TaskId("worker", 1))
        serves = replace(stands, task=TaskId("worker", 2))
        serves.report = replace(serves.report, serves=True)
        members = [goes_on, stands, serves]
        window.look(members, float(second))
    [found] = window.findings(members, 40.0)
    assert (found.kind, found.subject, found.numbers) == ("standing", "worker:1", {"stood_s": 30.0})
