"""Whether and when a Job tries a failed pod again. Pure.

Source: ``pkg/controller/job/{job_controller,indexed_job_utils,backoff_utils}.go`` of Kubernetes
1.30 to 1.36: the first wait is 10 s, each failure doubles it up to 10 min, and an index that has
failed more than ``backoffLimitPerIndex`` times fails for good.
"""

from datetime import datetime, timedelta
from typing import Any

from ...core.exit_codes import ExitCode
from ...launch.screen.status_table import human_seconds
from .pods import condition, containers

Json = dict[str, Any]

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
