"""When to evaluate: pure decisions of the evaluator's loop and of a process that also trains.

The rules are those of ``tf.estimator.train_and_evaluate``, with one difference: a job that is over
writes nothing any more, so its last checkpoint is evaluated without delay.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint, as far as the decision has to know it."""

    path: str
    global_step: int
    final: bool


@dataclass(frozen=True, slots=True)
class Past:
    """What the evaluator has done. Times on one clock, in seconds.

    Attributes:
        started: When it began.
        path: Of the checkpoint evaluated last; empty: none.
        global_step: Of that one.
        final: Whether that was the job's last.
        began: When its evaluation began.
    """

    started: float
    path: str = ""
    global_step: int = 0
    final: bool = False
    began: float = 0.0


@dataclass(frozen=True, slots=True)
class Evaluate:
    """Evaluate this checkpoint.

    Attributes:
        found: Which.
        is_last: The exporters are told that it is the last one.
    """

    found: Found
    is_last: bool


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do yet; why."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stop:
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
) -> Evaluate | Wait | Stop:
    """What an evaluator does next.

    Args:
        past: What it has done.
        found: The newest checkpoint; None: there is none.
        now: The time. Unit: seconds.
        max_steps: Of the training; None: it ends with its input.
        start_delay_s: Before the first evaluation.
        throttle_s: From the beginning of one to that of the next.
    """
    if past.final:
        return Stop(f"the last checkpoint of the job was evaluated (step {past.global_step})")
    if max_steps is not None and past.path and past.global_step >= max_steps:
        return Stop(f"step {past.global_step} was evaluated, of max_steps={max_steps}")
    if found is None:
        return Wait("a first checkpoint")
    if found.path == past.path:
        return Wait("a new checkpoint")
    is_last = found.final or (max_steps is not None and found.global_step >= max_steps)
    if is_last:
        return Evaluate(found, is_last=True)
    left = past.started + start_delay_s - now
    if left > 0:
        return Wait(f"start_delay_secs, {left:.0f} s more")
    left = past.began + throttle_s - now
    if past.path and left > 0:
        return Wait(f"throttle_secs, {left:.0f} s more")
    return Evaluate(found, is_last=False)


def is_due_locally(past: Past, step: int, now: float, throttle_s: float) -> bool:
    """Whether a process that trains evaluates the checkpoint it has just saved.

    Args:
        past: What it has done.
        step: Of the checkpoint; the one of step 0 is none to evaluate.
        now: The time. Unit: seconds.
        throttle_s: From the beginning of one evaluation to that of the next.
    """
    if step == 0 or (past.path and step == past.global_step):
        return False
    return not past.path or now - past.began >= throttle_s


def worker_delay_s(index: int, *, longest_s: float | None) -> float:
    """How long a worker waits before it trains, so that not all begin in one moment.

    Args:
        index: Of the worker.
        longest_s: ``experimental_max_worker_delay_secs``; None: a minute.
    """
    return min(60.0 if longest_s is None else longest_s, (index + 1) * 5.0)
