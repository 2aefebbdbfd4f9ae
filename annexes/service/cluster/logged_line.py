"""A line of a job's log, as the gateway keeps it and who follows the job gets it."""

from dataclasses import dataclass

from ....core.task import TaskId


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """A line of a task; of stdout, or of stderr."""

    task: TaskId
    text: str
    is_error: bool = False
