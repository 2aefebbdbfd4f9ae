"""Settings of a standalone cluster."""

from typing import Annotated

from pydantic import Field

from ...core.setting_groups import Concern, SettingsGroup


class ServiceSettings(SettingsGroup, concerns=(Concern.STANDALONE,), after="cut_hold_s"):
    """Settings of the daemons of a standalone cluster."""

    standalone: Annotated[bool, Concern.TASK] = Field(
        default=False,
        description="Whether this daemon is a part of a standalone cluster: it waits for the jobs "
        "that drivers submit (`ropewalk submit`), and runs their tasks as processes of their own.",
    )
    max_jobs: Annotated[int, Concern.STANDALONE, Concern.GATEWAY] = Field(
        default=8,
        ge=1,
        description="Most jobs of a standalone cluster that run at once; others wait their turn.",
    )
    max_job_workers: Annotated[int, Concern.STANDALONE, Concern.GATEWAY] = Field(
        default=0,
        ge=0,
        description="Most workers of one job of a standalone cluster; 0: as many as it has nodes.",
    )
    max_node_tasks: int = Field(
        default=8, ge=1, description="Most tasks at once on one node of a standalone cluster."
    )


GROUPS = (ServiceSettings,)
