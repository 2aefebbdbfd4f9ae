"""The setting for notices by a file."""

from pydantic import Field

from ...core.setting_groups import SettingsGroup


class PreemptionSettings(SettingsGroup, after="leave_grace_s"):
    """Notices that a machine is about to be taken away."""

    preemption_file: str = Field(
        default="",
        description="A file whose existence says that this machine is about to be taken away, as "
        "whoever asks the cloud for such notices makes it: the task then leaves as it does on "
        "SIGTERM. Looked for once a second. Remove it if the machine stays. Empty: none.",
    )


GROUPS = (PreemptionSettings,)
