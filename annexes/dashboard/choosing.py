"""Choosing the job, or the jobs of a cluster, that the page or the terminal shows."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from ...core.errors import ConfigurationError
from ...launch.found_job import (
    FoundJob,
    JobAsker,
    found_job,
    job_in_folder,
    jobs_of_cluster,
    jobs_of_this_machine,
)
from .watched_cluster import WatchedCluster
from .watched_job import WatchedJob


@contextmanager
def chosen(
    job: str | None, cluster: str | None, asker: JobAsker
) -> Iterator[WatchedJob | WatchedCluster]:
    """Open a job, or the jobs of a cluster, until the block ends.

    Args:
        job: HOST:PORT, model directory or name; None: all jobs of the cluster, or without one the
            one job of this machine.
        cluster: The cluster of a name; None: that of the environment.
        asker: The caller.

    Raises:
        ConfigurationError: There is no such job, or there are several.
        PeerLostError: Nobody answers at the address.
    """
    if job is None and cluster is not None:
        with jobs_of_cluster(cluster, asker.settings) as jobs:
            jobs.jobs()  # an address that is wrong is said at once
            with closing(WatchedCluster(jobs, asker)) as watched:
                yield watched
        return
    with _chosen_job(job, cluster, asker) as found, closing(WatchedJob(found, asker)) as shown:
        yield shown


@contextmanager
def _chosen_job(job: str | None, cluster: str | None, asker: JobAsker) -> Iterator[FoundJob]:
    """Find a job; one that has not ended in order, and whose chief is gone, is shown, too."""
    if job is None:
        yield _only_one(jobs_of_this_machine(asker))
    elif cluster is None and Path(job).is_dir():
        yield job_in_folder(job, asker)
    else:
        with found_job(job, cluster, asker) as found:
            yield found


def _only_one(jobs: list[FoundJob]) -> FoundJob:
    if len(jobs) == 1:
        return jobs[0]
    raise ConfigurationError(
        "you have several jobs with a chief on this machine; name one of "
        + ", ".join(found.address for found in jobs)
    )
