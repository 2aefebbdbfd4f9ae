"""Form of a job on Kubernetes: plain objects, or one object of a controller. Pure."""

from enum import StrEnum
from typing import TYPE_CHECKING

from ...cluster.roles import EVALUATOR, PS
from ..job.container import PORT
from .names import CONTAINER

if TYPE_CHECKING:
    from ..job.model import JobFile


class Form(StrEnum):
    """The objects of a job.

    Attributes:
        OBJECTS: A StatefulSet of ps and an Indexed Job for each other role.
        JOBSET: A JobSet (kubernetes-sigs/jobset).
        TRAINJOB: A TrainJob and its runtime (Kubeflow Trainer), of which Trainer makes a JobSet.
    """

    OBJECTS = "objects"
    JOBSET = "jobset"
    TRAINJOB = "trainjob"

    @property
    def is_one_object(self) -> bool:
        """Whether a controller makes the Jobs, and ends all of them with the job."""
        return self is not Form.OBJECTS

    def is_set(self, job: "JobFile", role: str) -> bool:
        """Return whether a StatefulSet makes the pods of a role, and replaces lost ones at once."""
        at_once = role == PS or (job.kubernetes.at_once and role != EVALUATOR)
        return at_once and not self.is_one_object

    @property
    def container(self) -> str:
        """Name of a task's container: Trainer's overrides go by it."""
        return "node" if self is Form.TRAINJOB else CONTAINER

    @property
    def host(self) -> str:
        """Name and port of a task, with its role and its index to be filled in."""
        pod = "{role}-0-{index}" if self.is_one_object else "{role}-{index}"
        return f"$(ROPEWALK_JOB_ID)-{pod}.$(ROPEWALK_JOB_ID)-tasks.$(POD_NAMESPACE).svc:{PORT}"
