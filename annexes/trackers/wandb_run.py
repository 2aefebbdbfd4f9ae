"""A job as a run of Weights & Biases, beside any that the chief's program has."""

from collections.abc import Mapping
from typing import Any

import wandb

from ...core.settings import environment_variables
from ...core.task import Phase
from .runs import JobOfRun

_STEP = "global_step"
_EXIT_CODES = {Phase.DONE: 0, Phase.STOPPED: 0}


class WandbRun:
    """A run of Weights & Biases. See :class:`~.runs.TrackedRun`.

    Args:
        run: The run.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        self.key = str(run.id)
        self.place = str(run.url or run.dir)
        run.define_metric(_STEP, hidden=True)
        run.define_metric("*", step_metric=_STEP)

    def log(self, step: int, values: Mapping[str, float], at: float) -> None:
        """Report numbers. The step is one of them: a job that resumes goes back to a checkpoint's,
        and the client drops what has a smaller step of its own than before.
        """
        self._run.log({**values, _STEP: step, "_timestamp": at})

    def end(self, phase: Phase) -> None:
        """End the run, and wait until all was sent; offline, until it was written."""
        self._run.finish(exit_code=_EXIT_CODES.get(phase, 1))


def open_run(job: JobOfRun, key: str) -> WandbRun:
    """Begin a run, or go on with one.

    Args:
        job: The job.
        key: Identifier of the run to go on with; empty: a new one, or that of ``WANDB_RUN_ID``.
    """
    run = wandb.init(
        project=environment_variables().get("WANDB_PROJECT", "ropewalk"),
        id=key or None,
        name=environment_variables().get("WANDB_NAME", job.name),
        group=environment_variables().get("WANDB_RUN_GROUP", job.job),
        job_type="evaluation" if job.is_evaluation else "training",
        resume="allow",
        reinit="create_new",
        config=dict(job.about),
        settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
    )
    return WandbRun(run)
