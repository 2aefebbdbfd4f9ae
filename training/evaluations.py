"""Results of evaluations, kept beside the checkpoints: one small JSON file each."""

from pydantic import BaseModel, ConfigDict

from ..core.checkpoint.directory import open_fs

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
    fs, root = open_fs(model_dir)
    fs.makedirs(f"{root}/{_FOLDER}", exist_ok=True)
    name = f"step-{evaluation.global_step:010d}{'-final' if evaluation.final else ''}.json"
    with fs.transaction:
        fs.pipe_file(f"{root}/{_FOLDER}/{name}", evaluation.model_dump_json(indent=1).encode())


def read_evaluations(model_dir: str) -> list[Evaluation]:
    """All results, by step; empty if there are none."""
    fs, root = open_fs(model_dir)
    fs.invalidate_cache()
    folder = f"{root}/{_FOLDER}"
    if not fs.isdir(folder):
        return []
    paths = sorted(str(path) for path in fs.ls(folder, detail=False) if str(path).endswith(".json"))
    return [Evaluation.model_validate_json(fs.cat_file(path)) for path in paths]
