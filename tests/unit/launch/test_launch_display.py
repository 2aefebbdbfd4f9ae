"""What a launcher shows: lines, tables, numbers."""

import io
import re
import unicodedata
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from rich.table import Table

from helpers.strategies import text_of
from ropewalk.client.chief.calls import JobStatus, TaskStatus
from ropewalk.cluster.replication.configuration import Move, MovePhase, ShareLeader
from ropewalk.core.report import (
    CutCounts,
    GpuUsage,
    ProcessUsage,
    PsCounters,
    TableCounters,
    TaskReport,
)
from ropewalk.core.step_times import StepPart
from ropewalk.core.task import Phase, State, TaskId
from ropewalk.core.versions import own_versions
from ropewalk.launch.local.result import LocalResult, failure_text, result_table
from ropewalk.launch.local.watch import Waits
from ropewalk.launch.screen.display import RichDisplay, TerminalConsole
from ropewalk.launch.screen.numbers import fitted, numbers
from ropewalk.launch.screen.plain import Display, PlainDisplay
from ropewalk.launch.screen.status_table import (
    human_bytes,
    human_seconds,
    human_time,
    placement_text,
    status_lines,
    status_table,
    step_table,
    usage_table,
)

PS, CHIEF, WORKER = TaskId("ps", 0), TaskId("chief", 0), TaskId("worker", 11)
EVALUATOR = TaskId("evaluator", 0)
TASKS = [PS, CHIEF, WORKER]


