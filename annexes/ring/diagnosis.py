"""Why a collective call is stalled, and the error that says so. Pure: no I/O, no clock.

A worker whose call waits for long asks all others for their progress. One that answers but has not
reached the call is late, which is an error only after the call's timeout. One that does not answer
is lost if its machine does not answer either, says that nothing listens at its port any more, or
keeps its process stopped. If the machine takes connections for it, its process is there: it may
hold the interpreter's lock in an extension for minutes, or have no processor, and is late, too.
While the ring is being formed, missing workers may still start.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...core.errors import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    JoinTimeoutError,
    PeerLostError,
    RopewalkError,
)
from ...core.task import TaskId
from .stream_link import RingProgress


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """A probe without an answer, and what the worker's machine says instead.

    Attributes:
        error: The failure of the probe.
        is_there: The machine takes connections for the worker.
        is_stopped: A signal keeps its process from running.
        silent_s: Time since its last answer during which this process has listened. Unit: seconds.
    """

    error: RopewalkError
    is_there: bool = False
    is_stopped: bool = False
    silent_s: float = 0.0


Answer = RingProgress | NoAnswer
"""A worker's answer to a probe, or that there is none."""


@dataclass(frozen=True, slots=True)
class RingWorkers:
    """The workers of a ring, for messages.

    Attributes:
        task: Task of this process.
        members: All workers, by rank.
        addresses: Addresses of the workers, by rank.
    """

    task: TaskId
    members: Sequence[TaskId]
    addresses: Sequence[str]

    @property
    def rank(self) -> int:
        """Rank of this worker."""
        return self.members.index(self.task)

    @property
    def size(self) -> int:
        """Number of workers."""
        return len(self.members)


@dataclass(frozen=True, slots=True)
class StalledCall:
    """A collective call that waits.

    Attributes:
        sequence: Number of the call in the ring.
        doing: Description of the call for messages, e.g. ``all_reduce of 1024 float32``.
        suspect: Rank of the neighbour it waits for.
        began: Time at which it began.
        timeout_s: Limit of the call; None: it waits as long as all workers answer.
        join_deadline: Time until which workers may be missing; None: the ring is formed.
        join_timeout_s: The setting behind that deadline.
        silent_limit_s: Longest time that a worker whose process is there may not answer. Unit:
            seconds.
    """

    sequence: int
    doing: str
    suspect: int
    began: float
    timeout_s: float | None = None
    join_deadline: float | None = None
    join_timeout_s: float = 0.0
    silent_limit_s: float = math.inf


def diagnose(
    answers: Mapping[int, Answer], workers: RingWorkers, call: StalledCall, *, now: float
) -> RopewalkError | None:
    """Decide the error with which a stalled call must end; None: it may go on waiting.

    Args:
        answers: Answers of all other workers, by rank.
        workers: The ring's.
        call: The call that waits.
        now: The current time, on the clock of ``call.began``.
    """
    failure = first_failure(answers.values())
    if failure is not None:
        return failure
    silent = {rank: a for rank, a in answers.items() if isinstance(a, NoAnswer)}
    if call.join_deadline is not None:
        if now <= call.join_deadline:
            return None
        missing = next(iter(silent), call.suspect)
        return join_timeout_error(workers, missing, call.join_timeout_s)
    for rank, answer in silent.items():
        if why := why_lost(answer, call.silent_limit_s):
            return peer_lost_error(workers, rank, why, call.sequence, call.doing)
    if call.timeout_s is None or now - call.began < call.timeout_s:
        return None
    return _timeout_error(answers, workers, call, call.timeout_s, now - call.began)


def why_lost(answer: NoAnswer, limit_s: float) -> str:
    """Say why a worker that does not answer is lost; empty: its process is there, and may be late.

    Args:
        answer: Knowledge about the worker that does not answer.
        limit_s: Longest time that a process that is there may not answer. Unit: seconds.
    """
    if not answer.is_there:
        return f"it does not answer: {answer.error}"
    if answer.is_stopped:
        return "its process has been stopped (SIGSTOP)"
    if answer.silent_s >= limit_s:
        return (
            f"its process is there, and has not answered for {answer.silent_s:.0f} s "
            f"(orphan_timeout_s {limit_s:g}): {answer.error}"
        )
    return ""


def _timeout_error(
    answers: Mapping[int, Answer],
    workers: RingWorkers,
    call: StalledCall,
    timeout_s: float,
    waited_s: float,
) -> CollectiveTimeoutError:
    """Make the error for a worker that was waited for until the call's limit."""
    late = [rank for rank, answer in answers.items() if _is_late(answer, call)]
    rank = late[0] if late else call.suspect
    answer = answers.get(rank)
    where = ""
    if isinstance(answer, NoAnswer):
        where = " It does not answer, and its process is there."
    elif answer is not None:
        verb = "is in" if answer.waiting else "has finished"
        where = f" It {verb} call {answer.calls}{f', {answer.doing}' if answer.doing else ''}."
    return CollectiveTimeoutError(
        f"{workers.task} waited {waited_s:.1f} s (timeout_seconds {timeout_s:g}) for "
        f"{workers.members[rank]} in call {call.sequence}, {call.doing}.{where} Every worker must "
        "make the same calls; if it only computes for long, raise timeout_seconds",
        task=workers.members[rank],
        call=call.sequence,
        timeout_s=timeout_s,
    )


def _is_late(answer: Answer, call: StalledCall) -> bool:
    return isinstance(answer, NoAnswer) or answer.calls < call.sequence


def first_failure(answers: Iterable[Answer]) -> RopewalkError | None:
    """Find the failure that broke the ring for a worker that still answers."""
    for answer in answers:
        if isinstance(answer, RingProgress) and answer.failure is not None:
            return answer.failure
    return None


def join_timeout_error(
    workers: RingWorkers, rank: int, timeout_s: float, last: Exception | None = None
) -> JoinTimeoutError:
    """Make the error for a worker that did not join the ring in time; ``last``: its last answer."""
    missing = workers.members[rank]
    return JoinTimeoutError(
        f"{workers.task} waited {timeout_s:g} s (join_timeout_s) for {missing} at "
        f"{workers.addresses[rank]} to join the ring{f'; the last answer: {last}' if last else ''}."
        " Is it started, with the same cluster and program?",
        task=workers.task,
        missing=missing,
    )


def uneven_calls_error(
    workers: RingWorkers, rank: int, made: int, sequence: int, doing: str
) -> CollectiveMismatchError:
    """Make the error for a worker whose program has ended, while this one makes a call more."""
    member = workers.members[rank]
    return CollectiveMismatchError(
        f"the program of {member} ended after {made} collective calls, {workers.task} is in call "
        f"{sequence}, {doing}: it makes more steps. A restart would end the same way. Give every "
        "worker as many steps, e.g. the same number of batches: repeat() the dataset and count "
        "steps, or share it out by experimental_distribute_dataset",
        task=member,
        calls=made,
        call=sequence,
    )


def peer_lost_error(
    workers: RingWorkers, rank: int, why: str, sequence: int, doing: str
) -> PeerLostError:
    """Make the error for a worker that ended or does not answer."""
    member = workers.members[rank]
    return PeerLostError(
        f"{member} at {workers.addresses[rank]} is lost ({why}) in call {sequence}, {doing}; a "
        "synchronous job needs every worker. Restart it: all workers resume from the last "
        "checkpoint",
        task=member,
        peer=member,
        call=sequence,
    )
