"""A job as objects of Kubernetes. Pure: a job in, documents out.

A headless Service, a StatefulSet of ps, an Indexed Job for each other role, and a claim for the
checkpoints; or one object in the place of all but the claim (``one_object.py``). No operator and no
definitions of our own; ``deploy/k8s`` has the plain shapes for kustomize.
"""

from typing import Any

from ...cluster.roles import PS, WORKER
from ...core.errors import ConfigurationError
from ..job.container import PORT
from ..job.model import JobFile
from .code import ShippedCode, config_maps, with_code
from .form import Form
from .gang import pod_groups, with_gang
from .indexed_job import indexed_job
from .names import COUNT_IN_FILE, SHARED, claim, labels, matched, selector, service, workload
from .one_object import job_set, train_job
from .pod import needs_volume, pod_template
from .status_objects import account_objects, with_account

Json = dict[str, Any]


def manifests(
    job: JobFile, form: Form = Form.OBJECTS, code: ShippedCode | None = None
) -> list[Json]:
    """Make every object of a job, in the order in which they are applied.

    Args:
        job: The job.
        form: Form of the job's objects.
        code: Code of the job, if that is not in the image.

    Raises:
        ConfigurationError: The job has no image, or cannot have this form.
    """
    job.require_image(
        "Kubernetes", "the program (or, with --code, Ropewalk and what the program imports)"
    )
    if job.kubernetes.at_once and form.is_one_object:
        raise ConfigurationError(
            f"kubernetes.lost_pods: at-once takes StatefulSets, which a {form.value} has not; take "
            "it away, or leave --as away",
            field="kubernetes.lost_pods",
        )
    templates = {role: _template(job, role, form, code) for role, _ in job.present}
    has_claim = not job.storage.claim and any(needs_volume(job, role) for role in templates)
    shared = [
        *(config_maps(job, code) if code else []),
        *account_objects(job, form),
        *([_claim(job)] if has_claim else []),
        *pod_groups(job),
        *_budget(job, form),
    ]
    match form:
        case Form.JOBSET:
            return [*shared, job_set(job, templates)]
        case Form.TRAINJOB:
            return [*shared, *train_job(job, templates)]
    controllers = [_controller(job, *each) for each in templates.items()]
    return [*shared, _service(job), *controllers]


def _template(job: JobFile, role: str, form: Form, code: ShippedCode | None) -> Json:
    """Make the pod template of a role: what every pod has, and what this job's have beside it."""
    template = pod_template(job, role, form)
    if code:
        template = with_code(template, code)
    if role == job.leader.type:
        template = with_account(template, job, form)
    return with_gang(template, job, form)


def _metadata(job: JobFile, name: str, component: str) -> Json:
    namespace = {"namespace": job.kubernetes.namespace} if job.kubernetes.namespace else {}
    return {"name": name, **namespace, "labels": labels(job.name, component)}


def _claim(job: JobFile) -> Json:
    storage = job.storage
    spec: Json = {
        "accessModes": [storage.access],
        "resources": {"requests": {"storage": storage.size}},
    }
    if storage.storage_class:
        spec["storageClassName"] = storage.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": _metadata(job, claim(job), SHARED),
        "spec": spec,
    }


def _budget(job: JobFile, form: Form) -> list[Json]:
    """Let one ps leave after the other where nodes are drained: each hands over what it has.

    Of pods of a Job, which has no scale, Kubernetes takes only how many are to stay.
    """
    if not (job.settings.shares_move and job.count(PS)):
        return []
    bound = {"minAvailable": job.count(PS) - 1} if form.is_one_object else {"maxUnavailable": 1}
    spec: Json = {
        **bound,
        # One that does not run is in nobody's way.
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
        "selector": {"matchLabels": matched(job.name, PS)},
    }
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": _metadata(job, workload(job.name, PS), PS),
            "spec": spec,
        }
    ]


def _service(job: JobFile) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(job, service(job.name), SHARED),
        "spec": {
            "clusterIP": "None",
            # Tasks look for each other before any of them is ready.
            "publishNotReadyAddresses": True,
            "selector": selector(job.name),
            "ports": [{"name": "grpc", "port": PORT, "targetPort": "grpc", "appProtocol": "tcp"}],
        },
    }


def _controller(job: JobFile, role: str, template: Json) -> Json:
    made = _stateful_set if Form.OBJECTS.is_set(job, role) else _job
    return made(job, role, template)


def _stateful_set(job: JobFile, role: str, template: Json) -> Json:
    metadata = _metadata(job, workload(job.name, role), role)
    if role == WORKER or (role == PS and job.settings.ps_shares):
        metadata["annotations"] = {COUNT_IN_FILE: str(job.count(role))}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata,
        "spec": {
            "replicas": job.count(role),
            "serviceName": service(job.name),
            # OrderedReady would have the second wait for the first.
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": matched(job.name, role)},
            "template": template,
        },
    }


def _job(job: JobFile, role: str, template: Json) -> Json:
    metadata = _metadata(job, workload(job.name, role), role)
    if role == WORKER:
        metadata["annotations"] = {COUNT_IN_FILE: str(job.count(role))}
    spec = indexed_job(job, role, template)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}
