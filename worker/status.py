"""The last status of a job, kept in its model directory after it ended."""

import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ..core.errors import ConfigurationError, WindlassError

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from ..client.chief.calls import ChiefClient, JobStatus

log = logging.getLogger(__name__)

STATUS_FILE = "status.json"


def write_status(model_dir: str, status: "JobStatus") -> None:
    """Write the status of an ending job.

    Raises:
        OSError: The directory cannot be written.
    """
    from ..core.checkpoint.directory import open_fs

    fs, root = open_fs(model_dir)
    fs.makedirs(root, exist_ok=True)
    with fs.transaction:
        # Not dump_json, which writes a NaN loss as null: that does not read back.
        text = json.dumps(_adapter().dump_python(status, mode="json"), indent=1)
        fs.pipe_file(f"{root}/{STATUS_FILE}", text.encode())


def write_last_status(model_dir: str, chief: "ChiefClient") -> None:
    """Ask for the status and write it; a failure is logged: the job has ended."""
    try:
        write_status(model_dir, chief.status(timeout_s=5))
    except (WindlassError, OSError) as error:
        log.warning("could not write the status: %s", error)


def read_status(model_dir: str) -> "JobStatus | None":
    """The last status of an ended job, from its model directory; None if there is none."""
    from pydantic import ValidationError

    path = Path(model_dir) / STATUS_FILE
    if not path.is_file():
        return None
    try:
        return _adapter().validate_json(path.read_bytes())
    except ValidationError as error:
        raise ConfigurationError(
            f"{path} is not the status of a Windlass job, or is truncated", path=path
        ) from error


@lru_cache(maxsize=1)
def _adapter() -> "TypeAdapter[JobStatus]":
    # Built when a job ends, not at import: it takes 10 ms.
    from pydantic import TypeAdapter

    from ..client.chief.calls import JobStatus

    return TypeAdapter(JobStatus)