def task_status(task: TaskId, **changes: object) -> TaskStatus:
    plain = TaskStatus(
        task=task,
        state=State.ALIVE,
        since_s=75.0,
        address="127.0.0.1:2222",
        detail="",
        generation=1,
        report=TaskReport(),
        counters=None,
        pid=1,
        host="here",
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def job_status(*tasks: TaskStatus, **changes: object) -> JobStatus:
    plain = JobStatus(
        phase=Phase.RUNNING,
        reason="",
        age_s=10.0,
        global_step=120,
        total_steps=300,
        tasks=tasks,
        last_checkpoint="",
        last_checkpoint_step=0,
        versions=own_versions(),
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def trainer(task: TaskId, **changes: object) -> TaskStatus:
    report = TaskReport(steps=10, pushes=9, bytes_pushed=2048, bytes_pulled=100)
    return task_status(task, report=replace(report, **changes))  # type: ignore[arg-type]


def rendered(table: Table, width: int = 200) -> str:
    console = TerminalConsole(file=io.StringIO(), width=width, color_system=None)
    console.print(table)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


# -- numbers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (5 * 1024**2, "5.0 MiB"),
        (3.25 * 1024**3, "3.2 GiB"),
        (2 * 1024**4, "2.0 TiB"),
        (5000 * 1024**4, "5000.0 TiB"),
    ],
)
def test_bytes_are_told_in_binary_units(count: float, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (9.5, "9.5s"),
        (10.0, "10s"),
        (59.9, "59s"),
        (60, "1m00s"),
        (75, "1m15s"),
        (3599, "59m59s"),
        (3600, "1h00m"),
        (7261, "2h01m"),
    ],
)
def test_ages_are_told_in_two_parts(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_the_numbers_line_before_anybody_has_stepped() -> None:
    status = job_status(task_status(CHIEF), total_steps=0, global_step=0)
    assert numbers(status, 0.0) == ["step 0"]


def test_the_numbers_line_says_for_whom_the_chief_waits() -> None:
    waiting = "waiting for worker:0, worker:1"
    status = job_status(task_status(CHIEF), global_step=0, total_steps=0, reason=waiting)
    assert numbers(status, 0.0) == [waiting, "step 0"]
    assert numbers(replace(status, phase=Phase.STOPPING), 0.0) == ["step 0"]


def test_the_numbers_line_averages_what_is_reported_over_those_who_train() -> None:
    status = job_status(
        task_status(PS),
        trainer(CHIEF, metrics={"accuracy": 0.5, "loss": 1.0}, staleness=1.0),
        trainer(WORKER, metrics={"accuracy": 0.75, "loss": 2.0}, staleness=2.0),
        trainer(EVALUATOR, metrics={"loss": 99.0}, staleness=99.0),
    )
    line = "step 120/300 · 42 steps/s · loss 1.5 · accuracy 0.625 · staleness 1.5"
    assert fitted(numbers(status, 41.6)) == line
    assert fitted(numbers(status, 41.6), 45) == "step 120/300 · 42 steps/s · loss 1.5"
    assert fitted(numbers(status, 41.6), 5) == "step 120/300"


def test_a_small_loss_and_a_slow_job_keep_their_digits() -> None:
    status = job_status(trainer(CHIEF, metrics={"loss": 1.234e-7}))
    assert numbers(status, 0.34)[1:3] == ["0.3 steps/s", "loss 1.234e-07"]


@pytest.mark.parametrize("phase", [Phase.DONE, Phase.FAILED, Phase.STOPPED], ids=str)
def test_a_job_that_is_over_has_no_speed(phase: Phase) -> None:
    assert numbers(job_status(task_status(PS), trainer(CHIEF), phase=phase), 12.0) == [
        "step 120/300",
        "staleness 0.0",
    ]


def test_a_job_in_sync_has_no_staleness() -> None:
    assert numbers(job_status(trainer(CHIEF), trainer(WORKER)), 0.0) == ["step 120/300"]


def test_the_numbers_line_says_what_steps_wait_for() -> None:
    line = numbers(job_status(trainer(CHIEF, metrics={"loss": 1.5})), 41.6, "data 61 %")
    assert line == ["step 120/300", "42 steps/s", "data 61 %", "loss 1.5"]
    over = job_status(trainer(CHIEF), phase=Phase.DONE)
    assert numbers(over, 41.6, "data 61 %") == ["step 120/300"]


def spent(age_s: float, *seconds: dict[str, float]) -> JobStatus:
    """A status at which workers have spent so many seconds in parts of their steps."""
    workers = (
        trainer(
            TaskId("worker", number),
            step_parts=tuple(StepPart(name, value, (1,)) for name, value in parts.items()),
        )
        for number, parts in enumerate(seconds)
    )
    return job_status(*workers, age_s=age_s)


def test_the_largest_wait_is_that_of_the_last_seconds_over_all_workers() -> None:
    waits = Waits()
    assert waits.of(spent(1, {"step": 1.0, "compute": 1.0})) == ""
    data = {"step": 4.0, "compute": 2.0, "data": 2.0}
    assert waits.of(spent(3, data, {"step": 1.0, "data": 1.0})) == "data 75 %"
    later = {"step": 10.0, "compute": 8.0, "data": 2.0}
    assert waits.of(spent(5, later, {"step": 1.0, "data": 1.0})) == ""
    # What was more than ten seconds ago does not count, and a task that began anew takes none off.
    assert waits.of(spent(14, later | {"step": 12.0, "push": 2.0}, {"step": 0.5})) == "push 100 %"


def test_refused_pushes_come_before_what_may_not_fit() -> None:
    status = job_status(trainer(CHIEF, refused_pushes=2), trainer(WORKER, refused_pushes=3))
    assert numbers(status, 1.0)[1] == "refused 5"


# -- tables ----------------------------------------------------------------------------------

COUNTERS = PsCounters(
    pushes=7,
    bytes_in=1024,
    bytes_out=4096,
    shards=3,
    value_bytes=8500,
    slot_bytes=17000,
    labels=("w1", "b1"),
)


def rows_of(table: Table, width: int = 200) -> dict[str, str]:
    """First word of a line → the line."""
    lines = rendered(table, width).splitlines()
    return {line.split()[0]: line for line in lines if line.split()}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 µs"),
        (2.4e-6, "2.4 µs"),
        (123e-6, "123 µs"),
        (0.9994e-3, "999 µs"),
        (1.25e-3, "1.2 ms"),
        (0.0147, "15 ms"),
        (0.9996, "1 s"),
        (2.34, "2.3 s"),
        (75.0, "75 s"),
    ],
)
def test_times_of_steps_are_told_with_two_digits(seconds: float, text: str) -> None:
    assert human_time(seconds) == text


STEP_PARTS = (
    StepPart("data", 0.6, (*[0] * 25, 10)),
    StepPart("compute", 0.25, (*[0] * 23, 10)),
    StepPart("push", 0.15, (*[0] * 21, 10)),
    StepPart("step", 1.0, (*[0] * 26, 9, 1)),
)


