"""Random faults, one after the other, on a job with replicas: no count is ever lost or doubled.

A fault waits until every share has a follower again: what two at once do is said in
docs/replicas.md. ``make chaos`` makes more of them; ``CHAOS_SEED`` repeats a run.
"""

import os
import random
import signal
from pathlib import Path

import pytest

from helpers.counting_job import CountingJob
from helpers.waiting import scaled, wait_until
from windlass.cluster.replication.reports import ShareLeader
from windlass.core.task import TaskId

PS = 3
FAULTS = int(os.environ.get("CHAOS_FAULTS", "12"))
SEED = int(os.environ.get("CHAOS_SEED", random.randrange(1 << 32)))


def kill(job: CountingJob, task: str) -> None:
    """A process ends without a word, and another one begins."""
    had = {s.share: s.epoch for s in job.shares() if task in _replicas(s)}
    job.running[task].kill()
    job.start_again(task)

    def is_known() -> bool:
        shares = {each.share: each.epoch for each in job.shares()}
        return all(shares.get(share, 0) > epoch for share, epoch in had.items())

    wait_until(is_known, 30, f"another epoch without the {task} that was killed")


def _replicas(share: ShareLeader) -> set[str]:
    return {task.short for task in (share.leader, *share.followers)}


def leave(job: CountingJob, task: str) -> None:
    """A ps is asked to leave."""
    job.running[task].terminate()
    assert job.running[task].wait(scaled(30)) == 0, job.said(task)
    job.start_again(task)


def freeze(job: CountingJob, task: str) -> None:
    """A ps stands still until the chief has given it up."""
    ps = TaskId("ps", int(task.partition(":")[2]))
    os.kill(job.running[task].pid, signal.SIGSTOP)

    def is_left_out() -> bool:
        shares = job.shares()
        return len(shares) == PS and all(ps not in (s.leader, *s.followers) for s in shares)

    wait_until(is_left_out, 30, f"{task} to be given up")
    os.kill(job.running[task].pid, signal.SIGCONT)


def _others(job: CountingJob, ps: TaskId) -> list[TaskId]:
    """Other ps that serve; one that was just started does not answer yet."""
    serving = {task for each in job.shares() for task in (each.leader, *each.followers)}
    return sorted(serving - {ps})


def move(job: CountingJob, task: str) -> None:
    """A share moves from a ps to another one."""
    share = next(each for each in job.shares() if each.leader.short == task)
    to = random.Random(f"{SEED} {share}").choice(_others(job, share.leader))
    assert job.move(share.share, to).reason == ""


def move_and_kill(job: CountingJob, task: str) -> None:
    """A share begins to move to a ps, and the one that it moves from ends without a word.

    Not the one that it moves to: right after the handover it is alone with the share.
    """
    to = TaskId("ps", int(task.partition(":")[2]))
    share = next((each for each in job.shares() if each.leader != to), None)
    if share is None:
        return
    with job.chief() as chief:
        chief.move_share(share.share, to, timeout_s=10)
    kill(job, share.leader.short)


@pytest.mark.soak
def test_no_count_is_lost_or_doubled_whatever_happens_to_one_task_at_a_time(
    tmp_path: Path,
) -> None:
    draw = random.Random(SEED)
    job = CountingJob(tmp_path, PS, chief_counts=False)
    done: list[str] = []
    try:
        for _ in range(FAULTS):
            job.until_whole()
            job.go_on()
            # One that was just started has nothing yet, and is none of the job's.
            serving = {task for share in job.shares() for task in _replicas(share)}
            task = draw.choice(["chief:0", *sorted(serving)])
            faults = [kill, kill, leave, freeze, move_and_kill]
            if any(share.leader.short == task for share in job.shares()):
                faults.append(move)
            fault = kill if task == "chief:0" else draw.choice(faults)
            done.append(f"{fault.__name__} {task}")
            fault(job, task)
        job.until_whole()
        job.go_on()
        job.end()
    finally:
        print(f"CHAOS_SEED={SEED}:", ", ".join(done))  # shown if the test fails
        for process in job.running.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.wait(10)
