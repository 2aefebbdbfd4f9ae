"""A ps with replicas that is killed, stands still or is asked to leave: nothing acknowledged is
lost, nothing is applied twice, and the job goes on.
"""

import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.replication.counting_job import CountingJob, counting_job
from helpers.waiting import scaled, wait_until
from ropewalk.annexes.replication.share_commands import move_command
from ropewalk.cluster.replication.configuration import MovePhase
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.core.checkpoint.folder import open_folder
from ropewalk.core.checkpoint.job_record import read_job_record
from ropewalk.core.errors import RefusedError, RopewalkError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.task import TaskId
from ropewalk.worker.lead.status import read_status


def test_a_killed_ps_takes_nothing_with_it_and_its_successor_neither(tmp_path: Path) -> None:
    with counting_job(tmp_path) as job:
        job.go_on()
        job.running["ps:0"].kill()
        job.until_said("share 0: ps:1 leads, followers: none")
        job.go_on()
        job.start_again("ps:0")
        job.until_whole()
        job.running["ps:1"].kill()
        job.until_said(
            "share 0: ps:1 leads, followers: ps:0", "share 0: ps:0 leads, followers: none"
        )
        job.go_on()
        job.start_again("ps:1")
        job.until_whole()
        assert {share.leader.short for share in job.shares()} == {"ps:0"}


@pytest.mark.annex("embedding")
@pytest.mark.soak
@pytest.mark.parametrize("shares_memory", ["true", "false"], ids=["shared memory", "TCP"])
def test_rows_of_a_growing_table_count_exactly_whatever_becomes_of_their_ps(
    shares_memory: str, tmp_path: Path
) -> None:
    with counting_job(tmp_path, keyed=True, ROPEWALK_SHARED_MEMORY=shares_memory) as job:
        for ps in ("ps:0", "ps:1", "ps:0"):
            job.go_on()
            job.running[ps].kill()
            job.go_on()
            job.start_again(ps)
            job.until_whole()
        job.running["ps:1"].terminate()
        assert job.running["ps:1"].wait(scaled(10)) == 0
        job.go_on()
        job.start_again("ps:1")
        job.until_whole()
        job.stop_counting()
        job.check_digests()


def test_a_ps_that_is_asked_to_leave_hands_over_what_it_has(tmp_path: Path) -> None:
    with counting_job(tmp_path) as job:
        job.go_on()
        job.running["ps:0"].terminate()
        code = job.running["ps:0"].wait(scaled(10))
        assert code == 0, job.said("chief:0") + job.said("ps:0") + job.said("ps:1")
        job.go_on()
    assert "leaves: other ps have what it had" in job.said("ps:0")


def test_a_ps_that_is_started_again_as_its_job_ends_ends_with_it(tmp_path: Path) -> None:
    with counting_job(tmp_path, ROPEWALK_LEAVE_GRACE_S=str(scaled(20))) as job:
        job.go_on()
        job.stop_counting()
        job.running["ps:0"].kill()
        (tmp_path / "over").touch()
        job.start_again("ps:0")


def leads_again(job: CountingJob, ps: TaskId) -> bool:
    """Have a ps lead share 0; False: the chief has not heard of it yet."""
    try:
        return job.move(0, ps).phase is MovePhase.DONE
    except RefusedError:
        return False


def test_a_share_moves_while_workers_count(tmp_path: Path) -> None:
    with counting_job(tmp_path, 3) as job:
        job.go_on()
        moved = CliRunner().invoke(move_command, [job.address, "0", "--to", "ps-2"])
        assert moved.exit_code == 0, moved.output
        assert "ps:2 leads share 0, after 0." in moved.output
        assert job.shares()[0].leader.short == "ps:2"
        job.go_on()
        job.until_whole()
        [share, *_] = job.shares()
        follower = share.followers[0]
        assert job.move(0, follower).phase is MovePhase.DONE
        job.running[follower.short].kill()  # the one that it has moved from follows already
        job.until_said(f"share 0: {follower.short} leads", "share 0: ps:2 leads")
        job.go_on()
        job.start_again(follower.short)
        job.until_whole()
        wait_until(
            lambda: leads_again(job, follower), 30, "a move to the ps that was started again"
        )
        assert job.move(0, TaskId("ps", 2)).phase is MovePhase.DONE
        again = CliRunner().invoke(move_command, [job.address, "0", "--to", "2"])
        assert "it leads it already" in str(again.exception)


