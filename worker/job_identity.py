"""Which job a chief leads: the one it was given, the one its ps serve, or a new one.

The ps keep a job's variables, so they also know its id: a chief that restarts takes it from there,
and its workers stay in the job. Another chief that still leads those ps is another job's.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from ..client.ps.control import JobOnPs, PsControl
from ..core.clock import Clock, SystemClock
from ..core.errors import OtherJobError, WindlassError
from ..core.settings import Settings
from ..core.task import TaskId, new_job_id
from ..core.waiting import WaitLog

_ASK_S = 1.0
_PAUSE_S = 0.1
_QUIET = 4  # of a lease


def find_job_id(
    controls: Sequence[PsControl],
    chief: TaskId,
    settings: Settings,
    still_wanted: Callable[[], None] = lambda: None,
    clock: Clock | None = None,
) -> str:
    """The id of the job that ``chief`` begins or goes on with.

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
            found = next((job.job for _, job in led if job.job), "")
            return settings.job_id or found or new_job_id()
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
