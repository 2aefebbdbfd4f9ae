"""Which job a chief leads: the one it was given, the one its ps serve, or a new one.

The ps keep a job's variables, so they also know its id: a chief that restarts takes it from there,
and its workers stay in the job. They know the generation of the last chief, too, so that the
restarted chief goes on counting. A ps that does not answer may be one of those, so a chief that was
not told the id waits for all of them, which it needs in any case. Another chief that still leads
those ps is another job's.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ...client.ps.control import JobOnPs, PsControl
from ...cluster.roles import CHIEF
from ...core.clock import Clock, SystemClock
from ...core.errors import JoinTimeoutError, OtherJobError, RetryableError, WindlassError
from ...core.process.waiting import WaitLog
from ...core.settings import Settings
from ...core.task import TaskId, is_other_job, new_job_id

log = logging.getLogger(__name__)

_ASK_S = 1.0
_PAUSE_S = 0.1
_QUIET = 4  # of a lease


@dataclass(frozen=True, slots=True)
class FoundJob:
    """What the ps know of a job that a chief begins or goes on with.

    Attributes:
        job: Its id.
        last_generation: Of the last chief that a ps knows; 0: none.
        shards: Of variables, on all ps; 0: the variables are to be made.
        global_step: Steps applied.
    """

    job: str
    last_generation: int = 0
    shards: int = 0
    global_step: int = 0


def find_job(
    controls: Sequence[PsControl],
    chief: TaskId,
    settings: Settings,
    still_wanted: Callable[[], None] = lambda: None,
    clock: Clock | None = None,
) -> FoundJob:
    """The job that ``chief`` begins or goes on with.

    Where another chief was heard of just now, this waits until it is silent for a quarter of a
    lease. A chief does not wait for worker 0, which led because nobody knew of a chief.

    Raises:
        OtherJobError: Another chief leads these ps.
        JoinTimeoutError: A ps did not answer within ``join_timeout_s``.
    """
    clock = clock or SystemClock()
    began, pause = clock.now(), threading.Event()
    waits = WaitLog(chief, limit_s=settings.lease_s, limit="lease_s", clock=clock)
    joins = WaitLog(chief, limit_s=settings.join_timeout_s, limit="join_timeout_s", clock=clock)
    while True:
        answers = _ask(controls)
        waited_s = clock.now() - began
        if answers.silent and not settings.job_id:
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
                return _found(answers, settings)
            waits.tick("another chief to end", _check_led(*heard, chief, settings, waited_s))
        still_wanted()
        clock.wait(pause, _PAUSE_S)


@dataclass(frozen=True, slots=True)
class _Answers:
    """Of the ps, each with the ps that gave it.

    Attributes:
        known: Jobs.
        silent: Those that may answer later.
    """

    known: list[tuple[PsControl, JobOnPs]]
    silent: list[tuple[PsControl, RetryableError]]

    @property
    def led(self) -> list[tuple[PsControl, JobOnPs]]:
        """Jobs that a chief was heard of for."""
        return [(control, job) for control, job in self.known if job.chief_address]


def _ask(controls: Sequence[PsControl]) -> _Answers:
    def ask(control: PsControl) -> JobOnPs | WindlassError:
        try:
            return control.find_job(timeout_s=_ASK_S)
        except WindlassError as error:
            return error

    with ThreadPoolExecutor(min(16, len(controls)) or 1, thread_name_prefix="ask") as pool:
        answers = list(zip(controls, pool.map(ask, controls), strict=True))
    return _Answers(
        [(control, said) for control, said in answers if isinstance(said, JobOnPs)],
        [(control, said) for control, said in answers if isinstance(said, RetryableError)],
    )


def _found(answers: _Answers, settings: Settings) -> FoundJob:
    """The job that no chief leads now, or a new one."""
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
    return FoundJob(
        settings.job_id or (job.job if job is not None else new_job_id()),
        last_generation=max((each.last_generation for each in known), default=0),
        shards=sum(each.shards for each in known),
        global_step=max((each.global_step for each in known), default=0),
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
    told = (
        f"{control.task} at {control.address} serves job {job.job!r} of the chief at "
        f"{job.chief_address}, heard of {job.silent_s:.1f} s ago"
    )
    if waited_s < settings.lease_s:
        return told
    raise OtherJobError(
        f"{told}; {chief} cannot lead it as well. Stop the other job, or give this one ps of its "
        "own",
        task=chief,
        job=job.job,
    )


def _gives_way(job: JobOnPs, settings: Settings) -> bool:
    return job.gives_way and not is_other_job(job.job, settings.job_id)


def _names(pairs: list[tuple[PsControl, RetryableError]]) -> str:
    return ", ".join(str(control.task) for control, _ in pairs)
