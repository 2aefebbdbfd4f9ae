"""The Indexed Job of a role: what counts as a failure, and how often a pod is replaced. Pure.

The Job replaces the one pod that was lost. It is the same alone and in a JobSet.
"""

from typing import Any

from ...core.exit_codes import ExitCode
from ..job.model import JobFile

Json = dict[str, Any]

_PERMANENT = list(range(1, 128))  # docs/exit-codes.md: a restart would fail again


def indexed_job(job: JobFile, role: str, template: Json) -> Json:
    """Make the spec of a role's Job.

    Args:
        job: The job.
        role: The role.
        template: Template of its pods.
    """
    count = job.count(role)
    (container,) = template["spec"]["containers"]
    return {
        "completionMode": "Indexed",
        "completions": count,
        "parallelism": count,
        "backoffLimitPerIndex": job.kubernetes.retries,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "Failed",
        **_times(job),
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                # It was asked to stop: its pod was deleted, or its node drained.
                _on_exit("Ignore", container, [int(ExitCode.DRAINED)]),
                _on_exit("FailIndex", container, _final_codes(job)),
            ]
        },
        "template": template,
    }


def _final_codes(job: JobFile) -> list[int]:
    """Exit codes that a new pod does not mend."""
    gang = job.kubernetes.gang
    late = [int(ExitCode.JOIN_TIMEOUT)] if gang and gang.by == "chief" else []
    return [*_PERMANENT, *late]


def _times(job: JobFile) -> Json:
    """Set when a Job is ended, and when one that has ended is deleted, if the job file says so."""
    kubernetes = job.kubernetes
    deadline = {"activeDeadlineSeconds": kubernetes.deadline_s} if kubernetes.deadline_s else {}
    keep = {"ttlSecondsAfterFinished": kubernetes.keep_s} if kubernetes.keep_s >= 0 else {}
    return {**deadline, **keep}


def _on_exit(action: str, container: Json, values: list[int]) -> Json:
    codes = {"containerName": container["name"], "operator": "In", "values": values}
    return {"action": action, "onExitCodes": codes}
