"""The number of devices of a coordinator's workers, which has to be the same on each of them.

A closure runs on any worker, with a replica for each device there. What a program derives from
``num_replicas_in_sync``, such as a global batch or the scale of a loss, is right for all closures
only if every worker has as many. TensorFlow refuses others, too (``ParameterServerStrategyV2``:
"Mismatched number of GPUs per worker").

Pure: no I/O, no locks, no clock.
"""

from ...core.errors import ConfigurationError
from ...core.task import TaskId


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
