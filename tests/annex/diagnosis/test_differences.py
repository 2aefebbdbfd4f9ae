"""What is amiss around tasks, each with its numbers, and nothing where all is well."""

import json
from typing import Any

import pytest

from ropewalk.annexes.diagnosis.answers import surroundings
from ropewalk.annexes.diagnosis.differences import (
    fine_links,
    full_disks,
    other_versions,
    reached_limits,
    refused_callers,
    slow_links,
    wrong_clocks,
)
from ropewalk.core.settings import Settings

WELL: dict[str, Any] = {
    "clock": 100.0,
    "python": "3.12.4",
    "packages": {"ropewalk": "0.1.0", "numpy": "2.1.0"},
    "open_files": 60,
    "most_files": 1024,
    "memory_bytes": 8e9,
    "peak_memory_bytes": 1e9,
    "shm_free_bytes": 1e9,
    "model_dir_free_bytes": 1e12,
}


def test_where_all_is_well_nothing_is_said() -> None:
    tasks = {"ps:0": WELL, "worker:0": {**WELL, "packages": {"ropewalk": "0.1.0", "torch": "2.4"}}}
    said = (other_versions(tasks), wrong_clocks(tasks, 99, 101), reached_limits(tasks))
    assert (*said, full_disks(tasks)) == ("", "", "", "")


def test_versions_that_differ_are_named_with_their_tasks() -> None:
    other = {**WELL, "python": "3.11.7", "packages": {"ropewalk": "0.1.0", "numpy": "1.26.4"}}
    tasks = {"ps:0": WELL, "worker:0": WELL, "worker:1": other}
    assert other_versions(tasks) == (
        "numpy: 1.26.4 on worker:1, 2.1.0 on ps:0 worker:0; "
        "python: 3.11.7 on worker:1, 3.12.4 on ps:0 worker:0"
    )


@pytest.mark.parametrize(
    ("clock", "said"),
    [(99.5, ""), (104.9, ""), (90.0, "w is 10 s behind"), (125.0, "w is 20 s ahead")],
    ids=["at the question", "at the answer", "behind", "ahead"],
)
def test_a_clock_is_wrong_if_it_was_not_between_question_and_answer(
    clock: float, said: str
) -> None:
    assert wrong_clocks({"w": {**WELL, "clock": clock}}, 100, 105) == said


@pytest.mark.parametrize(
    ("amiss", "said"),
    [
        ({"open_files": 1000}, "w has 1000 of 1024 files open (ulimit -n)"),
        ({"peak_memory_bytes": 7.5e9}, "w has used 7.0 GiB of 7.5 GiB of memory"),
        (
            {"shm_free_bytes": 0},
            "w has 0 B free in /dev/shm, so that arrays may go through sockets",
        ),
        (
            {"locked_bytes": 60 * 2**10, "most_locked_bytes": 64 * 2**10},
            "w has locked 60.0 KiB of 64.0 KiB of memory (ulimit -l)",
        ),
        (
            {"cgroup": {"nr_periods": 100, "nr_throttled": 40}},
            "w had to wait for its share of the processors in 40% of the time (cpu.max of its "
            "cgroup)",
        ),
        (
            {"cgroup": {"pids.current": 90, "pids.max": 100}},
            "w has 90 of 100 processes and threads (pids.max of its cgroup)",
        ),
        ({"cgroup": {"nr_periods": 100, "nr_throttled": 20, "pids.current": 9}}, ""),
        ({"open_files": 1000, "most_files": -1}, ""),
        ({"shm_free_bytes": None}, ""),
    ],
    ids=[
        "files",
        "memory",
        "shared memory",
        "memory locks",
        "processors",
        "processes",
        "well below",
        "no limit",
        "no shared memory",
    ],
)
def test_a_limit_that_is_near_is_named(amiss: dict[str, Any], said: str) -> None:
    assert reached_limits({"v": WELL, "w": {**WELL, **amiss}}) == said


def test_a_full_disk_is_named_with_the_task_that_writes_there() -> None:
    tasks = {"chief:0": WELL, "ps:0": {**WELL, "model_dir_free_bytes": 0}}
    assert full_disks(tasks) == "ps:0 has 0 B free where the model directory is"
    assert full_disks({"ps:0": {**WELL, "model_dir_free_bytes": None}}) == ""


def test_what_a_task_answers_has_all_that_is_compared() -> None:
    tasks = {"here": surroundings("", Settings())}
    said = (other_versions(tasks), reached_limits(tasks), full_disks(tasks))
    assert all(isinstance(each, str) for each in said)
    assert wrong_clocks(tasks, tasks["here"]["clock"], tasks["here"]["clock"]) == ""


def _ways(*round_trips_ms: float, **more: Any) -> dict[str, Any]:
    ways = {f"ps:{number}": {"round_trip_s": ms / 1e3} for number, ms in enumerate(round_trips_ms)}
    return {"pid": 7, "host": "here", **ways, **more}


def test_a_way_that_takes_much_longer_than_the_others_is_named() -> None:
    tasks = {"worker:0": _ways(0.2, 0.3), "worker:1": _ways(0.2, 31)}
    assert slow_links(tasks) == "worker:1 to ps:1: 31 ms there and back, usual here 250 µs"
    assert fine_links(tasks) == "200 µs to 31 ms there and back"
    assert slow_links({"worker:0": _ways(0.2, 0.3, 4.9)}) == ""  # a busy machine
    assert slow_links({"worker:0": _ways(60, 70), "worker:1": _ways(65, 61)}) == ""  # all are far
    assert slow_links({}) == ""
    assert fine_links({}) == "nothing was measured"


def test_a_way_with_less_bandwidth_than_the_others_is_named_and_a_fast_one_is_not() -> None:
    def chief(rate: float) -> dict[str, Any]:
        return {"the chief": {"round_trip_s": 0.001, "bytes_per_s": rate}}

    tasks = {"ps:0": chief(5e6), "ps:1": chief(1e9), "worker:0": chief(9e8)}
    assert slow_links(tasks) == "ps:0 to the chief: 4.8 MiB/s, usual here 858.3 MiB/s"
    assert slow_links({**tasks, "ps:0": chief(9e7)}) == ""


def test_a_way_that_cannot_be_gone_is_named_with_the_reason() -> None:
    assert slow_links({"worker:0": _ways(0.2, late={"error": "refused"})}) == (
        "worker:0 to late: refused"
    )


def test_the_last_callers_that_were_refused_are_named_once_each() -> None:
    def line(**fields: str) -> str:
        return json.dumps(fields) + "\n"

    lines = [line(event="caller.refused", why=why) for why in ("old", "a", "b", "b")]
    assert refused_callers(["".join([*lines, line(event="task.joined")])]) == "a; b"
    assert refused_callers([]) == ""