def test_the_table_of_steps_says_how_long_they_take_and_where_their_time_goes() -> None:
    status = job_status(task_status(PS), trainer(CHIEF), trainer(WORKER, step_parts=STEP_PARTS))
    table = step_table(status)
    assert table is not None
    head, _, row = rendered(table).splitlines()
    names = ["task", "p50", "p90", "p99", "data", "pull", "compute", "push", "others", "checkpoint"]
    assert head.split() == names
    shown = ["worker:11", "7.3", "ms", "8.4", "ms", "12", "ms", "60%", "25%", "15%"]
    assert row.split() == shown
    narrow = step_table(status, 80)
    assert narrow is not None
    assert "p90" not in rendered(narrow, 80)
    assert all(len(line) <= 80 for line in rendered(narrow, 80).splitlines())
    assert step_table(job_status(task_status(PS), trainer(CHIEF))) is None


def test_the_table_of_use_says_what_tasks_have_of_their_machines() -> None:
    used = ProcessUsage(
        memory_bytes=3 * 2**30, memory_limit_bytes=4 * 2**30, memory_left_bytes=2**30,
        cores=1.26, machine_cpus=8, machine_cores=4.0,
    )  # fmt: skip
    gpus = GpuUsage("GPU-a", 0.87, 0, 2**30, 80 * 2**30), GpuUsage("MIG-b", -1.0, 2**30)
    ps = task_status(PS, counters=replace(COUNTERS, usage=used))
    status = job_status(ps, trainer(CHIEF, usage=replace(used, gpus=gpus)), trainer(WORKER))
    table = usage_table(status)
    assert table is not None
    head, _, first, second = rendered(table).splitlines()
    assert head.split() == ["task", "memory", "of", "left", "cores", "busy", "GPU", "its", "memory"]
    shown = "3.0 GiB 4.0 GiB 1.0 GiB 1.3 4.0 of 8"
    assert " ".join(first.split()) == f"ps:0 {shown}"
    assert " ".join(second.split()) == f"chief:0 {shown} 87%, ? 2.0 GiB of 80.0 GiB"
    assert all(len(line) <= 80 for line in rendered(table, 80).splitlines())
    assert usage_table(job_status(trainer(WORKER))) is None


FULL_STATUS = job_status(
    task_status(PS, counters=COUNTERS),
    trainer(CHIEF, metrics={"loss": 0.25}),
    task_status(WORKER, state=State.LOST, detail="no sign of life for 11 s"),
    last_checkpoint="runs/x/ckpt-0000000100",
)


def test_the_status_table_has_every_task_with_state_age_and_numbers() -> None:
    assert status_lines(FULL_STATUS) == [
        "job running for 10s · global step 120/300 · chief 127.0.0.1:2222",
        "checkpoint runs/x/ckpt-0000000100",
    ]
    rows = rows_of(status_table(FULL_STATUS))
    assert [name for name in rows if ":" in name] == ["ps:0", "chief:0", "worker:11"]
    for word in ("alive", "1m15s", "127.0.0.1:2222", "7", "4.0 KiB", "1.0 KiB", "w1, b1, …"):
        assert word in rows["ps:0"]
    for word in ("10", "9", "2.0 KiB", "100 B", "loss 0.25"):
        assert word in rows["chief:0"]
    assert "lost" in rows["worker:11"]
    assert "no sign of life for 11 s" in rows["worker:11"]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"copied_bytes": 1024, "total_bytes": 4096}, ": copied 1.0 KiB of 4.0 KiB"),
        ({"phase": MovePhase.HANDING_OVER}, ": handing over"),
        ({"phase": MovePhase.DONE, "seconds": 0.213}, " took 0.21 s"),
        (
            {"phase": MovePhase.FAILED, "reason": "it does not answer"},
            " failed: it does not answer",
        ),
    ],
)
def test_the_last_move_of_a_share_is_shown(changes: dict[str, Any], line: str) -> None:
    move = Move(1, 0, TaskId("ps", 0), TaskId("ps", 2), **changes)
    led = ShareLeader(0, 3, TaskId("ps", 2), "p:2")
    status = replace(FULL_STATUS, shares=(led,), ps_replicas=2, move=move)
    assert status_lines(status)[-3:] == [
        "0 of 1 share has 2 replicas",
        "share 0: ps:2 leads, no follower yet",
        f"the move of share 0 from ps:0 to ps:2{line}",
    ]


