"""Supervision of a job's tasks, from their start to the end of the last one. Pure.

Events come in with their time, orders come out: what to signal, what to start again, what to show.
There is no clock and no I/O, so a test can replay any history as plain data. Who asks says by a
:class:`Policy` how long each stage takes and what is started again: ``ropewalk local`` ends a job
within five seconds, a standalone cluster gives its tasks time to write a large checkpoint.

What the exit of a task means, and which task is to blame, is decided in :mod:`.exit_policy`.
"""

import signal
from collections.abc import Mapping
from dataclasses import dataclass

from ...core.backoff import Backoff
from ...core.exit_codes import ExitCode, is_retryable, shell_status
from ...core.task import TaskId
from ..spec import EVALUATOR, PS, WORKER
from .policy import (
    FOLLOWED,
    Cause,
    End,
    Ended,
    EndingStep,
    Event,
    Fails,
    Leaves,
    Looked,
    Measure,
    Order,
    Policy,
    Restarts,
    Signal,
    StartAgain,
    StopRequested,
    Tick,
    Verdict,
    on_exit,
    whom_to_blame,
)

# -- Decision which task hangs, so that its launcher must kill it. Pure ------------------------


@dataclass(frozen=True, slots=True)
class Seen:
    """A task's process, as its launcher sees it.

    Attributes:
        code: Exit code as ``subprocess`` reports it; None: it has not ended.
        since: Time at which it ended, or since which a signal (SIGSTOP) has kept it stopped; None:
            it runs.
    """

    code: int | None = None
    since: float | None = None


def whom_to_kill(
    tasks: Mapping[TaskId, Seen],
    *,
    chief: TaskId,
    chief_answered: float,
    patience_s: float,
    now: float,
) -> tuple[TaskId, str] | None:
    """Find a task that hangs and for which the job would wait.

    A ps or worker that hangs is the chief's to notice, as long as there is a chief. A chief hangs
    if it is stopped; or if it does not answer and others have ended since they have lost it, or all
    workers have failed. One that only does not answer may compute; it has the time that the others
    give it.

    Args:
        tasks: All of them.
        chief: The chief, which may be worker 0.
        chief_answered: Time at which it last answered; the beginning, if it never has.
        patience_s: Time for which a task may hang: a lease and a grace. Unit: seconds.
        now: The time.

    Returns:
        The task and, for people, why it must be killed; None: there is none.
    """
    chief_runs = tasks[chief].code is None
    for task, seen in tasks.items():
        if seen.code is None and seen.since is not None and (task == chief or not chief_runs):
            stopped_s = now - seen.since
            if stopped_s >= patience_s:
                return task, f"{task.short} has been stopped (SIGSTOP) for {stopped_s:.0f} s"
    left_alone = _left_alone(tasks, chief)
    if not chief_runs or left_alone is None:
        return None
    silent_s = now - max(chief_answered, left_alone)
    if silent_s < patience_s:
        return None
    return chief, (
        f"{chief.short} has not answered for {now - chief_answered:.0f} s, and the tasks that need "
        "it have ended"
    )


def _left_alone(tasks: Mapping[TaskId, Seen], chief: TaskId) -> float | None:
    """Find when the first task ended that had lost the chief, or the last of workers that all
    failed.
    """
    others = {task: seen for task, seen in tasks.items() if task != chief}
    gone = (ExitCode.PEER_LOST, ExitCode.JOIN_TIMEOUT)
    followed = [
        seen.since
        for task, seen in others.items()
        if seen.code in gone and seen.since is not None and task.type != EVALUATOR
    ]
    if followed:
        return min(followed)
    workers = [seen for task, seen in others.items() if task.type == WORKER]
    ends = [seen.since for seen in workers if seen.code and seen.since is not None]
    return max(ends) if workers and len(ends) == len(workers) else None


LOST = -9
"""The code of a task whose end was not seen, or which could not be ended."""

_ASKED = (ExitCode.DRAINED, ExitCode.LEFT_EARLY)
_ENDS_BY: Mapping[Measure | None, tuple[int, ...]] = {
    Measure.ASK: (*_ASKED, -signal.SIGTERM),
    Measure.KILL: (*_ASKED, -signal.SIGTERM, -signal.SIGKILL),
}  # codes that a measure explains


