"""May another process take the place of a task that is at work?

A task that restarts takes its place back, and the process that had it is fenced. A second job with
the same TF_CONFIG looks the same, but the process it would replace still lives. So a newcomer asks
again for a while: if the other process is heard of meanwhile, the newcomer is refused, and if not,
it was a restart.

Pure: time is an argument.
"""

from dataclasses import dataclass

from ...core.errors import OtherJobError, PeerLostError
from ...core.task import TaskId

_QUIET = 4  # of a lease: with five heartbeats missing in a row the process is taken for dead


@dataclass(frozen=True, slots=True)
class Process:
    """The machine and process of a task."""

    host: str = ""
    pid: int = 0

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host or 'an unknown host'}"


@dataclass(frozen=True, slots=True)
class Challenge:
    """A newcomer that asked for a place.

    Attributes:
        newcomer: The task that asks for the place.
        since: Time at which it first asked.
    """

    newcomer: Process
    since: float


def take_place(
    task: TaskId,
    holder: Process,
    challenge: Challenge,
    *,
    heard: float,
    lease_s: float,
    now: float,
) -> None:
    """Return if the newcomer may have the place.

    Args:
        task: The place.
        holder: Process that has the place.
        challenge: The newcomer, and since when it asks.
        heard: Time at which the holder was last heard of.
        lease_s: The job's. Unit: seconds.
        now: The current time.

    Raises:
        PeerLostError: Not yet: ask again.
        OtherJobError: The holder lives.
    """
    asked_s = now - challenge.since
    if heard <= challenge.since and asked_s >= lease_s / _QUIET:
        return
    conflict = (
        f"{holder} runs as {task} already and was heard of {now - heard:.1f} s ago; "
        f"{challenge.newcomer} wants the same place"
    )
    if heard > challenge.since and asked_s >= lease_s:
        raise OtherJobError(
            f"{conflict}. Two jobs have the same TF_CONFIG, or the task was started twice: stop "
            "one of them, or give this job addresses of its own",
            task=task,
            holder=holder,
            newcomer=challenge.newcomer,
        )
    raise PeerLostError(f"{conflict}, and has it if the other is silent", task=task)
