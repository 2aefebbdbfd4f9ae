"""Parts of leading a job that annexes bring: companions, leaders of shares, moments of all ps."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...client.ps.control import PsControl
from ...cluster.job.job import Job
from ...core import annexes
from ...core.checkpoint.job_record import JobRecord
from ...core.checkpoint.manifest import CutRecord
from ...core.errors import RopewalkError
from ...core.settings import Settings
from ...core.task import Incarnation, State, TaskId
from ...core.wire.cut_marks import Marks
from ...server.chief.servicer import LockedJob

# -- Companions of a job that is led: what annexes do beside the chief's loop ------------------
# An annex that has a module ``leading`` attaches there with a function ``companions``, which is
# given what is led and returns those that it wants to go beside it.


@dataclass(frozen=True, slots=True)
class LedJob:
    """A job that a task leads.

    Attributes:
        locked_job: The job.
        leader: The task that leads it.
        settings: The leader's settings.
        asks_ps: Whether the job cannot go on without a ps that has not joined.
    """

    locked_job: LockedJob
    leader: TaskId
    settings: Settings
    asks_ps: bool = True


class Companion(Protocol):
    """A companion of the chief's loop; nothing that goes wrong in it concerns the training."""

    def start(self) -> None:
        """Begin; tasks can register now."""

    def look(self, job: Job, now: float, *, is_last: bool) -> None:
        """Look at the job, whose lock is held: once in a turn of the chief's loop, and at the end.

        Args:
            job: The job.
            now: The time on its clock.
            is_last: Whether the job is about to end.
        """

    def act(self) -> None:
        """Do what follows from the last look, of which the job's lock is no longer held."""

    def why_none_follows(self) -> str | None:
        """Say why no other chief follows this one; empty: one does. None: that is not known."""

    def close(self) -> None:
        """End, after what is left to be written; waits for a few seconds at most."""


class Companions:
    """All companions of a job.

    Args:
        companions: Each of them.
    """

    def __init__(self, companions: Iterable[Companion] = ()) -> None:
        self._all = tuple(companions)

    def start(self) -> None:
        """Start all."""
        for companion in self._all:
            companion.start()

    def look(self, job: Job, now: float, *, is_last: bool = False) -> None:
        """Let all look at the job; the caller holds its lock."""
        for companion in self._all:
            companion.look(job, now, is_last=is_last)

    def act(self) -> None:
        """Let all do what follows from their look."""
        for companion in self._all:
            companion.act()

    def why_none_follows(self) -> str | None:
        """Say why no other chief follows; empty: one does. None: none of them knows."""
        answers = (companion.why_none_follows() for companion in self._all)
        return next((answer for answer in answers if answer is not None), None)

    def close(self) -> None:
        """Close all."""
        for companion in self._all:
            companion.close()


def companions_of(led: LedJob) -> Companions:
    """Make the companions of a job that is led.

    Args:
        led: The job.

    Raises:
        ConfigurationError: One of them cannot do what the settings ask for.
        StorageError: One of them cannot write the model directory.
    """
    return Companions(
        companion for module in annexes.at("leading") for companion in module.companions(led)
    )


# -- ShareLeadership of the shares of a job's variables: which ps leads which, as its chief knows it
# A ps leads its own share for as long as the job lasts (:class:`OwnShares`), unless the settings
# say that shares move. Then the annex that keeps them led and followed says it.

Led = Sequence[tuple[int, PsControl]]
"""Each share with the ps that leads it."""


class ShareLeadership(Protocol):
    """Knowledge of who leads the shares of a job, and its changes. Thread-safe."""

    def start(self, join: Callable[[TaskId, str], None]) -> None:
        """Begin to lead.

        Args:
            join: Takes a ps and its address into the job.
        """

    def add(self, control: PsControl) -> None:
        """Lead a ps, too, that has come after :meth:`start`."""

    def stop(self) -> None:
        """Decide nothing more: the job is over, and its ps end."""

    def close(self) -> None:
        """Stop, and wait until no ps is called any more."""

    def leaders(self) -> Led:
        """List each share with the control of the ps that leads it.

        Raises:
            PeerLostError: A share has no leader.
        """

    def has_lost_values(self) -> bool:
        """Return whether values of the job are gone: a checkpoint would lack them."""

    def takes_ps(self) -> bool:
        """Return whether a ps may come to the job while it runs."""

    def may_leave(self, task: TaskId) -> bool:
        """Return whether a ps that was asked to leave has nothing that is needed."""

    def is_stuck(self, task: TaskId) -> bool:
        """Return whether a ps that was asked to leave has what no other ps is there to take."""

    def replicated_process(self, task: TaskId) -> int:
        """Find the process of a ps, if each share has its replicas; else 0."""

    def process_of(self, task: TaskId) -> int:
        """Find the process of a ps that has its variables; 0: those that lead shares have them."""

    def add_to(self, record: JobRecord) -> JobRecord:
        """Add who leads what to a record, to be written down."""


