"""The status of a job, written to its model directory when it begins and when it has ended."""

import json
import logging
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from ...core.errors import ConfigurationError, RopewalkError
from ...core.outside_text import read_plain

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from ...client.chief.calls import ChiefClient, JobStatus

log = logging.getLogger(__name__)

STATUS_FILE = "status.json"
_MOST_BYTES = 64 * 1024 * 1024


def write_status(model_dir: str, chief: "ChiefClient") -> None:
    """Ask the chief for the status of its job and write it; a failure is logged."""
    from ...core.checkpoint.folder import open_folder

    try:
        status = status_json(chief.status(timeout_s=5), indent=1)
        folder = open_folder(model_dir)
        folder.make()
        folder.put(STATUS_FILE, status.encode())
    except (RopewalkError, OSError) as error:
        log.warning("could not write the status: %s", error)


def status_json(status: "JobStatus", *, indent: int | None = None) -> str:
    """Write a status as a JSON object."""
    # Not dump_json, which writes a NaN loss as null: that does not read back.
    return json.dumps(_adapter().dump_python(status, mode="json"), indent=indent)


def read_status(model_dir: str) -> "JobStatus | None":
    """Read the last status that a job has written to its model directory; None if there is none.

    While the job runs it is the first one: its addresses are right, its numbers are not.

    Raises:
        ConfigurationError: The file is not a status.
    """
    from pydantic import ValidationError

    path = Path(model_dir) / STATUS_FILE
    if not path.is_file():
        return None
    try:
        return _adapter().validate_json(read_plain(path, _MOST_BYTES))
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror or error}", path=path
        ) from error
    except ValidationError as error:
        raise ConfigurationError(
            f"{path} is not the status of a Ropewalk job, or is truncated", path=path
        ) from error


@lru_cache(maxsize=1)
def _adapter() -> "TypeAdapter[JobStatus]":
    # Built when a job ends, not at import: it takes 10 ms.
    from pydantic import TypeAdapter

    from ...client.chief.calls import JobStatus

    return TypeAdapter(JobStatus)
