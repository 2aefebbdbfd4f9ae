"""The chief waits for workers before its program begins: the setting ``wait_for_workers``."""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from ..cluster.resolved import ResolvedTask
from ..cluster.roles import WORKER
from ..core.errors import ConfigurationError, JoinTimeoutError
from ..core.settings import Settings
from ..core.states import State

if TYPE_CHECKING:
    from ..server.chief.servicer import LockedJob

log = logging.getLogger(__name__)

_LOOK_S = 0.05
_RESUME_S = 60.0  # workers are started again with the chief, and their image is there


def wait_for_workers(
    locked_job: "LockedJob",
    settings: Settings,
    task: ResolvedTask,
    check: Callable[[], None],
    *,
    resumes: bool = False,
) -> None:
    """Wait until ``settings.wait_for_workers`` workers have joined, at most the join timeout.

    The others wait for the chief by themselves: it creates the variables. A job that ``resumes``
    may have been scaled down since, which its chief is not told: after a minute it goes on with
    those that are there.

    Raises:
        ConfigurationError: The cluster has fewer workers.
        JoinTimeoutError: Too few have come; names those of the cluster that have not.
    """
    wanted = settings.wait_for_workers
    listed = task.spec.num_tasks(WORKER) if WORKER in task.spec.jobs else 0
    if wanted > listed and not task.dynamic:
        raise ConfigurationError(
            f"--wait-for-workers={wanted}: the cluster has {listed} workers", wanted=wanted
        )
    limit_s = min(settings.join_timeout_s, _RESUME_S) if resumes else settings.join_timeout_s
    deadline = time.monotonic() + limit_s
    shown = ""
    while True:
        check()
        with locked_job.open() as (job, _):
            workers = [member for member in job.members.values() if member.task.type == WORKER]
            missing = [str(m.task) for m in workers if m.state in (State.MISSING, State.LOST)]
            here = len(workers) - len(missing)
        if here >= wanted:
            return
        names = ", ".join(missing) or "workers"
        if time.monotonic() >= deadline and resumes:
            log.warning(
                "goes on with %d of %d workers (wait_for_workers): %s did not join again within "
                "%g s; if the job was scaled down, that is as it should be",
                here, wanted, names, limit_s,
            )  # fmt: skip
            return
        if time.monotonic() >= deadline:
            raise JoinTimeoutError(
                f"{task.task} waited {settings.join_timeout_s:g} s (join_timeout_s) for {wanted} "
                f"workers (wait_for_workers); {here} joined, {names} did not",
                task=task.task,
                missing=names,
            )
        if names != shown:
            shown = names
            log.info("waiting for %d of %d workers: %s", wanted - here, wanted, names)
        time.sleep(_LOOK_S)
