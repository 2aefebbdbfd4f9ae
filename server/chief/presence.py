"""Whether the process of a task that is silent is there: what its machine says without it.

A program may keep all threads of its process from running for as long as it computes, and then no
heartbeat is sent (ADR 0079). A worker of a job with ps listens at no port; but its system keeps the
connection open over which its heartbeats came, until the process ends, and answers for it. On this
machine it can be seen, too, whether a signal has stopped the process.
"""

import socket
from collections.abc import Callable, Container

from ...cluster.job.members import Member
from ...core.process.stopped import is_stopped
from ...core.task import Incarnation, TaskId


class Presence:
    """The connections over which tasks were heard last. The caller locks."""

    def __init__(self) -> None:
        self._heard: dict[TaskId, tuple[int, Callable[[], bool]]] = {}
        self._host = socket.gethostname()

    def hear(self, who: Incarnation, is_connected: Callable[[], bool]) -> None:
        """Note that a task has given a sign of life.

        Args:
            who: The task.
            is_connected: Returns whether the connection that it came over is open.
        """
        self._heard[who.task] = who.generation, is_connected

    def keep(self, tasks: Container[TaskId]) -> None:
        """Forget all others."""
        self._heard = {task: heard for task, heard in self._heard.items() if task in tasks}

    def is_there(self, member: Member) -> bool:
        """Return whether the process of a task is there, as far as that is known, and may go on."""
        generation, is_connected = self._heard.get(member.task, (0, _no))
        if generation != member.generation or not is_connected():
            return False
        return not (member.host == self._host and member.pid and is_stopped(member.pid))


def _no() -> bool:
    return False
