"""Admission of a job's pods together, as a job file says it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from .fields import MisfitError, ObjectName, Part

_TAKES = {
    "kueue": ("queue",),
    "coscheduling": ("scheduler", "wait_s"),
    "volcano": ("queue", "scheduler"),
    "chief": ("wait_s",),
}
_WHY_NOT = {
    "queue": "has no queues",
    "scheduler": "leaves pods to the cluster's own scheduler",
    "wait_s": "holds nothing while a job waits",
}
_WAIT_S = 600


class Gang(Part):
    """All pods of the job at once, or none."""

    by: Literal["kueue", "coscheduling", "volcano", "chief"] = Field(
        description="`kueue`: Kueue admits them as one; `coscheduling`: the plugin of that name, "
        "by a PodGroup; `volcano`: its scheduler, by its own PodGroup; `chief`: the cluster has "
        "none of these, and the chief frees what the job holds if tasks do not come."
    )
    queue: ObjectName = Field(
        default="", description="Kueue: the LocalQueue, needed. Volcano: the Queue; empty: default."
    )
    scheduler: ObjectName = Field(
        default="",
        description="Name of the scheduler. Empty: as it is installed, scheduler-plugins-scheduler "
        "or volcano.",
    )
    wait_s: int = Field(
        default=0,
        ge=0,
        le=86_400,
        description="How long those that have room wait for the others before it is freed: by "
        "coscheduling for a new try, by the chief for good. 0: 600.",
    )

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for name, why in _WHY_NOT.items():
            if getattr(self, name) and name not in _TAKES[self.by]:
                raise MisfitError(f"{self.by} {why}; take {name} away", name)
        if self.by == "kueue" and not self.queue:
            raise MisfitError(
                "kueue needs a queue: the name of a LocalQueue of the namespace (`kubectl get "
                "localqueues`)",
                "by",
            )
        return self

    @property
    def patience_s(self) -> int:
        """Time that tasks that have room wait for the others."""
        return self.wait_s or _WAIT_S

    @property
    def scheduler_name(self) -> str:
        """The scheduler of the pods; empty: the cluster's own."""
        own = {"coscheduling": "scheduler-plugins-scheduler", "volcano": "volcano"}
        return self.scheduler or own.get(self.by, "")