@pytest.mark.soak
def test_shares_move_apart_after_a_failover_if_that_is_asked_for(tmp_path: Path) -> None:
    with counting_job(tmp_path, rows=2, rebalances=True) as job:
        job.go_on()
        job.running["ps:0"].kill()
        job.start_again("ps:0")
        job.until_said("moves to ps:0, which has less work", "to ps:0 took")
        job.until_whole()
        job.go_on()
        assert {share.leader.short for share in job.shares()} == {"ps:0", "ps:1"}
        assert job.said("chief:0").count("which has less work") == 1


def test_a_ps_that_stands_still_is_replaced_and_follows_when_it_comes_back(tmp_path: Path) -> None:
    with counting_job(tmp_path) as job:
        job.go_on()
        os.kill(job.running["ps:1"].pid, signal.SIGSTOP)
        moved = job.move(0, TaskId("ps", 1))  # the chief knows nothing of it yet
        assert (moved.phase, moved.reason) == (MovePhase.FAILED, "it does not answer")
        job.until_said("share 0: ps:1 leads", "share 0: ps:0 leads, followers: none")
        job.until_said("share 1: ps:0 leads, followers: none")
        job.go_on()
        os.kill(job.running["ps:1"].pid, signal.SIGCONT)
        job.until_said("share 1: ps:0 leads, followers: ps:1")
        job.go_on()


def test_a_ps_that_stands_still_while_it_is_copied_to_is_left_to_itself(tmp_path: Path) -> None:
    with counting_job(tmp_path, rows=200_000) as job:
        job.go_on()
        job.running["ps:1"].kill()
        job.start_again("ps:1")
        joiner = job.running["ps:1"].pid
        wait_until(lambda: maps_tiles(joiner), 60, "the first tile")
        os.kill(joiner, signal.SIGSTOP)
        job.go_on()
        os.kill(joiner, signal.SIGCONT)
        job.until_whole()
        job.go_on()


