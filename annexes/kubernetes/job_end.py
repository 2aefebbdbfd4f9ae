"""The end of a job's other tasks on Kubernetes: its chief ends them when it is over for good.

A StatefulSet has no end: its pods are started again when the job is over, and keep what they have
requested. And the Jobs of a chief that has failed for good go on waiting for it. So the chief's
container, which knows both, scales the ps to none and, after a failure, suspends the others' Jobs,
which ends their pods. It has an account of its own that may do this and nothing else.

Where StatefulSets make the pods of chief and workers, too (``kubernetes.lost_pods``), no Job says
how the job ended. Then the container writes it to the job's ConfigMap first, and scales its own
StatefulSet to none last. A container that is started meanwhile reads there that nothing is left to
do.
"""

import logging
import math
import threading
from pathlib import Path
from typing import Any

from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...core.backoff import attempts
from ...core.errors import NotFoundError, RopewalkError
from ...core.exit_codes import ExitCode, is_retryable
from ...core.outside_text import parse_number
from ...core.settings import read_environment
from .api import KubernetesApi, connect_task
from .pods import condition
from .requests import ACCOUNT_FOLDER, is_in_pod
from .settings import ENDS_JOB, HOLDS
from .status_record import ENDED

log = logging.getLogger(__name__)

# -- The Kubernetes Job (or StatefulSet) of a chief's pod: whether another pod follows this one -
# A pod that is evicted, or deleted by itself, is replaced. One whose Job is deleted, suspended,
# or over is not: the deadline of the Job, for instance, has its pod stopped in the same way. The
# pod's account may read that Job where the chief ends what is left of its job (``components/end-
# job``).

CHIEFS_MANAGER = "ropewalk-chief"
"""Field manager of what a chief writes."""


def ends_its_job() -> bool:
    """Return whether this process is of a chief that ends what is left of its job."""
    return bool(read_environment(ENDS_JOB)) and is_in_pod()


def chief_api(folder: Path = ACCOUNT_FOLDER) -> KubernetesApi:
    """Connect to the API as the account of a chief's pod. The client is loaded here.

    Args:
        folder: Folder of the account.

    Raises:
        MissingExtraError: The client of Kubernetes is not installed.
        AccessError: The pod has no account.
    """
    return connect_task(CHIEFS_MANAGER, folder)


def why_none_follows(job: str, role: str, folder: Path = ACCOUNT_FOLDER) -> str | None:
    """Say why no pod follows that of this chief; empty: one does. None: that is not known.

    Args:
        job: Name of the job.
        role: Role of the task that leads it.
        folder: Folder of the pod's account.
    """
    if not ends_its_job():
        return None
    try:
        own = chief_api(folder).get(maker(), f"{job}-{role}")
    except RopewalkError as error:
        log.warning("whether another chief follows is not known: %s", error)
        return None
    return f"its {maker()} was deleted" if own is None else why_job_ends(own)


def why_job_ends(job: Any) -> str:
    """Say why a Job or a StatefulSet makes no pod any more; empty: it does.

    Args:
        job: The object, as the API has it.
    """
    spec = job.get("spec") or {}
    if job["metadata"].get("deletionTimestamp"):
        return f"its {maker()} is being deleted"
    if spec.get("suspend"):
        return "its Job is suspended"
    if spec.get("replicas") == 0:
        return "its StatefulSet was scaled to none"
    return "its Job has failed, or its deadline is over" if failure_of(job) else ""


def maker() -> str:
    """Name the kind of what makes the pods of chief and workers."""
    return "StatefulSet" if read_environment(HOLDS) else "Job"


def failure_of(job: Any) -> str:
    """Say why a Job has failed, or is about to, in its controller's words; empty: not. Pure."""
    failed = condition(job, "Failed") or condition(job, "FailureTarget")
    if failed is None:
        return ""
    words = [str(failed.get(name) or "") for name in ("reason", "message")]
    return ": ".join(filter(None, words)) or "it does not say why"


INCOMPLETE = "incomplete"
"""Value of :data:`ENDS_JOB`: also when the job could not begin, since tasks did not come."""

FAILURES = "ROPEWALK_POD_FAILURES"
"""Variable with the number of failed pods that the one of this container replaces."""

_MOST_FAILURES = 2**31 - 1  # what Kubernetes can count
_PATIENCE_S = 10.0  # an API server that is not there for a moment leaves nothing running


