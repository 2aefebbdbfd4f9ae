"""Ending a job's processes in order, within five seconds."""

import signal
import time
from collections.abc import Mapping

from ..cluster.roles import PS
from ..core.task import TaskId
from .processes import TaskProcess

# First the chief saves, then the ps end, then SIGKILL.
STOP_PS_AFTER_S = 3.5
KILL_AFTER_S = 4.5


class Stop:
    """A stop that has begun: SIGTERM to all tasks but the ps, and what follows as time passes."""

    def __init__(self, processes: Mapping[TaskId, TaskProcess]) -> None:
        self._processes = processes
        self._began = time.monotonic()
        for task, process in processes.items():
            if task.type != PS:
                process.signal(signal.SIGTERM)

    def hurry(self) -> None:
        """Kill what is left, now."""
        self._began -= KILL_AFTER_S

    def go_on(self, *, chief_left: bool) -> None:
        """Stop the ps once the chief has left or time is up, and at last kill what is left."""
        elapsed_s = time.monotonic() - self._began
        if elapsed_s > KILL_AFTER_S:
            for process in self._processes.values():
                if process.code is None:
                    process.signal(signal.SIGKILL)
        elif elapsed_s > STOP_PS_AFTER_S or chief_left:
            for task, process in self._processes.items():
                if task.type == PS:
                    process.signal(signal.SIGTERM)
