"""``ropewalk top``: what its rows say, its keys, and a terminal that is left as it was."""

import asyncio
import os
import pty
import re
import select
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from textual.widgets import DataTable, Static

from helpers.dashboard.led_job import LedJob, T
from helpers.processes import ROPEWALK
from helpers.waiting import scaled
from ropewalk.annexes.dashboard.top_rows import Cell, Looks, head_text, sort, task_rows
from ropewalk.annexes.dashboard.top_screen import TopApp
from ropewalk.annexes.dashboard.watched_job import WatchedJob
from ropewalk.core.report import PsCounters
from ropewalk.core.task import TaskId
from ropewalk.launch.cli import ropewalk
from ropewalk.launch.found_job import JobAsker
from ropewalk.worker.lead.status import write_status

EVIL = "\x1b]0;title\x07\x1b[2J[bold]x[/bold]"


@pytest.fixture
def job() -> Iterator[LedJob]:
    made = LedJob()
    chief, one, other = made.tasks
    made.report(chief, steps=10, global_step=30, total_steps=100)
    made.report(one, steps=5, metrics={EVIL: 1.0})
    made.report(other, steps=15, metrics={"loss": 0.5})
    counters = PsCounters(shards=1, labels=(EVIL,), global_step=30, value_bytes=1024)
    with made.server.locked_job.open() as (state, now):
        state.ps_answered(TaskId("ps", 0), 7, counters, now=now)
    yield made
    made.close()


def test_rates_are_of_what_happened_between_two_looks(job: LedJob) -> None:
    before = job.found().status
    job.report(job.tasks[1], steps=25, global_step=30)
    looks = Looks(job.found().status, before, 4.0)
    speeds = {row[0].text: row[3].order for row in task_rows(looks)}
    assert speeds == {"chief:0": 0.0, "worker:0": 5.0, "worker:1": 0.0}


def test_the_head_says_how_long_is_left(job: LedJob) -> None:
    now = job.found().status
    looks = Looks(replace(now, global_step=60), replace(now, global_step=40), 2.0)
    assert "step 60/100 · 10.0 steps/s · 4.0s left" in head_text(looks, "")
    assert head_text(looks, "it does not answer").endswith("\nit does not answer")


def test_rows_are_sorted_by_numbers_and_the_same_by_task() -> None:
    rows = [[Cell(task, ""), Cell(number, "")] for task, number in ((3, 10), (1, 9), (2, 10))]
    assert [row[0].order for row in sort(rows, 1, down=True)] == [2, 3, 1]
    assert [row[0].order for row in sort(rows, 1, down=False)] == [1, 2, 3]


def test_keys_choose_tables_and_columns_and_text_of_others_is_plain(job: LedJob) -> None:
    watched = WatchedJob(job.found(), JobAsker(job.settings, T))

    def first(app: TopApp) -> list[str]:
        table = app.query_one(DataTable)
        return [str(table.get_row_at(row)[0]) for row in range(table.row_count)]

    async def drive() -> None:
        app = TopApp(watched, every_s=3600)
        async with app.run_test(size=(80, 24)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            assert "step 30/100" in str(app.query_one("#head", Static).content)
            assert first(app) == ["chief:0", "worker:0", "worker:1"]
            for _ in range(4):
                await pilot.press("s")
            assert first(app) == ["worker:1", "chief:0", "worker:0"]  # by steps, most first
            await pilot.press("r")
            assert first(app) == ["worker:0", "chief:0", "worker:1"]
            says = str(app.query_one(DataTable).get_row_at(0)[-1])
            assert says == "[bold]x[/bold] 1"
            await pilot.press("p")
            assert first(app) == ["ps:0"]
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(asyncio.wait_for(drive(), scaled(60)))
    watched.close()


@pytest.mark.real_start
def test_q_quits_and_leaves_the_terminal_as_it_was(job: LedJob, tmp_path: Path) -> None:
    write_status(str(tmp_path), job.client)
    with job.server.locked_job.open() as (state, _):
        state.fail("a disk was full")
    write_status(str(tmp_path), job.client)
    master, slave = pty.openpty()
    command = [*ROPEWALK, "top", str(tmp_path)]
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24"}
    with subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        shown, asked = b"", False
        while select.select([master], [], [], scaled(60))[0]:
            try:
                data = os.read(master, 65536)
            except OSError:  # the other side is closed
                break
            shown += data
            if b"a disk was full" in shown and not asked:
                asked = True
                os.write(master, b"q")
        assert process.wait(scaled(30)) == 0
    os.close(master)
    text = shown.decode(errors="replace")
    assert "worker:1" in text
    # The other screen, the hidden cursor and the mouse: what was switched on is off again.
    for mode in ("1049", "25", "1000", "1003", "2004"):
        switches = re.findall(rf"\x1b\[\?{mode}([hl])", text)
        on, off = ("l", "h") if mode == "25" else ("h", "l")
        assert on not in switches or switches[-1] == off, mode


def test_in_a_pipe_it_says_what_to_use_instead(tmp_path: Path) -> None:
    from click.testing import CliRunner

    result = CliRunner().invoke(ropewalk, ["top", str(tmp_path)])
    assert "ropewalk status" in str(result.exception)
