"""Changing the number of workers or ps: what to patch, who leaves, whether they drained. Pure.

``parallelism`` and ``completions`` of the workers' Indexed Job change together; the API refuses one
alone. Downwards the Job's controller deletes the pods with the highest indices. That is the request
to drain: a worker that gets SIGTERM finishes its step, hands back its input, tells the chief and
ends with 143, within its grace period. Workers hold no state of the model, so that is all there is
to save; the command waits for it and says whether each of them did.

The ps of a job with ps_shares are a StatefulSet whose number of replicas changes: one that gets
SIGTERM hands its shares over to the others and ends with 0, and one that comes is given some
(docs/replicas.md).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...cluster.resolvers.pods import condition, containers, read_pod
from ...cluster.resolvers.template import parse_replicas
from ...cluster.resolvers.template_variables import PS_SHARES, REPLICAS
from ...cluster.roles import PS, WORKER
from ...core.errors import AccessError, ConfigurationError, PeerLostError
from ...core.exit_codes import ExitCode
from ...net.kubernetes.api import KubernetesApi
from ...net.kubernetes.watching import Change, ObjectFollower
from ..job.model import JobFile
from .code import ShippedCode
from .gang import gang_of
from .manifests import manifests
from .names import COMPONENT, COUNT_IN_FILE, Form, selector_text, workload

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """From ``now`` to ``then`` tasks of a role.

    Attributes:
        role: Workers or ps.
        leaving: Indices of those that drain; empty upwards.
        coming: Indices of new ones.
        body: The patch of the Job or StatefulSet; empty: there is nothing to do.
        kind: Kind of the object: Job or StatefulSet.
    """

    now: int
    then: int
    leaving: tuple[int, ...]
    coming: tuple[int, ...]
    body: Json
    role: str = WORKER
    kind: str = "Job"

    @property
    def title(self) -> str:
        """Word for the tasks, for people."""
        return PS if self.role == PS else "workers"


def plan_scale(
    job: Json | None, then: int, *, has_ps: bool, delete: str = "ropewalk k8s delete"
) -> ScalePlan:
    """Plan a change of the workers' Job, or of the StatefulSet in its place.

    Args:
        job: The object, as the API has it; None: there is none.
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
    if ended := condition(job, "Complete") or condition(job, "Failed"):
        raise ConfigurationError(
            f"the workers' Job has ended ({ended['type']}): there is nobody to scale"
        )
    now = workers_of(job)
    if then == now:
        return ScalePlan(now, then, (), (), {})
    return ScalePlan(
        now,
        then,
        tuple(range(then, now)),
        tuple(range(now, then)),
        {"spec": _with_count(job, then)},
        kind=str(job.get("kind", "Job")),
    )


def _with_count(live: Json, count: int) -> Json:
    """Make what the spec of a Job or of a StatefulSet says for a number of pods."""
    by_set = live.get("kind") == "StatefulSet"
    return {"replicas": count} if by_set else {"parallelism": count, "completions": count}


def plan_ps_scale(live: Json | None, then: int) -> ScalePlan:
    """Plan a change of the StatefulSet of the ps.

    Args:
        live: The StatefulSet, as the API has it; None: there is none.
        then: Ps wanted.

    Raises:
        ConfigurationError: It cannot be.
    """
    if live is None:
        raise ConfigurationError("this job has no ps to scale: apply it first")
    settings = _variables(live)
    shares = int(settings.get(PS_SHARES) or 0)
    replicas = int(settings.get("ROPEWALK_PS_REPLICAS") or 1)
    if not shares:
        raise ConfigurationError(
            "the ps of this job cannot become more or fewer: give it settings.ps_shares in the job "
            "file, at least as many as the most ps that it is to have, and apply it with "
            "--replace; it resumes from its last checkpoint"
        )
    if not replicas <= then <= shares:
        raise ConfigurationError(
            f"this job can have {replicas} to {shares} ps, not {then}: each of its {shares} shares "
            f"(settings.ps_shares) is led by one, and on {replicas} of them (settings.ps_replicas)"
        )
    now = replicas_of(live)
    body: Json = {"spec": {"replicas": then}} if then != now else {}
    leaving, coming = tuple(range(then, now)), tuple(range(now, then))
    return ScalePlan(now, then, leaving, coming, body, PS, "StatefulSet")