def test_shares_are_shown_by_ps_where_they_are_many_or_have_no_followers() -> None:
    ps = [TaskId("ps", index) for index in range(2)]
    alone = tuple(ShareLeader(share, 1, ps[share % 2], "p:1") for share in range(5))
    assert status_lines(replace(FULL_STATUS, shares=alone))[-3:] == [
        "5 shares of the variables",
        "ps:0 leads shares 0, 2, 4",
        "ps:1 leads shares 1, 3",
    ]
    followed = (*(replace(each, leader=ps[0], followers=(ps[1],)) for each in alone[:4]), alone[4])
    assert status_lines(replace(FULL_STATUS, shares=followed, ps_replicas=2))[-4:] == [
        "4 of 5 shares have 2 replicas",
        "ps:0 leads shares 0, 1, 2, 3, 4",
        "ps:1 leads no share, follows 0, 1, 2, 3",
        "share 4: ps:0 leads, no follower yet",
    ]


def test_failovers_handovers_and_cuts_are_counted() -> None:
    led = (ShareLeader(0, 3, TaskId("ps", 1), "p:2"),)
    cuts = CutCounts(12, 1, 0.034, "worker:1 did not join in 2 s")
    status = replace(
        FULL_STATUS, shares=led, failovers=1, last_failover_s=0.091, handovers=2, cuts=cuts
    )
    assert status_lines(status)[-4:] == [
        "1 share of the variables · 1 failover, the last took 0.09 s · 2 handed over",
        "ps:1 leads shares 0",
        "12 consistent cuts, the last took 0.03 s",
        "1 cut came to nothing, the last since worker:1 did not join in 2 s",
    ]


def test_in_eighty_columns_the_status_is_a_line_per_task() -> None:
    table = status_table(FULL_STATUS, 80)
    assert [line.rstrip() for line in rendered(table, 80).splitlines()] == [
        "task        state   since   steps   detail",
        "────────────────────────────────────────────────────────────────────────────────",
        "ps:0        alive   1m15s           3 shards, 8.3 KiB + 16.6 KiB slots: w1, b1,",
        "                                    …",
        "chief:0     alive   1m15s      10   loss 0.25",
        "worker:11   lost    1m15s           no sign of life for 11 s",
    ]


def test_the_loss_comes_first_and_other_metrics_by_name() -> None:
    metrics = {"recall": 0.5, "auc": 0.75, "loss": 0.25}
    text = rendered(status_table(job_status(trainer(CHIEF, metrics=metrics))))
    assert "loss 0.25 · auc 0.75 · recall 0.5" in text


def test_after_its_end_a_job_has_no_task_that_is_alive() -> None:
    status = job_status(task_status(PS), task_status(CHIEF, state=State.DONE), phase=Phase.DONE)
    text = rendered(status_table(status))
    assert "ended" in text
    assert "alive" not in text


@pytest.mark.parametrize("state", list(State), ids=str)
def test_the_status_table_knows_every_state(state: State) -> None:
    assert str(state) in rendered(status_table(job_status(task_status(WORKER, state=state))))


def test_the_reason_is_told_and_square_brackets_are_not_markup() -> None:
    reason = "/job:worker/task:0 failed: ValueError: [/red] [bold]odd"
    status = job_status(task_status(WORKER, detail=reason), phase=Phase.FAILED, reason=reason)
    assert status_lines(status)[-1] == reason
    assert "[/red] [bold]odd" in rendered(status_table(status))


@pytest.mark.parametrize(
    ("counters", "text"),
    [
        pytest.param(PsCounters(), "0 shards, 0 B", id="empty"),
        pytest.param(
            PsCounters(shards=1, value_bytes=16, labels=("w",)), "1 shard, 16 B: w", id="one"
        ),
        pytest.param(COUNTERS, "3 shards, 8.3 KiB + 16.6 KiB slots: w1, b1, …", id="more"),
        pytest.param(
            PsCounters(
                shards=2,
                tables=(
                    TableCounters("users", rows=7, num_bytes=2048, evicted=3, refused=5, full=1),
                    TableCounters("ads", rows=9, num_bytes=1024, disk_bytes=3 << 20),
                ),
            ),
            "2 shards, 0 B · users 7 rows, 2.0 KiB, 3 evicted, 5 refused, 1 no room"
            " · ads 9 rows, 1.0 KiB + 3.0 MiB on disk",
            id="tables",
        ),
    ],
)  # fmt: skip
def test_a_ps_tells_what_it_holds(counters: PsCounters, text: str) -> None:
    assert placement_text(task_status(PS, counters=counters)) == text
    assert placement_text(task_status(WORKER)) == ""


