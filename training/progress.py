"""Numbers that a program reports for the progress bar and the status."""

from collections.abc import Mapping
from typing import Any

from ..cluster.resolvers.launchers import environment_resolver
from ..cluster.resolvers.resolved import resolve
from ..cluster.spec import EVALUATOR
from ..core.arrays.any_framework import to_host
from ..core.step_times import StepTimes, clock_here
from ..core.wire import bounds
from ..distribute.program_cluster import program_cluster


def report(*, total_steps: int | None = None, **metrics: Any) -> None:
    """Show numbers in the job's progress and status; the last ones stay. Cheap: call it every step.

    Args:
        total_steps: The global step the program works towards, for the progress bar.
        metrics: Scalars, e.g. ``loss=0.3``.

    Raises:
        RefusedError: ``total_steps`` is negative or too large, or these are too many metrics, or
            their names too long.
    """
    runtime = program_cluster()
    if runtime is None:
        return
    if total_steps is not None:
        task = runtime.task.task
        bounds.check_number(int(total_steps), bounds.MAX_STEP, "total_steps", task)
        runtime.progress.total_steps = int(total_steps)
    report_metrics(metrics)


def report_metrics(metrics: Mapping[str, Any], model: str = "") -> None:
    """Report scalars whose names a framework has chosen, as :func:`report` does: ``total_steps``
    too.

    Args:
        metrics: Scalars by name.
        model: Name of the model that they are of: what was reported of another one goes. Empty: of
            none.

    Raises:
        RefusedError: These are too many metrics, or their names too long.
    """
    runtime = program_cluster()
    if runtime is None:
        return
    task = runtime.task.task
    progress = runtime.progress
    before, of = progress.metrics, progress.metrics_of
    if model and set(of.values()) - {model}:
        before = {name: value for name, value in before.items() if of.get(name, model) == model}
    if metrics.keys() - before.keys():
        bounds.check_metrics({**before, **metrics}, task)
    progress.metrics = before | {name: float(to_host(value)) for name, value in metrics.items()}
    if model:
        progress.metrics_of = dict.fromkeys(of.keys() & before.keys() | metrics.keys(), model)


def step_times() -> StepTimes:
    """Return where the time of this task's steps went: by part, with quantiles.

    ::

        times = rw.training.step_times()
        print(times.count, times.share("data"), times.part("step").quantile(0.99))

    The parts are in docs/slow.md. Called in another thread than the one that makes the steps it is
    about the steps of this process's task; of a program without a cluster it is empty there.
    """
    times = clock_here().times()
    if not times.parts and (runtime := program_cluster()) is not None:
        return runtime.progress.clock.times()
    return times


def task_type() -> str:
    """Return this process's role: chief, worker or evaluator."""
    runtime = program_cluster()
    if runtime is not None:
        return runtime.task.task.type
    return resolve(environment_resolver()).task.type


def is_evaluator() -> bool:
    """Return whether this process should evaluate, not train."""
    return task_type() == EVALUATOR