def end_job(
    job: str,
    role: str,
    code: int,
    folder: Path = ACCOUNT_FOLDER,
    patience_s: float = _PATIENCE_S,
    *,
    reason: str = "",
    stop: threading.Event | None = None,
) -> bool:
    """End what is left of a job, if ``ROPEWALK_ENDS_JOB`` says that this container does.

    What goes wrong is logged: the job has ended as it has.

    Args:
        job: Name of the job, with which the names of its workloads begin.
        role: Role of the task that leads it.
        code: Exit code of its container. One that is worth a restart ends nothing, unless its Job
            makes no pod any more; but see :data:`INCOMPLETE`.
        folder: Folder of the pod's account.
        patience_s: Time to try each request again. Unit: seconds.
        reason: Why the job has failed, for its ConfigMap.
        stop: Ends the attempts early.

    Returns:
        Whether the job is over for good.
    """
    if not ends_its_job():
        return False
    is_over = is_the_end(code, read_environment(ENDS_JOB))
    try:
        api = chief_api(folder)
    except RopewalkError as error:
        log.warning("what the job has left keeps what it has requested: %s", error)
        return is_over
    if not is_over and not _is_last(api, f"{job}-{role}", code):
        return False
    by_sets = role if read_environment(HOLDS) else ""
    changes = workloads_to_end(job, failed=code != 0, by_sets=by_sets)
    if by_sets:
        result = {"data": {ENDED: str(code), "reason": reason}}
        changes.insert(0, ("ConfigMap", f"{job}-status", result))
        patience_s = math.inf  # nothing else ends the job
    for kind, name, change in changes:
        try:
            for attempt in attempts(timeout_s=patience_s, stop=stop):
                with attempt:
                    api.patch(kind, name, change)
        except NotFoundError:
            continue  # this job has none
        except RopewalkError as error:
            log.warning("what the job has left keeps what it has requested: %s", error)
            continue
        log.info("the job is over: ended %s %s", kind, name)
    return True


def ended_before(
    job: str, folder: Path = ACCOUNT_FOLDER, patience_s: float = _PATIENCE_S
) -> tuple[int, str] | None:
    """Find how the job ended before this container of its chief was started: exit code and reason.

    Args:
        job: Name of the job.
        folder: Folder of the pod's account.
        patience_s: Time to try the request again. Unit: seconds.

    Returns:
        Exit code and reason; None: the job goes on, as far as is known.
    """
    if not ends_its_job():
        return None
    data: Any = {}
    try:
        api = chief_api(folder)
        for attempt in attempts(timeout_s=patience_s):
            with attempt:
                data = (api.get("ConfigMap", f"{job}-status") or {}).get("data") or {}
    except RopewalkError as error:
        log.warning("whether the job is over already is not known: %s", error)
    code = parse_number(str(data.get(ENDED) or ""), 255)
    return None if code is None else (code, str(data.get("reason") or ""))


def _is_last(api: KubernetesApi, name: str, code: int) -> bool:
    """Return whether no pod follows this one, by what makes it."""
    try:
        job = api.get(maker(), name)
    except RopewalkError as error:
        log.warning("whether another pod follows is not known: %s", error)
        return False
    return job is not None and is_last_pod(job, code, read_environment(FAILURES))


def is_last_pod(job: Any, code: int, failures: str) -> bool:
    """Return whether a Job makes no pod any more after one that ends so. Pure.

    Its deadline is over, or its retries are used up. A pod that was asked to stop (143) is replaced
    as often as it takes.

    Args:
        job: The Job, as the API has it.
        code: Exit code of the pod's container.
        failures: Number of failed pods that this one replaces, as its annotation says.
    """
    if failure_of(job):
        return True
    limit = (job.get("spec") or {}).get("backoffLimitPerIndex")
    before = parse_number(failures, _MOST_FAILURES) or 0
    return limit is not None and code != ExitCode.DRAINED and before >= limit


def is_the_end(code: int, ends_job: str) -> bool:
    """Return whether the chief ends what is left of its job. Pure.

    Args:
        code: Exit code of its container.
        ends_job: Value of :data:`ENDS_JOB`.
    """
    is_late = code == ExitCode.JOIN_TIMEOUT and ends_job == INCOMPLETE
    return bool(ends_job) and (is_late or not is_retryable(code))


def workloads_to_end(job: str, *, failed: bool, by_sets: str = "") -> list[tuple[str, str, Any]]:
    """List the changes that end what a job has left: kind, name, and what is merged there. Pure.

    Args:
        job: Name of the job.
        failed: Whether it has failed; else its workers and its evaluator end by themselves.
        by_sets: Role of the leader, if StatefulSets make its pods and the workers'. Empty: Jobs do.
    """
    # The leader's own comes last: then this container is asked to stop.
    roles = [PS, WORKER, by_sets] if by_sets == CHIEF else [PS, by_sets]
    sets: list[tuple[str, str, Any]] = [
        ("StatefulSet", f"{job}-{role}/scale", {"spec": {"replicas": 0}})
        for role in filter(None, roles)
    ]
    suspended = [EVALUATOR] if by_sets else [WORKER, EVALUATOR]
    jobs = [("Job", f"{job}-{role}", {"spec": {"suspend": True}}) for role in suspended]
    return [*sets[:1], *(jobs if failed else []), *sets[1:]]
