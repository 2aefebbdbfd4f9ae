"""Findings from two moments of a job's reports."""

from collections.abc import Mapping
from statistics import median

import pytest

from ropewalk.annexes.insight.decisions import (
    LEAST_STEPS,
    MOST,
    Column,
    Reports,
    findings,
    unsaved,
)
from ropewalk.core.report import PsCounters, ShardCounters
from ropewalk.core.step_times import (
    CHECKPOINT,
    DATA,
    OTHERS,
    PULL,
    PUSH,
    StepClock,
    StepTimes,
)
from ropewalk.core.task import TaskId

NUMBERS = {"data": DATA, "pull": PULL, "push": PUSH, "others": OTHERS, "checkpoint": CHECKPOINT}
NOTHING = Reports(0.0, {}, {}, {})


def worker(index: int) -> TaskId:
    return TaskId("worker", index)


def times(*steps: Mapping[str, float]) -> StepTimes:
    """Times of steps whose parts took so many milliseconds."""
    now = [1]
    clock = StepClock(lambda: now[0])
    clock.step_ended()
    for step in steps:
        for part, ms in step.items():
            began = clock.begin()
            now[0] += round(ms * 1e6)
            if part != "compute":
                clock.end(NUMBERS[part], began)
        clock.step_ended()
    return clock.times()


def usual(**parts: float) -> StepTimes:
    return times(*[{"data": 1, "compute": 10, "push": 2} | parts] * 20)


def of_steps(*steps: StepTimes, before: Reports = NOTHING) -> list[tuple[str, str, str]]:
    now = Reports(60.0, {worker(i): each for i, each in enumerate(steps)}, {}, {})
    return [(each.kind, each.subject, each.text) for each in findings(before, now)]


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        ({"data": 40}, "worker:2: 4.0 × the median step, in data (40 ms a step, others 1 ms)"),
        ({"compute": 30}, "worker:2: 2.5 × the median step, in compute (30 ms a step, others 10 ms)"),
        ({"push": 20}, "worker:2: 2.4 × the median step, in push (20 ms a step, others 2 ms)"),
        ({"pull": 13}, "worker:2: 2.0 × the median step, in pull (13 ms a step, others 0 ms)"),
        ({"checkpoint": 13}, "worker:2: 2.0 × the median step, in checkpoint (13 ms a step, others 0 ms)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_a_straggler_is_named_with_the_part_that_differs(slow: dict[str, float], text: str) -> None:
    assert of_steps(usual(), usual(), usual(**slow)) == [("straggler", "worker:2", text)]


def test_in_sync_the_one_that_the_others_wait_for_is_named() -> None:
    [(kind, task, text)] = of_steps(usual(others=30), usual(others=30), usual(data=31))
    assert (kind, task) == ("straggler", "worker:2")
    assert text.startswith("worker:2: 3.3 × the median step, in data")


def test_of_two_workers_the_slower_one_is_named() -> None:
    assert [task for _, task, _ in of_steps(usual(), usual(data=40))] == ["worker:1"]


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([usual(), usual(compute=14), usual()], id="a-little-slower"),
        pytest.param([usual(), usual(others=500), usual()], id="waits-for-others"),
        pytest.param([usual(data=40)], id="alone"),
        pytest.param([usual(data=40)] * 3, id="all-of-them"),
        pytest.param(
            [usual(), usual(), times(*[{"compute": 13}] * 30, {"compute": 2000})], id="one-evaluation"
        ),
        pytest.param([usual(), usual(), times(*[{"data": 90}] * (LEAST_STEPS - 1))], id="few-steps"),
        pytest.param([times(*[{"push": 0.1}] * 20), times(*[{"push": 0.25}] * 20)], id="noise"),
    ],
)  # fmt: skip
def test_what_is_no_straggler(steps: list[StepTimes]) -> None:
    assert of_steps(*steps) == []


@pytest.mark.parametrize("count", [2, 3, 4, 7, 64])
def test_the_median_of_the_others_is_that_of_all_but_one(count: int) -> None:
    values = {worker(i): float((i * 37) % 11) for i in range(count)}  # some are the same
    column = Column(values)
    for task in values:
        others = median(value for other, value in values.items() if other != task)
        assert column.others(task) == others


def test_what_a_task_was_slow_at_before_does_not_count() -> None:
    slow = usual(data=40)
    before = Reports(0.0, {worker(0): usual(), worker(1): slow}, {}, {})
    assert of_steps(usual().plus(usual()), slow.plus(usual()), before=before) == []
    before = Reports(0.0, {worker(0): usual(), worker(1): usual()}, {}, {})
    assert len(of_steps(usual().plus(usual()), usual().plus(slow), before=before)) == 1


