"""Nonsense at every port, beside a live job: nothing ends, nothing is believed, nothing is left."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.fuzzing import Cost, Credentials, Fuzzer
from helpers.live_jobs import Live
from helpers.waiting import wait_until

MIB = 1024 * 1024


@pytest.fixture
def live(tmp_path: Path, no_process_left: str) -> Iterator[Live]:
    made = Live(tmp_path)
    wait_until(lambda: all(made.steps()), 60, "the jobs to begin")
    yield made
    made.kill()


def attack(live: Live, count: int, seed: int) -> None:
    """Nonsense for every port; what it leaves is measured after a first part."""
    for port in live.ports:
        with Fuzzer(port, Credentials(), seed) as fuzzer:
            fuzzer.attack(min(count, 300))
            before = Cost.of(port.pid)
            fuzzer.attack(count)
        wait_until(
            lambda port=port, before=before: Cost.of(port.pid).is_near(before, 10 * MIB, 5, 20),  # type: ignore[misc]
            30,
            f"{port}, that had {before}, to be as it was",
        )
    live.goes_on()


@pytest.mark.timeout(300)
@pytest.mark.scenario
@pytest.mark.parametrize(
    "count", [200, pytest.param(33_000, marks=[pytest.mark.soak, pytest.mark.timeout(3000)])]
)
def test_nonsense_at_every_port_leaves_a_live_job_as_it_was(live: Live, count: int) -> None:
    attack(live, count, seed=int(os.environ.get("FUZZ_SEED", "1")))
    live.end()
