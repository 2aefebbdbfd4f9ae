"""Commands on a job that was applied: look at it, and scale it."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from ...cluster.resolvers.pods import read_pod
from ...cluster.roles import PS, WORKER
from ...core.errors import AccessError, ConfigurationError, PeerLostError
from .client import KubernetesApi
from .job_status import ClusterStatus, Observed, job_status
from .names import COMPONENT, selector_text, status_object, workload
from .scaling import ScalePlan, departure, plan_ps_scale, plan_scale
from .watched import Change
from .watching import ObjectFollower

Json = dict[str, Any]


def observe(api: KubernetesApi, name: str, pods: Sequence[Json] | None = None) -> ClusterStatus:
    """Observe the status of a job now.

    Args:
        api: The Kubernetes API.
        name: Name of the job.
        pods: Pods from a watch; None: they are listed.
    """
    selector = selector_text(name)
    if pods is None:
        pods = api.list_all("Pod", selector).items
    owners = owners_of(api, name)
    # Events have no labels; a namespace keeps them for an hour.
    events = [
        each
        for each in api.list_all("Event").items
        if str(each.get("involvedObject", {}).get("name", "")).startswith(f"{name}-")
    ]
    one_object = None
    if not owners.jobs and not owners.stateful_sets and not pods:
        api.check_namespace()  # lists of a namespace that does not exist are empty
        one_object = _one_object(api, name)
    seen = replace(owners, pods=pods, events=events, one_object=one_object)
    return job_status(name, seen, api.now())


def _record(api: KubernetesApi, name: str) -> Json | None:
    """Read what the job's chief has written; None: nothing, or it may not be read."""
    try:
        return api.get("ConfigMap", status_object(name))
    except AccessError:
        return None


def _one_object(api: KubernetesApi, name: str) -> Json | None:
    """Find the TrainJob or JobSet that is the job; None: there is none, or it may not be read."""
    for kind in ("TrainJob", "JobSet"):
        with contextlib.suppress(AccessError):
            if found := api.get(kind, name):
                return {"kind": kind, **found}
    return None


def owners_of(api: KubernetesApi, name: str) -> Observed:
    """Find the Jobs and StatefulSets of a job, and what its chief has written; no pods and
    events.
    """

    def listed(kind: str) -> list[Json]:
        return [{"kind": kind, **each} for each in api.list_all(kind, selector_text(name)).items]

    return Observed(listed("Job"), listed("StatefulSet"), record=_record(api, name))


def follow_status(
    api: KubernetesApi, name: str, show: Callable[[ClusterStatus], None], *, round_s: int = 5
) -> ClusterStatus:
    """Show the status whenever a pod changes, and every ``round_s``, until the job is over."""
    follower = ObjectFollower(api, "Pod", selector_text(name), round_s)
    for _ in follower.rounds():
        status = observe(api, name, list(follower.objects.values()))
        if status.is_over:
            status = observe(api, name)  # the watch may be behind with the pod that is to blame
        show(status)
        if status.is_over or status.phase == "Absent":
            return status
    raise AssertionError("unreachable: the follower is not stopped")


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
            index = _index_of(change.object)
            if index is None:
                continue
            self._codes.setdefault(change.name, {}).update(_exit_codes(change.object))
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


def _index_of(pod: Json) -> int | None:
    return read_pod(pod).index


def _exit_codes(pod: Json) -> dict[str, int]:
    found = {}
    for container in (pod.get("status") or {}).get("containerStatuses") or []:
        ended = (container.get("state") or {}).get("terminated")
        if ended:
            found[container["name"]] = int(ended.get("exitCode", 0))
    return found
