"""Whether a job was over before one of its tasks began, by the record in the model directory.

A task that starts late, say because its pod was restarted, finds nobody at the chief's address. If
the job is done it need not wait: it ends with 0, and no launcher starts it again.
"""

from ..core.errors import JobDoneError, WindlassError
from ..core.settings import Settings
from ..core.states import Phase
from ..core.task import TaskId


def raise_if_done(task: TaskId, settings: Settings, *, of_any_id: bool = False) -> None:
    """Raise if the job is recorded as done.

    Args:
        task: Who asks.
        settings: Its model directory and the job's id; without either nothing is known.
        of_any_id: Whether a job of another id counts: only where the chief has not come for long,
            since the next job in the same directory may be about to begin.

    Raises:
        JobDoneError: It is.
    """
    if not settings.model_dir or not (settings.job_id or of_any_id):
        return
    from ..core.checkpoint.job_record import read_job_record
    from ..core.checkpoint.storage import open_model_dir

    try:
        record = read_job_record(open_model_dir(settings.model_dir))
    except (WindlassError, OSError):
        return
    if record.phase is Phase.DONE and (of_any_id or record.job == settings.job_id):
        raise JobDoneError(
            f"{task}: job {record.job!r} is done already, with global step {record.global_step} "
            f"({settings.model_dir}); nothing is left to do",
            task=task,
        )
