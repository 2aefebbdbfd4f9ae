"""The page and the terminal of a cluster: a list of its jobs, each of which opens by its name."""

import asyncio
import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from textual.widgets import DataTable, Static

from helpers import processes
from helpers.dashboard.led_job import SETTINGS, LedJob, Served, T, Visitor, served
from helpers.waiting import scaled, wait_until
from ropewalk.annexes.dashboard.top_screen import JobScreen, JobsScreen, TopApp
from ropewalk.annexes.dashboard.watched_cluster import MOST_JOBS, WatchedCluster
from ropewalk.core.errors import ConfigurationError, PeerLostError
from ropewalk.launch.found_job import JobAsker, ListedJob
from ropewalk.net.this_machine import free_ports
from ropewalk.worker.lead.status import write_status


class Cluster:
    """A cluster with a job that runs, one that waits, one that has ended and one without a way."""

    where = "gate.lab:2222"

    def __init__(self, address: str, folder: Path) -> None:
        self.address = address
        self.is_there = True
        self.open = 0
        ended = ListedJob("over-1", "ended", "0 of 3", "ann", 1e9, 1e9 + 60, "done", str(folder))
        self.listed = [
            ended,
            ListedJob("train-2", "running", "3 of 3", "ann", 1e9, folder=str(folder / "other")),
            ListedJob("next-3", "queued", why="it waits for 2 workers"),
            *(ListedJob(f"more-{number}", "running") for number in range(MOST_JOBS)),
        ]

    def jobs(self) -> list[ListedJob]:
        if not self.is_there:
            raise PeerLostError("no answer within 5 s")
        return self.listed

    @contextmanager
    def way_to(self, job: str) -> Iterator[str]:
        if job in ("over-1", "next-3"):
            raise ConfigurationError(f"{job} has no chief to ask")
        self.open += 1
        try:
            yield self.address
        finally:
            self.open -= 1


@pytest.fixture
def job() -> Iterator[LedJob]:
    made = LedJob()
    made.report(made.tasks[0], steps=10, global_step=30, total_steps=100)
    yield made
    made.close()


@pytest.fixture
def cluster(job: LedJob, tmp_path: Path) -> Cluster:
    return Cluster(job.address, tmp_path)


@pytest.fixture
def page(cluster: Cluster) -> Iterator[Served]:
    with served(WatchedCluster(cluster, JobAsker(SETTINGS, T))) as made:
        made.open(made.links[0])
        yield made


def test_the_first_page_lists_all_jobs_the_newest_first(cluster: Cluster, page: Served) -> None:
    found = page.json("/api/jobs")
    assert found["where"] == cluster.where
    assert [each["id"] for each in found["jobs"]] == [each.id for each in cluster.listed[::-1]]
    assert found["jobs"][-3]["why"] == "it waits for 2 workers"
    assert b"jobs.js" in page.get("/")[2]


def test_a_job_opens_below_its_name_and_its_way_is_closed_with_the_page(
    job: LedJob, cluster: Cluster
) -> None:
    with served(WatchedCluster(cluster, JobAsker(SETTINGS, T))) as page:
        assert page.get("/job/train-2/api/job")[0] == 403
        page.open(page.links[0])
        assert b"main.js" in page.get("/job/train-2/")[2]
        job.report(job.tasks[0], steps=20, global_step=40, total_steps=100)
        assert page.json("/job/train-2/api/job")["status"]["global_step"] == 40
        assert cluster.open == 1  # for all that one page asks for
    assert cluster.open == 0


def test_a_job_that_has_ended_opens_by_its_folder(
    job: LedJob, page: Served, tmp_path: Path
) -> None:
    with job.server.locked_job.open() as (state, _):
        state.fail("a disk was full")
    write_status(str(tmp_path), job.client)
    assert page.json("/job/over-1/api/job")["status"]["reason"] == "a disk was full"


@pytest.mark.parametrize(
    ("name", "why"),
    [("next-3", "next-3 has no chief to ask"), ("strange", "lists no job 'strange'")],
)
def test_a_job_that_cannot_be_shown_says_why(page: Served, name: str, why: str) -> None:
    status, headers, body = page.get(f"/job/{name}/")
    assert status == 404
    assert why in body.decode()
    assert headers["content-type"].startswith("text/plain")


def test_only_so_many_jobs_are_open_at_once(cluster: Cluster, page: Served) -> None:
    for each in cluster.listed[2:]:
        page.get(f"/job/{each.id}/")
    assert page.get("/job/train-2/")[0] == 200
    assert cluster.open == MOST_JOBS


