"""Identity of the job that a chief leads: the one that its settings name, the one its ps serve, or
a new one.

The ps keep a job's variables, so they also know its id: a chief that restarts takes it from there,
and its workers stay in the job. They know the generation of the last chief, too, so that the
restarted chief goes on counting. A ps that does not answer may be one of those, so a chief whose
settings name no job waits for all ps, which it needs in any case. Another chief that still leads
those ps belongs to another job.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...client.ps.control import JobOnPs, PsControl
from ...cluster.spec import CHIEF
from ...core.clock import Clock, SystemClock
from ...core.errors import JoinTimeoutError, OtherJobError, RetryableError, RopewalkError
from ...core.process.waiting import WaitLog
from ...core.settings import Settings
from ...core.task import TaskId, is_other_job, new_job_id

log = logging.getLogger(__name__)

_ASK_S = 1.0
_PAUSE_S = 0.1
_QUIET = 4  # of a lease


@dataclass(frozen=True, slots=True)
class KnownJob:
    """Knowledge of the ps about a job that a chief begins or goes on with.

    Attributes:
        job: The job's id.
        last_generation: Generation of the last chief that a ps knows; 0: none.
        shards: Number of shards of variables on all ps; 0: the variables are to be made.
        global_step: Number of steps applied.
        has_shares: Whether a ps leads or follows shares of variables.
    """

    job: str
    last_generation: int = 0
    shards: int = 0
    global_step: int = 0
    has_shares: bool = False


def find_job(
    controls: Sequence[PsControl],
    chief: TaskId,
    settings: Settings,
    still_wanted: Callable[[], None] = lambda: None,
    clock: Clock | None = None,
    is_enough: Callable[[Mapping[TaskId, str]], bool] = lambda jobs: False,  # noqa: ARG005
    not_needed: Collection[TaskId] = (),
) -> KnownJob:
    """Find the job that ``chief`` begins or goes on with.

    Where another chief was heard of just now, this waits until it is silent for a quarter of a
    lease. A chief does not wait for worker 0, which led for lack of a chief.

    Args:
        controls: Controls of the ps, one each.
        chief: The task that leads.
        settings: Settings of the chief.
        still_wanted: Called during waits; raises to give up.
        clock: Clock, replaced in tests.
        is_enough: Whether these ps, with the job that each serves, have all variables of it. Else
            all ps have to answer.
        not_needed: The ps among them that had come to the job before: they may be gone since.

    Raises:
        OtherJobError: Another chief leads these ps.
        JoinTimeoutError: A ps did not answer within ``join_timeout_s``.
    """
    clock = clock or SystemClock()
    began, pause = clock.now(), threading.Event()
    waits = WaitLog(chief, limit_s=settings.lease_s, limit="lease_s", clock=clock)
    joins = WaitLog(chief, limit_s=settings.join_timeout_s, limit="join_timeout_s", clock=clock)
    while True:
        answers = _ask(controls, not_needed)
        waited_s = clock.now() - began
        jobs = {control.task: job.job for control, job in answers.known}
        if answers.silent and not settings.job_id and not is_enough(jobs):
            _check_silent(answers.silent, chief, settings, waited_s)
            joins.tick(_names(answers.silent), answers.silent[0][1])
        else:
            joins.done()
            heard = next(
                (
                    (control, job)
                    for control, job in answers.led
                    if job.silent_s < settings.lease_s / _QUIET
                    and not (chief.type == CHIEF and _gives_way(job, settings))
                ),
                None,
            )
            if heard is None:
                return _known(answers, settings)
            waits.tick("another chief to end", _check_led(*heard, chief, settings, waited_s))
        still_wanted()
        clock.wait(pause, _PAUSE_S)


@dataclass(frozen=True, slots=True)
class _Answers:
    """Answers of the ps.

    Attributes:
        known: Each ps that answered, with its job.
        silent: Each ps that may answer later, with its error.
    """

    known: list[tuple[PsControl, JobOnPs]]
    silent: list[tuple[PsControl, RetryableError]]

    @property
    def led(self) -> list[tuple[PsControl, JobOnPs]]:
        """The ps that a chief leads, with their jobs."""
        return [(control, job) for control, job in self.known if job.chief_address]


def _ask(controls: Sequence[PsControl], not_needed: Collection[TaskId]) -> _Answers:
    def ask(control: PsControl) -> JobOnPs | RopewalkError:
        try:
            return control.find_job(timeout_s=_ASK_S)
        except RopewalkError as error:
            return error

    with ThreadPoolExecutor(min(16, len(controls)) or 1, thread_name_prefix="ask") as pool:
        answers = list(zip(controls, pool.map(ask, controls), strict=True))
    return _Answers(
        [(control, each) for control, each in answers if isinstance(each, JobOnPs)],
        [
            (control, each)
            for control, each in answers
            if isinstance(each, RetryableError) and control.task not in not_needed
        ],
    )


def _known(answers: _Answers, settings: Settings) -> KnownJob:
    """Find the job that no chief leads now, or make a new one."""
    control, job = next((pair for pair in answers.led if pair[1].job), (None, None))
    if not settings.job_id and control is not None and job is not None:
        log.info(
            "goes on with job %s, which %s serves; its chief at %s has been silent for %.1f s",
            job.job,
            control.task,
            job.chief_address,
            job.silent_s,
        )
    known = [each for _, each in answers.known]
    return KnownJob(
        settings.job_id or (job.job if job is not None else new_job_id()),
        last_generation=max((each.last_generation for each in known), default=0),
        shards=sum(each.shards for each in known),
        global_step=max((each.global_step for each in known), default=0),
        has_shares=any(each.has_shares for each in known),
    )


def _check_silent(
    silent: list[tuple[PsControl, RetryableError]],
    chief: TaskId,
    settings: Settings,
    waited_s: float,
) -> None:
    """Refuse to wait longer for ps that do not answer."""
    if waited_s < settings.join_timeout_s:
        return
    missing = _names(silent)
    raise JoinTimeoutError(
        f"{chief} waited {settings.join_timeout_s:g} s (join_timeout_s) for {missing}, "
        f"which may hold the variables of this job: {silent[0][1]}",
        task=chief,
        missing=missing,
    )


def _check_led(
    control: PsControl, job: JobOnPs, chief: TaskId, settings: Settings, waited_s: float
) -> str:
    """Refuse to wait longer for another chief; else, who that is."""
    message = (
        f"{control.task} at {control.address} serves job {job.job!r} of the chief at "
        f"{job.chief_address}, heard of {job.silent_s:.1f} s ago"
    )
    if waited_s < settings.lease_s:
        return message
    raise OtherJobError(
        f"{message}; {chief} cannot lead it as well. Stop the other job, or give this one ps of "
        "its own",
        task=chief,
        job=job.job,
    )


def _gives_way(job: JobOnPs, settings: Settings) -> bool:
    return job.gives_way and not is_other_job(job.job, settings.job_id)


def _names(pairs: list[tuple[PsControl, RetryableError]]) -> str:
    return ", ".join(str(control.task) for control, _ in pairs)
