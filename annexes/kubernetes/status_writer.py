"""Writes a job's state where others on Kubernetes see it: a ConfigMap's data, and Events.

A thread looks at the job every two seconds and writes when something has changed. Nothing of it is
on the way of a step, and nothing that goes wrong here concerns the training: it is logged once, and
tried again ever more rarely.
"""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from ...core.errors import RopewalkError
from ...core.process.threads import new_thread, nobody_waits
from ...core.settings import environment_variables
from ...server.chief.servicer import LockedJob
from .client.api import KubernetesApi
from .client.requests import is_in_pod
from .own_job import chief_api
from .status_record import JobEvent, JobSnapshot, events_between, is_due, record_of, view_of
from .variables import STATUS_OBJECT

log = logging.getLogger(__name__)

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
