"""Nonsense at every port, beside a live job: nothing ends, nothing is believed, nothing is left."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from helpers.fuzzing import Cost, Credentials, Fuzzer, Port, key_credentials
from helpers.live_jobs import Live
from helpers.waiting import wait_until
from ropewalk.core.task import Incarnation, TaskId

MIB = 1024 * 1024
STRANGE_INDEX = 900  # of a task that the live job does not have
# What a task of that role may do to the job, and what would rightly be done.
# A task that says that it is alive is of the job, as after a restart of the chief, and awaited at
# barriers.
_JOINS = ["Register", "Heartbeat", "Arrive", "Finish"]
LEAVE_OUT = {
    "worker": _JOINS,
    "evaluator": _JOINS,
    "chief": [*_JOINS, "Attach", "SaveShards", "EndJob", "StopJob"],
}


@pytest.fixture
def live(tmp_path: Path, no_process_left: str) -> Iterator[Live]:
    made = Live(tmp_path)
    wait_until(lambda: all(made.steps()), 60, "the jobs to begin")
    yield made
    made.kill()


def await_as_before(port: Port, before: Cost) -> None:
    """Wait until a process takes no more than before, and a little."""
    seen: list[Cost] = []

    def is_as_before() -> bool:
        seen[:] = [Cost.of(port.pid)]
        return seen[0].is_near(before, 10 * MIB, 5, 20)

    try:
        wait_until(is_as_before, 30)
    except pytest.fail.Exception as failure:
        raise AssertionError(f"{port} had {before}, and has {seen[0]}") from failure


def attack(
    live: Live,
    count: int,
    seed: int,
    role: str = "",
    leave_out: Sequence[str] = (),
) -> None:
    """Nonsense for every port; what it leaves is measured after a first part."""
    for port in live.ports:
        who = Incarnation(TaskId(role, STRANGE_INDEX), 1)
        shown = key_credentials(port.port, who) if role else Credentials()
        with Fuzzer(port, shown, seed, leave_out) as fuzzer:
            if role in ("worker", "chief") and port.role == "ps":
                fuzzer.define("fuzz")
            # Threads of pools and kernels of new dtypes come with the first calls, and stay.
            fuzzer.attack(max(60, min(count, 300)))
            before = Cost.of(port.pid)
            fuzzer.attack(count)
            kept_out = fuzzer.codes["UNAUTHENTICATED"] + fuzzer.codes["PERMISSION_DENIED"]
            if role in ("worker", "chief"):  # an evaluator may do nothing at a worker
                assert fuzzer.codes.total() > kept_out, fuzzer.codes
            assert not fuzzer.codes["UNKNOWN"], fuzzer.codes  # an exception of the program
            if role:
                assert not fuzzer.codes["UNAUTHENTICATED"], fuzzer.codes
        await_as_before(port, before)
    live.goes_on()


@pytest.mark.timeout(300)
@pytest.mark.scenario
@pytest.mark.parametrize(
    "count", [200, pytest.param(33_000, marks=[pytest.mark.soak, pytest.mark.timeout(3000)])]
)
def test_nonsense_at_every_port_leaves_a_live_job_as_it_was(live: Live, count: int) -> None:
    attack(live, count, seed=int(os.environ.get("FUZZ_SEED", "1")))
    live.end()


@pytest.mark.timeout(300)
@pytest.mark.scenario
@pytest.mark.parametrize(
    "count",
    [
        20,
        pytest.param(
            int(os.environ.get("FUZZ_COUNT", "11000")),
            marks=[pytest.mark.soak, pytest.mark.timeout(3000)],
        ),
    ],
)
def test_nonsense_of_tasks_that_are_let_in_leaves_a_live_job_as_it_was(
    live: Live, count: int
) -> None:
    seed = int(os.environ.get("FUZZ_SEED", "1"))
    for role, leave_out in LEAVE_OUT.items():
        attack(live, count, seed, role, leave_out)
    live.end()
