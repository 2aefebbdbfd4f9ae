"""Leadership of the shares of a job's variables: which ps leads which, as its chief knows it.

A ps leads its own share for as long as the job lasts (:class:`OwnShares`), unless the settings say
that shares move. Then the annex that keeps them led and followed says it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ...client.ps.control import PsControl
from ...core import annexes
from ...core.checkpoint.job_record import JobRecord
from ...core.settings import Settings
from ...core.task import Incarnation, State, TaskId
from ...server.chief.servicer import LockedJob

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
