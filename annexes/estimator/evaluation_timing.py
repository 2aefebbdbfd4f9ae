"""Timing of evaluations: pure decisions of the evaluator's loop and of a process that also trains.

The rules are those of ``tf.estimator.train_and_evaluate``, with one difference: a job that is over
writes nothing any more, so its last checkpoint is evaluated without delay.
"""

import threading
import time
from dataclasses import dataclass

from ...distribute.program_cluster import program_cluster


@dataclass(frozen=True, slots=True)
class Found:
    """The facts about a checkpoint that the decision has to know.

    Attributes:
        path: Path of the checkpoint.
        global_step: Global step of the checkpoint.
        final: Whether a job wrote it at its end.
    """

    path: str
    global_step: int
    final: bool


@dataclass(frozen=True, slots=True)
class Past:
    """The past of the evaluator. Times on one clock, in seconds.

    Attributes:
        started: Time at which it began.
        last: The checkpoint evaluated last; None: none yet.
        was_last: The exporters were told that it is the last one.
        began: Time at which its evaluation began.
    """

    started: float
    last: Found | None = None
    was_last: bool = False
    began: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate this checkpoint.

    Attributes:
        found: Checkpoint to evaluate.
        is_last: The exporters are told that it is the last one.
    """

    found: Found
    is_last: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """The order to do nothing yet, and the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class EndOfEvaluations:
    """The evaluator has come to its end; why."""

    reason: str


def next_of_evaluator(
    past: Past,
    found: Found | None,
    now: float,
    *,
    max_steps: int | None,
    start_delay_s: float,
    throttle_s: float,
    goes_on: str | None,
) -> Evaluate | Wait | EndOfEvaluations:
    """Decide what an evaluator does next.

    Args:
        past: Past of the evaluator.
        found: The newest checkpoint; None: there is none.
        now: The time. Unit: seconds.
        max_steps: Last step of the training; None: it ends with its input.
        start_delay_s: Delay before the first evaluation.
        throttle_s: Minimum time from the beginning of one evaluation to that of the next.
        goes_on: Why a job may still go on from the checkpoint, if that is a final one; None: it is
            the end.
    """
    if past.last is not None and past.was_last:
        why = "the last checkpoint of the job" if past.last.final else f"max_steps={max_steps}"
        return EndOfEvaluations(f"step {past.last.global_step} was evaluated: {why}")
    if found is None:
        return Wait("a first checkpoint")
    reached = max_steps is not None and found.global_step >= max_steps
    if past.last is not None and found.path == past.last.path:
        if not found.final:
            return Wait("a new checkpoint")
        if goes_on is not None:
            return Wait(goes_on)
        return Evaluate(found, is_last=True)
    if reached or (found.final and goes_on is None):
        return Evaluate(found, is_last=True)
    left = past.started + start_delay_s - now
    if left > 0:
        return Wait(f"start_delay_secs, {left:.0f} s more")
    left = past.began + throttle_s - now
    if past.last is not None and left > 0:
        return Wait(f"throttle_secs, {left:.0f} s more")
    return Evaluate(found, is_last=False)


def is_due_locally(
    last_step: int | None, began: float, step: int, now: float, throttle_s: float
) -> bool:
    """Return whether a process that trains evaluates the checkpoint it has just saved.

    Args:
        last_step: The step evaluated last; None: none yet.
        began: Time at which that evaluation began.
        step: Step of the checkpoint; that of step 0 is not evaluated.
        now: The time. Unit: seconds.
        throttle_s: Minimum time from the beginning of one evaluation to that of the next.
    """
    if step in (0, last_step):
        return False
    return last_step is None or now - began >= throttle_s


def worker_delay_s(index: int, *, longest_s: float | None) -> float:
    """Compute how long a worker waits before it trains, so that not all begin in one moment.

    Args:
        index: Index of the worker.
        longest_s: ``experimental_max_worker_delay_secs``; None: a minute.
    """
    return min(60.0 if longest_s is None else longest_s, (index + 1) * 5.0)


# -- Waits of an Estimator: bounded, and ended when this task is asked to end ------------------

_LOOK_S = 0.5


def pause(seconds: float) -> None:
    """Wait so long.

    Raises:
        RopewalkError: This task is asked to end meanwhile.
    """
    runtime = program_cluster()
    until, gate = time.monotonic() + seconds, threading.Event()
    while (left := until - time.monotonic()) > 0:
        if runtime is not None:
            runtime.job.check()
        gate.wait(min(left, _LOOK_S))
