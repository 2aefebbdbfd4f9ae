"""The status of a whole job on Kubernetes: from its objects, never from logs. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from ...cluster.spec import CHIEF, EVALUATOR, PS, WORKER
from ...cluster.supervision.policy import End, JobNeeds, on_exit, whom_to_blame
from ...core.exit_codes import ExitCode, is_retryable
from ...core.task import Phase, TaskId
from .api import FIELD_MANAGER as OURS
from .names import COMPONENT, ROLES, workload
from .pod_state import DONE, FAILED, MISSING, OOM_KILLED, PodState, pod_state
from .pods import condition, has_failed, indices, next_try, ran_out, read_pod, retry_limit
from .status_record import ENDED

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Progress:
    """The numbers of a job, as texts of its ConfigMap; empty: not known.

    Attributes:
        step: Global step.
        goal: Steps that the program wants.
        rate: Steps a second.
        checkpoint_step: Global step of the last checkpoint.
        tasks: Tasks that are alive, of those that are known: ``5/6``.
        updated: Time at which the chief wrote it, RFC 3339.
    """

    step: str = ""
    goal: str = ""
    rate: str = ""
    checkpoint_step: str = ""
    tasks: str = ""
    updated: str = ""

    @property
    def words(self) -> str:
        """``step 1200 of 3000, 85.2 steps/s, checkpoint at step 1000``; empty: nothing is known."""
        if not self.step:
            return ""
        parts = [f"step {self.step}" + (f" of {self.goal}" if self.goal else "")]
        parts += [f"{self.rate} steps/s"] if self.rate else []
        parts += [f"checkpoint at step {self.checkpoint_step}"] if self.checkpoint_step else []
        return ", ".join(parts)


def read_progress(config_map: Mapping[str, Any] | None) -> Progress:
    """Read the progress in a ConfigMap; without one nothing is known."""
    data = (config_map or {}).get("data") or {}

    def text(name: str) -> str:
        return str(data.get(name) or "")

    return Progress(
        text("step"),
        text("goalSteps"),
        text("stepsPerSecond"),
        text("checkpointStep"),
        text("tasks"),
        text("updated"),
    )


SUSPENDED = "Suspended"
_ENDED = "its Job is suspended, since the job is over"


@dataclass(frozen=True, slots=True)
class Observed:
    """Objects of a job, as the API lists them, the ConfigMap that its chief writes, and the JobSet
    or TrainJob that is the job, which is asked for where there are no Jobs.
    """

    jobs: Sequence[Json] = ()
    stateful_sets: Sequence[Json] = ()
    pods: Sequence[Json] = ()
    events: Sequence[Json] = ()
    record: Json | None = None
    one_object: Json | None = None


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task, and its newest pod.

    Attributes:
        task: ``worker:1``.
        state: State of the pod, as in :class:`PodState`, or ``Missing``.
        age_s: Age of the pod; None: there is none.
        pod: Name of the pod; empty: there is none.
        node: Node that runs it; empty: none yet.
        restarts: Restarts of its container, and pods of the task that failed before.
        exit_code: Exit code of its last container that ended.
        reason: Why it does not run.
        remedy: Advice what to do.
    """

    task: str
    state: str
    age_s: float | None = None
    pod: str = ""
    node: str = ""
    restarts: int = 0
    exit_code: int | None = None
    reason: str = ""
    remedy: str = ""

    @property
    def role(self) -> str:
        """The task's."""
        return self.task.partition(":")[0]


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """A job.

    Attributes:
        name: Name of the job.
        phase: ``Absent``, ``Pending``, ``Running``, ``Suspended``, ``Done`` or ``Failed``.
        reason: Why it failed, is suspended, or does not go on.
        exit_code: Exit code of a command that waited for it: 0 when done, the failed task's when
            failed; None while it goes on.
        tasks: Tasks by role and index.
        progress: Progress that its chief has written, if it may.
    """

    name: str
    phase: str
    reason: str = ""
    exit_code: int | None = None
    tasks: list[TaskLine] = field(default_factory=list)
    progress: Progress = field(default_factory=Progress)

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.phase in ("Done", "Failed")


