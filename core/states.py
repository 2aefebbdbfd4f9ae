"""The states of jobs and tasks."""

from enum import StrEnum

from .exit_codes import ExitCode

LONGEST_FIRST_STEP_S = 60.0
"""Longest time that a task waits, after its own first step, for those of others."""


class Phase(StrEnum):
    """State of a job."""

    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def is_over(self) -> bool:
        """Whether all tasks should end."""
        return self in (Phase.DONE, Phase.STOPPED, Phase.FAILED)

    @property
    def ended_how(self) -> str:
        """Predicate of a sentence about the job's end, such as ``failed``."""
        return {Phase.FAILED: "failed", Phase.STOPPED: "was stopped"}.get(self, f"is {self}")

    @property
    def exit_code(self) -> ExitCode:
        """Exit code, after the end of the job, of a task that did its own part."""
        codes = {Phase.DONE: ExitCode.DONE, Phase.STOPPED: ExitCode.DRAINED}
        return codes.get(self, ExitCode.PEER_LOST)


class State(StrEnum):
    """State of a task, as the chief sees it."""

    MISSING = "missing"
    ALIVE = "alive"
    LOST = "lost"
    DONE = "done"
    FAILED = "failed"
    LEFT = "left"


class Outcome(StrEnum):
    """The outcome of a task's part of the job."""

    DONE = "done"
    FAILED = "failed"
    LEFT = "left"
