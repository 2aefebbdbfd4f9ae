"""Companions of a job that is led: what annexes do beside the chief's loop.

An annex that has a module ``leading`` attaches there with a function ``companions``, which is given
what is led and returns those that it wants to go beside it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from ...cluster.job.job import Job
from ...core import annexes
from ...core.settings import Settings
from ...core.task import TaskId
from ...server.chief.servicer import LockedJob


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
            is_last: Whether the job is over, for this chief at least.
        """

    def act(self) -> None:
        """Do what follows from the last look, of which the job's lock is no longer held."""

    def why_none_follows(self) -> str | None:
        """Say why no other chief follows this one; empty: one does. None: that is not known."""

    def close(self) -> None:
        """End, after what is left to be written; waits for half a minute at most."""


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
