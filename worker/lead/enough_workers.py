"""The chief waits for workers before its program begins: the setting ``wait_for_workers``."""

import logging
import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from ...cluster.resolvers.resolved import ResolvedTask
from ...cluster.spec import WORKER
from ...core.errors import ConfigurationError, JoinTimeoutError
from ...core.process.waiting import FIRST_S
from ...core.settings import ALL_WORKERS, Settings
from ...core.task import State, TaskId

if TYPE_CHECKING:
    from ...cluster.job.job import Job
    from ...server.chief.servicer import LockedJob

log = logging.getLogger(__name__)

_NOT_HERE = (State.MISSING, State.LOST)
_POLL_S = 0.02
_LONGEST_S = 60.0  # in a job that can go on with fewer workers


def wait_for_workers(
    locked_job: "LockedJob",
    settings: Settings,
    task: ResolvedTask,
    check: Callable[[], None],
    *,
    resumes: bool = False,
) -> None:
    """Wait until ``settings.wait_for_workers`` workers have joined, at most the join timeout.

    Workers wait for the chief by themselves, since it creates the variables. The status names the
    missing ones. Where all workers are wanted (-1), and in a job that resumes and may have been
    scaled down since, the chief goes on with fewer after a minute.

    Raises:
        ConfigurationError: The cluster has fewer workers.
        JoinTimeoutError: Too few workers have joined; names the missing ones.
    """
    listed = task.spec.num_tasks(WORKER) if WORKER in task.spec.jobs else 0
    wants_all = settings.wait_for_workers == ALL_WORKERS
    wanted = listed if wants_all else settings.wait_for_workers
    if wanted > listed and not task.dynamic:
        raise ConfigurationError(
            f"--wait-for-workers={wanted}: the cluster has {listed} workers", wanted=wanted
        )
    can_go_on = resumes or wants_all
    limit_s = min(settings.join_timeout_s, _LONGEST_S) if can_go_on else settings.join_timeout_s
    began, shown = time.monotonic(), ""
    try:
        while True:
            check()
            with locked_job.open() as (job, _):
                # One that came and was lost may be gone for good: the job can go on without it.
                here, missing = _workers_of(job, (State.MISSING,) if wants_all else _NOT_HERE)
                is_enough = here >= wanted
                shorts = ", ".join(each.short for each in missing) or "workers"
                job.wait_for("" if is_enough else f"waiting for {shorts}")
            names = ", ".join(map(str, missing)) or "workers"
            waited_s = time.monotonic() - began
            if is_enough:
                return
            if waited_s >= limit_s and can_go_on:
                log.warning(
                    "goes on with %d of %d workers (wait_for_workers): %s did not join within "
                    "%g s%s",
                    here, wanted, names, limit_s,
                    "; if the job was scaled down, that is as it should be" if resumes else "",
                )  # fmt: skip
                return
            if waited_s >= limit_s:
                raise JoinTimeoutError(
                    f"{task.task} waited {settings.join_timeout_s:g} s (join_timeout_s) for "
                    f"{wanted} workers (wait_for_workers); {here} joined, {names} did not",
                    task=task.task,
                    missing=names,
                )
            # All are started together: a line for each that is a moment later would be noise.
            if names != shown and (not wants_all or waited_s >= FIRST_S):
                shown = names
                log.info("waiting for %d of %d workers: %s", wanted - here, wanted, names)
            time.sleep(_POLL_S)
    finally:
        with locked_job.open() as (job, _):
            job.wait_for("")


def _workers_of(job: "Job", not_here: Collection[State]) -> tuple[int, list[TaskId]]:
    """Count the workers that are in none of these states, and list the workers that are."""
    workers = [member for member in job.members.values() if member.task.type == WORKER]
    missing = [member.task for member in workers if member.state in not_here]
    return len(workers) - len(missing), missing
