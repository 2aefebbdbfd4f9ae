"""Every example of every epoch is trained exactly once, whatever happens to the tasks of a job.

What happens is drawn from a seed: :mod:`helpers.ledger.counting_run`. The long run makes
``LEDGER_FAULTS`` faults (50) over 20 epochs; ``LEDGER_SEED`` repeats one, as far as the machine's
timing does.
"""

import os
import random
from pathlib import Path

import pytest

from helpers.ledger.counting_run import CountingRun

FAULTS = int(os.environ.get("LEDGER_FAULTS", "50"))
SEED = int(os.environ.get("LEDGER_SEED", random.randrange(1 << 32)))


def check(run: CountingRun, examples: int, epochs: int) -> None:
    """Check that every example was counted once in each epoch, and print the counts."""
    found = run.end()
    print(found)
    assert found == {
        "counts": [[epochs], [examples]],
        "keyed": [[epochs], [examples]],
        "sums": [[epochs * examples], [70_000]],
    }


@pytest.mark.scenario
@pytest.mark.annex("embedding", "replication")
def test_every_example_counts_once_though_workers_the_chief_and_a_ps_are_killed(
    tmp_path: Path,
) -> None:
    program = ["--examples", "500", "--epochs", "3", "--pause-s", "0.01", "--keyed"]
    run = CountingRun(tmp_path, 1, program=program)
    try:
        for fault in (run.kill_worker, run.kill_chief, run.begin_again, run.kill_ps):
            run.go_on()
            fault()
        run.go_on()
        run.drain_worker()
        check(run, 500, 3)
    finally:
        print(", ".join(run.done))
        run.stop()


@pytest.mark.soak
@pytest.mark.timeout(600 + 60 * FAULTS)
@pytest.mark.annex("embedding", "replication")
def test_every_example_counts_once_whatever_happens(tmp_path: Path) -> None:
    examples, epochs = 80 * FAULTS, 20
    program = ["--examples", str(examples), "--epochs", str(epochs), "--pause-s", "0.02", "--keyed"]
    run = CountingRun(tmp_path, SEED, workers=3, program=program)
    try:
        run.go_on()
        run.happen(FAULTS)
        check(run, examples, epochs)
    finally:
        print(f"LEDGER_SEED={SEED}:", len(run.done), "faults:", ", ".join(run.done))
        run.stop()
