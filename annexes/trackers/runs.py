"""A run of a tracker, and what it says of its job."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from ...core.task import Phase


class TrackedRun(Protocol):
    """A run of a tracker; used by one thread. Every method may raise what its client raises.

    Attributes:
        key: Identifier by which the tracker finds the run again.
        place: Address or folder at which people find it, for the log.
    """

    key: str
    place: str

    def log(self, step: int, values: Mapping[str, float], at: float) -> None:
        """Report numbers.

        Args:
            step: The global step.
            values: Number of each tag.
            at: Time at which they were taken. Unit: seconds since the epoch.
        """

    def end(self, phase: Phase) -> None:
        """End the run, with all that was reported.

        Args:
            phase: Phase of the job; one that is not over goes on under another chief.
        """


@dataclass(frozen=True, slots=True)
class JobOfRun:
    """The facts that a run of a tracker has of its job.

    Attributes:
        job: Id of the job.
        about: Facts by name.
        is_evaluation: Whether the run is of the job's evaluator.
    """

    job: str
    about: Mapping[str, str] = field(default_factory=dict)
    is_evaluation: bool = False

    @property
    def name(self) -> str:
        """The name of the run for people."""
        return f"{self.job} evaluation" if self.is_evaluation else self.job
