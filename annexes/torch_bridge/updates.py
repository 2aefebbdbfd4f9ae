"""PyTorch: how often an optimizer was applied in a job, which its schedulers go by.

The job's global step counts the steps of every optimizer. So the updates of one that has a
scheduler are a counter of their own, kept as those of batch norm are: each step pushes one more,
and takes what all workers have made.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

from ...core.checkpoint.export import OPTIMIZER_STATE
from ...training.extras import require

torch: Any = require("torch", "torch")


def name_of_updates(names: Iterable[str], prefix: str) -> str:
    """Choose the name that the counter has in the job.

    Args:
        names: Names of the optimizer's parameters.
        prefix: Prefix of the optimizer's names; empty or without a slash at its end.
    """
    digest = hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:8]
    return "/".join(filter(None, (prefix, OPTIMIZER_STATE, f"updates-{digest}")))


class JobUpdates:
    """The updates of one optimizer.

    Args:
        name: Name of the counter.

    Attributes:
        total: Number of updates of all workers, and of earlier runs: a counter among the module's
            buffers.
        own: Number of updates of this worker.
        is_scaled: Whether a GradScaler makes the steps, and leaves some out.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.total = torch.zeros((), dtype=torch.int64)
        self.own = 0
        self.is_scaled = False

    def add(self) -> None:
        """Count a step that is made."""
        self.total += 1
        self.own += 1


def has_scheduler(optimizer: Any) -> bool:
    """Return whether a scheduler was made with an optimizer."""
    return any("initial_lr" in group for group in optimizer.param_groups)