def maps_tiles(pid: int) -> bool:
    """Whether a process has read shared memory: what its leader copies to it comes in that."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(line.startswith("RssShmem:") and int(line.split()[1]) > 0 for line in lines)


def test_a_ps_that_has_no_memory_for_a_copy_holds_up_nobody(tmp_path: Path) -> None:
    with counting_job(tmp_path) as job:
        job.go_on()
        job.running["ps:1"].kill()
        job.running["ps:1"].wait(scaled(10))
        config = {"TF_CONFIG": job.configs["ps:1"], "ROPEWALK_MAX_PS_BYTES": "100000"}
        job.begin("ps:1", config)
        refused = "/job:ps/task:1 would hold 25"
        wait_until(lambda: refused in job.said("ps:0"), 60, "a copy that is refused")
        job.go_on()
        job.running["ps:1"].kill()
        job.start_again("ps:1")
        job.until_whole()
        job.go_on()


def test_workers_go_on_while_there_is_no_chief(tmp_path: Path) -> None:
    with counting_job(tmp_path, chief_counts=False) as job:
        job.go_on()
        job.running["chief:0"].kill()
        job.running["chief:0"].wait(scaled(10))
        job.go_on(50)
        job.start_again("chief:0")
        job.until_said("going on at global step")
        job.until_whole()
        job.go_on()


@pytest.mark.soak
def test_a_chief_that_is_killed_during_moves_and_its_successor_lose_nothing(tmp_path: Path) -> None:
    with counting_job(tmp_path, 3, chief_counts=False, rows=100_000) as job:
        for wait_s in (0.0, 0.05, 0.2):
            [share, *_] = job.shares()
            [to] = {TaskId("ps", i) for i in range(3)} - {share.leader, *share.followers}
            with job.chief() as chief:
                chief.move_share(share.share, to, timeout_s=10)
            threading.Event().wait(wait_s)  # how far the move comes is chance
            job.running["chief:0"].kill()
            job.start_again("chief:0")
            job.until_whole()
            job.go_on()
        job.stop_counting()
        job.check_digests()


@pytest.mark.parametrize("when", ["before", pytest.param("after", marks=pytest.mark.soak)])
def test_a_share_that_is_handed_over_when_the_chief_is_lost_needs_no_other_chief(
    tmp_path: Path, when: str
) -> None:
    """Its leader has handed over, and the chief has told the next one nothing, or no worker."""
    with counting_job(tmp_path, chief_counts=False) as job:
        job.go_on()
        share = job.shares()[0]
        (tmp_path / f"die-{when}-lead").touch()
        with suppress(RopewalkError), job.chief() as chief:
            chief.move_share(share.share, share.followers[0], timeout_s=10)
        job.running["chief:0"].wait(scaled(10))
        job.go_on(50)
        job.start_again("chief:0")
        wait_until(lambda: bool(job.shares()), 60, "the next chief")
        job.go_on()
        job.until_whole()
        [moved] = [each for each in job.shares() if each.share == share.share]
        assert (moved.leader, *moved.followers) == (share.followers[0], share.leader)
        assert moved.epoch == share.epoch + 1, "nothing was decided since"


def test_a_job_whose_ps_are_all_asked_to_leave_saves_and_stops(tmp_path: Path) -> None:
    """The chief's program only waits: it is interrupted, since the ps leave soon."""
    job = CountingJob(tmp_path, chief_counts=False, ROPEWALK_LEASE_S=str(scaled(20)))
    try:
        job.until_whole()
        job.go_on()
        for task in job.ps:
            job.running[task].terminate()
        codes = {task: each.code for task, each in job.wait().items()}
        assert codes == dict.fromkeys(job.running, ExitCode.DRAINED), job.said("chief:0")
        assert "the job is stopping: /job:ps/task:" in job.said("chief:0")
        assert "INFO    saved " in job.said("chief:0")
    finally:
        job.stop()


def test_the_loss_of_all_replicas_ends_the_job_and_says_so(tmp_path: Path) -> None:
    job = CountingJob(tmp_path)
    try:
        job.until_said("followers: ps:", "followers: ps:")
        job.go_on()
        for task in ("ps:0", "ps:1"):
            job.running[task].kill()
        assert job.running["chief:0"].wait(scaled(60)) == ExitCode.PEER_LOST
        assert "was lost, and with it the last replica of share" in job.said("chief:0")
    finally:
        job.stop()


@pytest.mark.parametrize(
    "chief_too",
    [pytest.param(False, id="ps", marks=pytest.mark.soak), pytest.param(True, id="ps and chief")],
)
def test_a_ps_without_replicas_that_is_started_again_takes_no_part_in_a_checkpoint(
    tmp_path: Path, *, chief_too: bool
) -> None:
    """It is empty: the job fails, saying what is lost, and its last checkpoint stays the newest."""
    job = CountingJob(tmp_path, replicas=1, chief_counts=False, ROPEWALK_SAVE_EVERY_S="1")
    again = ["ps:0", "chief:0"] if chief_too else ["ps:0"]
    try:
        job.until_said("saved ")
        folder = open_folder(str(tmp_path / "model"))
        wait_until(lambda: len(read_job_record(folder).processes) == len(job.ps), 10)
        job.go_on(10)
        for task in again:
            job.running[task].kill()
        for task in again:
            job.start_again(task)
        codes = {task: each.code for task, each in job.wait().items()}
        assert codes == dict.fromkeys(job.running, ExitCode.PEER_LOST), job.said("chief:0")
    finally:
        job.stop()
    status = read_status(str(tmp_path / "model"))
    assert status is not None
    assert "restarted and lost its variables" in status.reason
    assert "Lost since the last checkpoint: " in status.reason
    assert "Lost since the last checkpoint: " in job.said("chief:0").splitlines()[-1]
    newest = latest_checkpoint(str(tmp_path / "model"))
    assert newest is not None
    assert set(CheckpointReader(newest.path).manifest.variables) == {"count0", "count1", "table"}
