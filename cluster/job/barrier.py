"""Agreements of all tasks of a job: its barrier, and the devices of its workers. Pure."""

from collections.abc import Collection

from ...core.errors import ConfigurationError, RefusedError
from ...core.task import Incarnation, TaskId

# -- The barrier of a job: who has arrived, and who is missing. Pure ---------------------------
# Rounds follow each other: a task that arrives joins the current one, and the last to arrive ends
# it. A task names its call by a number of its own, so that a call which is repeated, because the
# answer was lost, is not taken for the next one. A restarted task begins its program anew and
# joins whatever round is current; what its earlier process had announced does not count.


class JobBarrier:
    """Arrivals of the tasks of one job. The caller locks."""

    def __init__(self) -> None:
        self._round = 0
        # Task → (who, its call, the round it joined): of each its last one.
        self._calls: dict[TaskId, tuple[Incarnation, int, int]] = {}

    def arrive(
        self, who: Incarnation, call: int, expected: Collection[Incarnation]
    ) -> list[TaskId]:
        """Note that a task is at its barrier number ``call``, or still is; returns who is missing.

        Args:
            who: The task.
            call: Number of the barrier, from 1, counted by this generation of the task.
            expected: Tasks that the barrier waits for, as they are now.

        Returns:
            The tasks that have not arrived; empty: the barrier is over.

        Raises:
            RefusedError: It has left out a call.
        """
        last = self._calls.get(who.task)
        if last is not None and last[0] == who:
            if call < last[1]:
                return []  # of a round that is over, and late
            if call > last[1] + 1:
                raise RefusedError(
                    f"{who.task} is at barrier {call}, and was at {last[1]} before: calls count up "
                    "by one",
                    task=who.task,
                    value=call,
                    limit=last[1] + 1,
                )
        if last is None or last[:2] != (who, call):
            last = self._calls[who.task] = (who, call, self._round)
        if last[2] < self._round:
            return []
        missing = [one.task for one in expected if not self.has(one)]
        if not missing:
            self._round += 1
        return missing

    def has(self, one: Incarnation) -> bool:
        """Return whether a task is at the current barrier."""
        who, _, joined = self._calls.get(one.task, (None, 0, -1))
        return who == one and joined == self._round


# -- The number of devices of a coordinator's workers, which has to be the same on each of them --
# A closure runs on any worker, with a replica for each device there. What a program derives from
# ``num_replicas_in_sync``, such as a global batch or the scale of a loss, is right for all
# closures only if every worker has as many. TensorFlow refuses others, too
# (``ParameterServerStrategyV2``: "Mismatched number of GPUs per worker").
#
# Pure: no I/O, no locks, no clock.


class WorkerReplicas:
    """Devices of the workers that have joined.

    Args:
        read: Number that the program has read as ``num_replicas_in_sync`` before there was a
            coordinator; None: it has not.

    Attributes:
        count: Devices of each worker; None: no worker has said.
    """

    def __init__(self, read: int | None = None) -> None:
        self.count: int | None = None
        self._read = read
        self._first: TaskId | None = None

    def joined(self, worker: TaskId, replicas: int) -> ConfigurationError | None:
        """Note that a worker has joined, or has come back; returns what is wrong with it.

        Args:
            worker: Task of the worker.
            replicas: Number of its devices; 0: it does not say.
        """
        if not replicas:
            return None
        if self.count is None:
            self.count, self._first = replicas, worker
        if replicas != self.count:
            before = "had" if worker == self._first else "has"
            return ConfigurationError(
                f"workers have different numbers of devices: {self._first} {before} {self.count}, "
                f"{worker} has {replicas}. A closure runs on any of them, so num_replicas_in_sync "
                "must be the same on all: give each worker as many GPUs (CUDA_VISIBLE_DEVICES), or "
                "as many logical devices (rw.config.set_logical_cpu_devices and "
                "set_logical_gpu_devices before it serves)",
                task=worker,
            )
        if self._read not in (None, replicas):
            return ConfigurationError(
                f"num_replicas_in_sync was read as {self._read} before the strategy had a "
                f"coordinator, and {worker} has {replicas} devices: make the ClusterCoordinator "
                "first, then num_replicas_in_sync is that of the workers",
                task=worker,
            )
        return None
