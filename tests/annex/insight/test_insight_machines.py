"""Findings about machines: memory that will not last, and others at work."""

import pytest

from ropewalk.annexes.insight.machines import (
    LEAST_S,
    Used,
    memory_that_runs_out,
    shared_machines,
)
from ropewalk.core.report import ProcessUsage
from ropewalk.core.task import TaskId

MIB, GIB = 2**20, 2**30
PS, WORKER = TaskId("ps", 1), TaskId("worker", 0)


def memory(mib: float, left_gib: float = 1.9, machine: str = "m") -> ProcessUsage:
    return ProcessUsage(
        memory_bytes=round(mib * MIB),
        memory_limit_bytes=4 * GIB,
        memory_left_bytes=round(left_gib * GIB),
        machine=machine,
    )


def while_(*mib: float, every_s: float = 60.0, left_gib: float = 1.9) -> list[Used]:
    """Moments of one ps with so much memory."""
    return [Used(number * every_s, {PS: memory(each, left_gib)}) for number, each in enumerate(mib)]


def test_memory_that_grows_steadily_says_when_it_is_full() -> None:
    [found] = memory_that_runs_out(while_(1990, 2070, 2150))
    assert (found.kind, found.subject) == ("memory", "ps:1")
    assert found.text == "ps:1: 2.1 of 4.0 GiB, +80 MiB a minute: full in 24 min"
    assert found.numbers["full_in_s"] == pytest.approx(1.9 * 1024 / 80 * 60)


@pytest.mark.parametrize(
    "moments",
    [
        pytest.param(while_(1000, 2000, 2010), id="it-has-loaded-its-data"),
        pytest.param(while_(2000, 2010, 2100), id="it-grows-since-a-moment"),
        pytest.param(while_(2000, 2150, 2000), id="it-comes-back"),
        pytest.param(while_(2000, 2001, 2002, left_gib=0.5), id="it-lasts-for-hours"),
        pytest.param(while_(2000, 2080, 2160, every_s=LEAST_S / 2.1), id="too-short"),
        pytest.param(while_(2000, 2160), id="too-few"),
        pytest.param([], id="none"),
    ],
)
def test_memory_that_is_no_trouble_is_not_named(moments: list[Used]) -> None:
    assert list(memory_that_runs_out(moments)) == []


def test_tasks_of_one_machine_fill_it_together() -> None:
    moments = [
        Used(60.0 * number, {PS: memory(2000 + 80 * number), WORKER: memory(500 + 240 * number)})
        for number in range(3)
    ]
    times = {each.subject: each.numbers["full_in_s"] for each in memory_that_runs_out(moments)}
    assert times["ps:1"] == times["worker:0"] == pytest.approx(1.9 * 1024 / 320 * 60)


def test_a_task_that_was_started_again_is_looked_at_anew() -> None:
    moments = while_(1990, 2070, 2150)
    moments[0] = Used(0.0, {})
    assert list(memory_that_runs_out(moments)) == []


def machine(**usage: float) -> ProcessUsage:
    given = {"machine_cpus": 8, "machine_cores": 4.0, "cores": 3.0, **usage}
    return ProcessUsage(machine="lab7", **given)  # type: ignore[arg-type]


def found(usage: ProcessUsage, other: ProcessUsage | None = None) -> list[tuple[str, str]]:
    by = {WORKER: usage} | ({PS: other} if other is not None else {})
    twice = Used(0.0, by), Used(15.0, by)
    return [(each.kind, each.text) for each in shared_machines(*twice)]


def test_a_machine_whose_time_goes_to_others_is_named() -> None:
    assert found(machine(steal=0.234)) == [
        (
            "steal",
            "machine of worker:0: 23% of processor time goes to other virtual machines (steal)",
        )
    ]
    assert found(machine(steal=0.09)) == []


def test_other_programs_are_named_where_something_waits() -> None:
    [(kind, text)] = found(machine(machine_cores=7.9, cpu_pressure=0.34))
    assert kind == "shared_machine"
    assert text == (
        "machine of worker:0: other programs keep 4.9 of its 8 processors busy, and something "
        "waited for one in 34% of the last minute"
    )


@pytest.mark.parametrize(
    ("usage", "other"),
    [
        pytest.param(machine(machine_cores=6.0, cpu_pressure=0.1), None, id="there-is-room"),
        pytest.param(
            machine(machine_cores=7.9, cpu_pressure=0.9),
            machine(machine_cores=7.9, cpu_pressure=0.9),
            id="the-job-s-own-tasks",
        ),
        pytest.param(machine(cores=6.9, machine_cores=7.9, cpu_pressure=0.9), None, id="a-little"),
    ],
)
def test_a_machine_that_others_leave_alone_is_not_named(
    usage: ProcessUsage, other: ProcessUsage | None
) -> None:
    assert found(usage, other) == []


def test_all_processors_busy_counts_where_the_system_tells_no_pressure() -> None:
    [(_, text)] = found(machine(machine_cores=7.9))
    assert text.endswith("other programs keep 4.9 of its 8 processors busy")


def test_memory_that_is_waited_for_is_named() -> None:
    [(kind, text)] = found(machine(memory_pressure=0.12))
    assert kind == "memory_pressure"
    assert "waited for memory in 12% of the last minute" in text


def test_one_moment_is_not_enough() -> None:
    busy, calm = machine(steal=0.5), machine()
    moments = Used(0.0, {WORKER: calm}), Used(15.0, {WORKER: busy})
    assert list(shared_machines(*moments)) == []
