"""The interface of launchers: a job becomes documents, which can be shown or started.

Rendering is pure, so a dry run shows what a start would use, and tests compare documents. Local,
compose, Slurm and Kubernetes implement it.
"""

from typing import Protocol

from .model import JobFile


class Launcher(Protocol):
    """Starts jobs somewhere."""

    def render(self, job: JobFile) -> str:
        """Render what would be started, as text for people and for the launcher's own tools. Pure.

        Raises:
            ConfigurationError: The job lacks what this launcher needs.
        """
        ...

    def start(self, job: JobFile) -> int:
        """Start a job; an exit code. Local and compose wait for its end, the others hand it over.

        Raises:
            RopewalkError: It could not be started.
        """
        ...


def launch(launcher: Launcher, job: JobFile, *, dry_run: bool) -> tuple[int, str]:
    """Start a job, or render it; returns (exit code, text to show): of a dry run what would be
    started, else nothing.
    """
    if dry_run:
        return 0, launcher.render(job)
    return launcher.start(job), ""
