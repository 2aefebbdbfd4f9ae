"""The chief's lease on a ps, and the end of the job."""

import logging
import threading

from ...cluster.access import may_follow
from ...core.clock import Clock
from ...core.errors import FencedError, OtherJobError, RefusedError
from ...core.process.log_records import RareLog
from ...core.task import Incarnation, Phase, TaskId, is_other_job
from ...core.wire.bounds import (
    MAX_LEASE_S,
    MAX_NAME_BYTES,
    MAX_TEXT_BYTES,
    check_number,
    check_text,
    shorten,
)

log = logging.getLogger(__name__)


class ChiefLease:
    """The chief's lease on a ps, and which job that is. Thread-safe.

    Args:
        clock: Clock of the lease.
        job: Id of the job this ps was started for; empty: it takes that of its chief.

    Attributes:
        ended: Set when the job is over, or has had no chief for too long.
        draining: Whether this ps was asked to leave.
        may_leave: The chief says that other ps have all that this one has.
        is_replicated: The chief has said, since this process started, that each share has its
            replicas.
    """

    def __init__(self, clock: Clock, job: str = "") -> None:
        self._given = job
        self._job = job
        self._clock = clock
        self._lock = threading.Lock()
        self._refusals = RareLog(log)
        self._chief: Incarnation | None = None
        self._until = clock.now()
        self._heard = clock.now()
        self._address = ""
        self.ended = threading.Event()
        self.phase: Phase | None = None
        self.reason = ""
        self.draining = False
        self.may_leave = False
        self.is_replicated = False

    def renew(self, chief: Incarnation, address: str, lease_s: float) -> None:
        """Extend the chief's lease by ``lease_s``.

        Raises:
            RefusedError: The lease is not a possible one, or the address too long.
            FencedError: Another task leads; see :mod:`~ropewalk.cluster.access`.
            OtherJobError: It is the chief of another job.
        """
        check_number(lease_s, MAX_LEASE_S, "lease_s", chief.task)
        check_text(address, MAX_NAME_BYTES, "its address", chief.task)
        if chief.generation < 1:
            raise RefusedError(f"{chief} is not an incarnation of a task: generations begin at 1")
        now = self._clock.now()
        with self._lock:
            self._check(chief, address)
            self._job = self._given or chief.job or self._job
            self._chief, self._address = chief, address
            self._heard, self._until = now, now + lease_s

    def check_chief(self, chief: Incarnation) -> None:
        """Refuse a chief that may not lead, or leads no more.

        Raises:
            FencedError: Another task leads, or a later incarnation of this one.
            OtherJobError: It is the chief of another job.
        """
        with self._lock:
            self._check(chief, "an address that it did not say")

    def _check(self, chief: Incarnation, address: str) -> None:
        holder, now = self._chief, self._clock.now()
        is_heard, is_other = now < self._until, is_other_job(self._job, chief.job)
        if is_other and (self._given or is_heard):
            raise self._other_job(chief)
        if holder is None or holder == chief:
            return
        follows = (
            chief.generation > holder.generation
            if holder.task == chief.task
            else is_other or may_follow(holder.task, chief.task, is_heard=is_heard)
        )
        if not follows:
            raise FencedError(
                f"this ps serves the job of {holder} at {self._address}, which was here "
                f"{now - self._heard:.0f} s ago; {chief} at {address} cannot lead it as "
                "well. Stop the other job, or give this one ps of its own",
                holder=holder,
                chief=chief,
            )

    def check_job(self, who: Incarnation) -> None:
        """Refuse a task of another job.

        Raises:
            OtherJobError: It is one.
        """
        with self._lock:
            if is_other_job(self._job, who.job):
                raise self._other_job(who)

    def _other_job(self, who: Incarnation) -> OtherJobError:
        self._refusals.warning(
            "refused %s of job %s: this ps serves job %s",
            who.task,
            who.job,
            self._job,
            about="caller.refused",
            caller=who.task.short,
            why="another job",
        )
        return OtherJobError(
            f"this ps serves job {self._job!r} of the chief at {self._address or '?'}; {who.task} "
            f"belongs to job {who.job!r}. Stop one of the jobs, or give this one ps of its own",
            task=who.task,
            job=who.job,
        )

    @property
    def job(self) -> str:
        """Id of the job served here; empty: none yet."""
        with self._lock:
            return self._job

    @property
    def leader(self) -> TaskId | None:
        """The task that led last; None: none yet."""
        with self._lock:
            return self._chief.task if self._chief is not None else None

    @property
    def chief_generation(self) -> int:
        """Generation of the last chief; 0 without one."""
        with self._lock:
            return self._chief.generation if self._chief is not None else 0

    @property
    def chief_address(self) -> str:
        """Address at which the chief serves; empty without a chief."""
        with self._lock:
            return self._address

    @property
    def silent_s(self) -> float:
        """Time since the last renewal. Unit: seconds."""
        with self._lock:
            return self._clock.now() - self._heard

    def forget(self) -> None:
        """Forget chief and job, as when this process began."""
        with self._lock:
            log.info("the job before has failed, and nothing of it is here: waits for a chief")
            self._job, self._chief, self._address = self._given, None, ""
            self._until = self._heard = self._clock.now()

    def end(self, phase: Phase, reason: str) -> None:
        """Note that the job is over. Only the first call has an effect.

        Raises:
            RefusedError: It is not, in this phase.
        """
        if not phase.is_over:
            raise RefusedError(f"a job that is {phase} is not over")
        with self._lock:
            if self.phase is None:
                self.phase, self.reason = phase, shorten(reason, MAX_TEXT_BYTES)
        self.ended.set()
