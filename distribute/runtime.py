"""A task's connection to its cluster, as a strategy sees it: a parameter session and a few hooks.

Whoever joins a cluster makes a :class:`ClusterRuntime` and passes it on; strategies, and what they
are made of, get it as an argument. ``program_cluster.py`` is how a program's own lines find it.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..client.ps.fan_out import SessionCounters
from ..client.ps.parameter_session import ParameterSession
from ..cluster.resolvers.resolved import ResolvedTask
from ..cluster.roles import EVALUATOR
from ..core.errors import ConfigurationError
from ..core.report import TaskReport
from ..core.settings import Settings, load_settings
from ..core.task import Incarnation, TaskId
from ..telemetry.catalogue import Sample
from .job_snapshots import JobSnapshots

if TYPE_CHECKING:
    from .in_process import InProcessSteps

_ROLES = ". {} does not say who is a ps: --replicas ps=1,worker=3 (WINDLASS_REPLICAS) does"


@dataclass
class TaskProgress:
    """What this task did so far; read by the heartbeat thread. Counters only grow.

    Attributes:
        steps: This task's share of the global step: its steps that changed variables.
        global_step: Of a synchronous strategy; on parameter servers they count it.
    """

    steps: int = 0
    global_step: int = 0
    pushes: int = 0
    refused_pushes: int = 0
    total_steps: int = 0
    replicas: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    staleness: deque[int] = field(default_factory=lambda: deque(maxlen=100))


@dataclass
class ClusterRuntime:
    """A task's connection to its cluster.

    Attributes:
        task: Who this is.
        settings: Of this task.
        connection: To every ps; None for an evaluator.
        check: Called between steps; raises when the program should end.
        chief_has_ended: Whether the chief's program is over, so that it creates no more variables.
        barrier: Waits for the other tasks that run the program, so many seconds; see ``barrier``
            of strategies.
        alone: This process is the whole cluster.
        restore_from: Name of the checkpoint the chief starts from; empty: none.
        snapshots: What a synchronous strategy hands to the job that saves it; None: no job does.
        progress: For the status.
        serves: This task has no program of its own; it runs what the coordinator schedules.
        at_end: Called when the program has ended, before the job hears of it.
        job_is_over: Waits so many seconds for the end of the job; returns whether that has come.
        measures: What else of this process Prometheus is told.
        in_process: Applies steps to the only ps, which is in this process; None: there are others.
    """

    task: ResolvedTask
    settings: Settings
    connection: ParameterSession | None = None
    check: Callable[[], None] = lambda: None
    chief_has_ended: Callable[[], bool] = lambda: False
    barrier: Callable[[float], None] = lambda timeout_s: None  # noqa: ARG005 - nobody to wait for
    alone: bool = False
    restore_from: str = ""
    snapshots: JobSnapshots | None = None
    progress: TaskProgress = field(default_factory=TaskProgress)
    serves: bool = False
    at_end: list[Callable[[], None]] = field(default_factory=list)
    job_is_over: Callable[[float], bool] = lambda timeout_s: False  # noqa: ARG005 - it has none
    measures: list[Callable[[], Iterable[Sample]]] = field(default_factory=list)
    in_process: "InProcessSteps | None" = None

    @property
    def session(self) -> ParameterSession:
        """To every ps.

        Raises:
            ConfigurationError: This task has none.
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
                "checkpoints. Use wl.training.SidecarEvaluator in it, and create the strategy in "
                "the other tasks only",
                task=self.task.task,
            )
        return self.connection

    def report(self) -> TaskReport:
        """This task's progress, for the chief."""
        progress = self.progress
        counters = self.connection.counters if self.connection else SessionCounters()
        recent = list(progress.staleness)
        return TaskReport(
            steps=progress.steps,
            pushes=progress.pushes,
            bytes_pushed=counters.pushed,
            bytes_pulled=counters.pulled,
            refused_pushes=progress.refused_pushes,
            global_step=max(
                progress.global_step, self.connection.global_step if self.connection else 0
            ),
            staleness=sum(recent) / len(recent) if recent else 0.0,
            metrics=dict(progress.metrics),
            total_steps=progress.total_steps,
            transports=self.connection.transports if self.connection else (),
            replicas=progress.replicas,
            serves=self.serves,
        )


def local_runtime(task: ResolvedTask, num_ps: int = 1) -> ClusterRuntime:
    """A whole cluster in this process: ``num_ps`` parameter servers, one worker, no sockets."""
    # Loads the server, which a worker of a real cluster has no use for.
    from .in_process import InProcessSteps
    from .local_ps import LocalPs

    settings = load_settings()
    who = Incarnation(task.task, 1)
    transports = [LocalPs(TaskId("ps", i), who, settings) for i in range(num_ps)]
    session = ParameterSession(transports, who, settings)
    runtime = ClusterRuntime(task, settings, session, alone=True)
    if num_ps == 1:
        finite = settings.nonfinite_gradients != "allow"
        runtime.in_process = InProcessSteps(transports[0], check_finite=finite)
    return runtime
