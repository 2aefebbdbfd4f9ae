"""Results of evaluations, kept beside the checkpoints: one small JSON file each."""

from pydantic import BaseModel, ConfigDict

from ..core.checkpoint.file_systems import open_folder, remove_temporaries

_FOLDER = "eval"


class Evaluation(BaseModel):
    """One checkpoint's results.

    Attributes:
        global_step: Of the checkpoint.
        final: It was the job's last.
        metrics: What the program computed.
        seconds: How long that took.
    """

    # A model that diverged has a loss of NaN; JSON's null would not read back as a number.
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    global_step: int
    checkpoint: str
    final: bool
    metrics: dict[str, float]
    seconds: float


def write_evaluation(model_dir: str, evaluation: Evaluation) -> None:
    """Keep a result in ``model_dir/eval``; a reader never sees half a file."""
    folder = open_folder(model_dir).subfolder(_FOLDER)
    folder.make()
    remove_temporaries(folder)  # of a killed evaluator: there is one
    name = f"step-{evaluation.global_step:010d}{'-final' if evaluation.final else ''}.json"
    folder.put(name, evaluation.model_dump_json(indent=1).encode())


def read_evaluations(model_dir: str) -> list[Evaluation]:
    """All results, by step; empty if there are none."""
    folder = open_folder(model_dir).subfolder(_FOLDER)
    names = sorted(name for name in folder.names() if name.endswith(".json"))
    return [Evaluation.model_validate_json(folder.read(name)) for name in names]
