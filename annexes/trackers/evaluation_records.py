"""Results of an evaluator to trackers, as a run of its own beside the job's."""

from functools import partial

from ...core.checkpoint.job_record import read_job_record
from ...core.checkpoint.storage import open_model_dir
from ...core.settings import Settings
from ...core.task import Phase
from ...training.evaluations import Evaluation, EvaluationRecord
from .opening import open_run, trackers_here
from .runs import JobOfRun, TrackedRun
from .tracking import Reporting

_CLOSE_S = 30.0


class TrackedEvaluations:
    """Reports results. See :class:`~ropewalk.training.evaluations.EvaluationRecord`.

    Args:
        reporting: Reports to the run.
    """

    def __init__(self, reporting: Reporting) -> None:
        self._reporting = reporting
        self._phase = Phase.RUNNING

    def add(self, evaluation: Evaluation) -> None:
        """Have a result reported, under the tags of the job's own metrics."""
        tagged = {f"metrics/{name}": value for name, value in evaluation.metrics.items()}
        self._reporting.add(evaluation.global_step, tagged)
        self._phase = Phase.DONE if evaluation.final else Phase.RUNNING

    def close(self) -> None:
        """Report what is left; the run ends after the job's last checkpoint."""
        self._reporting.close(self._phase, _CLOSE_S)


def records(settings: Settings, model_dir: str) -> list[EvaluationRecord]:
    """Report results, if the settings ask for it.

    Args:
        settings: Settings of the evaluator.
        model_dir: Model directory of the job.

    Raises:
        MissingExtraError: The client of a tracker is not installed.
    """
    return [
        TrackedEvaluations(Reporting(tracker, partial(_open_run, tracker, model_dir)))
        for tracker in trackers_here(settings)
    ]


def _open_run(tracker: str, model_dir: str) -> TrackedRun:
    job = read_job_record(open_model_dir(model_dir)).job
    return open_run(tracker, JobOfRun(job, is_evaluation=True), model_dir)
