"""Strategies whose replicas are in sync in one process: their steps are counted, and a job saves
their variables between two of them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ..base.contexts import is_running
from ..base.interface import Arguments, Keywords
from ..runtime import ClusterRuntime, TaskProgress
from ..variables.variable import Variable
from .cross_device_ops import CrossDeviceOps
from .extended import StrategyExtended
from .reducer import Reducer
from .strategy import Strategy
from .synchronous_steps import OneWorker, SynchronousSteps


class CountedStepsExtended(StrategyExtended):
    """Steps of such a strategy; derived classes define its variables.

    Args:
        strategy: The strategy whose algorithms these are.
        devices: Devices, one per replica of this worker.
        cross_device_ops: Combines the values of several devices into one.
        first_replica: Number of this worker's first replica among those in sync.
        reducer: Reduces over the replicas; None: over those of this worker.
        progress: Progress of this task, for the status; None: it is not reported.

    Attributes:
        steps: Counter of the steps, which the job saves.
    """

    def __init__(
        self,
        strategy: Strategy,
        devices: Sequence[str],
        cross_device_ops: CrossDeviceOps | None = None,
        first_replica: int = 0,
        reducer: Reducer | None = None,
        progress: TaskProgress | None = None,
    ) -> None:
        super().__init__(strategy, devices, cross_device_ops, first_replica, reducer)
        self.steps = SynchronousSteps(progress)

    def join_job(self, runtime: ClusterRuntime | None) -> None:
        """Let the program's job, if it has one, save the variables of this strategy alone.

        Args:
            runtime: Runtime of a program whose job saves; None: there is none.

        Raises:
            CheckpointError: The checkpoint that the job resumes from is damaged.
            StorageError: This task may not read it.
            PeerLostError: It cannot be read now.
        """
        job = runtime.snapshots if runtime is not None else None
        if runtime is not None and job is not None and job.offer():
            self.steps.join(job, OneWorker(runtime.task.task), job.restore_from)

    def scope_left(self) -> None:
        """Say what was restored of the variables made in the scope."""
        self.steps.tell_restored()

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Arguments = (), kwargs: Keywords = None
    ) -> Any:
        """Make a step on every replica; counted if it changes variables."""
        self.steps.begin()
        result = super().call_for_each_replica(fn, args, kwargs)
        self.steps.end()
        return result

    def as_one_step(self) -> AbstractContextManager[None]:
        """See :meth:`StrategyExtended.as_one_step`."""
        return self.steps.as_one()

    def apply_gradients(self, optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> None:
        """Update variables; outside of ``run`` this is a step of its own."""
        is_step = not is_running(self._strategy)
        if is_step:
            self.steps.begin()
        self.steps.note_write()
        super().apply_gradients(optimizer, pairs)
        if is_step:
            self.steps.end()

    @contextmanager
    def same_step(self) -> Iterator[None]:
        """Leave changes in this block uncounted."""
        self.steps.joins = True
        try:
            yield
        finally:
            self.steps.joins = False

    def note_write(self) -> None:
        """Note that a variable that the replicas share is being changed."""
        self.steps.note_write(by_hand=not is_running(self._strategy))