def test_the_result_table_tells_exits_as_a_shell_would_and_why() -> None:
    result = LocalResult(
        exit_code=137,
        exits={PS: -9, CHIEF: 138, WORKER: 0, EVALUATOR: 143},
        model_dir="runs/x",
        first_failure=PS,
        status=job_status(trainer(WORKER)),
    )
    rows = rows_of(result_table(result))
    assert [name for name in rows if ":" in name] == ["ps:0", "chief:0", "worker:11", "evaluator:0"]
    assert "137" in rows["ps:0"]
    assert "killed by SIGKILL" in rows["ps:0"]
    assert "ended with the job" in rows["chief:0"]
    assert "2.0 KiB" in rows["worker:11"]
    assert "143" in rows["evaluator:0"]


def test_the_first_failure_is_shown_once_and_the_same_one_of_others_is_named() -> None:
    mistake = "Traceback (most recent call last):\n  File x\nValueError: no good\n"
    result = LocalResult(
        exit_code=1,
        exits={PS: 138, CHIEF: 1, WORKER: 1, EVALUATOR: 2},
        model_dir="runs/x",
        first_failure=WORKER,
        errors={WORKER: mistake, CHIEF: mistake, EVALUATOR: "ConfigurationError: no model_dir"},
    )
    assert failure_text(result).splitlines() == [
        "worker:11 failed first: exit code 1, the user's program raised an exception",
        "    Traceback (most recent call last):",
        "      File x",
        "    ValueError: no good",
        "chief:0 failed in the same way",
        "evaluator:0 failed too: ConfigurationError: no model_dir",
    ]


def test_a_long_error_keeps_its_beginning_and_its_end() -> None:
    text = "\n".join(f"line {i}" for i in range(100))
    lines = failure_text(LocalResult(1, {CHIEF: 1}, "x", CHIEF, errors={CHIEF: text})).splitlines()
    assert len(lines) <= 20
    assert lines[1].strip() == "line 0"
    assert lines[-1].strip() == "line 99"


def test_the_result_table_of_a_job_whose_chief_never_answered() -> None:
    text = rendered(result_table(LocalResult(2, {CHIEF: 2}, "runs/x", CHIEF)))
    assert "wrong usage or configuration" in text


# -- displays --------------------------------------------------------------------------------


def test_plain_lines_are_prefixed_by_task_and_aligned() -> None:
    stream = io.StringIO()
    display = PlainDisplay(TASKS, stream)
    display.line(PS, "ready", is_error=True)
    display.line(WORKER, "x [bold] │", is_error=False)
    display.say("the end", is_error=True)
    display.close()
    assert stream.getvalue() == "     ps:0 | ready\nworker:11 | x [bold] │\nthe end\n"


def test_plain_lines_have_no_colours_and_plain_tables_the_width_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keras' bar has colours wherever it is printed to."""
    stream = io.StringIO()
    display = PlainDisplay(TASKS, stream)
    display.line(
        PS, "\x1b[1m20/20\x1b[0m \x1b[32m━━\x1b[0m\x1b[37m\x1b[0m loss: 0.1", is_error=False
    )
    assert stream.getvalue() == "     ps:0 | 20/20 ━━ loss: 0.1\n"
    monkeypatch.setenv("COLUMNS", "80")
    assert display.width == 80
    monkeypatch.setenv("COLUMNS", "200")
    assert display.width == 120


def test_plain_progress_comes_every_two_seconds_and_only_when_it_changed() -> None:
    stream = io.StringIO()
    display = PlainDisplay(TASKS, stream)
    for age_s, step in [(0.1, 1), (0.4, 2), (2.2, 3), (4.5, 3), (4.6, 4)]:
        display.progress(job_status(age_s=age_s, global_step=step), 0.0)
    assert [line.split(" · ")[0] for line in stream.getvalue().splitlines()] == [
        "running: step 1/300",
        "running: step 3/300",
        "running: step 4/300",
    ]


def test_plain_tables_have_no_colour_codes() -> None:
    stream = io.StringIO()
    PlainDisplay(TASKS, stream).table(status_table(job_status(task_status(WORKER))))
    assert "worker:11" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def rich_display(*, terminal: bool = True) -> tuple[RichDisplay, io.StringIO]:
    stream = io.StringIO()
    console = TerminalConsole(file=stream, force_terminal=terminal, width=100)
    return RichDisplay(TASKS, console), stream


