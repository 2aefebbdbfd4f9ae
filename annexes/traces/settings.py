"""The share of steps that are traced."""

from pydantic import Field

from ...core.setting_groups import Concern, SettingsGroup


class TraceSettings(SettingsGroup, concerns=(Concern.DRIVER,), after="log_format"):
    """Tracing of a job's steps."""

    trace: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the steps whose spans are sent to a collector of OpenTelemetry, and "
        "those of every save: 0.01 is one step in a hundred, which cannot be felt. Where they go "
        "say OpenTelemetry's own variables, such as OTEL_EXPORTER_OTLP_ENDPOINT. 0: none; "
        "`ropewalk trace` traces the next steps of a running job all the same. Needs "
        "ropewalk[otel] in every task.",
    )


GROUPS = (TraceSettings,)
