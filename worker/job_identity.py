"""Which job a chief leads: the one it was given, the one its ps serve, or a new one.

The ps keep a job's variables, so they also know its id: a chief that restarts takes it from there,
and its workers stay in the job. They know the generations of its tasks, too, so that the restarted
chief goes on counting. Another chief that still leads those ps is another job's.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ..client.ps.control import JobOnPs, PsControl
from ..core.clock import Clock, SystemClock
from ..core.errors import OtherJobError, WindlassError
from ..core.settings import Settings
from ..core.task import TaskId, new_job_id
from ..core.waiting import WaitLog

_ASK_S = 1.0
_PAUSE_S = 0.1
_QUIET = 4  # of a lease


@dataclass(frozen=True, slots=True)
class FoundJob:
    """What the ps know of a job that a chief begins or goes on with.

    Attributes:
        job: Its id.
        last_generation: The highest one a task showed to a ps; 0: none did.
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

    A ps that does not answer has no job to go on with. Where another chief was heard of just now,
    this waits until it is silent for a quarter of a lease.

    Raises:
        OtherJobError: Another chief leads these ps.
    """
    clock = clock or SystemClock()
    began, pause = clock.now(), threading.Event()
    waits = WaitLog(chief, limit_s=settings.lease_s, limit="lease_s", clock=clock)

    def ask(control: PsControl) -> JobOnPs | None:
        try:
            return control.find_job(timeout_s=_ASK_S)
        except WindlassError:
            return None

    while True:
        with ThreadPoolExecutor(min(16, len(controls)) or 1, thread_name_prefix="ask") as pool:
            answers = list(zip(controls, pool.map(ask, controls), strict=True))
        led = [(control, job) for control, job in answers if job is not None and job.chief_address]
        heard = [pair for pair in led if pair[1].silent_s < settings.lease_s / _QUIET]
        if not heard:
            known = [job for _, job in answers if job is not None]
            found = next((job.job for _, job in led if job.job), "")
            return FoundJob(
                settings.job_id or found or new_job_id(),
                last_generation=max((job.last_generation for job in known), default=0),
                shards=sum(job.shards for job in known),
                global_step=max((job.global_step for job in known), default=0),
            )
        control, job = heard[0]
        told = (
            f"{control.task} at {control.address} serves job {job.job!r} of the chief at "
            f"{job.chief_address}, heard of {job.silent_s:.1f} s ago"
        )
        if clock.now() - began >= settings.lease_s:
            raise OtherJobError(
                f"{told}; {chief} cannot lead it as well. Stop the other job, or give this one ps "
                "of its own",
                task=chief,
                job=job.job,
            )
        still_wanted()
        waits.tick("another chief to end", told)
        clock.wait(pause, _PAUSE_S)
