"""Settings of a chief that serves the page of its job, or of its jobs."""

from pydantic import Field

from ...core.setting_groups import Concern, SettingsGroup


class DashboardSettings(
    SettingsGroup, concerns=(Concern.PROGRAM, Concern.GATEWAY), after="metrics_port"
):
    """Settings of a chief or a gateway that serves the page."""

    dashboard_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Extra port at which the chief serves the page of its job, or that of a "
        "standalone cluster the pages of all its jobs, behind a link that its log has; beyond "
        "loopback only with `tls_cert`, or `insecure`. 0: none; `ropewalk dashboard HOST:PORT` "
        "shows the same from wherever the chief is reached. Needs ropewalk[dashboard] on the "
        "chief.",
    )


GROUPS = (DashboardSettings,)
