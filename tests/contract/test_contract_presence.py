"""What a chief knows of the process of a task that is silent."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from helpers.waiting import scaled, wait_until
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.cluster.access import Principal
from ropewalk.cluster.liveness import Evidence
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.server.chief.parts import Presence
from ropewalk.server.chief.server import ChiefServer

W0 = TaskId("worker", 0)


@pytest.fixture
def chief() -> Iterator[ChiefServer]:
    server = ChiefServer(TaskId("chief", 0), [(W0, "")], Settings(), job_id="j")
    server.start("127.0.0.1:0")
    yield server
    server.stop()


def is_there(chief: ChiefServer) -> bool:
    with chief.locked_job.open() as (job, _):
        evidence = chief.locked_job.presence.evidence(job.members[W0], time.monotonic(), 0.3)
        return evidence is Evidence.THERE


def test_a_silent_task_is_there_as_long_as_its_connection_is(chief: ChiefServer) -> None:
    assert not is_there(chief)
    client = ChiefClient(f"127.0.0.1:{chief.port}", Settings(), Principal("worker", "j", 0))
    client.register(W0, "", timeout_s=scaled(5))
    assert is_there(chief)
    client.close()  # as the system does when a process ends
    wait_until(lambda: not is_there(chief), 10, "the end of the connection to be seen")


def test_a_process_that_a_signal_has_stopped_is_not_there(chief: ChiefServer) -> None:
    client = ChiefClient(f"127.0.0.1:{chief.port}", Settings(), Principal("worker", "j", 0))
    client.register(W0, "", timeout_s=scaled(5))
    with chief.locked_job.open() as (job, _):
        member = job.members[W0]
    code = "import time; time.sleep(1000)"
    process = subprocess.Popen([sys.executable, "-c", code])
    member.host, member.pid = socket.gethostname(), process.pid
    try:
        assert is_there(chief)
        os.kill(process.pid, signal.SIGSTOP)
        wait_until(lambda: not is_there(chief), 10, "the process to be stopped")
        os.kill(process.pid, signal.SIGCONT)
        wait_until(lambda: is_there(chief), 10, "the process to go on")
    finally:
        process.kill()
        process.wait()
        client.close()


def test_tasks_that_are_no_members_any_more_are_forgotten() -> None:
    presence = Presence()
    for index in range(3):
        presence.hear(Incarnation(TaskId("worker", index), 1), None)
    presence.keep([W0])
    assert set(presence._heard) == {W0}
