"""Shares without followers, in a job whose ps become more or fewer: every count is exact."""

from pathlib import Path

from helpers.replication.counting_job import CountingJob, counting_job
from helpers.waiting import scaled, wait_until
from ropewalk.cluster.replication.configuration import MovePhase
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.task import TaskId


def led_by(job: CountingJob) -> dict[str, list[int]]:
    """The shares that each ps leads."""
    led: dict[str, list[int]] = {}
    for each in job.shares():
        led.setdefault(each.leader.short, []).append(each.share)
    return led


def test_shares_without_followers_move_and_leave_with_their_ps(tmp_path: Path) -> None:
    with counting_job(tmp_path, replicas=1, shares=4, rows=2000) as job:
        assert led_by(job) == {"ps:0": [0, 2], "ps:1": [1, 3]}
        assert job.move(0, TaskId("ps", 1)).phase is MovePhase.DONE
        job.go_on()
        job.until_whole()
        assert led_by(job) == {"ps:0": [2], "ps:1": [0, 1, 3]}
        job.leave("ps:1")
        job.go_on()
        job.until_whole()
        assert led_by(job) == {"ps:0": [0, 1, 2, 3]}
    assert "leaves: other ps have what it had" in job.said("ps:1")


def test_the_ps_of_a_running_job_become_more_and_fewer(tmp_path: Path) -> None:
    with counting_job(tmp_path, replicas=1, shares=4, rows=2000) as job:
        job.go_on()
        job.start_more(2, 3)
        wait_until(lambda: len(led_by(job)) == 4, 30, "a share for each ps")
        job.go_on()
        job.leave("ps:0", "ps:2", "ps:3")
        job.go_on()
        job.until_whole()
        assert led_by(job) == {"ps:1": [0, 1, 2, 3]}
    assert job.said("chief:0").count("has come, at") == 2
    assert job.said("chief:0").count("which leads fewer") == 2


def test_the_loss_of_a_ps_without_followers_ends_the_job_and_says_so(tmp_path: Path) -> None:
    job = CountingJob(tmp_path, replicas=1, shares=2, rows=2)
    try:
        job.until_whole()
        job.go_on()
        job.running["ps:0"].kill()
        assert job.running["chief:0"].wait(scaled(60)) == ExitCode.PEER_LOST
        assert "was lost, and with it the last replica of share 0. Lost since" in job.said(
            "chief:0"
        )
    finally:
        job.stop()
