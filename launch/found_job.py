"""A job that a command is asked about: by address, model directory, or its name on a cluster."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..core import annexes
from ..core.errors import (
    ConfigurationError,
    PeerLostError,
    ProtocolMismatchError,
    RopewalkError,
)
from ..core.settings import CLUSTER_VARIABLE, Settings, read_environment

if TYPE_CHECKING:
    from ..client.chief.calls import JobStatus


@dataclass(frozen=True, slots=True)
class JobAsker:
    """The asker: its settings, and how long it waits."""

    settings: Settings
    timeout_s: float

    def ask(self, address: str) -> "JobStatus":
        """Ask a chief for the status of its job.

        Raises:
            PeerLostError: Nobody answers there.
            ProtocolMismatchError: That is no chief of a job, or one of another version.
        """
        from ..client.chief.calls import ChiefClient
        from ..cluster.access import READER, Principal

        client = ChiefClient(address, self.settings, Principal(READER))
        try:
            return client.status(timeout_s=self.timeout_s)
        except PeerLostError as error:
            raise PeerLostError(
                f"no chief answers at {address}: {error.message}. Is the job running, and is "
                "this the chief's address?",
                peer=address,
            ) from error
        except ProtocolMismatchError as error:
            raise ProtocolMismatchError(
                f"{error.message}. If that is the chief of a standalone cluster, `ropewalk jobs "
                f"--cluster {address}` shows its jobs"
            ) from error
        finally:
            client.close()

    def try_to_ask(self, address: str) -> "JobStatus | None":
        """Ask a chief that may be gone, or of a version that this one cannot talk to; None: it
        is.
        """
        try:
            return self.ask(address)
        except RopewalkError:
            return None


@dataclass(frozen=True, slots=True)
class FoundJob:
    """A job that was found.

    Attributes:
        status: Status of the job, now or when it was written.
        address: Address of its chief, which answers; empty: none does.
        folder: Model directory by which it was named; empty: it was not.
    """

    status: "JobStatus"
    address: str = ""
    folder: str = ""


@dataclass(frozen=True, slots=True)
class ListedJob:
    """A job as its cluster lists it.

    Attributes:
        id: Name by which the cluster finds it.
        state: State of it, in the cluster's words.
        tasks: Number of its tasks, for people.
        owner: Name of its owner; empty: the cluster does not know.
        began: Time at which it began. Unit: seconds since the epoch; 0: not yet.
        ended: Time at which it ended; 0: it has not.
        why: Reason why it waits, or how it ended; empty: there is nothing to say.
        folder: Model directory, as its tasks have it; empty: it has none, or it is not known.
    """

    id: str
    state: str
    tasks: str = ""
    owner: str = ""
    began: float = 0.0
    ended: float = 0.0
    why: str = ""
    folder: str = ""


class ClusterJobs(Protocol):
    """The jobs of a cluster. Thread-safe.

    Attributes:
        where: The cluster, for people.
    """

    where: str

    def jobs(self) -> list[ListedJob]:
        """List all jobs that the cluster still knows, the oldest first.

        Raises:
            PeerLostError: The cluster does not answer.
        """

    def way_to(self, job: str) -> AbstractContextManager[str]:
        """Open the way to the chief of a job, until the block ends; gives its address.

        Args:
            job: Id or name of the job.

        Raises:
            ConfigurationError: The job has no chief: it waits, or has ended.
            RefusedError: There is no such job.
        """


def jobs_of_cluster(cluster: str, settings: Settings) -> AbstractContextManager[ClusterJobs]:
    """Open a standing cluster for a look at its jobs, until the block ends.

    Args:
        cluster: Address of its gateway, HOST:PORT.
        settings: Credentials of the caller.
    """
    service = annexes.the("cluster_jobs", "service", "--cluster")
    opened: AbstractContextManager[ClusterJobs] = service.jobs_of_cluster(cluster, settings)
    return opened


@contextmanager
def found_job(job: str, cluster: str | None, asker: JobAsker) -> Iterator[FoundJob]:
    """Find the job of an argument; a way to it that leads through a cluster is open until the end.

    Args:
        job: HOST:PORT of its chief, its model directory, or its name on a cluster.
        cluster: The cluster that was named; None: that of the environment, for a name.
        asker: The asker.

    Raises:
        ConfigurationError: There is no such job.
        PeerLostError: Its chief does not answer.
    """
    cluster = cluster or cluster_of_name(job)
    if cluster is not None:
        with jobs_of_cluster(cluster, asker.settings) as jobs, jobs.way_to(job) as address:
            yield FoundJob(asker.ask(address), address)
    elif Path(job).is_dir():
        found = job_in_folder(job, asker)
        if not found.address and not found.status.phase.is_over:
            raise no_answer(found)
        yield found
    else:
        yield FoundJob(asker.ask(job), job)


def cluster_of_name(job: str) -> str | None:
    """Find the cluster of a job that was named without one; None: it is a folder or an address.

    Raises:
        ConfigurationError: It is neither, and the environment names no cluster.
    """
    if Path(job).is_dir() or ":" in job:
        return None
    if cluster := read_environment(CLUSTER_VARIABLE):
        return cluster
    raise ConfigurationError(
        f"{job} is neither a folder (looked in {Path.cwd()}) nor an address; give the "
        "HOST:PORT of the chief, or the model directory of the job; of a job of a standalone "
        f"cluster name that with --cluster or {CLUSTER_VARIABLE}"
    )


def job_in_folder(folder: str, asker: JobAsker) -> FoundJob:
    """Find the job that writes to a model directory, or the last one that has.

    Raises:
        ConfigurationError: None has begun there.
    """
    from .screen.status_table import chief_address

    written = written_status(folder)
    if written.phase.is_over:
        return FoundJob(written, folder=folder)
    address = chief_address(written)
    status = asker.try_to_ask(address)
    return FoundJob(written if status is None else status, address if status else "", folder)


def written_status(folder: str) -> "JobStatus":
    """Read the status that the last job of a model directory has written there.

    Raises:
        ConfigurationError: None has begun there.
    """
    from ..worker.lead.status import read_status

    written = read_status(folder)
    if written is None:
        raise ConfigurationError(f"{folder} holds no status.json: no job has begun there")
    return written


def no_answer(found: FoundJob) -> PeerLostError:
    """Make the error for a job that has not ended in order, and whose chief does not answer."""
    from .screen.status_table import chief_address

    address = chief_address(found.status)
    return PeerLostError(
        f"the job of {found.folder} has not ended in order, and its chief at {address} does not "
        "answer; start it again with the same model directory, and it resumes from the last "
        "checkpoint",
        peer=address,
    )


def jobs_of_this_machine(asker: JobAsker) -> list[FoundJob]:
    """Find the jobs of this user whose chief runs on this machine.

    Raises:
        ConfigurationError: There is none.
    """
    from ..net.this_machine import announced_chiefs

    found = [
        FoundJob(status, chief)
        for chief in announced_chiefs()
        if (status := asker.try_to_ask(chief)) is not None
    ]
    if not found:
        raise ConfigurationError(
            "you have no job with a chief on this machine; give the HOST:PORT of the chief, or "
            "the model directory of the job"
        )
    return found
