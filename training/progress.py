"""Numbers that a program reports for the progress bar and the status."""

from typing import Any

import numpy as np

from ..cluster.resolved import resolve
from ..cluster.roles import EVALUATOR
from ..cluster.tf_config import TFConfigClusterResolver
from ..distribute.program_cluster import program_cluster


def report(*, total_steps: int | None = None, **metrics: Any) -> None:
    """Show numbers in the job's progress and status; the last ones stay. Cheap: call it every step.

    Args:
        total_steps: The global step the program works towards, for the progress bar.
        metrics: Scalars, e.g. ``loss=0.3``.
    """
    runtime = program_cluster()
    if runtime is None:
        return
    if total_steps is not None:
        runtime.progress.total_steps = int(total_steps)
    runtime.progress.metrics |= {name: float(np.asarray(value)) for name, value in metrics.items()}


def task_type() -> str:
    """This process's role: chief, worker or evaluator."""
    runtime = program_cluster()
    if runtime is not None:
        return runtime.task.task.type
    return resolve(TFConfigClusterResolver()).task.type


def is_evaluator() -> bool:
    """Whether this process should evaluate, not train."""
    return task_type() == EVALUATOR
