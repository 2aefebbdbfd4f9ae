"""The run of a tracker that is a job's, and clients of trackers, loaded when one is asked for."""

from importlib import import_module
from importlib.util import find_spec

from ...core.checkpoint.folder import Folder
from ...core.checkpoint.storage import open_model_dir
from ...core.errors import MissingExtraError
from ...core.settings import Settings
from .runs import JobOfRun, TrackedRun
from .settings import TrackerSettings

_MOST_BYTES = 1024
_PACKAGES = {"mlflow": "mlflow", "wandb": "wandb"}


def trackers_here(settings: Settings) -> list[str]:
    """List the trackers that a task's settings ask for.

    Raises:
        MissingExtraError: The client of one is not installed; says which extra to install.
    """
    trackers = [name for name in TrackerSettings.of(settings).track.split(",") if name]
    for tracker in trackers:
        _require_client(tracker)
    return trackers


def _require_client(tracker: str) -> None:
    """Check that a tracker's client is installed, without loading it.

    Raises:
        MissingExtraError: It is not; says which extra to install.
    """
    package = _PACKAGES[tracker]
    if find_spec(package) is None:
        raise MissingExtraError(
            f"--track {tracker} needs {package}, which is not installed: pip install "
            f"'ropewalk[{tracker}]'",
            module=package,
            extra=tracker,
        )


def open_run(tracker: str, job: JobOfRun, model_dir: str) -> TrackedRun:
    """Begin a job's run, or go on with the one that its model directory names.

    Args:
        tracker: Name of the tracker.
        job: The job.
        model_dir: Model directory of the job; empty: it has none, and a resumed job is another run.
    """
    folder = open_model_dir(model_dir) if model_dir else None
    file = f"run-of-{tracker}{'-evaluation' if job.is_evaluation else ''}"
    known = _known_run(folder, file)
    run: TrackedRun = import_module(f".{tracker}_run", __package__).open_run(job, known)
    if folder is not None and run.key != known:
        folder.put(file, run.key.encode())
    return run


def _known_run(folder: Folder | None, file: str) -> str:
    """Read the run of a model directory; empty where it names none."""
    try:
        return folder.read(file, _MOST_BYTES).decode() if folder else ""
    except (OSError, ValueError):
        return ""
