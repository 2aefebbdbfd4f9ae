"""State of a pod, its reason, and what to do about it: from its status and its events. Pure."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from ...core.exit_codes import ExitCode
from .names import REPLICATED
from .pods import ContainerStatus, condition, containers, exit_words, why_not_running

Json = dict[str, Any]

RUNNING = "Running"
PREEMPTED = "Preempted"
FAILED = "Failed"
OOM_KILLED = "OOMKilled"
DONE = "Done"
MISSING = "Missing"

PULL_ERROR = re.compile(r"ErrImagePull|ImagePullBackOff|InvalidImageName|ErrImageNeverPull")
"""Reasons of a container that waits for its image."""

_WRAPPINGS = re.compile(
    r"(?:Back-off pulling image \"[^\"]*\"|ErrImagePull|Failed to pull image \"[^\"]*\""
    r"|rpc error: code = \w+ desc =|failed to pull and unpack image \"[^\"]*\""
    r"|failed to resolve reference \"[^\"]*\"|failed to copy|failed to do request"
    r"|failed to authorize|initializing source \S+|Error response from daemon"
    r"|reading manifest \S+ in \S+)(?::? +|$)"
)
_LONGEST_CAUSE = 200
_LONGEST = 400
_LATE_S = 15.0  # after the end of a grace period the kubelet has killed what was left


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod, for people.

    Attributes:
        state: ``Pending``, ``Starting``, ``Running``, ``Leaving``, ``Done``, ``Failed``,
            ``OOMKilled``, ``Preempted`` or ``Unknown``.
        reason: Why it is not running or has ended; empty if there is nothing to say.
        remedy: Advice what to do; empty: nothing, or it is not known.
        exit_code: Exit code of the last container that ended; None: none has.
        restarts: Number of restarts of its containers.
    """

    state: str
    reason: str = ""
    remedy: str = ""
    exit_code: int | None = None
    restarts: int = 0


def pod_state(
    pod: Json,
    events: Iterable[Json] = (),
    retry: str = "it is tried again",
    now: datetime | None = None,
) -> PodState:
    """Describe the state of a pod, as the API lists it.

    Args:
        pod: Pod as JSON.
        events: Events about it, oldest first.
        retry: Words for what follows when it has ended in a way that is worth another try.
        now: The time, with a zone; None: not known, and no pod counts as late.
    """
    status = pod.get("status") or {}
    found = containers(pod)
    restarts = sum(each.restarts for each in found)
    ended: Json = next(filter(None, (each.ended or each.ended_before for each in found)), {})
    code = int(ended.get("exitCode", 0)) if ended else None
    phase = str(status.get("phase", "Unknown"))
    killed = ended.get("reason") == OOM_KILLED
    is_ready = condition(pod, "Ready") is not None
    disrupted = condition(pod, "DisruptionTarget")
    end_words = exit_words(ended) if ended else _words_of_pod(status)

    def said(state: str, reason: str = "", remedy: str = "") -> PodState:
        return PodState(state, reason[:_LONGEST], remedy, code, restarts)

    if disrupted and phase not in ("Succeeded", RUNNING):
        why = f"{disrupted.get('reason', '')}: {disrupted.get('message', '')}".strip(": ")
        return said(PREEMPTED, why, f"nothing: {retry}")
    if killed and phase != "Succeeded" and not is_ready:
        more = f"; {retry}" if phase == FAILED else ""
        return said(OOM_KILLED, _memory_words(pod), f"{_MEMORY_REMEDY}{more}")
    if until := pod.get("metadata", {}).get("deletionTimestamp"):
        if phase == FAILED and not _ended_by_itself(pod, ended):
            # Its Job keeps it until the next one is made.
            return said("Leaving", "was asked to stop, and has left", retry)
        if phase == FAILED:
            return said(FAILED, end_words, _exit_remedy(code, retry))
        if now is not None and (now - datetime.fromisoformat(until)).total_seconds() > _LATE_S:
            return said("Leaving", *_node_words(pod))
        return said("Leaving", "asked to stop: it saves and leaves within its grace period")
    if phase == "Succeeded" or _have_ended_well(found):
        return said(DONE)
    if phase == FAILED:
        return said(FAILED, end_words, _exit_remedy(code, retry))
    if phase == RUNNING and is_ready:
        before = ""
        if killed:
            before = f"was restarted: {_memory_words(pod)}"
        elif code:
            before = f"was restarted: {end_words}"
        return said(RUNNING, before, _MEMORY_REMEDY if killed else "")
    if code and any(each.waiting.get("reason") == "CrashLoopBackOff" for each in found):
        return said(FAILED, end_words, _exit_remedy(code, retry))
    if phase == RUNNING and _runs(found) and not _waits_for_replicas(pod):
        return said(RUNNING, "its port does not answer now: its task starts again, or ends")
    reason, remedy = _why_waiting(pod, list(events))
    state = "Starting" if phase == RUNNING else phase
    if state == "Starting" and not reason:
        reason = _why_not_ready(pod)
        if code:
            reason += f"; was restarted: {end_words}"
    return said(state, reason, remedy)


