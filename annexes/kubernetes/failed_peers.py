"""Tasks that have failed for good before they joined: what Kubernetes knows of them.

A ps or a worker that cannot start tells the chief nothing. A StatefulSet starts it again for ever,
and the Job of the workers fails while the chief's waits for them. So a chief whose account may end
its job (``components/end-job``) may also look at these, and fails the job with their reason.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from ...cluster.roles import PS, WORKER
from ...core.backoff import Backoff
from ...core.errors import AccessError, RopewalkError
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import read_environment
from ...core.task import TaskId
from ...server.chief.servicer import LockedJob
from .client.api import KubernetesApi
from .own_job import chief_api, ends_its_job, failure_of
from .pods import why_it_fails_for_good
from .variables import HOLDS

log = logging.getLogger(__name__)

_FIRST_LOOK_S, _LONGEST_PAUSE_S = 5.0, 60.0
_MOST = 16  # pods that are asked for in one look


def failed_peers(locked_job: LockedJob, job: str, *, asks_ps: bool) -> "FailedPeers | None":
    """Make what looks at the tasks that do not join; None: this chief may not.

    Args:
        locked_job: The job.
        job: Name of the job, with which the names of its workloads begin.
        asks_ps: Whether the job cannot go on without a ps that has not joined.
    """
    if not ends_its_job():
        return None
    by_pods = bool(read_environment(HOLDS))
    return FailedPeers(locked_job, chief_api, job, asks_ps=asks_ps, by_pods=by_pods)


class FailedPeers:
    """A thread that fails the job once a task that has not joined has failed for good.

    Args:
        locked_job: The job.
        connect: Gives the API, with the pods of the ps and the Job of the workers; called at the
            first look.
        job: Name of the job.
        asks_ps: Whether the job cannot go on without a ps that has not joined.
        by_pods: Whether the pods of workers have names by which they can be looked at, too.
        first_look_s: Time until the first look; the pauses grow to a minute. Unit: seconds.
    """

    def __init__(
        self,
        locked_job: LockedJob,
        connect: Callable[[], KubernetesApi],
        job: str,
        *,
        asks_ps: bool,
        by_pods: bool = False,
        first_look_s: float = _FIRST_LOOK_S,
    ) -> None:
        self._locked_job = locked_job
        self._connect = connect
        self._api: KubernetesApi | None = None
        self._job = job
        self._asks_ps = asks_ps
        self._by_pods = by_pods
        self._pauses = Backoff(first_look_s, _LONGEST_PAUSE_S)
        self._next = 0
        self._stopping = threading.Event()
        self._thread = new_thread("failed-peers", self._run, failed=nobody_waits)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End soon; a request that is under way is not waited for."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(self._pauses.next_s()) and self._look():
            pass

    def _look(self) -> bool:
        """Look at the tasks that have not joined; False: there is nothing more to look at."""
        with self._locked_job.open() as (job, _):
            missing = [] if job.phase.is_over else job.members.missing
        workers = [task for task in missing if task.type == WORKER]
        named = [task for task in missing if task.type == PS and self._asks_ps]
        if self._by_pods:
            named, workers = named + workers, []
        if not named and not workers:
            return False
        try:
            api = self._api = self._api or self._connect()
            why = self._why_one_failed(api, named) or (workers and self._why_workers_failed(api))
        except AccessError as error:
            log.debug("whether tasks that do not join have failed is not known: %s", error)
            return False
        except RopewalkError as error:
            log.debug("%s", error)
            return True
        if not why or self._stopping.is_set():
            return not why
        with self._locked_job.open() as (job, _):
            job.fail(why, for_good=True)
        log.error("the job has failed: %s", why)
        return False

    def _why_one_failed(self, api: KubernetesApi, tasks: Sequence[TaskId]) -> str:
        """Write the sentence about the first task whose pod is known to fail; empty: none is."""
        at = self._next % len(tasks) if tasks else 0
        self._next = at + _MOST
        for task in [*tasks[at:], *tasks[:at]][:_MOST]:
            name = f"{self._job}-{task.type}-{task.index}"
            pod = api.get("Pod", name) or {}
            if why := why_it_fails_for_good(pod):
                return f"{task} fails whenever it is started: {why}"
        return ""

    def _why_workers_failed(self, api: KubernetesApi) -> str:
        """Write the sentence about the Job of the workers; empty: it has not failed."""
        name = f"{self._job}-{WORKER}"
        why = failure_of(api.get("Job", name) or {})
        return f"the Job {name} has failed, and makes no worker any more: {why}" if why else ""