def job_status(name: str, seen: Observed, now: datetime) -> ClusterStatus:
    """Describe what is known of a job.

    Args:
        name: Name of the job.
        seen: Objects of the job.
        now: The time, with a zone.
    """
    events = _by_object(seen.events)
    owners = {_component(each): each for each in (*seen.jobs, *seen.stateful_sets)}
    pods: dict[tuple[str, int], list[Json]] = {}
    for pod in seen.pods:
        read = read_pod(pod)
        if read.index is not None and _component(pod) in ROLES:
            pods.setdefault((_component(pod), read.index), []).append(pod)
    tasks: list[TaskLine] = []
    for role in ROLES:
        indices = {index for kind, index in pods if kind == role}
        indices |= set(range(pods_wanted(owners.get(role))))
        tasks += [
            _line(role, index, pods.get((role, index), []), owners.get(role), events, now)
            for index in sorted(indices)
        ]
    leader = owners.get(_leader(owners))
    if leader is not None and leader["kind"] == "StatefulSet":
        phase, reason, code = _phase_of_sets(owners, tasks, seen.record)
    elif seen.one_object is not None and not owners:
        phase, reason, code = _phase_of_one_object(seen.one_object)
    elif not seen.jobs or is_left_over(seen):
        phase, reason, code = _phase_without_jobs(name, seen, events)
    else:
        phase, reason, code = _phase(owners, tasks)
    if code is not None or _leader_done(owners) or has_failed(leader):
        # The chief has ended them: nothing will admit them any more.
        tasks = [replace(t, reason=_ENDED) if t.state == SUSPENDED else t for t in tasks]
    return ClusterStatus(name, phase, reason, code, tasks, read_progress(seen.record))


def _line(
    role: str,
    index: int,
    pods: list[Json],
    owner: Json | None,
    events: Mapping[tuple[str, str], list[Json]],
    now: datetime,
) -> TaskLine:
    task = f"{role}:{index}"
    if not pods:
        state, reason = _without_pod(index, owner, events)
        return TaskLine(task, state, reason=reason)
    # The newest counts; one that is being deleted is what its successor replaces.
    pods = sorted(pods, key=lambda pod: pod["metadata"].get("creationTimestamp", ""))
    newest = pods[-1]
    name = newest["metadata"]["name"]
    retry = next_try(owner, index, newest, now)
    found: PodState = pod_state(newest, events.get(("Pod", name), []), retry, now)
    created = newest["metadata"].get("creationTimestamp")
    return TaskLine(
        task,
        found.state,
        _seconds_since(created, now),
        name,
        newest.get("spec", {}).get("nodeName", ""),
        found.restarts + len(pods) - 1,
        found.exit_code,
        found.reason,
        found.remedy,
    )


def _without_pod(
    index: int, owner: Json | None, events: Mapping[tuple[str, str], list[Json]]
) -> tuple[str, str]:
    """State and reason of a task that has no pod."""
    if owner is None:
        return MISSING, "nothing makes a pod for it"
    status, spec = owner.get("status") or {}, owner.get("spec") or {}
    if index in indices(status.get("completedIndexes", "")):
        return DONE, ""
    if spec.get("suspend"):
        return SUSPENDED, "its Job is suspended: a queue has not admitted it yet"
    about = events.get((owner["kind"], owner["metadata"]["name"]), [])
    warnings = [
        each
        for each in about
        # What the chief says is about its tasks, and no reason why a pod is missing.
        if each.get("type") == "Warning" and not _is_ours(each)
    ]
    if not warnings:
        return MISSING, ""
    return MISSING, f"{warnings[-1].get('reason', '')}: {warnings[-1].get('message', '')}"


