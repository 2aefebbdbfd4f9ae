"""What the tasks that run a program tell Prometheus: their program's numbers, and the chief the
job's.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ...cluster.resolvers.resolved import ResolvedTask
from ...core.settings import Settings
from ...distribute.runtime import ClusterRuntime
from ...net.metrics_port import MetricsPort
from ...telemetry.catalogue import Sample
from ...telemetry.task_metrics import job_samples, report_samples, save_samples, task_samples

if TYPE_CHECKING:
    from ...client.chief.membership import Membership
    from ...server.chief.servicer import LockedJob


def metrics_port(
    task: ResolvedTask, settings: Settings, collect: Callable[[], Iterable[Sample]]
) -> MetricsPort:
    """The port of a task, which may listen nowhere else: its cluster says whether on loopback."""
    known = task.address or task.evaluator or task.chief_address
    return MetricsPort(task.task, known, settings, collect)


def program_samples(
    runtime: ClusterRuntime, membership: "Membership | None", *, draining: bool
) -> Iterator[Sample]:
    """Of a task that runs a program.

    Args:
        runtime: Of the task.
        membership: Its own; None: it has not joined.
        draining: Whether it was asked to end.
    """
    job = membership.who.job if membership is not None else ""
    yield from task_samples(runtime.task.task, job or runtime.settings.job_id, draining=draining)
    yield from report_samples(runtime.report())
    for collect in list(runtime.measures):
        yield from collect()


def chief_samples(locked_job: "LockedJob") -> Iterator[Sample]:
    """Of the job that this task leads."""
    with locked_job.open() as (job, now):
        samples = job_samples(
            job.phase,
            [(member.task.type, member.state.value) for member in job.members.values()],
            global_step=job.global_step,
            goal_steps=job.total_steps,
            age_s=now - job.began,
        )
        found = list(samples)
    yield from found
    yield from save_samples(locked_job.saves, locked_job.last_checkpoint_step)
