"""Settings of a chief that serves the page of its job."""

from pydantic import Field

from ...core.setting_groups import Concern, SettingsGroup


class DashboardSettings(SettingsGroup, concerns=(Concern.PROGRAM,), after="metrics_port"):
    """Settings of a chief that serves the page of its job."""

    dashboard_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Extra port at which the chief serves the page of its job, behind a link that "
        "its log has; beyond loopback only with `tls_cert`, or `insecure`. 0: none; `ropewalk "
        "dashboard HOST:PORT` shows the same from wherever the chief is reached. Needs "
        "ropewalk[dashboard] on the chief.",
    )


GROUPS = (DashboardSettings,)