@dataclass(slots=True, kw_only=True)
class TaskRun:
    """A task's process, as its supervision sees it.

    Attributes:
        code: Exit code as ``subprocess`` reports it; None while it runs.
        ended: Time of its end; None while it runs.
        attempt: Number of times that it was started again.
    """

    code: int | None = None
    ended: float | None = None
    attempt: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether it does not run."""
        return self.code is not None


class Supervision:
    """Supervises one job, whose tasks all run when it is made. Not thread-safe.

    Args:
        runs: The tasks, which this keeps up to date.
        policy: Policy of the supervision.
    """

    def __init__(self, runs: Mapping[TaskId, TaskRun], policy: Policy) -> None:
        self.stop_reason = ""
        self._runs = runs
        self._policy = policy
        self._failures: list[End] = []
        self._signalled: dict[TaskId, Measure] = {}
        self._cause: Cause | None = None
        self._since = 0.0  # the time of the cause
        self._taken = 0  # steps
        self._starting: dict[TaskId, float] = {}  # when tasks that wait are started again
        self._started: dict[TaskId, float] = {}  # when they were the last time
        self._backoffs: dict[TaskId, Backoff] = {}

    def handle(self, event: Event, now: float) -> list[Order]:
        """Take in an event.

        Args:
            event: Event that has happened.
            now: The time. Unit: seconds, of any clock that does not go back.

        Returns:
            Orders to carry out, in order.
        """
        match event:
            case Ended():
                orders = self._task_ended(event, now)
            case StopRequested():
                orders = self._stop(event, now)
            case Looked():
                orders = self._kill_what_hangs(event, now)
            case Tick():
                orders = []
        return [*orders, *self._due(now)]

    @property
    def has_ended(self) -> bool:
        """Whether no task runs."""
        return all(run.has_ended for run in self._runs.values())

    @property
    def is_stopping(self) -> bool:
        """Whether tasks were asked to end."""
        return self._taken > 0

    @property
    def failure(self) -> End | None:
        """The end that made the job fail; None: it has not."""
        return whom_to_blame(self._failures) if self._failures else None

    @property
    def exit_code(self) -> int:
        """The exit code of a job that has ended, as a shell shows it."""
        if self.failure is not None:
            return shell_status(self.failure.code)
        return int(ExitCode.DRAINED) if self.stop_reason else shell_status(self._chief.code or 0)

    @property
    def _chief(self) -> TaskRun:
        return self._runs[self._policy.needs.chief]

    def _task_ended(self, event: Ended, now: float) -> list[Order]:
        end = event.end
        run = self._runs[end.task]
        if run.has_ended:
            return []
        run.code, run.ended = end.code, now
        verdict = on_exit(end, self._policy.needs, stopping=self._is_expected(end))
        if (rule := self._restarts(event, verdict)) is not None:
            self._start_later(end.task, rule, now)
            return []
        if end.task.type == PS and end.code in FOLLOWED:
            # The chief told this ps that the job is over, and its own exit says why. One that left
            # without its word is lost (LEFT_EARLY).
            self._end_for(Cause.TOLD, now)
            return []
        if verdict.failed:
            self._failures.append(end)
        if verdict.job_ends and self._end_for(Cause.FAILED, now):
            return [Fails(end)]
        if self._chief.code == 0 and not self._runs_evaluator:
            self._end_for(Cause.DONE, now)
        is_news = verdict.message and not verdict.job_ends and not self.is_stopping
        return [Leaves(end, verdict)] if is_news else []

    def _is_expected(self, end: End) -> bool:
        """Return whether an exit that is not 0 is no failure, since the job ends anyway."""
        if end.code in _ENDS_BY.get(self._signalled.get(end.task), ()):
            return True
        if self._cause is Cause.REQUESTED and not self._failures:
            # An error that keeps the chief from saving counts; all else was asked for.
            return end.task != self._policy.needs.chief or is_retryable(end.code)
        # The evaluator works on when the others have left; its failure still counts. Of a
        # synchronous job every exit counts by itself.
        is_over = self._chief.code == 0 and not self._policy.needs.synchronous
        return is_over and end.task.type != EVALUATOR

    # -- starting again ----------------------------------------------------------------------

    def _restarts(self, event: Ended, verdict: Verdict) -> Restarts | None:
        """Find the rule by which a task that has ended is started again; None: it is not."""
        task, code = event.end.task, event.end.code
        rule = self._policy.restarts.get(task.type)
        if rule is None or self.is_stopping or not event.can_restart:
            return None
        if rule.after_peers:
            is_left = code in FOLLOWED or code == ExitCode.LEFT_EARLY
            wanted = is_left or (rule.after_kill and code == -signal.SIGKILL)
        else:
            is_lost = code != 0 and is_retryable(code) and code not in FOLLOWED
            goes_on = not (verdict.job_ends or self._chief.has_ended)
            leads = task == self._policy.needs.chief  # and ends the job if it is not
            wanted = is_lost and (goes_on or leads)
        is_allowed = rule.most is None or self._runs[task].attempt < rule.most
        return rule if wanted and is_allowed else None

    def _start_later(self, task: TaskId, rule: Restarts, now: float) -> None:
        run = self._runs[task]
        run.code, run.ended, run.attempt = None, None, run.attempt + 1
        backoff = self._backoffs.setdefault(task, Backoff(rule.first_wait_s, rule.longest_wait_s))
        if now - self._started.get(task, now) > rule.longest_wait_s:
            backoff.reset()
        self._starting[task] = now + backoff.next_s()

    def _start_what_is_due(self, now: float) -> list[Order]:
        due = [task for task, time in self._starting.items() if now >= time]
        for task in due:
            del self._starting[task]
            self._started[task] = now
        return [StartAgain(task, self._runs[task].attempt) for task in due]

    def _start_no_more(self, now: float) -> None:
        """Count the tasks that wait for their start as ended for good."""
        for task in self._starting:
            self._runs[task].code, self._runs[task].ended = int(ExitCode.DRAINED), now
        self._starting.clear()

    @property
    def _runs_evaluator(self) -> bool:
        return any(not run.has_ended for task, run in self._runs.items() if task.type == EVALUATOR)

    # -- ending ------------------------------------------------------------------------------

    def _stop(self, event: StopRequested, now: float) -> list[Order]:
        self.stop_reason = self.stop_reason or event.reason
        self._end_for(Cause.REQUESTED, now)
        if not event.kill:
            return []
        steps = self._policy.ending[Cause.REQUESTED]
        kill = next(i for i, step in enumerate(steps) if step.measure is Measure.KILL)
        if self._taken > kill:
            return self._take(steps[kill], now)
        self._taken, self._since = kill, now - steps[kill].after_s
        return []

    def _end_for(self, cause: Cause, now: float) -> bool:
        """Begin the steps of a cause; False: those of this or a greater one have begun."""
        if self._cause is not None and cause <= self._cause:
            return False
        self._cause, self._since, self._taken = cause, now, 0
        self._start_no_more(now)
        return True

    def _due(self, now: float) -> list[Order]:
        steps = self._policy.ending.get(self._cause, ()) if self._cause else ()
        orders = self._start_what_is_due(now)
        while self._taken < len(steps) and self._is_due(steps[self._taken], now):
            self._taken += 1
            orders += self._take(steps[self._taken - 1], now)
        return orders

    def _is_due(self, step: EndingStep, now: float) -> bool:
        is_early = step.or_without_chief and self._taken > 0 and self._chief.has_ended
        return is_early or now - self._since >= step.after_s

    def _take(self, step: EndingStep, now: float) -> list[Order]:
        left = [
            task
            for task, run in self._runs.items()
            if task.type in step.roles and not run.has_ended
        ]
        if step.measure is Measure.GIVE_UP:
            for task in left:
                self._task_ended(Ended(End(task, LOST)), now)
            return []
        self._signalled |= dict.fromkeys(left, step.measure)
        return [Signal(task, step.measure is Measure.KILL) for task in left]

    def _kill_what_hangs(self, looked: Looked, now: float) -> list[Order]:
        """Kill tasks that hang, so that none keeps the job longer than a lease and a grace."""
        if self.is_stopping:
            return []
        hangs = whom_to_kill(
            {
                task: Seen(run.code, run.ended if run.has_ended else looked.stopped.get(task))
                for task, run in self._runs.items()
            },
            chief=self._policy.needs.chief,
            chief_answered=looked.chief_answered,
            patience_s=self._policy.hang_s,
            now=now,
        )
        return [Signal(hangs[0], kill=True, why=hangs[1])] if hangs is not None else []
