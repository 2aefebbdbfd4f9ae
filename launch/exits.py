"""The ends of a job's tasks, as the launcher sees them: who failed first, and who only followed."""

import time
from collections.abc import Mapping

from ..cluster.exit_policy import Verdict, on_exit
from ..cluster.roles import EVALUATOR, PS
from ..core.exit_codes import ExitCode
from ..core.task import TaskId
from .cluster import LocalCluster

_CHIEF_IS_LATE_S = 3.5  # beyond the time in which a chief leaves


class Exits:
    """Judges the tasks' exits one after the other.

    Args:
        cluster: The job's tasks.
        leave_grace_s: How long the chief takes at most to leave an ended job.
    """

    def __init__(self, cluster: LocalCluster, leave_grace_s: float) -> None:
        self.first_failure: TaskId | None = None
        self._cluster = cluster
        self._leave_grace_s = leave_grace_s
        self._first_ps_end: float | None = None

    def judge(self, task: TaskId, code: int, *, chief_code: int | None, stopping: bool) -> Verdict:
        """What an exit means for the job.

        Args:
            task: Who ended.
            code: As ``subprocess`` reports it.
            chief_code: Of the chief; None while it runs.
            stopping: The launcher is ending the job.
        """
        # The evaluator works on when the others have left; its failure still counts.
        over = self.job_ended(chief_code) and task.type != EVALUATOR
        verdict = on_exit(
            task,
            code,
            chief=self._cluster.chief_task,
            stopping=stopping or over,
            synchronous=self._cluster.synchronous,
        )
        job_over = code in (ExitCode.PEER_LOST, ExitCode.DRAINED)
        if verdict.failed and task.type == PS and job_over and chief_code != 0:
            # The chief told this ps that the job is over and ends next: its exit says why. A chief
            # that ended at the same moment is judged next.
            self._first_ps_end = self._first_ps_end or time.monotonic()
            return Verdict()
        if verdict.failed:
            self.first_failure = self.first_failure or task
        return verdict

    def job_ended(self, chief_code: int | None) -> bool:
        """Whether the job is over; of a synchronous one every task's exit counts by itself."""
        return chief_code == 0 and not self._cluster.synchronous

    @property
    def chief_is_late(self) -> bool:
        """Whether the chief still runs long after it told a ps that the job is over."""
        if self._first_ps_end is None:
            return False
        waited_s = time.monotonic() - self._first_ps_end
        return waited_s > self._leave_grace_s + _CHIEF_IS_LATE_S

    def prefer_own_failure(self, codes: Mapping[TaskId, int]) -> None:
        """Blame a task with a failure of its own rather than one that lost a peer."""
        first = self.first_failure
        if first is None or codes[first] != ExitCode.PEER_LOST:
            return
        own = (task for task, code in codes.items() if 0 < code < 128)
        self.first_failure = next(own, first)

    def exit_code(self, codes: Mapping[TaskId, int], *, stopped: bool) -> int:
        """Of the job: the first failure's, as ``subprocess`` reports it."""
        if self.first_failure is not None:
            return codes[self.first_failure]
        return int(ExitCode.DRAINED) if stopped else codes[self._cluster.chief_task]
