"""The page in a real browser, on a job with faults whose names and lines are hostile."""

import math
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.dashboard.browser import VIEWS, Browser, chromium
from helpers.dashboard.led_job import LedJob, Served, T, served
from ropewalk.core.process import events
from ropewalk.core.report import (
    GpuUsage,
    ProcessUsage,
    PsCounters,
    ShardCounters,
    TableCounters,
    TaskEnd,
    TaskReport,
)  # fmt: skip
from ropewalk.core.task import Outcome, Phase, TaskId
from ropewalk.launch.found_job import FoundJob
from ropewalk.launch.local.log_files import LogFiles
from ropewalk.worker.lead.status import write_status

pytestmark = pytest.mark.needs("chromium")

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"
TASKS = ("chief:0", "worker:0", "worker:1", "ps:0")


def _trouble(job: LedJob) -> None:
    """A worker has failed, another has diverged and is lost; every text is hostile."""
    chief, failed, lost = job.tasks
    job.report(
        chief, steps=40, global_step=100, total_steps=400, transports=(f"ps:0 tcp ({EVIL})",)
    )
    job.report(lost, steps=50, pushes=50, metrics={"loss": math.nan, EVIL: 1.5}, refused_pushes=3)
    job.client.finish(failed, TaskEnd(Outcome.LEFT, EVIL, 143), TaskReport(), timeout_s=T)
    used = ProcessUsage(memory_bytes=3 * 2**30, memory_limit_bytes=4 * 2**30, cores=1.5,
                        gpus=(GpuUsage(EVIL, 0.87, 2**30),))  # fmt: skip
    counters = PsCounters(shards=1, labels=(EVIL,), value_bytes=2**20, global_step=100,
                          tables=(TableCounters(EVIL, rows=7),), usage=used,
                          busiest=(ShardCounters(EVIL, 5, 2**20),))  # fmt: skip
    with job.server.locked_job.open() as (state, now):
        state.ps_answered(TaskId("ps", 0), 7, counters, now=now)
    for second in range(1, 40):
        job.history.add(1.7e9 + second, 1.0, {"job/steps_per_second": 10.0 + second, f"metrics/{EVIL}": 1.0, "metrics/loss": 2 / second})  # fmt: skip
    job.history.happened([events.Event(1.7e9 + 20, "task.lost", {"of": EVIL})])


@pytest.fixture
def job() -> Iterator[LedJob]:
    made = LedJob()
    _trouble(made)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    logs = LogFiles(str(tmp_path))
    logs.write(TaskId("worker", 0), f"ERROR {EVIL}")
    logs.write(TaskId("chief", 0), "all is well")
    logs.close()
    return tmp_path


@pytest.fixture
def page(job: LedJob, folder: Path) -> Iterator[Served]:
    found = job.found()
    with served(FoundJob(found.status, found.address, str(folder))) as made:
        yield made


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (360, True)], ids=["desk", "phone"])
def test_every_view_shows_a_job_in_trouble_and_obeys_none_of_its_texts(
    page: Served, width: int, dark: bool
) -> None:
    with chromium(width=width, dark=dark) as browser:
        browser.open(page.links[0])
        browser.wait_for("reports loss NaN", "#view")
        for name in VIEWS:
            text = browser.view(name)
            assert browser.page.evaluate("document.documentElement.scrollWidth") <= width, name
            assert browser.page.locator("main img, main script").count() == 0, name
            assert text.strip(), name
        assert_shown(browser)
        # An icon and the link itself belong to this host, too.
        assert {address.split("/")[2] for address in browser.asked} == {page.page.address[7:]}
        assert browser.said == []
        for selector in ("#phase", "nav a:not([aria-current])", "#numbers dt", "main p"):
            assert browser.contrast(selector) >= 4.5, selector


def assert_shown(browser: Browser) -> None:
    """What each view says of the trouble."""
    overview = browser.view("overview")
    assert "reports loss NaN" in overview
    assert "3 steps refused" in overview
    browser.page.wait_for_selector(".plot canvas")
    tasks = browser.view("tasks")
    assert all(task in tasks for task in TASKS)
    assert EVIL in tasks
    assert all(text in tasks for text in ("3.0 GiB", "1.5", "87 %"))
    assert f"tcp ({EVIL})" in browser.view("topology")
    variables = browser.view("variables")
    assert variables.count(EVIL) == 3  # a shard, one that is busy, and a table
    assert "Busiest shards" in variables
    assert "1.0 MiB" in variables
    browser.view("events")
    browser.wait_for("task.lost", "main")
    browser.view("logs")
    browser.wait_for(EVIL, "main")
    browser.page.select_option("#log-level", "3")
    assert "all is well" not in browser.page.inner_text("main")
    browser.page.select_option("#log-level", "0")
    browser.page.fill("#log-text", "well")
    assert EVIL not in browser.page.inner_text(".lines")


def test_a_change_in_the_job_is_on_the_page(job: LedJob, page: Served) -> None:
    with chromium() as browser:
        browser.open(page.links[0])
        browser.wait_for("100 / 400", "#numbers")
        job.report(job.tasks[0], steps=90, global_step=100, total_steps=500)
        browser.wait_for("100 / 500", "#numbers")
        job.server.stop(grace_s=0)
        browser.wait_for("does not answer", "#reason")


def test_more_tabs_than_a_browser_has_connections_hear_a_change(job: LedJob, page: Served) -> None:
    with chromium() as browser:
        browser.open(page.links[0])
        tabs = [browser.page, *(browser.page.context.new_page() for _ in range(7))]
        for tab in tabs[1:]:
            tab.bring_to_front()
            tab.goto(page.page.address)
            tab.wait_for_selector("#numbers dd")
        job.report(job.tasks[0], steps=90, global_step=100, total_steps=600)
        for tab in (tabs[0], tabs[-1]):  # one that was hidden, and one after it
            tab.bring_to_front()
            tab.wait_for_function(
                "() => document.querySelector('#numbers').textContent.includes('100 / 600')"
            )
        assert page.feed.pages <= 1


def test_keys_reach_views_and_sort_tables(page: Served) -> None:
    with chromium() as browser:
        browser.open(page.links[0])
        browser.page.keyboard.press("Tab")
        assert browser.page.evaluate("document.activeElement.textContent") == "Skip to the view"
        browser.view("tasks")
        browser.page.focus("thead th:nth-child(5) button")
        browser.page.keyboard.press("Enter")
        head = browser.page.locator("thead th:nth-child(5)")
        assert head.get_attribute("aria-sort") == "descending"
        assert browser.page.inner_text("tbody tr:first-child th") == "worker:1"


def test_a_job_that_is_over_is_shown_with_its_curves(job: LedJob, folder: Path) -> None:
    (folder / "history.json").write_bytes(job.history.as_file())
    with job.server.locked_job.open() as (state, _):
        state.fail(f"a worker failed: {EVIL}")
    write_status(str(folder), job.client)
    status = job.client.status(timeout_s=T)
    assert status.phase is Phase.FAILED
    with served(FoundJob(status, folder=str(folder))) as page, chromium() as browser:
        browser.open(page.links[0])
        browser.wait_for(EVIL, "#reason")
        browser.page.wait_for_selector(".plot canvas")
        assert browser.said == []
        shutil.rmtree(folder / "logs")