def _phase(owners: Mapping[str, Json], tasks: Sequence[TaskLine]) -> tuple[str, str, int | None]:
    """Find phase, reason and exit code: the Jobs say how it ended, whatever pods and logs look
    like.
    """
    for role in (CHIEF, WORKER, EVALUATOR):
        failed = condition(owners.get(role), "Failed")
        # The evaluator's failure does not stop training, and counts when that has ended.
        if failed and (role != EVALUATOR or _leader_done(owners)):
            return ("Failed", *_failure(role, failed, tasks, owners))
    if _leader_done(owners):
        return "Done", "", 0
    if (owners.get(_leader(owners), {}).get("spec") or {}).get("suspend"):
        return SUSPENDED, "a queue has not admitted it yet, or a person has suspended it", None
    return _phase_that_goes_on(owners, tasks)


def _phase_of_sets(
    owners: Mapping[str, Json], tasks: Sequence[TaskLine], record: Json | None
) -> tuple[str, str, int | None]:
    """Find phase, reason and exit code where a StatefulSet makes the pod of the chief: its
    container has written how the job ended.
    """
    data = (record or {}).get("data") or {}
    ended = str(data.get(ENDED) or "")
    if ended.isdecimal():
        reason = str(data.get("reason") or "") if int(ended) else ""
        return ("Failed" if int(ended) else "Done"), reason, int(ended)
    leader = owners[_leader(owners)]
    if not pods_wanted(leader):
        name = leader["metadata"]["name"]
        return SUSPENDED, f"StatefulSet {name} was scaled to none, and not by its chief", None
    return _phase_that_goes_on(owners, tasks)


def _phase_that_goes_on(
    owners: Mapping[str, Json], tasks: Sequence[TaskLine]
) -> tuple[str, str, int | None]:
    # Of a pod that is done the Job says so a moment later.
    running = {line.task for line in tasks if line.state in ("Running", DONE)}
    leader = f"{_leader(owners)}:0"
    return ("Running" if leader in running else "Pending"), _why_stuck(leader, tasks), None


def _why_stuck(leader: str, tasks: Sequence[TaskLine]) -> str:
    """Say why the job does not go on: its chief has failed and is tried again, or a ps has failed
    for good, which a StatefulSet starts again all the same.
    """
    for line in tasks:
        permanent = line.role == PS and line.exit_code and not is_retryable(line.exit_code)
        failed = line.state in (FAILED, OOM_KILLED) and line.exit_code not in (0, ExitCode.DRAINED)
        if failed and (permanent or line.task == leader):
            return f"{line.task}: {line.reason}"
    return ""


def is_left_over(seen: Observed) -> bool:
    """Return whether all that there is of a job is what its chief has ended, whose own Job was
    deleted.
    """
    is_led = any(_component(each) == CHIEF for each in (*seen.jobs, *seen.stateful_sets))
    runs = [each for each in seen.jobs if not (each.get("spec") or {}).get("suspend")]
    pods = sum(pods_wanted(each) for each in seen.stateful_sets)
    return bool(seen.stateful_sets) and not (is_led or runs or pods)


def _phase_of_one_object(item: Json) -> tuple[str, str, int | None]:
    """Find phase, reason and exit code of a JobSet or TrainJob without Jobs, not yet or no
    longer.
    """
    kind = str(item.get("kind", "JobSet"))
    if condition(item, "Completed") or condition(item, "Complete"):
        return "Done", "", 0
    if failed := condition(item, "Failed"):
        return "Failed", str(failed.get("message") or ""), int(ExitCode.PROGRAM_FAILED)
    if (item.get("spec") or {}).get("suspend"):
        return SUSPENDED, "a queue has not admitted it yet, or a person has suspended it", None
    return "Pending", f"its {kind} has no Jobs yet: its controller makes them, if it runs", None


