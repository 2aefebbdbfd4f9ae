"""What a launcher tells the chief of tasks that have left."""

from collections.abc import Iterator

import pytest

from helpers.waiting import scaled, wait_until
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.cluster.access import Principal
from ropewalk.core.settings import Settings
from ropewalk.core.task import State, TaskId
from ropewalk.launch.local.watch import StatusWatch
from ropewalk.net.this_machine import free_ports
from ropewalk.server.chief.server import ChiefServer

W0, W1 = TaskId("worker", 0), TaskId("worker", 1)
KILLED = -9


class Launched:
    """A chief that may start later than its launcher watches it."""

    def __init__(self) -> None:
        [port] = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        self.server = ChiefServer(TaskId("chief", 0), [(W0, ""), (W1, "")], Settings(), job_id="j")
        self.watch = StatusWatch(self.address, Settings())
        self.watch.start()

    def begin(self) -> None:
        self.server.start(self.address)

    def register(self, task: TaskId) -> None:
        client = ChiefClient(self.address, Settings(), Principal("worker", "j", task.index))
        try:
            client.register(task, "", timeout_s=scaled(5))
        finally:
            client.close()

    def state(self, task: TaskId) -> State:
        with self.server.locked_job.open() as (job, _):
            return job.members[task].state


@pytest.fixture
def launched() -> Iterator[Launched]:
    made = Launched()
    yield made
    made.watch.stop(scaled(5))
    made.server.stop()


def test_a_worker_that_was_killed_before_any_status_is_reported_as_left(launched: Launched) -> None:
    launched.watch.report_exit(W0, KILLED)
    launched.watch.report_exit(W1, KILLED)
    launched.begin()
    launched.register(W0)
    wait_until(lambda: launched.state(W0) is State.LEFT, 5, "the exit to be reported")
    wait_until(lambda: launched.state(W1) is State.LEFT, 5, "the exit of one that never came")


def test_the_last_word_of_a_task_may_come_after_its_end(launched: Launched) -> None:
    launched.begin()
    launched.watch.report_exit(W0, KILLED)
    wait_until(lambda: launched.state(W0) is State.LEFT, 5, "the exit to be reported")
    launched.register(W0)
    wait_until(lambda: launched.state(W0) is State.LEFT, 5, "the exit to be reported again")
    assert launched.state(W1) is State.MISSING
