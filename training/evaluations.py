"""Results of evaluations, kept beside the checkpoints: one small JSON file each."""

import logging
from typing import Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from ..core import annexes
from ..core.checkpoint.folder import UnsafeFileError, open_folder, remove_temporaries
from ..core.outside_text import MOST_BYTES
from ..core.settings import Settings

log = logging.getLogger(__name__)

_FOLDER = "eval"


class Evaluation(BaseModel):
    """The results of one checkpoint.

    Attributes:
        global_step: Global step of the checkpoint.
        final: Whether it was the job's last.
        metrics: Metrics that the program computed.
        seconds: Duration of the evaluation.
    """

    # A model that diverged has a loss of NaN; JSON's null would not read back as a number.
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    global_step: int
    checkpoint: str
    final: bool
    metrics: dict[str, float]
    seconds: float


class EvaluationRecord(Protocol):
    """A record of results that an annex keeps; its module ``evaluation_records`` has ``records``,
    which is given the evaluator's settings and the model directory.
    """

    def add(self, evaluation: Evaluation) -> None:
        """Record a result."""

    def close(self) -> None:
        """Write what is left; called once, also when an evaluation has failed."""


def evaluation_records(settings: Settings, model_dir: str) -> list[EvaluationRecord]:
    """Make the records that the settings of an evaluator ask for.

    Args:
        settings: Settings of the evaluator.
        model_dir: Model directory of the job.

    Raises:
        MissingExtraError: What writes one is not installed.
    """
    return [
        record
        for module in annexes.at("evaluation_records")
        for record in module.records(settings, model_dir)
    ]


def write_evaluation(model_dir: str, evaluation: Evaluation, name: str = "") -> None:
    """Keep a result in ``model_dir/eval``, or ``eval_<name>``; a reader never sees half a file."""
    folder = open_folder(model_dir).subfolder(_folder(name))
    folder.make()
    remove_temporaries(folder)  # of a killed evaluator
    file = f"step-{evaluation.global_step:010d}{'-final' if evaluation.final else ''}.json"
    data = evaluation.model_dump_json(indent=1).encode()
    try:
        folder.put(file, data)
    except FileNotFoundError:  # another process that evaluates took it for one of a killed one
        folder.put(file, data)


def read_evaluations(model_dir: str, name: str = "") -> list[Evaluation]:
    """Read all results, or those of this name, by step; empty if there are none.

    A file that is damaged is left out, and named in the log.
    """
    folder = open_folder(model_dir).subfolder(_folder(name))
    evaluations = []
    for file in sorted(file for file in folder.names() if file.endswith(".json")):
        try:
            evaluations.append(Evaluation.model_validate_json(folder.read(file, MOST_BYTES)))
        except (ValidationError, UnsafeFileError) as error:
            what = error.strerror if isinstance(error, OSError) else error.errors()[0]["msg"]
            log.warning("%s/%s is no result of an evaluation: %s", folder.url, file, what)
    return evaluations


def _folder(name: str) -> str:
    return f"{_FOLDER}_{name}" if name else _FOLDER
