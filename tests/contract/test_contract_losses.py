"""How soon a chief notices that a worker is gone, whatever its heartbeats still say."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from helpers.processes import start
from helpers.waiting import load_factor, scaled, wait_until
from ropewalk.cluster.liveness import Rhythm
from ropewalk.core.settings import Settings
from ropewalk.core.task import State, TaskId
from ropewalk.server.chief.server import ChiefServer
from ropewalk.worker.lead.loss_watch import LossWatch

W0 = TaskId("worker", 0)
SETTINGS = Settings()
FOUND_S = 1.5
WORKER = """
import ctypes, sys
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.client.chief.membership import Membership
from ropewalk.cluster.access import principal_of_task
from ropewalk.core.report import TaskReport
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId

task, settings = TaskId("worker", 0), Settings()
chief = ChiefClient(sys.argv[1], settings, principal_of_task(task, "j"))
member = Membership(task, "", chief, settings, report=TaskReport, on_lost=print)
member.join()
for line in sys.stdin:  # for so many seconds no thread of Python runs
    ctypes.PyDLL(None).sleep(int(line))
"""


class Watched:
    """A worker in a process of its own, and the chief that hears of it."""

    def __init__(self, chief: ChiefServer) -> None:
        self.chief = chief
        command = [sys.executable, "-c", WORKER, f"127.0.0.1:{chief.port}"]
        self.process = start(command, stdin=subprocess.PIPE, text=True, bufsize=1)
        self.failures: list[BaseException] = []
        self.host = ""
        self.watch = LossWatch(chief.locked_job, SETTINGS, [], self.failures.append)
        self.watch.start()

    def begin(self, *, host: str = "") -> None:
        """Wait for its first heartbeats."""
        with self.chief.locked_job.open() as (job, _):
            member = job.members[W0]
            member.rhythm = Rhythm()  # what another test has held up is no load
        wait_until(lambda: job.limit_s(member) < SETTINGS.lease_s, 30, "heartbeats")
        self.host = self.host or member.host
        member.host = host or self.host

    @property
    def state(self) -> State:
        with self.chief.locked_job.open() as (job, _):
            return job.members[W0].state

    @property
    def detail(self) -> str:
        with self.chief.locked_job.open() as (job, _):
            return job.members[W0].detail

    def lost_s(self) -> float:
        """Wait until it is lost; how long its last sign of life was ago."""
        with self.chief.locked_job.open() as (job, _):
            heard = job.members[W0].heard
        wait_until(lambda: self.state is State.LOST, 30, "the loss")
        return time.monotonic() - heard

    def close(self) -> None:
        self.watch.close()
        self.process.kill()
        self.process.communicate()
        assert not self.failures


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    chief = ChiefServer(TaskId("chief", 0), [(W0, "")], SETTINGS, job_id="j")
    chief.start("127.0.0.1:0")
    worker = Watched(chief)
    try:
        yield worker
    finally:
        worker.close()
        chief.stop()


@pytest.mark.parametrize(
    ("host", "why"),
    [
        pytest.param("", "SIGSTOP", id="of the chief's machine"),
        pytest.param("elsewhere", "answers no ping", id="of another machine"),
    ],
)
def test_a_stopped_worker_is_found_within_three_heartbeats_and_comes_back(
    watched: Watched, host: str, why: str
) -> None:
    watched.begin(host=host)
    os.kill(watched.process.pid, signal.SIGSTOP)
    try:
        assert watched.lost_s() <= scaled(FOUND_S), load_factor()
        assert why in watched.detail
    finally:
        os.kill(watched.process.pid, signal.SIGCONT)
    wait_until(lambda: watched.state is State.ALIVE, 30, "the worker to come back")
    assert watched.detail == "came back"


def test_a_worker_whose_threads_all_stand_still_answers_pings_and_is_not_lost(
    watched: Watched,
) -> None:
    watched.begin(host="elsewhere")
    with watched.chief.locked_job.open() as (job, _):
        member = job.members[W0]
    assert watched.process.stdin is not None
    watched.process.stdin.write("4\n")
    wait_until(lambda: time.monotonic() - member.heard > 3.5, 30, "silence")
    assert watched.state is State.ALIVE  # for its limit, thrice
    silent_since = member.heard
    wait_until(lambda: member.heard > silent_since, 30, "the worker to go on")


def test_a_worker_that_is_killed_is_found_within_three_heartbeats(watched: Watched) -> None:
    watched.begin()
    watched.process.kill()
    assert watched.lost_s() <= scaled(FOUND_S), load_factor()
    assert "its connection is closed" in watched.detail