def test_rich_lines_keep_what_looks_like_markup_and_are_never_cut() -> None:
    display, stream = rich_display(terminal=False)
    long = "[/nothing] array([1, 2]) " + "x" * 300
    display.line(WORKER, long, is_error=False)
    display.say("[not markup]", is_error=True)
    display.table(status_table(job_status(task_status(WORKER))))
    display.close()
    lines = stream.getvalue().splitlines()
    assert f"worker:11 │ {long}" in lines
    assert "[not markup]" in lines
    assert any("alive" in line for line in lines)


@pytest.mark.parametrize("total", [0, 300], ids=["goal unknown", "goal known"])
def test_the_bar_shows_phase_and_numbers_and_is_gone_at_the_end(total: int) -> None:
    display, stream = rich_display()
    display.progress(job_status(trainer(CHIEF, metrics={"loss": 0.5}), total_steps=total), 42.0)
    display.line(PS, "a line above the bar", is_error=False)
    display.close()
    text = stream.getvalue()
    assert "running" in text
    assert "42 steps/s" in text
    assert "loss 0.5" in text
    assert "a line above the bar" in text
    assert "━" in text
    assert text.rstrip("\r").endswith("\x1b[2K")  # transient: the last thing is to wipe the line


NASTY = text_of("\x1b\x9b\x9d\x07\\][Pc052;mJH/ \r\n\b\x00\u202e\ud800é", max_size=30)
CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"
OPEN_MARKUP = "[/red]"  # an error, where markup has a meaning


def shows_it_all(display: Display, nasty: str) -> None:
    """Everything that a display shows, with a text of somebody else in each place."""
    status = job_status(
        trainer(CHIEF, metrics={nasty: 0.5}, transports=(nasty, f"ps:0 {nasty}")),
        task_status(PS, counters=replace(COUNTERS, labels=(nasty,)), address=nasty),
        task_status(WORKER, detail=nasty),
        reason=nasty, last_checkpoint=nasty, security=nasty,
    )  # fmt: skip
    result = LocalResult(
        1, {CHIEF: 1, WORKER: 0, EVALUATOR: 0}, nasty, CHIEF, status, {nasty: 1.0}, {CHIEF: nasty}
    )
    display.line(WORKER, nasty, is_error=False)
    display.line(TaskId(nasty, 0), "x", is_error=True)
    display.say(failure_text(result), is_error=True)
    for line in status_lines(status):
        display.say(line)
    display.progress(status, 1.0)
    display.table(status_table(status, display.width))
    display.table(result_table(result, display.width))
    display.close()


@given(NASTY)
@example(CLIPBOARD)
@example(OPEN_MARKUP)
@example(":smile:")
def test_whatever_others_say_a_pipe_gets_text_alone(nasty: str) -> None:
    stream = io.StringIO()
    shows_it_all(PlainDisplay(TASKS, stream), nasty)
    plain = stream.getvalue()
    display, stream = rich_display(terminal=False)
    shows_it_all(display, nasty)
    for text in (plain, stream.getvalue()):
        text.encode()
        assert not [c for c in text if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
        assert "\u202e" not in text


@given(NASTY)
@example(CLIPBOARD)
@example("\x1bc")
@example("\x9b2J")
@example(OPEN_MARKUP)
def test_whatever_others_say_a_terminal_is_steered_by_rich_alone(nasty: str) -> None:
    display, stream = rich_display()
    shows_it_all(display, nasty)
    text = stream.getvalue()
    text.encode()
    # Colours and styles; the cursor up, at a column, shown and hidden; wiping a line.
    rest = re.sub(r"\x1b\[([0-9;]*m|[0-9]*A|1?G|\?25[hl]|2K)|\r", "", text)
    assert not [c for c in rest if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]


def test_a_program_s_colours_are_its_line_s_on_a_terminal() -> None:
    display, stream = rich_display()
    display.line(WORKER, "\x1b[31mred\x1b[2J for ever", is_error=False)
    display.line(WORKER, "not red", is_error=False)
    display.close()
    lines = [line for line in stream.getvalue().splitlines() if "red" in line]
    assert re.search(r"\x1b\[31mred for ever\x1b\[0m", lines[0])
    assert re.search(r"│ not red$", lines[1])


def test_a_step_beyond_the_goal_does_not_overfill_the_bar() -> None:
    display, stream = rich_display()
    display.progress(job_status(global_step=302), 1.0)
    display.close()
    assert "step 302/300" in stream.getvalue()


def test_closing_twice_is_harmless() -> None:
    display, _ = rich_display()
    display.close()
    display.close()