def test_a_cluster_that_does_not_answer_leaves_the_last_list_and_a_note(
    cluster: Cluster,
) -> None:
    watched = WatchedCluster(cluster, JobAsker(SETTINGS, T), anew_s=0.0)
    before, note = watched.jobs()
    assert note == ""
    cluster.is_there = False
    after, note = watched.jobs()
    assert after == before
    assert note == "the cluster at gate.lab:2222 does not answer: no answer within 5 s"


def test_enter_opens_a_job_in_the_terminal_and_escape_goes_back(cluster: Cluster) -> None:
    cluster.listed = cluster.listed[:3]
    watched = WatchedCluster(cluster, JobAsker(SETTINGS, T))

    async def drive() -> None:
        app = TopApp(watched, every_s=3600)
        async with app.run_test(size=(80, 24)) as pilot:

            async def settle() -> None:
                await app.workers.wait_for_complete()
                await pilot.pause()

            def head() -> str:
                return str(app.screen.query_one("#head", Static).content)

            await settle()
            table = app.screen.query_one(DataTable)
            names = [str(table.get_row_at(row)[0]) for row in range(table.row_count)]
            assert names == ["next-3", "train-2", "over-1"]
            await pilot.press("enter")
            await settle()
            assert isinstance(app.screen, JobsScreen)
            assert "next-3 has no chief to ask" in head()
            await pilot.press("down", "enter")
            await settle()
            await settle()
            assert isinstance(app.screen, JobScreen)
            assert "step 30/100" in head()
            assert cluster.open == 1
            await pilot.press("escape")
            await settle()
            assert isinstance(app.screen, JobsScreen)
            assert cluster.open == 0
            await pilot.press("q")
        assert app.return_code == 0

    asyncio.run(asyncio.wait_for(drive(), scaled(60)))
    watched.close()


TRAIN = """\
import threading
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(4, np.float32), name="w")
optimizer = rw.optimizers.SGD(0.1)
while True:
    strategy.run(lambda: optimizer.apply_gradients([(np.ones(4, np.float32), w)]))
    threading.Event().wait(0.01)
"""


def _has_steps(visitor: Visitor, name: str) -> bool:
    if visitor.get(f"/job/{name}/api/job")[0] != 200:
        return False  # its chief does not serve yet
    return int(visitor.json(f"/job/{name}/api/job")["status"]["global_step"]) > 5


@pytest.mark.scenario
@pytest.mark.annex("service")
@pytest.mark.usefixtures("no_process_left")
def test_a_real_cluster_is_shown_by_its_gateway_and_from_outside(
    start_cli: Callable[..., tuple[subprocess.Popen[bytes], Path]], tmp_path: Path
) -> None:
    port, own = free_ports(2)
    address = f"127.0.0.1:{port}"
    gateway, output = start_cli(
        "local", "--standalone", "--ps", "1", "--workers", "1", "--port", str(port),
        "--model-dir", str(tmp_path / "models"), "--dashboard-port", str(own),
    )  # fmt: skip
    wait_until(lambda: "the cluster is at" in output.read_text(), 30, "the cluster")
    (tmp_path / "train.py").write_text(TRAIN)

    def run(*words: str) -> str:
        command = [*processes.ROPEWALK, *words, "--cluster", address]
        code, said, errors = processes.run(command, timeout_s=scaled(60), cwd=tmp_path)
        assert code == 0, errors
        return said.strip()

    name = run("submit", "train.py", "--detach")
    command, outside_output = start_cli("dashboard", "--cluster", address, "--port", "0")
    wait_until(lambda: "token=" in outside_output.read_text(), 30, "its page")

    for said in (output, outside_output):
        link = re.findall(r"http://\S+", said.read_text())[-1]
        visitor = Visitor(link.partition("/open")[0])
        assert visitor.open(link) == 303

        [row] = visitor.json("/api/jobs")["jobs"]
        assert row["id"] == name
        wait_until(partial(_has_steps, visitor, name), 30, "steps of the job")
        tasks = visitor.json(f"/job/{name}/api/job")["status"]["tasks"]
        assert {each["task"]["type"] for each in tasks} == {"chief", "worker", "ps"}
    run("stop", name)
    for process in (command, gateway):
        process.send_signal(signal.SIGINT)
        process.wait(scaled(20))
