"""Progress that a chief has written of its job (``kubernetes.status``): step, rate, checkpoint.
Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Progress:
    """The numbers of a job, as texts of its ConfigMap; empty: not known.

    Attributes:
        step: Global step.
        goal: Steps that the program wants.
        rate: Steps a second.
        checkpoint_step: Global step of the last checkpoint.
        tasks: Tasks that are alive, of those that are known: ``5/6``.
        updated: When the chief wrote it, RFC 3339.
    """

    step: str = ""
    goal: str = ""
    rate: str = ""
    checkpoint_step: str = ""
    tasks: str = ""
    updated: str = ""

    @property
    def words(self) -> str:
        """``step 1200 of 3000, 85.2 steps/s, checkpoint at step 1000``; empty: nothing is known."""
        if not self.step:
            return ""
        parts = [f"step {self.step}" + (f" of {self.goal}" if self.goal else "")]
        parts += [f"{self.rate} steps/s"] if self.rate else []
        parts += [f"checkpoint at step {self.checkpoint_step}"] if self.checkpoint_step else []
        return ", ".join(parts)


def read_progress(config_map: Mapping[str, Any] | None) -> Progress:
    """Read the progress in a ConfigMap; without one nothing is known."""
    data = (config_map or {}).get("data") or {}

    def text(name: str) -> str:
        return str(data.get(name) or "")

    return Progress(
        text("step"),
        text("goalSteps"),
        text("stepsPerSecond"),
        text("checkpointStep"),
        text("tasks"),
        text("updated"),
    )