class OwnShares:
    """Each ps leads its own share, for as long as the job lasts.

    Args:
        locked_job: The job.
        controls: Controls of the ps, one each.
    """

    def __init__(self, locked_job: LockedJob, controls: Iterable[PsControl]) -> None:
        self._locked_job = locked_job
        self._led = [(each.task.index, each) for each in controls]

    def start(self, join: Callable[[TaskId, str], None]) -> None:
        """Begin; no ps comes to this job."""

    def add(self, control: PsControl) -> None:
        """Lead no other ps: none comes."""

    def stop(self) -> None:
        """Decide nothing more."""

    def close(self) -> None:
        """Stop."""

    def leaders(self) -> Led:
        """List each share with the control of its ps."""
        return self._led

    def has_lost_values(self) -> bool:
        """Return whether a ps is lost, or has failed."""
        with self._locked_job.open() as (job, _):
            return bool(job.members.in_state(State.LOST, State.FAILED))

    def takes_ps(self) -> bool:
        """Return that no ps may come."""
        return False

    def may_leave(self, task: TaskId) -> bool:  # noqa: ARG002
        """Return that a ps is always needed."""
        return False

    def is_stuck(self, task: TaskId) -> bool:  # noqa: ARG002
        """Return that no other ps can take what one has."""
        return True

    def replicated_process(self, task: TaskId) -> int:  # noqa: ARG002
        """Return 0: nothing has a replica."""
        return 0

    def process_of(self, task: TaskId) -> int:
        """Find the process of a ps; 0: it is not known."""
        with self._locked_job.open() as (job, _):
            return job.members.processes.get(task, 0)

    def add_to(self, record: JobRecord) -> JobRecord:
        """Add nothing."""
        return record


@dataclass(frozen=True, slots=True)
class LedServers:
    """The ps of a job, for what says who leads.

    Attributes:
        locked_job: The job.
        chief: The task that leads it.
        controls: Controls of the ps, one each.
        settings: Settings of the chief.
        num_servers: Number of ps that the cluster lists.
        write: Writes down the record; when it returns it is durable.
        record: Record that the chief before wrote down; None: there is none.
    """

    locked_job: LockedJob
    chief: Incarnation
    controls: Sequence[PsControl]
    settings: Settings
    num_servers: int
    write: Callable[[], None]
    record: JobRecord | None


def leadership_of(servers: LedServers) -> ShareLeadership:
    """Make what says who leads the shares of a job.

    Args:
        servers: The ps of the job.

    Raises:
        ConfigurationError: The settings do not fit the number of ps.
        MissingExtraError: Shares are to move, and the annex that moves them is not installed.
    """
    if not servers.settings.shares_move or not servers.controls:
        return OwnShares(servers.locked_job, servers.controls)
    annex = annexes.the("keeping", "replication", "ps_replicas, or ps_shares,")
    kept: ShareLeadership = annex.keep_shares(servers)
    return kept


# -- Moments of all ps, of which a checkpoint has the values, as an annex takes them -----------
# Without that annex the ps save what they have, one after the other.


class TakenMoment(Protocol):
    """A moment that all ps have.

    Attributes:
        number: Number of the moment.
        global_step: The global step then.
        led: The shares that it is of, and who has their values.
    """

    number: int
    global_step: int
    led: Led

    @property
    def pushes(self) -> Marks:
        """Each worker's mark on the first share; its pushes are the same on all."""

    def record(self) -> CutRecord:
        """Make the record of it for a manifest."""


class Moments(Protocol):
    """Takes moments of all ps. Used by one thread at a time."""

    def take(self, *, with_slots: bool, may_be_base: bool = False) -> TakenMoment:
        """Take a moment.

        Raises:
            CutVoidError: It could not be taken.
        """

    def release(self, cut: TakenMoment) -> None:
        """Have the ps keep nothing of a moment any more."""

    def warn(self, error: RopewalkError) -> None:
        """Log why there is none."""


def moments_of(
    locked_job: LockedJob, who: Incarnation, leaders: Callable[[], Led], settings: Settings
) -> Moments | None:
    """Make what takes moments; None: no annex does.

    Args:
        locked_job: The job.
        who: The task that leads it.
        leaders: Returns each share with the ps that leads it.
        settings: Settings of the chief.
    """
    makers = [module.moments for module in annexes.at("taking_moments")]
    taken: Moments | None = makers[0](locked_job, who, leaders, settings) if makers else None
    return taken