def _node_words(pod: Json) -> tuple[str, str]:
    """Reason and remedy of a pod whose grace period is over, and which nobody has ended."""
    node = pod.get("spec", {}).get("nodeName", "")
    return (
        f"its time to leave is over, and node {node} does not say that it has left",
        f"no other pod takes its place before: `kubectl get node {node}`; of a node that is off "
        f"for good, `kubectl delete node {node}` ends its pods",
    )


def _why_waiting(pod: Json, events: list[Json]) -> tuple[str, str]:
    """Find the reason and the remedy of a pod that does not run yet."""
    reason = why_not_running(pod)
    scheduled = condition(pod, "PodScheduled") is not None
    warnings = [
        each
        for each in events
        if each.get("type") == "Warning"
        # It may have waited for a node; that it has one now ends what was said of it.
        and not (scheduled and each.get("reason") == "FailedScheduling")
    ]
    event = warnings[-1] if warnings else None
    # The status of a container that is being made says only that; the event says what it waits for.
    vague = not reason or reason in ("ContainerCreating", "PodInitializing")
    if event is not None and vague:
        reason = f"{event.get('reason', '')}: {event.get('message', '')}"
    text = f"{reason} {event.get('reason', '') if event else ''}"
    if PULL_ERROR.search(text):
        reason = _pull_words(pod, warnings)
    remedy = next((words for pattern, words in _REMEDIES if pattern.search(text)), "")
    namespace = str(pod["metadata"].get("namespace", ""))
    return reason, remedy.replace("{where}", f" -n {namespace}" if namespace else "")


def _why_not_ready(pod: Json) -> str:
    """Say why a pod that runs is not ready; a ps may answer and wait for its job's replicas."""
    if _runs(containers(pod)) and _waits_for_replicas(pod):
        return "it serves, and is ready once each share has its replicas again"
    return "its port does not answer yet"


def _runs(found: list[ContainerStatus]) -> bool:
    return any(each.runs for each in found)


def _have_ended_well(found: list[ContainerStatus]) -> bool:
    """Return whether all containers have ended with 0; the phase of their pod follows later."""
    return bool(found) and all(each.ended.get("exitCode") == 0 for each in found)


def _waits_for_replicas(pod: Json) -> bool:
    """Return whether it is ready only when its job has its replicas."""
    containers = pod.get("spec", {}).get("containers") or []
    asked = [(each.get("readinessProbe") or {}).get("grpc") or {} for each in containers]
    return any(each.get("service") == REPLICATED for each in asked)


def _ended_by_itself(pod: Json, ended: Json) -> bool:
    """Return whether a container of a pod that is being deleted had failed before, or for good."""
    code, finished = ended.get("exitCode", 0), ended.get("finishedAt")
    metadata = pod["metadata"]
    if 0 < code < 128 or not finished or "deletionGracePeriodSeconds" not in metadata:
        return bool(0 < code < 128)
    grace = timedelta(seconds=metadata["deletionGracePeriodSeconds"])
    asked = datetime.fromisoformat(metadata["deletionTimestamp"]) - grace
    return bool(code) and datetime.fromisoformat(finished) < asked and code != ExitCode.DRAINED


