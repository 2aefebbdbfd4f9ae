"""Samples for Prometheus of what a task counts for its status anyway. Pure.

Counters are read when metrics are asked for: a step pays nothing for it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from ..core.report import ProcessUsage, PsCounters, TaskReport
from ..core.step_times import BOUNDS_S, StepPart
from ..core.task import Phase, TaskId
from ..core.versions import own_versions
from .catalogue import (
    CHIEF,
    CLOSURES_RUNNING,
    CLOSURES_WAITING,
    CLUSTER_JOBS,
    CLUSTER_NODES,
    CONNECTIONS,
    DRAINING,
    GPUS,
    JOB_AGE,
    JOB_CUT_SECONDS,
    JOB_CUTS,
    JOB_FAILOVER_SECONDS,
    JOB_FAILOVERS,
    JOB_GOAL,
    JOB_HANDOVERS,
    JOB_MISSING_REPLICAS,
    JOB_MOVE_SECONDS,
    JOB_MOVES,
    JOB_PHASE,
    JOB_REPLICAS,
    JOB_STEP,
    JOB_TASKS,
    PROGRAMS,
    PS,
    PS_CHIEF_SILENCE,
    PS_CONNECTIONS,
    PS_LIMIT,
    PS_MAX_SESSIONS,
    PS_SHARES,
    PS_UNACKNOWLEDGED,
    REFUSED_CALLERS,
    REFUSED_CONNECTIONS,
    REPORTED,
    SAVED_STEP,
    STEP_SECONDS,
    TABLES,
    TASK_INFO,
    USAGE,
    Distribution,
    Sample,
    counted_samples,
)


def task_samples(task: TaskId, job: str, *, draining: bool) -> Iterator[Sample]:
    """Yield the identity of this task.

    Args:
        task: Task of this process.
        job: Id of its job; empty: not known yet.
        draining: Whether the task was asked to end.
    """
    versions = _versions()
    labels = (job, task.type, str(task.index), versions.ropewalk, versions.python)
    yield Sample(TASK_INFO, 1, labels)
    yield Sample(DRAINING, draining)


_versions = cache(own_versions)  # reading them takes longer than all the rest


def usage_samples(usage: ProcessUsage) -> Iterator[Sample]:
    """Yield what a task uses of its machine."""
    yield from counted_samples(USAGE, usage)
    for gpu in usage.gpus:
        yield from counted_samples(GPUS, gpu, gpu.name)


def report_samples(report: TaskReport) -> Iterator[Sample]:
    """Yield the work of a task that runs a program."""
    yield from usage_samples(report.usage)
    yield from counted_samples(PROGRAMS, report)
    # "tcp (the host has no shared memory)": the reason would be a label value of its own.
    kinds = Counter(transport.split(" ", 1)[0] for transport in report.transports)
    for kind, count in sorted(kinds.items()):
        yield Sample(PS_CONNECTIONS, count, (kind,))
    for name, value in sorted(report.metrics.items()):
        yield Sample(REPORTED, value, (name,))


_EACH_BOUND = 4
"""A histogram here has every so many bounds of a step's: each is four times the one before."""


def step_samples(report: TaskReport) -> Iterator[Distribution]:
    """Yield the times of a task's steps."""
    return map(_step_distribution, report.step_parts)


def _step_distribution(part: StepPart) -> Distribution:
    upto = [0, *accumulate(part.buckets)]
    bounds = [
        (bound, upto[min(number, len(upto) - 1)])
        for number, bound in enumerate(BOUNDS_S, 1)
        if number % _EACH_BOUND == 1
    ]
    return Distribution(STEP_SECONDS, (*bounds, (math.inf, upto[-1])), part.seconds, (part.name,))


def ps_samples(
    counters: PsCounters, *, limit_bytes: int, max_sessions: int, chief_silent_s: float
) -> Iterator[Sample]:
    """Yield the work of a ps, and what it holds.

    Args:
        counters: Counters of the ps.
        limit_bytes: Maximal size of values and slots. Unit: bytes.
        max_sessions: Maximal number of workers with a session.
        chief_silent_s: Time since the chief was last heard of. Unit: seconds.
    """
    yield from usage_samples(counters.usage)
    yield from counted_samples(PS, counters)
    for table in counters.tables:
        yield from counted_samples(TABLES, table, table.name)
    yield Sample(PS_LIMIT, limit_bytes)
    yield Sample(PS_MAX_SESSIONS, max_sessions)
    yield Sample(PS_CHIEF_SILENCE, chief_silent_s)


def connection_samples(served: int, refused: int, refused_callers: int) -> Iterator[Sample]:
    """Yield the callers of a task's port.

    Args:
        served: Connections that are open now.
        refused: Connections there was no room for, since the start.
        refused_callers: Callers that may not, since the start.
    """
    yield Sample(CONNECTIONS, served)
    yield Sample(REFUSED_CONNECTIONS, refused)
    yield Sample(REFUSED_CALLERS, refused_callers)


