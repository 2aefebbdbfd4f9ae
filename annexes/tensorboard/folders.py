"""Folders of a job's own event files: runs in ``model_dir/tensorboard``."""

FOLDER = "tensorboard"
JOB_RUN = "job"
EVALUATOR_RUN = "eval"


def run_folder(model_dir: str, run: str) -> str:
    """Find the folder of a run in a model directory.

    Args:
        model_dir: Path or fsspec URL.
        run: Name of the run as TensorBoard shows it.
    """
    return f"{model_dir.rstrip('/')}/{FOLDER}/{run}"
