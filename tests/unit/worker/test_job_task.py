"""When a task's program should end, and with which exit code the task does."""

import pytest

from ropewalk.cluster.resolvers.resolved import ResolvedTask
from ropewalk.cluster.spec import ClusterSpec
from ropewalk.core.errors import JobStoppedError, RopewalkError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.settings import Settings
from ropewalk.core.task import Outcome, Phase, TaskId
from ropewalk.distribute.job_snapshots import JobSnapshots
from ropewalk.worker.data_plane.plane import DataPlane
from ropewalk.worker.job_task import JobTask
from ropewalk.worker.process.program import Ending

WORKER = TaskId("worker", 1)
ALONE = ResolvedTask(WORKER, ClusterSpec({}), TaskId("chief", 0))
STOP = JobStoppedError("asked to stop")
DONE = Ending(Outcome.DONE, ExitCode.DONE)


class Steps:
    """A strategy's steps, of which one is under way; they end by themselves when they are asked."""

    has_begun = True

    def last_snapshot(self, *, together: bool) -> None:
        raise RopewalkError("another worker makes more steps")


def plane(*, in_sync: bool, has_begun: bool = True) -> DataPlane:
    made, snapshots = DataPlane(ALONE, Settings()), JobSnapshots(drain_grace_s=60)
    made.in_sync, made.snapshots = in_sync, snapshots
    if has_begun:
        snapshots.adopt(Steps())
    return made


@pytest.mark.parametrize(
    ("in_sync", "has_begun", "goes_on"),
    [
        pytest.param(True, True, True, id="its workers agree on the step after which they end"),
        pytest.param(True, False, False, id="it makes no steps"),
        pytest.param(False, True, False, id="it may have a strategy with servers, too"),
    ],
)
def test_a_program_that_is_asked_to_end_does_so_at_its_next_step_unless_it_is_in_sync(
    in_sync: bool, has_begun: bool, goes_on: bool
) -> None:
    task = JobTask(ALONE, Settings(), plane(in_sync=in_sync, has_begun=has_begun))
    task.check()
    task.ask_to_end(STOP)
    if goes_on:
        task.check()
    else:
        with pytest.raises(JobStoppedError, match="asked to stop"):
            task.check()


def test_an_interrupted_program_ends_whatever_its_workers_have_agreed_on() -> None:
    task, errors = JobTask(ALONE, Settings(), plane(in_sync=True)), list[RopewalkError]()
    task.start(errors.append)
    task.interrupt(STOP)
    assert errors == [STOP]
    with pytest.raises(JobStoppedError):
        task.check()
    task.close()


@pytest.mark.annex("ring")
def test_a_task_in_no_job_ends_as_its_program_did() -> None:
    from ropewalk.annexes.ring.data_plane import RingPlane

    ring = RingPlane(ALONE, Settings())
    task = JobTask(ALONE, Settings(), ring)
    runtime = task.start()
    assert runtime.job is task
    assert runtime.snapshots is ring.snapshots
    assert not runtime.job.wait_over(0)
    assert not runtime.job.chief_has_ended()
    runtime.job.barrier(0)
    called: list[str] = []
    runtime.at_end.append(lambda: called.append("end"))
    assert task.finish(DONE) == ExitCode.DONE
    assert called == ["end"]
    assert task.finish(Ending(Outcome.FAILED, 3, "no")) == 3
    assert task.reason == ""
    task.close()
    task.close()


def test_what_a_good_program_leaves_unsaved_is_its_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = JobTask(ALONE, Settings(), plane(in_sync=True))
    assert task.finish(DONE) == ExitCode.PROGRAM_FAILED
    assert "the last checkpoint cannot be made: another worker makes more steps" in caplog.text


@pytest.mark.parametrize(
    ("phase", "code"),
    [
        (Phase.DONE, ExitCode.DONE),
        (Phase.STOPPED, ExitCode.DRAINED),
        (Phase.FAILED, ExitCode.PEER_LOST),
    ],
)
def test_a_task_that_did_its_part_ends_as_its_job_did(phase: Phase, code: ExitCode) -> None:
    assert phase.exit_code is code
