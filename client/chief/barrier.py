"""Waiting at a barrier until every task that runs the program has arrived."""

import time
from collections.abc import Callable

from ...core.backoff import Backoff
from ...core.errors import CollectiveMismatchError, CollectiveTimeoutError, PeerLostError
from ...core.task import Incarnation, TaskId
from .calls import ChiefClient

_CALL_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.005, 0.1


class BarrierClient:
    """A client for the barriers of one task, one after the other. Use from one thread.

    Args:
        chief: Counts the tasks.
        who: Incarnation of the calling task.
        check: Called while waiting; raises when the program should end.
    """

    def __init__(self, chief: ChiefClient, who: Incarnation, check: Callable[[], None]) -> None:
        self._chief = chief
        self._who = who
        self._check = check
        self._call = 0

    def wait(self, timeout_s: float) -> None:
        """Wait until all have arrived.

        Args:
            timeout_s: Unit: seconds.

        Raises:
            CollectiveTimeoutError: They have not; names the missing tasks.
            CollectiveMismatchError: One has finished its program without this barrier.
            FencedError: A newer incarnation of this task has registered.
        """
        self._call += 1
        deadline = time.monotonic() + timeout_s
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        missing: list[TaskId] = []
        last = ""
        while True:
            self._check()
            try:
                missing, finished = self._chief.arrive(self._who, self._call, timeout_s=_CALL_S)
                last = ""
            except PeerLostError as error:
                finished, last = [], f"; the chief's last answer: {error}"
            else:
                if not missing:
                    return
            if finished:
                raise CollectiveMismatchError(
                    f"{self._who.task} waits at barrier {self._call}, and {_names(finished)} has "
                    "finished its program without coming there; every task must make the same "
                    "number of barriers",
                    task=self._who.task,
                    finished=_names(finished),
                )
            if time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"{self._who.task} waited {timeout_s:g} s (timeout_s) at barrier {self._call} "
                    f"for {_names(missing) or 'the chief'}{last}. Does every task come to it, and "
                    "are all alive?",
                    task=self._who.task,
                    missing=_names(missing),
                    timeout_s=timeout_s,
                )
            time.sleep(backoff.next_s())


def _names(tasks: list[TaskId]) -> str:
    return ", ".join(str(task) for task in tasks)
