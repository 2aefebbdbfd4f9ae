"""Pods as the Kubernetes API lists them: what a resolver needs of one, what its containers do, and
why it does not run.

Pure. It reads the JSON of the API, whose form is stable, and not the classes of the Python client,
which refuse a pod that lacks a field their version requires.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from ...core.exit_codes import ExitCode, describe_exit, is_retryable
from ...launch.screen.status_table import human_seconds

Json = dict[str, Any]

RUNNING = "Running"

JOBSET_JOB = "jobset.sigs.k8s.io/job-index"
COMPLETION = "batch.kubernetes.io/job-completion-index"
INDEX_LABELS = (
    COMPLETION,  # of an Indexed Job, and so of JobSet and of TrainJob
    "apps.kubernetes.io/pod-index",  # of a StatefulSet
    "training.kubeflow.org/replica-index",  # of a TFJob
    "volcano.sh/task-index",
)
"""Labels with a pod's index among its equals; the first that is there counts."""

ROLE_LABELS = (
    "training.kubeflow.org/replica-type",
    "jobset.sigs.k8s.io/replicatedjob-name",
    "volcano.sh/task-spec",
    "app.kubernetes.io/component",
)
"""Labels with the task type of a pod; the first that is there counts."""


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod.

    Attributes:
        name: Name of the pod.
        namespace: Namespace of the pod.
        phase: ``Pending``, ``Running``, ``Succeeded``, ``Failed`` or ``Unknown``.
        ip: IP address of the pod, not of its node; empty before it has one.
        labels: Labels of the pod.
        hostname: Host name of the pod, if its template or controller sets one.
        subdomain: The headless Service below which that host name has an address in DNS.
        owner: Kind of the controller, e.g. ``StatefulSet``.
        created: Creation time, as text that sorts by time.
        leaving: Whether it is being deleted.
        why: Why it does not run, from its status; empty if that gives no reason.
    """

    name: str
    namespace: str = "default"
    phase: str = RUNNING
    ip: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    hostname: str = ""
    subdomain: str = ""
    owner: str = ""
    created: str = ""
    leaving: bool = False
    why: str = ""

    @property
    def runs(self) -> bool:
        """Whether a task can be reached there, as far as Kubernetes knows."""
        return self.phase == RUNNING and not self.leaving and bool(self.ip)

    @property
    def state(self) -> str:
        """Phase and reason, for people."""
        phase = "being deleted" if self.leaving else self.phase
        if self.phase == RUNNING and not self.leaving and not self.ip:
            phase = "Running, without an address"
        return f"{phase}: {self.why}" if self.why else phase

    @property
    def role(self) -> str:
        """Task type by :data:`ROLE_LABELS`, lower-case; empty if no label says one."""
        said = next((self.labels[name] for name in ROLE_LABELS if name in self.labels), "")
        return said.lower()

    @property
    def index(self) -> int | None:
        """Index by :data:`INDEX_LABELS`, or by the number at the end of the pod's name.

        The name counts for pods of a StatefulSet and pods without a controller: those of a Job or
        a ReplicaSet end in random characters, which may all be digits.
        """
        for name in INDEX_LABELS:
            if self.labels.get(name, "").isdigit():
                return int(self.labels[name])
        ordinal = re.search(r"-([0-9]+)$", self.name)
        return int(ordinal[1]) if ordinal and self.owner in ("", "StatefulSet") else None


def read_pod(listed: Json) -> Pod:
    """Read a pod from its JSON in a list of pods; what is not there counts as not said."""
    metadata, spec, status = (_part(listed, name) for name in ("metadata", "spec", "status"))
    owners = [one for one in _parts(metadata, "ownerReferences") if one.get("controller")]
    return Pod(
        name=_text(metadata, "name"),
        namespace=_text(metadata, "namespace") or "default",
        phase=_text(status, "phase") or "Unknown",
        ip=_text(status, "podIP"),
        labels={name: str(value) for name, value in _part(metadata, "labels").items()},
        hostname=_text(spec, "hostname"),
        subdomain=_text(spec, "subdomain"),
        owner=_text(owners[0], "kind") if owners else "",
        created=_text(metadata, "creationTimestamp"),
        leaving=bool(_text(metadata, "deletionTimestamp")),
        why=why_not_running(listed),
    )


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """A container, as the status of a pod has it.

    Attributes:
        name: Name of the container.
        waiting: Why it waits: ``reason`` and ``message``; empty: it does not.
        ended: End of the container; empty: it has not.
        ended_before: End before it was started again; empty: it was not.
        restarts: Number of times that it was started again.
        runs: Whether it runs, and has answered once.
    """

    name: str
    waiting: Json
    ended: Json
    ended_before: Json
    restarts: int
    runs: bool


def containers(pod: Json, *, with_init: bool = False) -> list[ContainerStatus]:
    """List the containers of a pod, as far as its status tells; those that begin it come first."""
    status = _part(pod, "status")
    listed = _parts(status, "initContainerStatuses") if with_init else []
    return [
        ContainerStatus(
            name=_text(each, "name"),
            waiting=_part(_part(each, "state"), "waiting"),
            ended=_part(_part(each, "state"), "terminated"),
            ended_before=_part(_part(each, "lastState"), "terminated"),
            restarts=int(each.get("restartCount") or 0),
            runs=bool(each.get("started")) and "running" in _part(each, "state"),
        )
        for each in [*listed, *_parts(status, "containerStatuses")]
    ]


def condition(item: Json | None, kind: str, *, holds: bool = True) -> Json | None:
    """Find a condition of an object that holds, or does not; None: it has none such."""
    found = (
        each
        for each in _parts(_part(item or {}, "status"), "conditions")
        if each.get("type") == kind and each.get("status") == str(holds)
    )
    return next(found, None)


def exit_words(ended: Json) -> str:
    """Say how a container ended: by its own last words, else by what its code means."""
    code, words = int(ended.get("exitCode") or 0), _text(ended, "message").strip().splitlines()
    return f"exit code {code}: {words[-1].strip() if words else describe_exit(code)}"


def why_not_running(pod: Json) -> str:
    """Find the reason in a pod's status, in its own words; empty if it has none.

    That of a container comes first (``ImagePullBackOff``, ``OOMKilled``), then that of scheduling,
    then the pod's own (``Evicted``).
    """
    starting = ""
    for each in containers(pod, with_init=True):
        name = f"container {each.name}"
        if _text(each.waiting, "reason") in _NORMAL:
            starting = _text(each.waiting, "reason")
        elif each.waiting:
            return _said(each.waiting, name)
        if each.ended.get("exitCode"):
            return _said(each.ended, name, f"exit code {each.ended['exitCode']}")
    if unscheduled := condition(pod, "PodScheduled", holds=False):
        return _said(unscheduled, "not scheduled")
    status = _part(pod, "status")
    return _said(status, "") if _text(status, "reason") else starting


def why_it_fails_for_good(pod: Json) -> str:
    """Say why a container ends with a code that is permanent whenever the kubelet starts it; empty:
    it does not, as far as a pod's status says.
    """
    for each in containers(pod):
        code = int(each.ended_before.get("exitCode") or 0)
        is_again = _text(each.waiting, "reason") == "CrashLoopBackOff"
        if code and is_again and not is_retryable(code):
            return exit_words(each.ended_before)
    return ""


_NORMAL = ("ContainerCreating", "PodInitializing")
"""Reasons of a container that only wait for another thing, which may say more."""


def _said(about: Json, what: str, more: str = "") -> str:
    parts = [what, _text(about, "reason"), more, _text(about, "message").strip()]
    text = ": ".join(part for part in parts if part)
    # The cause stands at the end of what wraps it.
    return text if len(text) <= 300 else f"{text[:100]} … {text[-195:]}"


def _part(owner: Json, name: str) -> Json:
    said = owner.get(name)
    return said if isinstance(said, dict) else {}


def _parts(owner: Json, name: str) -> list[Json]:
    said = owner.get(name)
    return [one for one in said if isinstance(one, dict)] if isinstance(said, list) else []


def _text(owner: Json, name: str) -> str:
    said = owner.get(name)
    return said if isinstance(said, str) else ""


# -- Whether and when a Job tries a failed pod again. Pure -------------------------------------
# Source: ``pkg/controller/job/{job_controller,indexed_job_utils,backoff_utils}.go`` of Kubernetes
# 1.30 to 1.36: the first wait is 10 s, each failure doubles it up to 10 min, and an index that has
# failed more than ``backoffLimitPerIndex`` times fails for good.

_FIRST_S = 10.0
_LONGEST_S = 600.0
_FAILURES = "batch.kubernetes.io/job-index-failure-count"
_IGNORED = "batch.kubernetes.io/job-index-ignored-failure-count"


def next_try(owner: Json | None, index: int, pod: Json, now: datetime) -> str:
    """Say what happens after a failed pod that is worth another try, in a few words for people.

    Args:
        owner: Job or StatefulSet of the pod; None: it has none any more.
        index: Index of its task.
        pod: The newest pod of the task, which has ended.
        now: The time, with a zone.
    """
    if owner is None:
        return "it is not tried again: nothing makes a pod for it"
    if owner.get("kind") == "StatefulSet":
        return "it is started again"
    spec, status = owner.get("spec") or {}, owner.get("status") or {}
    limit, failures = retry_limit(owner), _failures(owner, pod)
    over = has_failed(owner)
    if index in indices(status.get("failedIndexes") or "") or (over and failures > limit):
        return f"it is not tried again: its retries are used up ({limit})"
    if over:
        return "it is not tried again: its Job has failed"
    if condition(owner, "Complete"):
        return "it is not tried again: its Job is complete"
    if spec.get("suspend"):
        return "it is tried again when its Job is no longer suspended"
    number = "this counts as no failure" if _is_ignored(pod) else f"retry {failures} of {limit}"
    ended = _ended(pod)
    if ended is None:
        return f"it is tried again ({number})"
    wait_s = min(_FIRST_S * 2.0 ** (_counted(pod) - 1), _LONGEST_S)
    left_s = (ended + timedelta(seconds=wait_s) - now).total_seconds()
    when = f"in {human_seconds(left_s)}" if left_s >= 1 else "now"
    return f"it is tried again {when} ({number})"


def retry_limit(owner: Json) -> int:
    """Read how often a task of a Job may fail and be tried again."""
    spec = owner.get("spec") or {}
    default = spec.get("backoffLimit", 6)
    return int(spec.get("backoffLimitPerIndex", default))


def _failures(owner: Json, pod: Json) -> int:
    """Count the failures that count towards the limit, with this pod's."""
    if "backoffLimitPerIndex" in (owner.get("spec") or {}):
        return _annotated(pod, _FAILURES) + (0 if _is_ignored(pod) else 1)
    return max(1, int((owner.get("status") or {}).get("failed") or 0))


