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

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...cluster.resolvers.template import PS_SHARES, REPLICAS, parse_replicas
from ...cluster.spec import PS, WORKER
from ...core.errors import AccessError, ConfigurationError, PeerLostError
from ...core.exit_codes import ExitCode
from ..jobfile.model import JobFile
from .api import KubernetesApi
from .code import ShippedCode
from .job_status import pods_wanted
from .manifests import gang_of, manifests
from .names import COMPONENT, COUNT_IN_FILE, Form, selector_text, workload
from .observing import Change, ObjectFollower
from .pods import condition, containers, read_pod

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """A change of a role's tasks from ``now`` to ``then``.

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
    return _plan(job, then, WORKER)


def _plan(live: Json, then: int, role: str) -> ScalePlan:
    now, kind = pods_wanted(live), str(live.get("kind", "Job"))
    body: Json = {"spec": _with_count(live, then)} if then != now else {}
    leaving, coming = tuple(range(then, now)), tuple(range(now, then))
    return ScalePlan(now, then, leaving, coming, body, role, kind)


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
    return _plan(live, then, PS)


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
    fixed = not job.count(PS) or job.kubernetes.gang
    there = {WORKER: None if fixed else live, PS: live_ps if job.settings.ps_shares else None}
    first = {role: _first_count(item, role) for role, item in there.items()}
    counted = {role: count for role, count in first.items() if count is not None}
    documents = manifests(job.with_counts(counted), form, code)
    for role in counted:
        item, said = there[role] or {}, job.count(role)
        before = (item["metadata"].get("annotations") or {}).get(COUNT_IN_FILE)
        count = pods_wanted(item) if before == str(said) else said
        for each in documents:
            if each["metadata"]["name"] == workload(job.name, role) and "template" in each["spec"]:
                each["metadata"]["annotations"] = {COUNT_IN_FILE: str(said)}
                each["spec"] |= _with_count(each, count)
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
    live = _live(api, name, WORKER, "Job", "StatefulSet")
    return plan_scale(live, then, has_ps=has_ps, delete=api.where.command("delete", name))


def read_ps_scale(api: KubernetesApi, name: str, then: int) -> ScalePlan:
    """Plan from what runs now to ``then`` ps.

    Raises:
        ConfigurationError: It cannot be.
        NotFoundError: There is no such namespace.
    """
    return plan_ps_scale(_live(api, name, PS, "StatefulSet"), then)


def _live(api: KubernetesApi, name: str, role: str, *kinds: str) -> Json | None:
    """Find what makes the pods of a role; None: nothing. A JobSet's numbers of pods are fixed."""
    for kind in kinds:
        if found := api.get(kind, workload(name, role)):
            return {"kind": kind, **found}
    api.check_namespace()
    with contextlib.suppress(AccessError):
        if api.exists("JobSet", name):
            raise ConfigurationError(
                f"{name} is one object, a JobSet, whose numbers of pods are fixed: delete it "
                f"(`{api.where.command('delete', name)}`), change the counts of roles, and apply "
                "it again; it resumes from its last checkpoint"
            )
    return None


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
