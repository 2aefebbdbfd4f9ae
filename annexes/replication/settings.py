"""Setting of shares that are moved without being asked for."""

from pydantic import Field

from ...core.setting_groups import Concern, SettingsGroup


class BalanceSettings(SettingsGroup, concerns=(Concern.DRIVER,), after="ps_shares"):
    """Setting of a chief that evens out the work of its ps."""

    rebalance: bool = Field(
        default=False,
        description="Whether the chief moves shares of the variables between ps, in a job with "
        "ps_shares or ps_replicas 2, when that takes at least a "
        "fifth of its work off a ps and pays within a minute: after failovers one ps may lead them "
        "all. Off, since a move costs a pause of a step and the copy of a share; `ropewalk move` "
        "makes one on request.",
    )


GROUPS = (BalanceSettings,)