def _phase_without_jobs(
    name: str, seen: Observed, events: Mapping[tuple[str, str], list[Json]]
) -> tuple[str, str, int | None]:
    """Find phase, reason and exit code when there are no Jobs (any more), as those that had ended
    are deleted after ``keep_s``: what the chief wrote last, or what the events of its Job say.
    """
    said = (seen.record or {}).get("data") or {}
    match said.get("phase"):
        case Phase.DONE:
            return "Done", "", 0
        case Phase.FAILED:
            return "Failed", str(said.get("reason") or ""), int(ExitCode.PROGRAM_FAILED)
    about = [e for e in events.get(("Job", workload(name, CHIEF)), []) if not _is_ours(e)]
    if about and about[-1].get("reason") == "Completed":
        return "Done", "", 0
    if seen.stateful_sets:
        left = "its Jobs were deleted, maybe since they had ended: delete the rest, too"
        return "Absent", left, None
    return "Absent", "there is no such job here: apply it, or check the namespace", None


def _failure(
    role: str, failed: Json, tasks: Sequence[TaskLine], owners: Mapping[str, Json]
) -> tuple[str, int]:
    """Reason and exit code of a job, of which the Job of a role has failed."""
    why = f"{failed.get('reason', '')}: {failed.get('message', '')}".strip(": ")
    coded = [line for line in tasks if line.exit_code]
    ended = [line for line in coded if line.state in (FAILED, OOM_KILLED)]
    own = [line for line in ended if line.role == role]
    own = own or [line for line in coded if line.role == role]
    if not own:
        return why, int(ExitCode.PROGRAM_FAILED)
    others = [_end(line, why) for line in ended if line.role != role]
    needs = JobNeeds(TaskId(_leader(owners), 0), synchronous=PS not in owners)
    over = role == EVALUATOR  # training is, when the evaluator fails by itself
    failures = [other for other in others if on_exit(other, needs, stopping=over).failed]
    to_blame = whom_to_blame([*(_end(line, why) for line in own), *failures])
    if is_retryable(to_blame.code) and ran_out(failed):
        limit = retry_limit(owners[role])
        return f"{to_blame.sentence}; its retries are used up ({limit})", to_blame.code
    return to_blame.sentence, to_blame.code


def _end(line: TaskLine, why: str) -> End:
    index = int(line.task.rpartition(":")[2])
    sentence = f"{line.task}: {line.reason or why}"
    return End(TaskId(line.role, index), line.exit_code or 0, sentence)


def _leader(owners: Mapping[str, Json]) -> str:
    return CHIEF if CHIEF in owners else WORKER


def _leader_done(owners: Mapping[str, Json]) -> bool:
    return condition(owners.get(_leader(owners)), "Complete") is not None


def pods_wanted(owner: Json | None) -> int:
    """Count the pods that a Job or a StatefulSet is to have now."""
    if owner is None:
        return 0
    spec = owner.get("spec") or {}
    default = 1 if owner.get("kind") == "StatefulSet" else 0
    return int(spec.get("replicas", spec.get("completions", default)) or 0)


def _component(item: Json) -> str:
    return str((item.get("metadata", {}).get("labels") or {}).get(COMPONENT, ""))


def _by_object(events: Iterable[Json]) -> dict[tuple[str, str], list[Json]]:
    """Group events by the kind and name of what they are about, oldest first."""
    found: dict[tuple[str, str], list[Json]] = {}
    for event in sorted(events, key=_when):
        about = event.get("involvedObject") or {}
        found.setdefault((about.get("kind", ""), about.get("name", "")), []).append(event)
    return found


def _is_ours(event: Json) -> bool:
    """Return whether the job's chief has made an event, and no controller."""
    return (event.get("source") or {}).get("component") == OURS


def _when(event: Json) -> str:
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((str(each) for each in times if each), "")


def _seconds_since(created: str | None, now: datetime) -> float | None:
    if not created:
        return None
    return max(0.0, (now - datetime.fromisoformat(created)).total_seconds())
