"""The end of a job's other tasks on Kubernetes: its chief ends them when it is over for good.

A StatefulSet has no end: its pods are started again when the job is over, and keep what they have
requested. And the Jobs of a chief that has failed for good go on waiting for it. So the chief's
container, which knows both, scales the ps to none and, after a failure, suspends the others' Jobs,
which ends their pods. It has an account of its own that may do this and nothing else.
"""

import logging
from pathlib import Path
from typing import Any

from ..cluster.roles import EVALUATOR, PS, WORKER
from ..core.backoff import attempts
from ..core.errors import NotFoundError, WindlassError
from ..core.exit_codes import ExitCode, is_retryable
from ..core.settings import read_environment
from ..net.pod_account import ACCOUNT_FOLDER, PodAccount, cluster_url
from ..worker.lead.own_job import ENDS_JOB, has_failed, path_of_own_job

log = logging.getLogger(__name__)

INCOMPLETE = "incomplete"
"""Value of :data:`ENDS_JOB`: also when the job could not begin, since tasks did not come."""

FAILURES = "WINDLASS_POD_FAILURES"
"""Variable with the number of failed pods that the one of this container replaces."""

_MANAGER = "windlass-chief"
_MERGE = "application/merge-patch+json"
_PATIENCE_S = 10.0  # an API server that is not there for a moment leaves nothing running


def end_job(
    job: str,
    role: str,
    code: int,
    folder: Path = ACCOUNT_FOLDER,
    patience_s: float = _PATIENCE_S,
) -> None:
    """End what is left of a job, if ``WINDLASS_ENDS_JOB`` says that this container does.

    What goes wrong is logged: the job has ended as it has.

    Args:
        job: Name of the job, with which the names of its workloads begin.
        role: Role of the task that leads it.
        code: Exit code of its container. One that is worth a restart ends nothing, unless its Job
            makes no pod any more; but see :data:`INCOMPLETE`.
        folder: Folder of the pod's account.
        patience_s: How long each request is tried again. Unit: seconds.
    """
    namespace, url = read_environment("POD_NAMESPACE"), cluster_url()
    ends_job = read_environment(ENDS_JOB)
    if not (ends_job and namespace and url):
        return
    account = PodAccount(url, folder)
    own = path_of_own_job(job, role, namespace)
    if not is_the_end(code, ends_job) and not _is_last(account, own, code):
        return
    for path, change in workloads_to_end(job, namespace, failed=code != 0):
        try:
            for attempt in attempts(timeout_s=patience_s):
                with attempt:
                    account.send("PATCH", f"{path}?fieldManager={_MANAGER}", change, _MERGE)
        except NotFoundError:
            continue  # this job has none
        except WindlassError as error:
            log.warning("what the job has left keeps what it has requested: %s", error)
            continue
        log.info("the job is over: ended %s", path.partition(f"{namespace}/")[2])


def _is_last(account: PodAccount, own: str, code: int) -> bool:
    """Whether no pod follows this one, by its Job at a path of the API."""
    try:
        job = account.read(own)
    except WindlassError as error:
        log.warning("whether another pod follows is not known: %s", error)
        return False
    return is_last_pod(job, code, read_environment(FAILURES))


def is_last_pod(job: Any, code: int, failures: str) -> bool:
    """Whether a Job makes no pod any more after one that ends so. Pure.

    Its deadline is over, or its retries are used up. A pod that was asked to stop (143) is replaced
    as often as it takes.

    Args:
        job: The Job, as the API has it.
        code: Exit code of the pod's container.
        failures: How many failed pods this one replaces, as its annotation says.
    """
    if has_failed(job):
        return True
    limit = (job.get("spec") or {}).get("backoffLimitPerIndex")
    before = int(failures) if failures.isdecimal() else 0
    return limit is not None and code != ExitCode.DRAINED and before >= limit


def is_the_end(code: int, ends_job: str) -> bool:
    """Whether the chief ends what is left of its job. Pure.

    Args:
        code: Exit code of its container.
        ends_job: Value of :data:`ENDS_JOB`.
    """
    is_late = code == ExitCode.JOIN_TIMEOUT and ends_job == INCOMPLETE
    return bool(ends_job) and (is_late or not is_retryable(code))


def workloads_to_end(job: str, namespace: str, *, failed: bool) -> list[tuple[str, Any]]:
    """The changes that end what a job has left: paths of the API, and what is merged there. Pure.

    Args:
        job: Name of the job.
        namespace: Its namespace.
        failed: Whether it has failed; else its workers and its evaluator end by themselves.
    """
    apps = f"/apis/apps/v1/namespaces/{namespace}"
    batch = f"/apis/batch/v1/namespaces/{namespace}"
    ps = (f"{apps}/statefulsets/{job}-{PS}/scale", {"spec": {"replicas": 0}})
    others = [
        (f"{batch}/jobs/{job}-{role}", {"spec": {"suspend": True}}) for role in (WORKER, EVALUATOR)
    ]
    return [ps, *(others if failed else [])]
