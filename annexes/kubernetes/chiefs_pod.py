"""The part of a chief's pod in its job: writing its state, looking at pods, knowing the next."""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ...cluster.job.job import Job
from ...cluster.spec import PS, WORKER
from ...core.backoff import Backoff
from ...core.errors import AccessError, RopewalkError
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import environment_variables, read_environment
from ...core.task import TaskId
from ...server.chief.servicer import LockedJob
from ...worker.lead.companions import LedJob
from .api import KubernetesApi
from .job_end import chief_api, ends_its_job, failure_of, why_none_follows
from .pods import why_it_fails_for_good
from .requests import is_in_pod
from .settings import HOLDS, STATUS_OBJECT
from .status_record import JobEvent, JobSnapshot, events_between, is_due, record_of, view_of

log = logging.getLogger(__name__)

# -- Writes a job's state where others on Kubernetes see it: a ConfigMap's data, and Events ----
# A thread looks at the job every two seconds and writes when something has changed. Nothing of it
# is on the way of a step, and nothing that goes wrong here concerns the training: it is logged
# once, and tried again ever more rarely.


_LOOK_S = 2.0
_LONGEST_PAUSE_S = 300.0
_END_S = 8.0  # how long the end of a chief may wait for the last writes


@dataclass(frozen=True, slots=True)
class StatusTarget:
    """Place to which the state is written.

    Attributes:
        name: Name of the ConfigMap.
        job: Name of the Kubernetes Job that the events are about; empty: of no Job, so the
            ConfigMap has them.
        uid: Uid of that Job.
        pod: Name of this pod.
    """

    name: str
    job: str = ""
    uid: str = ""
    pod: str = ""


def status_target() -> StatusTarget | None:
    """Find where this pod is told to write; None: nowhere."""
    said = environment_variables()
    name = said.get(STATUS_OBJECT)
    if not name:
        return None
    return StatusTarget(
        name,
        said.get("ROPEWALK_STATUS_JOB", ""),
        said.get("ROPEWALK_STATUS_JOB_UID", ""),
        said.get("HOSTNAME", ""),
    )


def status_writer(locked_job: LockedJob) -> "StatusWriter | None":
    """Make the writer of a chief that is told to write its job's state; None: it is not."""
    target = status_target()
    if target is None or not is_in_pod():
        return None
    return StatusWriter(locked_job, chief_api, target)


class StatusWriter:
    """Writes one job's state until it is stopped.

    Args:
        locked_job: The job.
        connect: Gives the API; called when something is to be written.
        target: Place to which the state is written.
        look_s: Time between looks at the job. Unit: seconds.
        now: The time of day.
    """

    def __init__(
        self,
        locked_job: LockedJob,
        connect: Callable[[], KubernetesApi],
        target: StatusTarget,
        look_s: float = _LOOK_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._locked_job = locked_job
        self._connect = connect
        self._api: KubernetesApi | None = None
        self._target = target
        self._look_s = look_s
        self._now = now
        self._written: JobSnapshot | None = None
        self._failures = 0
        self._stopping = threading.Event()
        self._thread = new_thread("status object", self._run, failed=nobody_waits)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Write the state once more, and end; waits for a few seconds at most."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._stopping.wait(self._pause_s()):
            self._turn()
        self._turn()

    def _pause_s(self) -> float:
        return min(self._look_s * 2.0**self._failures, _LONGEST_PAUSE_S)

    def _turn(self) -> None:
        locked_job = self._locked_job
        with locked_job.open() as (job, now):
            view = view_of(job, now, locked_job.last_checkpoint)
        if not is_due(self._written, view):
            return
        try:
            self._write(view)
        except RopewalkError as error:
            if not self._failures:
                log.warning("the job's state is not written to Kubernetes: %s", error.message)
            self._failures = min(self._failures + 1, 10)
        else:
            self._failures = 0

    def _write(self, view: JobSnapshot) -> None:
        api = self._api = self._api or self._connect()
        target, moment = self._target, self._now().strftime("%Y-%m-%dT%H:%M:%SZ")
        api.patch("ConfigMap", target.name, {"data": record_of(self._written, view, moment)})
        before, self._written = self._written, view
        for event in events_between(before, view):
            api.create("Event", event_object(event, target, api.namespace, moment))


def event_object(
    event: JobEvent, target: StatusTarget, namespace: str, moment: str
) -> dict[str, Any]:
    """Make an Event of Kubernetes about the chief's Job, or about the ConfigMap.

    Args:
        event: Event of the job.
        target: Place to which the job's state is written.
        namespace: Namespace of that.
        moment: The time of day, RFC 3339.
    """
    about = (
        {"apiVersion": "batch/v1", "kind": "Job", "name": target.job, "uid": target.uid}
        if target.job
        else {"apiVersion": "v1", "kind": "ConfigMap", "name": target.name}
    )
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{target.name}-", "namespace": namespace},
        "involvedObject": {**about, "namespace": namespace},
        "type": "Warning" if event.is_warning else "Normal",
        "reason": event.reason,
        "message": event.message,
        "source": {"component": "ropewalk", "host": target.pod},
        "reportingComponent": "ropewalk",
        "reportingInstance": target.pod,
        "firstTimestamp": moment,
        "lastTimestamp": moment,
        "count": 1,
    }


# -- Tasks that have failed for good before they joined: what Kubernetes knows of them ---------
# A ps or a worker that cannot start tells the chief nothing. A StatefulSet starts it again for
# ever, and the Job of the workers fails while the chief's waits for them. So a chief whose account
# may end its job (``components/end-job``) may also look at these, and fails the job with their
# reason.

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


class ChiefsPod:
    """Work of a chief's pod beside its loop, in threads that look when they have time.

    Args:
        led: The job that is led.
    """

    def __init__(self, led: LedJob) -> None:
        self._job, self._role = led.settings.job_id, led.leader.type
        self._writer = status_writer(led.locked_job)
        self._peers = failed_peers(led.locked_job, self._job, asks_ps=led.asks_ps)

    def start(self) -> None:
        """Start to write, and to look at pods that do not join."""
        for part in (self._writer, self._peers):
            if part is not None:
                part.start()

    def look(self, job: Job, now: float, *, is_last: bool) -> None:
        """Leave it to the threads."""

    def act(self) -> None:
        """Leave it to the threads."""

    def why_none_follows(self) -> str | None:
        """Say why no pod follows that of this chief; empty: one does. None: that is not known."""
        return why_none_follows(self._job, self._role)

    def close(self) -> None:
        """End; the state is written once more."""
        if self._peers is not None:
            self._peers.close()
        if self._writer is not None:
            self._writer.stop()
