"""A task's connection to its cluster, as a strategy sees it: a parameter session and its job.

A task makes a :class:`ClusterRuntime` when it has joined its cluster, and passes it on; strategies,
and what they are made of, get it as an argument. ``program_cluster.py`` is how a program's own
lines find it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from ..client.ps.fan_out import SessionCounters
from ..client.ps.parameter_session import ParameterSession
from ..client.ps.snapshot import PsSnapshot
from ..cluster.resolvers.resolved import ResolvedTask
from ..cluster.spec import EVALUATOR
from ..core.errors import ConfigurationError
from ..core.process.events import record
from ..core.report import TaskCounts, TaskReport
from ..core.settings import Settings, load_settings
from ..core.step_times import StepClock
from ..core.task import Incarnation, TaskId
from ..telemetry.catalogue import Sample
from .job_snapshots import JobSnapshots

if TYPE_CHECKING:
    from ..client.chief.calls import ChiefClient
    from .in_process import InProcessSteps

_ROLES = ". {} does not say who is a ps: --replicas ps=1,worker=3 (ROPEWALK_REPLICAS) does"


def _keep_slow(took_s: float, usual_s: float, part: str, part_s: float) -> None:
    record("step.slow", took_s=took_s, usual_s=usual_s, part=part, part_s=part_s)


@dataclass(slots=True)
class TaskProgress(TaskCounts):
    """The progress of this task so far; read by the heartbeat thread. Counters only grow.

    ``global_step`` is the count of a synchronous strategy; parameter servers keep their own.

    Attributes:
        staleness: Staleness of the last pushes. Unit: steps.
        metrics_of: The model of each metric that a framework has named.
        clock: Clock that measures where the time of steps goes.
    """

    staleness: deque[int] = field(default_factory=lambda: deque(maxlen=100))
    metrics_of: dict[str, str] = field(default_factory=dict)
    clock: StepClock = field(default_factory=lambda: StepClock(on_slow=_keep_slow))

    def step_of(self, session: ParameterSession | None) -> int:
        """Find the last global step that this task has seen, in its own count or a session's."""
        return max(self.global_step, session.global_step if session else 0)

    def report(self, session: ParameterSession | None, *, serves: bool = False) -> TaskReport:
        """Report the progress to the chief; ``serves``: the task runs a coordinator's closures."""
        counters = session.counters if session else SessionCounters()
        recent = list(self.staleness)
        own = {count.name: getattr(self, count.name) for count in fields(TaskCounts)}
        own |= {"global_step": self.step_of(session), "metrics": dict(self.metrics)}
        return TaskReport(
            **own,
            bytes_pushed=counters.pushed,
            bytes_pulled=counters.pulled,
            staleness=sum(recent) / len(recent) if recent else 0.0,
            transports=session.transports if session else (),
            serves=serves,
            step_parts=self.clock.times().parts,
        )


class JobLink:
    """The job of a task, as a program asks it. This one is for a process that is in no job."""

    def check(self) -> None:
        """Raise if the program should end. Called between steps and during waits."""

    def chief_has_ended(self) -> bool:
        """Return whether the chief's program is over, so that it creates no more variables."""
        return False

    def barrier(self, timeout_s: float) -> None:
        """Wait until the other tasks that run the program are here, too."""

    def snapshot(self, timeout_s: float) -> PsSnapshot | None:  # noqa: ARG002 - nobody else pushes
        """Take the values of all ps at one moment; None: this process alone has them."""
        return None

    @property
    def chief(self) -> "tuple[ChiefClient, Incarnation] | None":
        """Client of the chief, and this task as the chief knows it; None: there is no chief."""
        return None

    def wait_over(self, timeout_s: float) -> bool:  # noqa: ARG002 - there is none to wait for
        """Wait for the end of the job; returns whether it has come."""
        return False


@dataclass(frozen=True, eq=False)
class ClusterRuntime:
    """A task's connection to its cluster.

    Attributes:
        task: Task of this process, and its cluster.
        settings: The task's settings.
        connection: Session with every ps; None for an evaluator, and where there are no ps.
        job: Link to the job of the task.
        alone: Whether this process is the whole cluster.
        restore_from: Name of the checkpoint the chief starts from; empty: none.
        snapshots: Hands a synchronous strategy's variables to the job that saves them; None: no
            job does.
        progress: Counters and metrics of the program, for the status.
        at_end: Called when the program has ended, before the job is told.
        before_last_save: Called on the chief before the last checkpoint, when all others are done;
            on one whose job another process leads, at the end of its program.
        measures: Further samples of this process for Prometheus.
        in_process: Applies steps to the only ps, which is in this process; None: there are others.
    """

    task: ResolvedTask
    settings: Settings
    connection: ParameterSession | None = None
    job: JobLink = field(default_factory=JobLink)
    alone: bool = False
    restore_from: str = ""
    snapshots: JobSnapshots | None = None
    progress: TaskProgress = field(default_factory=TaskProgress)
    at_end: list[Callable[[], None]] = field(default_factory=list)
    before_last_save: list[Callable[[], None]] = field(default_factory=list)
    measures: list[Callable[[], Iterable[Sample]]] = field(default_factory=list)
    in_process: "InProcessSteps | None" = None

    @property
    def session(self) -> ParameterSession:
        """Session with every ps.

        Raises:
            ConfigurationError: This task has no session.
        """
        if self.connection is None and self.task.task.type != EVALUATOR:
            launcher = self.task.resolver.source
            raise ConfigurationError(
                f"{self.task.task}: the cluster has no ps; ParameterServerStrategy needs at least "
                "one ps to hold the variables. Without any, workers train in sync with "
                "MultiWorkerMirroredStrategy"
                + (_ROLES.format(launcher) if launcher in ("Slurm", "SageMaker") else ""),
                task=self.task.task,
            )
        if self.connection is None:
            raise ConfigurationError(
                f"{self.task.task} has no variables on parameter servers: an evaluator reads "
                "checkpoints. Use rw.training.SidecarEvaluator in it, and create the strategy in "
                "the other tasks only",
                task=self.task.task,
            )
        return self.connection

    @property
    def global_step(self) -> int:
        """The last global step that this task has seen."""
        return self.progress.step_of(self.connection)


def local_runtime(task: ResolvedTask, num_ps: int = 1) -> ClusterRuntime:
    """Make a whole cluster in this process: ``num_ps`` parameter servers, one worker, no
    sockets.
    """
    # Loads the server, which a worker of a real cluster has no use for.
    from .in_process import InProcessSteps
    from .local_ps import LocalPs

    settings = load_settings()
    who = Incarnation(task.task, 1)
    transports = [LocalPs(TaskId("ps", i), who, settings) for i in range(num_ps)]
    session = ParameterSession(transports, who, settings)
    finite = settings.nonfinite_gradients != "allow"
    here = InProcessSteps(transports[0], check_finite=finite) if num_ps == 1 else None
    return ClusterRuntime(task, settings, session, alone=True, in_process=here)
