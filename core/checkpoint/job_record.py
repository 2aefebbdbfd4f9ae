"""``job.json`` in a model directory: what a job has to know of itself after a restart."""

import logging
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..task import Phase
from ..wire.bounds import MAX_GENERATION, MAX_STEP
from .folder import Folder

log = logging.getLogger(__name__)

_FILE = "job.json"
_MAX_BYTES = 4 * 1024 * 1024  # a ps with its share takes 400 bytes at most


class ShareRecord(BaseModel):
    """The leader and the followers of a share in one epoch: indices of ps."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    share: Annotated[int, Field(ge=0)]
    epoch: Annotated[int, Field(ge=1)]
    leader: int
    followers: tuple[int, ...] = ()


class JobRecord(BaseModel):
    """The record of the last job that used the directory.

    Attributes:
        job: Id of the job.
        phase: Phase of the job when the record was written.
        last_generation: No task of the job had a higher one when its chief began.
        global_step: Steps that were acknowledged to workers, at least.
        shares: Leader and followers of each share, of a job whose shares move.
        num_shares: Number of shares of the job; 0: they do not move.
        processes: Process of each ps that these are about, by index.
        servers: Address of each ps, by index; some may have come after the job had begun.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    job: str = ""
    phase: Phase = Phase.RUNNING
    last_generation: Annotated[int, Field(ge=0, le=MAX_GENERATION)] = 0
    global_step: Annotated[int, Field(ge=0, le=MAX_STEP)] = 0
    shares: tuple[ShareRecord, ...] = ()
    num_shares: Annotated[int, Field(ge=0)] = 0
    processes: dict[int, int] = Field(default_factory=dict)
    servers: dict[int, str] = Field(default_factory=dict)


def read_job_record(folder: Folder) -> JobRecord:
    """Read the record; an empty one if there is none, or none that can be read, which is logged."""
    try:
        with folder.open(_FILE) as stream:
            return JobRecord.model_validate_json(stream.read(_MAX_BYTES))
    except (FileNotFoundError, NotADirectoryError):  # whether it can be made is tried elsewhere
        return JobRecord()
    except (OSError, ValidationError) as error:
        why = error.strerror or error if isinstance(error, OSError) else "it was altered"
        log.warning("%s/%s is not used: %s", folder.url, _FILE, why)
        return JobRecord()


def write_job_record(folder: Folder, record: JobRecord) -> None:
    """Replace the record in one step.

    Raises:
        OSError: The file system refused.
    """
    folder.put(_FILE, record.model_dump_json(indent=1).encode())
