"""Results of an evaluator as event files."""

from ...core.settings import Settings
from ...training.evaluations import Evaluation, EvaluationRecord
from .encoding import require_library
from .settings import TensorBoardSettings
from .writer import EVALUATOR_RUN, EventWriter, run_folder


class EvaluationSummaries:
    """Writes results. See :class:`~ropewalk.training.evaluations.EvaluationRecord`.

    Args:
        model_dir: Model directory of the job.
    """

    def __init__(self, model_dir: str) -> None:
        require_library()
        self._folder = run_folder(model_dir, EVALUATOR_RUN)
        self._writer: EventWriter | None = None

    def add(self, evaluation: Evaluation) -> None:
        """Write a result, under the tags of the job's own metrics."""
        if self._writer is None:
            self._writer = EventWriter(self._folder)
        tagged = {f"metrics/{name}": value for name, value in evaluation.metrics.items()}
        self._writer.add_scalars(evaluation.global_step, tagged)

    def close(self) -> None:
        """Write what is left; errors as of the writer."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def records(settings: Settings, model_dir: str) -> list[EvaluationRecord]:
    """Write results, if the settings ask for it.

    Args:
        settings: Settings of the evaluator.
        model_dir: Model directory of the job.

    Raises:
        MissingExtraError: tensorboardX is not installed.
    """
    return [EvaluationSummaries(model_dir)] if TensorBoardSettings.of(settings).tensorboard else []