def of_servers(*moved: int, seconds: float = 10.0) -> list[tuple[str, str, str]]:
    counters = {
        TaskId("ps", i): PsCounters(
            pushes=50, bytes_in=count, shards=2, labels=(f"table/part_{i}",)
        )
        for i, count in enumerate(moved)
    }
    found = findings(NOTHING, Reports(seconds, {}, {}, counters))
    return [(each.kind, each.subject, each.text) for each in found]


def test_the_ps_with_most_of_the_bytes_is_named_with_what_it_holds() -> None:
    text = "ps:1 moves 80% of the bytes of all 2 ps (8 MB/s, 5 pushes/s): it holds table/part_1, …"
    assert of_servers(20_000_000, 80_000_000) == [("hot_shard", "ps:1", text)]
    assert [task for _, task, _ in of_servers(50_000_000, 10_000_000, 10_000_000, 10_000_000)] == [
        "ps:0"
    ]


def test_the_shard_with_most_of_a_ps_s_bytes_is_named_by_what_changed_meanwhile() -> None:
    def at(updates: int, others: int) -> PsCounters:
        shards = ShardCounters("emb/part_0", updates, 4000), ShardCounters("b", others, 1000)
        return PsCounters(bytes_in=updates * 10_000, busiest=shards)

    ps = [TaskId("ps", 0), TaskId("ps", 1)]
    before = Reports(0.0, {}, {}, {ps[0]: at(10_000, 90_000), ps[1]: PsCounters()})
    now = Reports(10.0, {}, {}, {ps[0]: at(11_000, 91_000), ps[1]: PsCounters()})
    [found] = findings(before, now)
    assert found.text.endswith(": 80% of its updates' bytes are emb/part_0's (100 a second)")


@pytest.mark.parametrize(
    "moved",
    [
        pytest.param([50_000_000, 40_000_000], id="even"),
        pytest.param([9_000_000, 1000], id="idle"),
        pytest.param([90_000_000], id="the-only-one"),
        pytest.param([40_000_000, 20_000_000, 20_000_000, 20_000_000], id="twice-the-others"),
    ],
)
def test_what_is_no_hot_shard(moved: list[int]) -> None:
    assert of_servers(*moved) == []


def of_staleness(before: list[float], now: list[float]) -> list[str]:
    one, other = (
        Reports(at, {}, {worker(i): each for i, each in enumerate(values)}, {})
        for at, values in ((0.0, before), (60.0, now))
    )
    return [each.text for each in findings(one, other)]


def test_staleness_that_rises_beyond_the_number_of_workers_is_told() -> None:
    assert of_staleness([2, 2, 2], [6, 10, 5]) == [
        "updates get staler: 2.0 → 7.0 steps of others in the mean in 60 s, 10.0 of worker:1"
    ]
    assert of_staleness([2, 2, 2], [4, 4, 4]) == []  # as many as there are others, twice
    assert of_staleness([6, 6, 6], [7, 7, 7]) == []  # it is high, and was
    assert of_staleness([0.1], [50]) == []


def of_standing(stood_s: list[float], steps: StepTimes) -> list[tuple[str, str, str]]:
    still = {worker(i): seconds for i, seconds in enumerate(stood_s)}
    found = findings(NOTHING, Reports(60.0, dict.fromkeys(still, steps), {}, {}, still))
    return [(each.kind, each.subject, each.text) for each in found]


def test_a_task_that_makes_no_step_any_more_is_named_with_the_command_that_says_where() -> None:
    text = (
        "worker:1 has finished no step for 16 s, and others have: `ropewalk stacks` says where it "
        "stands"
    )
    assert of_standing([0.01, 16, 0.02], usual()) == [("standing", "worker:1", text)]


def test_where_all_stand_still_it_is_said_once() -> None:
    [(_, _, text)] = of_standing([30, 40, 50], usual())
    assert text == "no task has finished a step for 30 s: `ropewalk stacks` says where they stand"


def test_a_long_step_is_no_standstill() -> None:
    assert of_standing([0.01, 16], usual(compute=3000)) == []
    assert of_standing([0.01, 60], StepTimes()) == []  # nobody knows yet how long they take


def test_checkpoints_that_fail_are_told_with_the_last_one_and_the_reason() -> None:
    [found] = unsaved(3, "no space left", 40)
    assert found.text == (
        "no checkpoint could be saved since that of step 40, 3 in a row: no space left"
    )
    assert [each.text.split(",")[0] for each in unsaved(1, "?", 0)] == [
        "no checkpoint could be saved in this job"
    ]
    assert list(unsaved(0, "", 40)) == []


def test_there_is_a_bound_on_findings_and_the_worst_come_first() -> None:
    steps = [usual()] * 60 + [usual(data=40 + i) for i in range(40)]
    found = of_steps(*steps)
    assert len(found) == MOST
    assert found[0][1] == "worker:99"
