"""Changing the number of workers: what to patch, who leaves, and whether they drained. Pure.

``parallelism`` and ``completions`` of the workers' Indexed Job change together; the API refuses one
alone. Downwards the Job's controller deletes the pods with the highest indices. That is the request
to drain: a worker that gets SIGTERM finishes its step, hands back its input, tells the chief and
ends with 143, within its grace period. Workers hold no state of the model, so that is all there is
to save; the command waits for it and says whether each of them did.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...cluster.resolvers.template import parse_replicas
from ...cluster.roles import WORKER
from ...core.errors import ConfigurationError
from ...core.exit_codes import ExitCode
from ..job.model import JobFile
from .code import ShippedCode
from .form import Form
from .gang import gang_of
from .manifests import manifests
from .names import COUNT_IN_FILE, workload

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """From ``now`` to ``then`` workers.

    Attributes:
        leaving: Indices of workers that drain; empty upwards.
        coming: Indices of new ones.
        body: The patch of the Job; empty: there is nothing to do.
    """

    now: int
    then: int
    leaving: tuple[int, ...]
    coming: tuple[int, ...]
    body: Json


def plan_scale(
    job: Json | None, then: int, *, has_ps: bool, delete: str = "windlass k8s delete"
) -> ScalePlan:
    """Plan a change of the workers' Job.

    Args:
        job: The Job, as the API has it; None: there is none.
        then: Workers wanted.
        has_ps: The job has parameter servers; in sync no worker can leave.
        delete: The command that deletes this job, for messages.

    Raises:
        ConfigurationError: It cannot be.
    """
    if job is None:
        raise ConfigurationError("this job has no workers to scale: apply it first")
    if not has_ps:
        raise ConfigurationError(
            f"this job trains in sync: no worker can do without another. Stop it (`{delete}`), "
            "change roles.worker.count, and apply it again; it resumes from its last checkpoint"
        )
    if gang := gang_of(job):
        raise ConfigurationError(
            f"this job is admitted as a whole, by {gang}, which counts its pods: change "
            "roles.worker.count and apply it with --replace; it resumes from its last checkpoint"
        )
    conditions = (job.get("status") or {}).get("conditions") or []
    for each in conditions:
        if each.get("type") in ("Complete", "Failed") and each.get("status") == "True":
            raise ConfigurationError(
                f"the workers' Job has ended ({each['type']}): there is nobody to scale"
            )
    now = workers_of(job)
    if then == now:
        return ScalePlan(now, then, (), (), {})
    return ScalePlan(
        now,
        then,
        tuple(range(then, now)),
        tuple(range(now, then)),
        {"spec": {"parallelism": then, "completions": then}},
    )


def workers_of(job: Json) -> int:
    """How many workers a Job has now."""
    return int((job.get("spec") or {}).get("completions") or 0)


def documents_to_apply(
    job: JobFile,
    live: Json | None,
    form: Form = Form.OBJECTS,
    code: ShippedCode | None = None,
) -> list[Json]:
    """The objects of a job, where its workers' Job may be there already.

    What ``scale`` has set stays, unless the file has changed: an annotation says which count it
    had when it was last applied. A file with another count changes that alone: the templates of
    Jobs, which count the workers too, cannot change, and a worker more than they count is let in.

    Args:
        job: As the file says it.
        live: The workers' Job as the API has it; None: there is none.
        form: What it is made of.
        code: Its code, if that is not in the image.
    """
    said = job.count(WORKER)
    first = _first_count(live)
    if live is None or first is None or job.synchronous or job.kubernetes.gang:
        return manifests(job, form, code)
    before = (live["metadata"].get("annotations") or {}).get(COUNT_IN_FILE)
    count = workers_of(live) if before == str(said) else said
    documents = []
    for each in manifests(job.with_counts({WORKER: first}), form, code):
        if each["kind"] == "Job" and each["metadata"]["name"] == workload(job.name, WORKER):
            metadata = {**each["metadata"], "annotations": {COUNT_IN_FILE: str(said)}}
            spec = {**each["spec"], "completions": count, "parallelism": count}
            documents.append({**each, "metadata": metadata, "spec": spec})
        else:
            documents.append(each)
    return documents


def _first_count(live: Json | None) -> int | None:
    """The workers that the template of a Job counts; None: it does not say."""
    spec = ((live or {}).get("spec") or {}).get("template", {}).get("spec", {})
    for container in spec.get("containers") or []:
        for variable in container.get("env") or []:
            if variable["name"] == "WINDLASS_REPLICAS" and variable.get("value"):
                return parse_replicas(variable["value"], "WINDLASS_REPLICAS").get(WORKER)
    return None


def departure(exit_codes: Mapping[str, int]) -> str:
    """How a pod of a worker that was asked to leave ended, for people; ``""``: not known.

    Args:
        exit_codes: Exit codes of its containers that have ended, by name.
    """
    if not exit_codes:
        return ""
    code = max(exit_codes.values())
    if code == ExitCode.DRAINED:
        return "drained"
    if code == 0:
        return "its work was complete"
    if code == ExitCode.KILLED:
        return "killed: it did not leave within its grace period (kubernetes.grace_s)"
    return f"ended with exit code {code}"