def _pull_words(pod: Json, warnings: list[Json]) -> str:
    """Write the reason of a failing pull: ``ImagePullBackOff: image train:typo: not found``."""
    waiting = [each.waiting for each in containers(pod, with_init=True)]
    failing = [each for each in waiting if PULL_ERROR.search(str(each.get("reason", "")))]
    reason = str(failing[0].get("reason")) if failing else "ErrImagePull"
    image = next(iter(pod.get("spec", {}).get("containers") or [{}])).get("image", "")
    texts = [str(each.get("message", "")) for each in failing]
    texts += [
        str(each.get("message", ""))
        for each in reversed(warnings)
        if "pull" in str(each.get("message", ""))
    ]
    return ": ".join(filter(None, [reason, f"image {image}" if image else "", pull_cause(texts)]))


_MEMORY_REMEDY = "give its role more under resources.memory"
_REMEDIES = [
    (
        re.compile(r"SchedulingGated"),
        "its queue has not admitted the job yet: `kubectl describe workloads{where}` says why",
    ),
    (
        PULL_ERROR,
        "check `image` and its tag, and for a private registry kubernetes.image_pull_secrets",
    ),
    (
        re.compile(r"nvidia\.com/gpu"),
        "no node has so many free GPUs: lower resources.gpu, or wait for others to end",
    ),
    (
        re.compile(r"Insufficient (cpu|memory)|didn't have enough resource"),
        "no node has so much free: lower resources, or let the cluster grow",
    ),
    (
        re.compile(r"Multi-Attach|FailedAttachVolume"),
        "its volume is at another node: storage.access ReadWriteMany, or a URL as "
        "storage.model_dir; or all pods on one node (kubernetes.pod.nodeSelector)",
    ),
    (
        re.compile(r'secret "[^"]*" not found|in Secret |secret key'),
        "make the Secret that it names: docs/job-file.md says which files it holds",
    ),
    (
        re.compile(r'configmap "[^"]*" not found|in ConfigMap |config key'),
        "make the ConfigMap that it names; one with code comes with `ropewalk k8s apply --code`",
    ),
    (
        re.compile(
            r"persistentvolumeclaim|unbound immediate|volume node affinity|FailedMount", re.I
        ),
        "look at the claim: `kubectl describe pvc{where}`; storage.storage_class or "
        "storage.access may not be what this cluster has",
    ),
    (re.compile(r"runAsNonRoot"), "the image must run as a user that is not root"),
    (
        re.compile(r"taint|node affinity/selector"),
        "kubernetes.pod.tolerations or kubernetes.pod.nodeSelector may be missing",
    ),
    (re.compile(r"Unschedulable|FailedScheduling"), "`kubectl describe nodes` shows what is free"),
]


def _exit_remedy(code: int | None, retry: str) -> str:
    if code == 0:
        return ""
    if code is not None and code < 128:
        return "a restart would fail again: its log says why"
    return retry


def _words_of_pod(status: Json) -> str:
    return ": ".join(str(status[name]) for name in ("reason", "message") if status.get(name))


def _memory_words(pod: Json) -> str:
    limits = [
        each.get("resources", {}).get("limits", {}).get("memory", "")
        for each in pod.get("spec", {}).get("containers") or []
    ]
    limit = next((text for text in limits if text), "")
    return f"it used more memory than its limit{f' of {limit}' if limit else ''}, and was killed"


def pull_cause(texts: Iterable[str]) -> str:
    """Find the innermost cause in these messages, e.g. ``no such host``; empty: none says one.

    Args:
        texts: Messages of the container's status and of the pod's events, the best one first.
    """
    for text in texts:
        cause = " ".join(text.split())
        while (match := _WRAPPINGS.match(cause)) is not None:
            cause = cause[match.end() :]
        if cause:
            return cause if len(cause) <= _LONGEST_CAUSE else f"… {cause[-_LONGEST_CAUSE:]}"
    return ""
