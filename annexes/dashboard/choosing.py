"""The job that the page or the terminal shows, of what a command was given."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core.errors import ConfigurationError
from ...launch.found_job import (
    FoundJob,
    JobAsker,
    found_job,
    job_in_folder,
    jobs_of_this_machine,
)


@contextmanager
def chosen_job(job: str | None, cluster: str | None, asker: JobAsker) -> Iterator[FoundJob]:
    """Find a job; one that has not ended in order, and whose chief is gone, is shown, too.

    Args:
        job: HOST:PORT, model directory or name; None: the one job of this machine.
        cluster: The cluster of a name; None: that of the environment.
        asker: The caller.

    Raises:
        ConfigurationError: There is no such job, or there are several.
        PeerLostError: Nobody answers at the address.
    """
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