def replicas_of(live: Json) -> int:
    """Count the pods that a StatefulSet has now."""
    return int((live.get("spec") or {}).get("replicas", 1))


def workers_of(job: Json) -> int:
    """Count the workers that a Job has now, or a StatefulSet."""
    spec = job.get("spec") or {}
    return int(spec.get("completions", spec.get("replicas", 0)) or 0)


def documents_to_apply(
    job: JobFile,
    live: Json | None,
    form: Form = Form.OBJECTS,
    code: ShippedCode | None = None,
    live_ps: Json | None = None,
) -> list[Json]:
    """Make the objects of a job, where its workers' Job and its ps may be there already.

    What ``scale`` has set stays, unless the file has changed: an annotation says which count it
    had when it was last applied. A file with another count changes that alone: the templates of
    Jobs, which count the workers too, cannot change, and a worker more than they count is let in.

    Args:
        job: Job of the file.
        live: The workers' Job as the API has it, or their StatefulSet; None: there is none.
        form: Form of the job's objects.
        code: Code of the job, if that is not in the image.
        live_ps: The StatefulSet of the ps as the API has it; None: there is none.
    """
    first = _first_count(live_ps, PS)
    if first is None or not job.settings.ps_shares:
        return _with_workers(job, live, form, code)
    said = job.count(PS)
    documents = _with_workers(job.with_counts({PS: first}), live, form, code)
    before = ((live_ps or {})["metadata"].get("annotations") or {}).get(COUNT_IN_FILE)
    count = replicas_of(live_ps or {}) if before == str(said) else said
    for each in documents:
        if each["metadata"]["name"] == workload(job.name, PS) and each["kind"] == "StatefulSet":
            each["metadata"]["annotations"] = {COUNT_IN_FILE: str(said)}
            each["spec"]["replicas"] = count
    return documents


def _with_workers(
    job: JobFile, live: Json | None, form: Form, code: ShippedCode | None
) -> list[Json]:
    said = job.count(WORKER)
    first = _first_count(live, WORKER)
    if live is None or first is None or job.synchronous or job.kubernetes.gang:
        return manifests(job, form, code)
    before = (live["metadata"].get("annotations") or {}).get(COUNT_IN_FILE)
    count = workers_of(live) if before == str(said) else said
    documents = []
    for each in manifests(job.with_counts({WORKER: first}), form, code):
        if each["metadata"]["name"] == workload(job.name, WORKER):
            metadata = {**each["metadata"], "annotations": {COUNT_IN_FILE: str(said)}}
            spec = {**each["spec"], **_with_count(each, count)}
            documents.append({**each, "metadata": metadata, "spec": spec})
        else:
            documents.append(each)
    return documents


def _first_count(live: Json | None, role: str) -> int | None:
    """Find the tasks of a role that a template counts; None: it does not say."""
    counted = _variables(live or {}).get(REPLICAS)
    return parse_replicas(counted, REPLICAS).get(role) if counted else None


def _variables(live: Json) -> dict[str, str]:
    """Find the variables of the pods of a Job or StatefulSet."""
    spec = (live.get("spec") or {}).get("template", {}).get("spec", {})
    return {
        variable["name"]: variable.get("value", "")
        for container in spec.get("containers") or []
        for variable in container.get("env") or []
    }


def departure(exit_codes: Mapping[str, int], role: str = WORKER) -> str:
    """Describe how a pod that was asked to leave ended, for people; ``""``: not known.

    Args:
        exit_codes: Exit codes of its containers that have ended, by name.
        role: Role of the pod.
    """
    if not exit_codes:
        return ""
    code = max(exit_codes.values())
    if code == ExitCode.DRAINED:
        return "drained"
    if code == 0:
        return "handed over" if role == PS else "its work was complete"
    if code == ExitCode.KILLED:
        return "killed: it did not leave within its grace period (kubernetes.grace_s)"
    return f"ended with exit code {code}"


def read_scale(api: KubernetesApi, name: str, then: int) -> ScalePlan:
    """Plan from what runs now to ``then`` workers.

    Raises:
        ConfigurationError: It cannot be.
        NotFoundError: There is no such namespace.
    """
    has_ps = api.get("StatefulSet", workload(name, PS)) is not None
    of_workers, delete = workload(name, WORKER), api.where.command("delete", name)
    live = api.get("Job", of_workers) or api.get("StatefulSet", of_workers)
    if live is None:
        api.check_namespace()
        _refuse_set(api, name, delete)
    return plan_scale(live, then, has_ps=has_ps, delete=delete)