def _is_ignored(pod: Json) -> bool:
    """Return whether the Job's policy does not count its end: it was disrupted, or asked to
    stop.
    """
    is_asked = any(each.ended.get("exitCode") == ExitCode.DRAINED for each in containers(pod))
    return is_asked or condition(pod, "DisruptionTarget") is not None


def _counted(pod: Json) -> int:
    """Count the failures that make the wait longer: those that do not count towards the limit,
    too.
    """
    return _annotated(pod, _FAILURES) + _annotated(pod, _IGNORED) + 1


def _annotated(pod: Json, name: str) -> int:
    text = str((pod["metadata"].get("annotations") or {}).get(name, "0"))
    return int(text) if text.isdecimal() else 0


def _ended(pod: Json) -> datetime | None:
    """Find when the last of its containers ended."""
    ends = [each.ended.get("finishedAt") for each in containers(pod)]
    times = [datetime.fromisoformat(text.replace("Z", "+00:00")) for text in ends if text]
    return max(times, default=None)


def ran_out(failed: Json) -> bool:
    """Return whether a Job's condition says that it failed since retries were used up."""
    return failed.get("reason") in (
        "MaxFailedIndexesExceeded",
        "FailedIndexes",
        "BackoffLimitExceeded",
    )


def has_failed(owner: Json | None) -> bool:
    """Return whether a Job has failed, or is about to, with its last pods still ending."""
    return bool(condition(owner, "Failed") or condition(owner, "FailureTarget"))


def indices(text: str) -> set[int]:
    """Parse ``0,2-4`` as numbers."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found
