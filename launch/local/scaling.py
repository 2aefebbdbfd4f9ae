"""Number of ps of a local job: which are to be started, and which asked to leave. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...cluster.roles import PS
from ...cluster.supervision.decisions import TaskRun
from ...core.task import TaskId


@dataclass(slots=True)
class Scaling:
    """Number of ps that a job is to have, and those that were asked to leave for it.

    Attributes:
        count: Number of ps that the job is to have.
        sent_away: Ps that were asked to leave; none of them is started again.
    """

    count: int
    sent_away: set[TaskId] = field(default_factory=set)

    def to(self, wanted: int) -> str:
        """Change the number; what to say about that, or nothing."""
        if wanted == self.count:
            return ""
        text, self.count = f"{self.count} → {wanted} ps", wanted
        return text

    def to_start(self, runs: Mapping[TaskId, TaskRun], known_s: float) -> list[TaskId]:
        """Choose the ps to start: those that never were, and those that have left.

        Args:
            runs: The tasks of the job.
            known_s: Time at which the job was last known to go on, by the clock of
                ``time.monotonic``; 0: it is over. A ps that has ended since may have ended with it.
        """
        tasks = [TaskId(PS, index) for index in range(self.count)]
        chosen = [task for task in tasks if _is_missing(runs.get(task), known_s)]
        self.sent_away.difference_update(chosen)
        return chosen

    def to_send_away(self, runs: Mapping[TaskId, TaskRun]) -> list[TaskId]:
        """Choose the ps that are to leave: they hand over what they have."""
        extra = [
            task
            for task, run in runs.items()
            if task.type == PS and task.index >= self.count and not run.has_ended
        ]
        chosen = [task for task in extra if task not in self.sent_away]
        self.sent_away.update(chosen)
        return chosen


def _is_missing(run: TaskRun | None, known_s: float) -> bool:
    return run is None or (run.ended is not None and known_s > run.ended)