@dataclass(slots=True)
class SaveCounters:
    """Checkpoints of a job since its chief's start.

    Attributes:
        saved: Complete ones.
        failed: Checkpoints that could not be written.
        under_way: Whether one is being written now.
        saved_at: Time at which the last one was complete. Unit: seconds since 1970; 0: none yet.
        duration_s: Time that the last complete one took.
        in_a_row: Checkpoints that could not be written since the last complete one.
        why: Why the last one could not be written; empty: it was complete.
    """

    saved: int = 0
    failed: int = 0
    under_way: bool = False
    saved_at: float = 0.0
    duration_s: float = 0.0
    in_a_row: int = 0
    why: str = ""

    def done(self, at: float, duration_s: float) -> None:
        """Count a checkpoint that is complete."""
        self.saved, self.saved_at, self.duration_s = self.saved + 1, at, duration_s
        self.in_a_row, self.why = 0, ""

    def has_failed(self, why: str) -> None:
        """Count a checkpoint that could not be written."""
        self.failed, self.in_a_row, self.why = self.failed + 1, self.in_a_row + 1, why


def save_samples(saves: SaveCounters, last_step: int) -> Iterator[Sample]:
    """Yield the job's checkpoints.

    Args:
        saves: Save counters of the job.
        last_step: Global step of the last one.
    """
    yield from counted_samples(CHIEF, saves)
    yield Sample(SAVED_STEP, last_step)


def job_samples(
    phase: Phase,
    tasks: Iterable[tuple[str, str]],
    *,
    global_step: int,
    goal_steps: int,
    age_s: float,
) -> Iterator[Sample]:
    """Yield a job's state, as its chief sees it.

    Args:
        phase: Phase of the job.
        tasks: (role, state) of each task.
        global_step: Global step of the job.
        goal_steps: Global step that it works towards; 0: unknown.
        age_s: Time since the chief leads it. Unit: seconds.
    """
    for possible in Phase:
        yield Sample(JOB_PHASE, possible is phase, (possible.value,))
    for (role, state), count in sorted(Counter(tasks).items()):
        yield Sample(JOB_TASKS, count, (role, state))
    yield Sample(JOB_STEP, global_step)
    yield Sample(JOB_GOAL, goal_steps)
    yield Sample(JOB_AGE, age_s)


def follower_samples(
    roles: Iterable[str], unacknowledged: Iterable[tuple[int, TaskId, int]]
) -> Iterator[Sample]:
    """Yield the roles of a ps in the shares of its job.

    Args:
        roles: Role in each share that it leads or follows.
        unacknowledged: (share, follower, number of records) of each share that it leads.
    """
    for role, count in sorted(Counter(roles).items()):
        yield Sample(PS_SHARES, count, (role,))
    for share, follower, count in unacknowledged:
        yield Sample(PS_UNACKNOWLEDGED, count, (str(share), follower.short))


def share_samples(replicas: Mapping[int, int], wanted: int) -> Iterator[Sample]:
    """Yield the numbers of ps that have the variables of a job with replicas.

    Args:
        replicas: Number of ps that have each share.
        wanted: Number of ps that each share is to have.
    """
    for share, count in sorted(replicas.items()):
        yield Sample(JOB_REPLICAS, count, (str(share),))
    yield Sample(JOB_MISSING_REPLICAS, sum(max(0, wanted - count) for count in replicas.values()))


def leader_samples(failovers: int, last_s: float, handovers: int) -> Iterator[Sample]:
    """Yield how often another ps has come to lead a share.

    Args:
        failovers: Number of times because its leader was lost.
        last_s: Time that the last failover took. Unit: seconds.
        handovers: Number of times in order.
    """
    yield Sample(JOB_FAILOVERS, failovers)
    yield Sample(JOB_FAILOVER_SECONDS, last_s)
    yield Sample(JOB_HANDOVERS, handovers)


def cut_samples(taken: int, void: int, last_s: float) -> Iterator[Sample]:
    """Yield the cuts: values of all ps at one moment.

    Args:
        taken: Number of cuts.
        void: Number of cuts that came to nothing.
        last_s: Time that the last one took that was taken. Unit: seconds.
    """
    yield Sample(JOB_CUTS, taken, ("taken",))
    yield Sample(JOB_CUTS, void, ("void",))
    yield Sample(JOB_CUT_SECONDS, last_s)


def move_samples(done: int, failed: int, last_s: float) -> Iterator[Sample]:
    """Yield the moves of shares.

    Args:
        done: Number of moves that were made.
        failed: Number of moves that failed.
        last_s: Time that the last one took. Unit: seconds.
    """
    yield Sample(JOB_MOVES, done, ("done",))
    yield Sample(JOB_MOVES, failed, ("failed",))
    yield Sample(JOB_MOVE_SECONDS, last_s)


def closure_samples(waiting: int, running: int) -> Iterator[Sample]:
    """Yield the closures that the coordinator has to run."""
    yield Sample(CLOSURES_WAITING, waiting)
    yield Sample(CLOSURES_RUNNING, running)


def cluster_samples(jobs: Iterable[str], nodes: Iterable[str]) -> Iterator[Sample]:
    """Yield the jobs and nodes of a standing cluster.

    Args:
        jobs: State of each job.
        nodes: State of each node.
    """
    for metric, states in ((CLUSTER_JOBS, jobs), (CLUSTER_NODES, nodes)):
        for state, count in sorted(Counter(states).items()):
            yield Sample(metric, count, (state,))
