"""Applying a job: every object is tried first, and nothing changes unless all are accepted.

The API server checks each object in a dry run, with admission. A Job's pod template cannot change
while the Job exists, so a job that runs another program has its tasks deleted first, which happens
only when it is asked for (``replace``).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...cluster.spec import PS, WORKER
from ...core.errors import ConfigurationError, PeerLostError, RopewalkError
from ..jobfile.model import JobFile
from ..jobfile.yaml_text import dump_documents
from .api import KubernetesApi
from .code import ShippedCode
from .job_status import Observed, is_left_over, job_status
from .manifests import manifests
from .names import ROLES, RUNTIME_DIGEST, Form, status_object, workload
from .observing import observe, owners_of
from .preflight import warnings
from .refusals import Refusal, Where, error_of
from .removal import Done, remove_old_code, remove_tasks, wait_until_gone
from .scaling import documents_to_apply
from .status_objects import check_rendered

Json = dict[str, Any]

_CONTROLLERS = {
    "JobSet": "JobSet's controller (sigs.k8s.io/jobset)",
    "PodGroup": "the scheduler that kubernetes.gang names (scheduler-plugins or Volcano)",
    "TrainJob": "Kubeflow Trainer",
    "TrainingRuntime": "Kubeflow Trainer",
}
_WORKLOADS = ("Job", "StatefulSet", "JobSet", "TrainingRuntime", "TrainJob")
_GONE_S = 60.0  # beyond the grace period


@dataclass(frozen=True, slots=True)
class Problem:
    """An object that the API server does not accept, and why."""

    kind: str
    name: str
    refusal: Refusal


def apply_job(
    api: KubernetesApi,
    job: JobFile,
    form: Form = Form.OBJECTS,
    code: ShippedCode | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    replace: bool = False,
    say: Callable[[str], None] = lambda _: None,
) -> list[Done]:
    """Apply every object of a job; workers and ps stay as many as ``scale`` made them.

    Args:
        api: The Kubernetes API.
        job: The job.
        form: Form of the job's objects.
        code: Code of the job, if that is not in the image.
        force: Take over fields that other managers own.
        dry_run: Only check.
        replace: Delete the job's tasks first, and wait until they have left. Volumes stay.
        say: Called with what happens meanwhile.

    Raises:
        IncompatibleError: Another manager owns a field; nothing was changed.
        ConfigurationError: The job is over, or an object cannot be so; nothing was changed.
        PeerLostError: Tasks did not leave in time, or the API server stopped answering; the
            message says what was changed before.
    """
    live = owners_of(api, job.name)
    _refuse_other_form(api, job.name, live, form)
    replace = replace or is_left_over(live)
    if not replace:
        _refuse_over(api, job.name, live)
    there = {each["metadata"]["name"]: each for each in (*live.stateful_sets, *live.jobs)}
    live_workers = None if replace else there.get(workload(job.name, WORKER))
    live_ps = None if replace else there.get(workload(job.name, PS))
    documents = documents_to_apply(job, live_workers, form, code, live_ps)
    flags = [*(("--as", form.value) if form.is_one_object else ()), *(code.flags if code else ())]
    again = api.where.command("apply", "", *flags, "--replace")
    if not replace:
        _refuse_other_kind(documents, there, again)
        _refuse_other_runtime(api, documents, again)
    if problems := _problems(api, documents, say, force=force, anew=replace):
        raise refused_apply(problems, api.where, again, job)
    if job.kubernetes.at_once and not replace:
        _refuse_other_pods(api, documents, there, again, force=force)
    if dry_run:
        return [_done(each, "would be applied") for each in documents]
    if replace:
        for done in remove_tasks(api, job.name):
            say(f"{done.kind} {done.name} {done.what}")
        wait_until_gone(api, job.name, job.kubernetes.grace_s + _GONE_S)
    if job.kubernetes.at_once and (replace or workload(job.name, job.leader.type) not in there):
        api.delete("ConfigMap", status_object(job.name))  # how the job before ended
    applied = _apply_all(api, documents, force=force)
    return [*applied, *remove_old_code(api, job.name, [each.name for each in applied])]


def _refuse_other_form(api: KubernetesApi, name: str, live: Observed, form: Form) -> None:
    """Refuse a job that is there in another form: its tasks would be there twice."""
    there = _form_of(api, name, live)
    if there not in (None, form):
        raise ConfigurationError(
            f"{name} is there already, in another form (--as {there}); apply it in that one, or "
            f"delete it first: `{api.where.command('delete', name)}` (checkpoints stay)"
        )


def _form_of(api: KubernetesApi, name: str, live: Observed) -> Form | None:
    """Find what a job is made of; None: it is not there."""
    if not live.jobs and not live.stateful_sets:
        return None
    owners = [owner for job in live.jobs for owner in job["metadata"].get("ownerReferences") or []]
    if not any(owner.get("kind") == "JobSet" for owner in owners):
        return Form.OBJECTS
    return Form.TRAINJOB if api.exists("TrainJob", name) else Form.JOBSET


def _refuse_other_kind(documents: Sequence[Json], there: Mapping[str, Json], again: str) -> None:
    """Refuse pods that a Job makes now and a StatefulSet would make too, or the other way round."""
    for document in documents:
        name, kind = document["metadata"]["name"], document["kind"]
        if kind in ("Job", "StatefulSet") and there.get(name, document)["kind"] != kind:
            raise ConfigurationError(
                f"nothing was changed: {name} is there as a {there[name]['kind']}, and "
                f"kubernetes.lost_pods makes it a {kind}; {_delete_first(again)}"
            )


def _refuse_other_pods(
    api: KubernetesApi,
    documents: Sequence[Json],
    there: Mapping[str, Json],
    again: str,
    *,
    force: bool,
) -> None:
    """Refuse other pods in a StatefulSet, which a Job would refuse: they would be rolled."""
    sets = [each for each in documents if each["kind"] == "StatefulSet"]
    for document in sets:
        live = there.get(document["metadata"]["name"])
        if live is None:
            continue
        after = api.apply(document, force=force, dry_run=True)
        if after["spec"]["template"] != live["spec"]["template"]:
            raise ConfigurationError(
                f"nothing was changed: StatefulSet {document['metadata']['name']} would have other "
                f"pods, under a job that runs; {_delete_first(again)}"
            )


def _refuse_other_runtime(api: KubernetesApi, documents: Sequence[Json], again: str) -> None:
    """Refuse another runtime for a TrainJob that is there: it would go on as it is."""
    for document in documents:
        if document["kind"] != "TrainJob":
            continue
        metadata = document["metadata"]
        live = api.get("TrainJob", metadata["name"])
        if live is None:
            continue
        was = (live["metadata"].get("annotations") or {}).get(RUNTIME_DIGEST)
        if was != metadata["annotations"][RUNTIME_DIGEST]:
            raise ConfigurationError(
                f"nothing was changed: TrainJob {metadata['name']} keeps the runtime that it was "
                f"made with, and this is another one; {_delete_first(again)}"
            )


def _delete_first(again: str) -> str:
    return f"delete it first: `{again}` (checkpoints stay, and training goes on from the last one)"


def _refuse_over(api: KubernetesApi, name: str, live: Observed) -> None:
    """Refuse a job whose Jobs have ended or are being deleted: applying would start nothing."""
    going = [each for each in (*live.jobs, *live.stateful_sets) if _is_leaving(each)]
    if going:
        names = ", ".join(f"{each['kind']} {each['metadata']['name']}" for each in going)
        raise ConfigurationError(f"{names}: still being deleted; apply again when it is gone")
    if not job_status(name, live, api.now()).is_over:
        return
    status = observe(api, name)
    reason = f" ({status.reason})" if status.reason else ""
    ended = "is done" if status.phase == "Done" else f"has failed{reason}"
    raise ConfigurationError(
        f"{name} {ended}, and applying it again starts nothing; with --replace its tasks are "
        "deleted first, and training goes on from the last checkpoint"
    )


def _is_leaving(item: Mapping[str, Any]) -> bool:
    return bool(item["metadata"].get("deletionTimestamp"))


def _problems(
    api: KubernetesApi,
    documents: Sequence[Json],
    say: Callable[[str], None],
    *,
    force: bool,
    anew: bool,
) -> list[Problem]:
    """List what the API server does not accept; ``anew``: of tasks that will have been deleted."""
    problems = []
    for document in documents:
        kind, name = document["kind"], document["metadata"]["name"]
        if kind == "TrainJob" and not api.exists("TrainingRuntime", name):
            continue  # it is refused before its runtime is there
        refusal = api.try_apply(document, force=force)
        if refusal is not None and anew and kind in _WORKLOADS and refusal.is_of_what_is_there:
            refusal = api.try_apply(_under_another_name(document))
        if refusal is not None and refusal.is_missing and kind == "RoleBinding":
            continue  # its Role is not there before it is applied
        if refusal is not None and refusal.is_untried:
            say(f"{kind} {name} could not be tried: {refusal.words}")
        elif refusal is not None:
            problems.append(Problem(kind, name, refusal))
    return problems


def _under_another_name(document: Json) -> Json:
    """Rename an object, as a new one. The name is as long, since lengths are checked too."""
    name = document["metadata"]["name"]
    return {**document, "metadata": {**document["metadata"], "name": f"{name[:-5]}check"}}


def refused_apply(
    problems: Sequence[Problem], where: Where, again: str, job: JobFile
) -> RopewalkError:
    """Make one sentence for objects of a job that were refused in a dry run; ``again``: what
    replaces them.
    """
    others = [each for each in problems if not each.refusal.is_about_fixed_fields]
    if others:
        first = others[0]
        controller = _CONTROLLERS.get(first.kind)
        if controller and first.refusal.is_missing:
            return ConfigurationError(
                f"nothing was changed: this cluster has no {first.kind}s; {controller} makes them, "
                "and is not installed there"
            )
        error = error_of(first.refusal, f"apply {first.kind} {first.name}", where)
        more = f" ({len(problems) - 1} more are refused)" if len(problems) > 1 else ""
        role = first.name.removeprefix(f"{job.name}-")
        texts = [first.refusal.message, *(each.field for each in first.refusal.causes)]
        at = job.place_of([role] if role in ROLES else ROLES, " ".join(texts))
        place = f"{at}: " if at else ""
        return type(error)(f"{place}nothing was changed{more}: {error.message}")
    claims = [each for each in problems if each.kind not in _WORKLOADS]
    if claims:
        first = claims[0]
        return ConfigurationError(
            f"nothing was changed: {first.kind} {first.name} is there already and cannot become "
            f"another one ({first.refusal.words}); take back what the job file says of it, or "
            "delete the job with its checkpoints first"
        )
    names = ", ".join(f"{each.kind} {each.name}" for each in problems)
    fields = ", ".join(sorted({c.field for each in problems for c in each.refusal.causes}))
    return ConfigurationError(
        f"nothing was changed: {names} would change {fields or 'what cannot change'}, which is "
        f"immutable while the object is there; {_delete_first(again)}"
    )


def _apply_all(api: KubernetesApi, documents: Sequence[Json], *, force: bool) -> list[Done]:
    done: list[Done] = []
    for document in documents:
        try:
            api.apply(document, force=force)
        except RopewalkError as error:
            if not done:
                raise
            names = ", ".join(f"{each.kind} {each.name}" for each in done)
            kind = PeerLostError if isinstance(error, PeerLostError) else type(error)
            raise kind(f"{error.message}; applied before that: {names}") from error
        done.append(_done(document, "applied"))
    return done


def _done(document: Json, what: str) -> Done:
    return Done(document["kind"], document["metadata"]["name"], what)


@dataclass(frozen=True, slots=True)
class KubernetesLauncher:
    """Applies the objects of a job; the cluster does the rest.

    Attributes:
        api: The Kubernetes API.
        form: Form of the jobs' objects.
        code: The job's code, if that is not in its image.
        force: Take over fields that other managers own.
        replace: Delete the job's tasks first.
        say: Called with warnings and with what happens meanwhile.
    """

    api: KubernetesApi
    form: Form = Form.OBJECTS
    code: ShippedCode | None = None
    force: bool = False
    replace: bool = False
    say: Callable[[str], None] = lambda _: None

    def render(self, job: JobFile) -> str:
        """Write the objects, as YAML."""
        check_rendered(job, self.form)
        return dump_documents(manifests(job, self.form, self.code))

    def start(self, job: JobFile) -> int:
        """Apply them; 0."""
        self.apply(job, dry_run=False)
        return 0

    def apply(self, job: JobFile, *, dry_run: bool) -> list[Done]:
        """Apply them, or have the API server check them alone."""
        self.api.warn_by(lambda text: self.say(f"warning: {text}"))
        for warning in warnings(self.api, manifests(job, self.form, self.code)):
            self.say(f"warning: {warning}")
        return apply_job(
            self.api, job, self.form, self.code,
            force=self.force, dry_run=dry_run, replace=self.replace, say=self.say,
        )  # fmt: skip
