"""Setting of a task in a container."""

from typing import Annotated

from pydantic import Field

from ...core.setting_groups import Decided, SettingsGroup


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
