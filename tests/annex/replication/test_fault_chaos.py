"""Random faults on a job with replicas: no count is ever lost, doubled or read as it was before.

What happens is drawn from a seed: :mod:`helpers.replication.chaos`. ``make chaos`` makes 70 faults
(or ``CHAOS_FAULTS``) in each of eight jobs; ``CHAOS_SEED`` repeats a run as far as the machine's
timing does. ``CHAOS_LOAD`` is how many processes keep the machine busy meanwhile.
"""

import os
import random
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.local_run import LivePids
from helpers.network import Network
from helpers.replication.chaos import Chaos
from helpers.replication.counting_job import CountingJob, host_of
from helpers.replication.load import busy
from helpers.replication.local_chaos import LocalChaos
from helpers.small_disk import SmallDisk
from helpers.waiting import scaled

FAULTS = int(os.environ.get("CHAOS_FAULTS", "12"))
LOAD = int(os.environ.get("CHAOS_LOAD", "0"))
WORKERS = 4
SEED = int(os.environ.get("CHAOS_SEED", random.randrange(1 << 32)))


@pytest.fixture(autouse=True)
def busy_machine() -> Iterator[None]:
    """Processes that keep the machine busy, if that is asked for."""
    with busy(LOAD):
        yield


@contextmanager
def local_chaos(folder: Path, live: LivePids, seed: int) -> Iterator[LocalChaos]:
    """Faults of a job of ``ropewalk local`` that is checked at the end."""
    made = LocalChaos(folder, live, seed)
    try:
        made.begin()
        yield made
        made.end()
    finally:
        print(f"CHAOS_SEED={seed}:", ", ".join(made.done))  # if it fails
        made.job.stop()


@contextmanager
def chaos(
    folder: Path,
    seed: int,
    *,
    linked: bool = False,
    on_hosts: bool = False,
    ps: int | None = None,
    disk: SmallDisk | None = None,
    over: str = "",
) -> Iterator[Chaos]:
    """Faults of a job that is checked at the end.

    Args:
        folder: Where it runs.
        seed: Says what happens.
        linked: Its tasks reach each other by proxies.
        on_hosts: Each of them runs in a network namespace.
        ps: Number of its ps; None: it is drawn, too.
        disk: Holds the model directory.
        over: What the tasks send goes over this; see :class:`CountingJob`.
    """
    draw = random.Random(seed)
    # A chief that a busy machine starts late is not lost, nor one that stays away for a minute.
    environment: dict[str, Any] = {"ROPEWALK_RECONNECT_TIMEOUT_S": str(scaled(15))}
    environment["ROPEWALK_CHIEF_RETURNS"] = "true"
    if disk is not None:
        environment |= {"ROPEWALK_MODEL_DIR": str(disk.folder), "ROPEWALK_SAVE_EVERY_S": "1"}
        environment["ROPEWALK_KEEP_CHECKPOINTS"] = "2"
    ps = ps or draw.randint(2, 4)
    with ExitStack() as stack:
        network = None
        if on_hosts:
            counts = {"chief": 1, "worker": WORKERS, "ps": ps}
            tasks = [f"{role}:{index}" for role, n in counts.items() for index in range(n)]
            network = Network({host_of(task): host_of(task) for task in tasks}, folder)
            stack.callback(network.close)
        job = CountingJob(
            folder,
            ps,
            workers=WORKERS,
            readers=1,
            chief_counts=False,
            rows=6000,
            pause_s=0.005,
            rebalances=draw.random() < 0.5,
            linked=linked,
            over=over,
            network=network,
            **environment,
        )
        stack.callback(job.stop)
        made = Chaos(job, seed, disk)
        stack.callback(lambda: print(f"CHAOS_SEED={seed}:", ", ".join(made.done)))  # if it fails
        yield made
        job.stop_counting()
        job.check_digests()
        job.end()


@pytest.mark.scenario
def test_no_count_is_lost_or_doubled_or_old_in_a_few_faults(tmp_path: Path) -> None:
    """Of each kind the one that has shown most; two replicas for each share are all there are."""
    with chaos(tmp_path, 5, linked=True, ps=2) as made:
        made.happen_together(made.cut_worker, made.begin_move, made.kill)
        made.happen_together(made.delay, lambda: made.part_chief(3.5))
        made.happen_together(made.kill_worker, made.split)
        made.happen_together(made.freeze_worker, made.cut_connections, made.kill_chief_and_ps)


@pytest.mark.scenario
@pytest.mark.parametrize("over", ["tls", pytest.param("tunnel", marks=pytest.mark.soak)])
def test_no_count_is_lost_or_doubled_over_other_connections(tmp_path: Path, over: str) -> None:
    with chaos(tmp_path, 5, linked=True, ps=2, over=over) as made:
        made.happen_together(made.cut_worker, made.kill)
        made.happen_together(made.cut_connections, made.move)


@pytest.mark.soak
@pytest.mark.timeout(120 + 20 * FAULTS)
@pytest.mark.parametrize("over", ["tls", "tunnel"])
def test_no_count_is_lost_or_doubled_whatever_happens_over_other_connections(
    tmp_path: Path, over: str
) -> None:
    with chaos(tmp_path, SEED, linked=True, over=over) as made:
        made.happen(FAULTS)


@pytest.mark.soak
@pytest.mark.timeout(120 + 20 * FAULTS)
@pytest.mark.parametrize("linked", [False, True], ids=["processes", "links"])
def test_no_count_is_lost_or_doubled_whatever_happens_to_one_task_at_a_time(
    tmp_path: Path, linked: bool
) -> None:
    with chaos(tmp_path, SEED, linked=linked) as made:
        made.happen(FAULTS)


@pytest.mark.soak
@pytest.mark.timeout(300 + 60 * FAULTS)
@pytest.mark.real_start
@pytest.mark.parametrize("computing", [0, 20], ids=["idle", "busy"])
def test_no_count_is_lost_or_doubled_whatever_happens_to_a_local_job(
    tmp_path: Path, live_pids: LivePids, computing: int
) -> None:
    with busy(computing), local_chaos(tmp_path, live_pids, SEED) as made:
        made.happen(FAULTS)


@pytest.mark.soak
@pytest.mark.timeout(120 + 20 * FAULTS)
@pytest.mark.needs("a bridged network")
@pytest.mark.real_start
@pytest.mark.usefixtures("no_process_left")
def test_no_count_is_lost_or_doubled_whatever_happens_on_hosts_of_their_own(
    tmp_path: Path,
) -> None:
    with chaos(tmp_path, SEED, on_hosts=True) as made:
        made.happen(FAULTS)


@pytest.mark.soak
@pytest.mark.timeout(120 + 20 * FAULTS)
@pytest.mark.needs("a file system of its own")
def test_a_job_goes_on_while_its_disk_is_full(tmp_path: Path) -> None:
    with closing(SmallDisk(24)) as disk, chaos(tmp_path, SEED, linked=True, disk=disk) as made:
        made.happen(FAULTS)