def read_ps_scale(api: KubernetesApi, name: str, then: int) -> ScalePlan:
    """Plan from what runs now to ``then`` ps.

    Raises:
        ConfigurationError: It cannot be.
        NotFoundError: There is no such namespace.
    """
    live = api.get("StatefulSet", workload(name, PS))
    if live is None:
        api.check_namespace()
        _refuse_set(api, name, api.where.command("delete", name))
    return plan_ps_scale(live, then)


def _refuse_set(api: KubernetesApi, name: str, delete: str) -> None:
    """Refuse a JobSet, whose numbers of pods cannot change."""
    try:
        in_set = api.exists("JobSet", name)
    except AccessError:
        return
    if in_set:
        raise ConfigurationError(
            f"{name} is one object, a JobSet, whose numbers of pods are fixed: delete it "
            f"(`{delete}`), change the counts of roles, and apply it again; it resumes from its "
            "last checkpoint"
        )


def scale(
    api: KubernetesApi,
    name: str,
    plan: ScalePlan,
    say: Callable[[str], None],
    *,
    timeout_s: float,
    watch_s: int = 10,
) -> None:
    """Carry out a plan, and wait until those who leave have drained, or those who come run.

    Raises:
        PeerLostError: After ``timeout_s`` they have not; says who.
        ConfigurationError: The Job was changed meanwhile.
    """
    if not plan.body:
        say(f"{name} has {plan.now} {plan.title} already")
        return
    follower = ObjectFollower(api, "Pod", f"{selector_text(name)},{COMPONENT}={plan.role}", watch_s)
    waiting = _Waiting(plan)
    rounds = follower.rounds()
    waiting.take(next(rounds))  # who is there, before anything changes
    api.patch(plan.kind, workload(name, plan.role), plan.body)
    say(f"{name}: {plan.now} → {plan.then} {plan.title}")
    deadline = api.clock.now() + timeout_s
    for changes in rounds:
        for line in waiting.take(changes):
            say(line)
        if waiting.is_over:
            return
        if api.clock.now() > deadline:
            raise PeerLostError(
                f"after {timeout_s:g} s (--timeout-s) {waiting.left}; "
                f"`{api.where.command('status', name)}` says why, and the change goes on by itself"
            )
    raise ConfigurationError("the watch was stopped")


class _Waiting:
    """The tasks that have yet to leave or to run."""

    def __init__(self, plan: ScalePlan) -> None:
        self._plan = plan
        self._present: dict[int, set[str]] = {}
        self._codes: dict[str, dict[str, int]] = {}
        self._running: set[int] = set()

    def take(self, changes: Sequence[Change]) -> list[str]:
        """Take in changes of pods; returns what to tell about them."""
        told = []
        for change in changes:
            index = read_pod(change.object).index
            if index is None:
                continue
            codes = self._codes.setdefault(change.name, {})
            ended = {each.name: each.ended for each in containers(change.object) if each.ended}
            codes |= {name: int(how.get("exitCode", 0)) for name, how in ended.items()}
            pods = self._present.setdefault(index, set())
            phase = (change.object.get("status") or {}).get("phase")
            if change.gone or phase in ("Succeeded", "Failed"):
                if change.name in pods and index in self._plan.leaving:
                    how = departure(self._codes[change.name], self._plan.role) or "gone"
                    told.append(f"{self._plan.role}:{index} has left: {how}")
                pods.discard(change.name)
            else:
                pods.add(change.name)
                if phase == "Running" and index not in self._running:
                    self._running.add(index)
                    if index in self._plan.coming:
                        told.append(f"{self._plan.role}:{index} runs")
        return told

    @property
    def is_over(self) -> bool:
        """Wait for no task."""
        leaving = any(self._present.get(index) for index in self._plan.leaving)
        return not leaving and set(self._plan.coming) <= self._running

    @property
    def left(self) -> str:
        """Tasks that are waited for."""
        stay = [i for i in self._plan.leaving if self._present.get(i)]
        come = [i for i in self._plan.coming if i not in self._running]
        who = ", ".join(f"{self._plan.role}:{index}" for index in stay or come)
        return f"{who} {'still there' if stay else 'do not run yet'}"
