"""The state of a job as others on the same platform see it: a flat record, and events. Pure.

The chief writes both (``status_writer.py``). On Kubernetes the record is the data of a
ConfigMap, which needs no definition of its own; events stand in ``kubectl describe``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ...cluster.job.job import Job
from ...core.task import State

ENDED = "ended"
"""Name of a text in the record that a container writes when its job is over for good: the exit
code. The phase is the chief's word, and another chief may follow."""

_WORST_S = 15.0  # how old numbers may be while a job trains
_SHOWN = 8  # tasks in one event
_LONGEST = 1000  # bytes; an event's message has at most 1,024


@dataclass(frozen=True, slots=True)
class JobSnapshot:
    """A job at one time.

    Attributes:
        at: Time on the job's clock. Unit: seconds.
        phase: Phase of the job, from :class:`~ropewalk.core.task.Phase`.
        reason: Why it has that phase; empty: nothing to say.
        step: Global step.
        goal_steps: The goal; 0: the program has none.
        checkpoint: Path of the last one; empty: there is none.
        checkpoint_step: Global step of that checkpoint.
        tasks: State by task, e.g. ``{"worker:1": State.ALIVE}``.
        details: Facts about a state, by task.
        generations: Number of each task's life: a task that was started again has a higher one.
    """

    at: float
    phase: str
    reason: str = ""
    step: int = 0
    goal_steps: int = 0
    checkpoint: str = ""
    checkpoint_step: int = 0
    tasks: Mapping[str, State] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """An event of a job: ``Joined``, ``Lost``, ``Left``, ``Checkpoint``, ``Done``, ….

    Attributes:
        reason: Reason, in a word.
        message: A sentence.
        is_warning: Whether it is worth a look.
    """

    reason: str
    message: str
    is_warning: bool = False


def view_of(job: Job, now: float, checkpoint: str) -> JobSnapshot:
    """Take a view of a job now; the caller holds its lock."""
    return JobSnapshot(
        at=now,
        phase=str(job.phase),
        reason=job.reason,
        step=job.members.global_step,
        goal_steps=job.members.total_steps,
        checkpoint=checkpoint,
        checkpoint_step=job.saved_step,
        tasks={task.short: member.state for task, member in job.members.items()},
        details={task.short: member.detail for task, member in job.members.items()},
        generations={task.short: member.generation for task, member in job.members.items()},
    )


def is_due(written: JobSnapshot | None, view: JobSnapshot) -> bool:
    """Return whether a view is to be written, after the one that was written last."""
    if written is None or view.phase != written.phase or view.tasks != written.tasks:
        return True
    if view.checkpoint != written.checkpoint or view.reason != written.reason:
        return True
    if view.generations != written.generations:
        return True
    return view.step != written.step and view.at - written.at >= _WORST_S


def record_of(written: JobSnapshot | None, view: JobSnapshot, updated: str) -> dict[str, str]:
    """Write the record: texts by name, all of them in every record, so that none is left from
    before.

    Args:
        written: The view that was written last; None: none was.
        view: The view now.
        updated: The time of day, RFC 3339.
    """
    alive = sum(state is State.ALIVE for state in view.tasks.values())
    goal = str(view.goal_steps) if view.goal_steps else ""
    return {
        "phase": view.phase,
        "reason": _bounded(view.reason),
        "step": str(view.step),
        "goalSteps": goal,
        "stepsPerSecond": _rate(written, view),
        "checkpoint": view.checkpoint,
        "checkpointStep": str(view.checkpoint_step) if view.checkpoint else "",
        "tasks": f"{alive}/{len(view.tasks)}",
        "updated": updated,
    }


def _rate(written: JobSnapshot | None, view: JobSnapshot) -> str:
    """Compute steps a second; empty: not known. At first no task has told its step, and a job that
    goes on from a checkpoint, or whose chief has come back, has made most of its steps before.
    """
    if written is None or not written.step:
        return ""
    if view.at <= written.at or view.step < written.step:
        return ""
    return f"{(view.step - written.step) / (view.at - written.at):.3g}"


def events_between(before: JobSnapshot | None, after: JobSnapshot) -> list[JobEvent]:
    """List what has happened since a view; one event for all tasks to which the same happened."""
    then = before.tasks if before is not None else {}
    by_state: dict[State, list[str]] = {}
    for task, state in after.tasks.items():
        if then.get(task, State.MISSING) is not state:
            by_state.setdefault(state, []).append(task)
    events = [
        JobEvent(reason, _sentence(by_state[state], words, after), is_warning)
        for state, reason, words, is_warning in _OF_STATES
        if state in by_state
    ]
    if again := _started_again(before, after):
        events.append(JobEvent("Rejoined", _sentence(again, "joined again", after)))
    if after.checkpoint and (before is None or after.checkpoint != before.checkpoint):
        message = f"saved {after.checkpoint} (step {after.checkpoint_step})"
        events.append(JobEvent("Checkpoint", _bounded(message)))
    if before is not None and after.phase != before.phase:
        reason = f": {after.reason}" if after.reason else ""
        message = f"the job is {after.phase} at step {after.step}{reason}"
        failed = after.phase == "failed"
        events.append(JobEvent(f"Job{after.phase.capitalize()}", _bounded(message), failed))
    return events


def _started_again(before: JobSnapshot | None, after: JobSnapshot) -> list[str]:
    """List the tasks that are alive, as they were before, and in another life."""
    if before is None:
        return []
    return [
        task
        for task, state in after.tasks.items()
        if state is State.ALIVE is before.tasks.get(task)
        and after.generations.get(task) != before.generations.get(task)
    ]


_OF_STATES = (
    (State.ALIVE, "Joined", "joined", False),
    (State.LOST, "Lost", "lost", True),
    (State.LEFT, "Left", "left", False),
    (State.FAILED, "TaskFailed", "failed", True),
)


def _sentence(tasks: list[str], words: str, view: JobSnapshot) -> str:
    """Write ``worker:0, worker:1 joined``, and what is known of the first."""
    more = f" and {len(tasks) - _SHOWN} more" if len(tasks) > _SHOWN else ""
    detail = view.details.get(tasks[0], "") if len(tasks) == 1 else ""
    why = f": {detail}" if detail else ""
    return _bounded(f"{', '.join(tasks[:_SHOWN])}{more} {words}{why}")


def _bounded(text: str) -> str:
    return text.encode()[:_LONGEST].decode(errors="ignore")
