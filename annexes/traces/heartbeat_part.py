"""A task whose steps can be traced, from when it has joined its job."""

from ...core.spans import Context
from ...proto.v1 import chief_pb2
from ...worker.joining import JoinedTask
from . import task_process
from .sampling import AskedSteps, Sampler
from .settings import TraceSettings

_tasks: list["TracedTask"] = []


class TracedTask:
    """The sampler of a task. The task's clock gets it when it is first needed, and keeps it.

    Args:
        joined: The task.
    """

    def __init__(self, joined: JoinedTask) -> None:
        self._joined = joined
        share = TraceSettings.of(joined.settings).trace
        self._sampler = Sampler(joined.who.task.short, share, self._tell)
        if share:
            joined.clock.sampler = self._sampler
        _tasks.append(self)

    def _tell(self, step: Context) -> None:
        self._joined.chief.sampled_step = step

    def ask(self, count: int) -> AskedSteps:
        """Have the next steps traced; :meth:`forget` must follow."""
        self._joined.clock.sampler = self._sampler
        return self._sampler.ask(count)

    def forget(self, asked: AskedSteps) -> None:
        """Trace no more steps for this."""
        self._sampler.forget(asked)

    def hear(self, answer: chief_pb2.HeartbeatResponse) -> None:
        """Do nothing: nothing of it is told by heartbeats."""

    def close(self) -> None:
        """Send what there is; the task leaves its job."""
        if self in _tasks:
            _tasks.remove(self)
        task_process.flush()


def traced_tasks() -> list[TracedTask]:
    """List the tasks of this process: one, but in tests."""
    return list(_tasks)


PART = TracedTask
"""Made when a task has joined."""
