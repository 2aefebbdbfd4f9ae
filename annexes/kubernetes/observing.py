"""Looking at jobs: the status of one now and until its end, and the jobs of a namespace."""

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from ...core.errors import AccessError, PeerLostError
from .api import KubernetesApi, Listing
from .job_status import ClusterStatus, Observed, Progress, job_status
from .names import COMPONENT, INSTANCE, NAME, STATUS, selector_text, status_object
from .refusals import RefusedRequestError, error_of

# -- Following objects of one kind: list, watch from there, go on, list again on 410 ------------
# A watch says what changed since a version. It may end at any time; then it goes on from the last
# version that was heard of, which bookmarks keep young. If the server has forgotten that version
# (410, as an answer or as an event) everything is listed anew, and what is different from before
# are the changes.

Json = dict[str, Any]

_MOST_FAILURES = 8  # in a row: about two minutes


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one object: it was added, changed or deleted.

    Attributes:
        name: Name of the object.
        object: The object as it is now; a deleted one as it was last seen.
        gone: Whether it was deleted.
    """

    name: str
    object: Json
    gone: bool = False


class ObjectFollower:
    """Objects of one kind that a selector selects, and how they change.

    Args:
        api: The Kubernetes API.
        kind: Kind of the objects.
        selector: Label selector.
        watch_s: Time that a watch lasts before it is begun anew. Unit: seconds.

    Attributes:
        objects: Objects as they are now, by name.
    """

    def __init__(self, api: KubernetesApi, kind: str, selector: str, watch_s: int = 240) -> None:
        self._api = api
        self._kind = kind
        self._selector = selector
        self._watch_s = watch_s
        self._version = ""
        self._failures = 0
        self._stop = threading.Event()
        self.objects: dict[str, Json] = {}

    def stop(self) -> None:
        """End :meth:`rounds` after the watch that is under way. Any thread."""
        self._stop.set()

    def rounds(self) -> Iterator[list[Change]]:
        """Yield changes as they come; an empty list whenever a watch ends.

        The first one is what is there now.

        Raises:
            PeerLostError: The API has not answered for minutes.
            RopewalkError: It refuses.
        """
        while not self._stop.is_set():
            try:
                if not self._version:
                    yield self._listed(self._api.list_all(self._kind, self._selector))
                for event in self._api.watch(
                    self._kind, self._selector, self._version, self._watch_s
                ):
                    self._failures = 0
                    if change := self._changed(event):
                        yield [change]
            except RefusedRequestError as error:
                self._failed(error)
            yield []

    def _listed(self, listing: Listing) -> list[Change]:
        """Take a new list; what is different from before."""
        fresh, before = {_name(item): item for item in listing.items}, self.objects
        self.objects, self._version = fresh, listing.version
        gone = [Change(name, old, gone=True) for name, old in before.items() if name not in fresh]
        return gone + [
            Change(name, item)
            for name, item in fresh.items()
            if name not in before or _version(item) != _version(before[name])
        ]

    def _changed(self, event: Json) -> Change | None:
        """Take an event of a watch; what has changed."""
        kind, item = event["type"], event["object"]
        self._version = _version(item) or self._version
        if kind == "BOOKMARK":
            return None
        name = _name(item)
        if kind == "DELETED":
            self.objects.pop(name, None)
        else:
            self.objects[name] = item
        return Change(name, item, gone=kind == "DELETED")

    def _list_again(self) -> None:
        self._version = ""
        self._failures += 1
        if self._failures > 1:  # the first time at once
            self._pause(min(2.0**self._failures, 30))

    def _failed(self, error: RefusedRequestError) -> None:
        refusal = error.refusal
        if refusal.is_gone:
            self._list_again()
            return
        self._failures += 1
        if not refusal.is_retried or self._failures > _MOST_FAILURES:
            raise error_of(refusal, f"watch {self._kind}s", self._api.where) from error
        self._pause(refusal.wait_s(self._failures - 1))

    def _pause(self, seconds: float) -> None:
        if self._failures > _MOST_FAILURES:
            raise PeerLostError(
                f"the Kubernetes API ended {self._failures} watches of {self._kind}s in a row; try "
                "again later"
            )
        self._api.clock.wait(self._stop, seconds)


def _name(item: Json) -> str:
    return str(item.get("metadata", {}).get("name", ""))


def _version(item: Json) -> str:
    return str(item.get("metadata", {}).get("resourceVersion", ""))


_OURS = f"{NAME}=ropewalk"


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


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in a list.

    Attributes:
        name: Name of the job.
        phase: Phase of the job, as in :class:`~.job_status.ClusterStatus`.
        running: Tasks whose pods run.
        tasks: Tasks that it should have.
        age_s: Age of its oldest Job. Unit: seconds.
        progress: Progress that its chief has written.
        reason: Why it failed or waits; empty: nothing to say.
    """

    name: str
    phase: str
    running: int
    tasks: int
    age_s: float
    progress: Progress
    reason: str = ""


def list_jobs(api: KubernetesApi) -> list[JobRow]:
    """List all jobs of the namespace, by name.

    Raises:
        NotFoundError: There is no such namespace.
    """
    listed = {
        kind: [{"kind": kind, **each} for each in api.list_all(kind, _OURS).items]
        for kind in ("Job", "StatefulSet", "Pod")
    }
    names = sorted({_instance(item) for kind in ("Job", "StatefulSet") for item in listed[kind]})
    if not names:
        api.check_namespace()
    records = {_instance(each): each for each in _records(api)}
    return [
        _row(
            name,
            Observed(
                _of(name, listed["Job"]),
                _of(name, listed["StatefulSet"]),
                _of(name, listed["Pod"]),
                record=records.get(name),
            ),
            api.now(),
        )
        for name in names
        if name
    ]


def _records(api: KubernetesApi) -> list[Json]:
    try:
        return api.list_all("ConfigMap", f"{_OURS},{COMPONENT}={STATUS}").items
    except AccessError:  # an older role
        return []


def _row(name: str, seen: Observed, now: datetime) -> JobRow:
    status = job_status(name, seen, now)
    running = sum(line.state == "Running" for line in status.tasks)
    owners = [*seen.jobs, *seen.stateful_sets]
    created = [str(each["metadata"].get("creationTimestamp", "")) for each in owners]
    began = [datetime.fromisoformat(each.replace("Z", "+00:00")) for each in created if each]
    age_s = (now - min(began)).total_seconds() if began else 0.0
    return JobRow(
        name, status.phase, running, len(status.tasks), age_s, status.progress, status.reason
    )


def _instance(item: Json) -> str:
    return str((item["metadata"].get("labels") or {}).get(INSTANCE, ""))


def _of(name: str, items: Iterable[Json]) -> list[Json]:
    return [each for each in items if _instance(each) == name]
