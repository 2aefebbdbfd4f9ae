"""Setting of a task in a container, and variables by which a pod of a job is told its part."""

from typing import Annotated

from pydantic import Field

from ...core.setting_groups import Decided, SettingsGroup

ENDS_JOB = "ROPEWALK_ENDS_JOB"
"""Variable by which a container ends what is left of its job; any text: when it is over."""

HOLDS = "ROPEWALK_HOLDS"
"""Variable of containers whose pods a StatefulSet makes, which starts each again that ends: they
stay when their part is over."""

STATUS_OBJECT = "ROPEWALK_STATUS_OBJECT"
"""Variable with the name of the ConfigMap to which the chief writes the job's state."""


class ContainerSettings(SettingsGroup, after="job_id"):
    """Setting of a process that is the first one of a container."""

    supervise: Annotated[
        bool, Decided(False, "lost tasks are started again by the launcher itself")
    ] = Field(
        default=False,
        description="Whether this process is the parent of its task: a task that ends because of "
        "another one is started again, after a short wait. For a container, whose own end is then "
        "about its own task alone, and writes the reason where Kubernetes reads it.",
    )


GROUPS = (ContainerSettings,)
