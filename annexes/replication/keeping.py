"""Making what keeps the shares of a job led and followed, from the chief's settings."""

from ...core.errors import ConfigurationError
from ...worker.lead.leadership import LedServers, ShareLeadership
from .settings import BalanceSettings
from .share_keeper import ShareKeeper


def keep_shares(led: LedServers) -> ShareLeadership:
    """Make what keeps the shares of a job.

    Args:
        led: The ps of the job.

    Raises:
        ConfigurationError: There are more ps than shares, or fewer than replicas.
    """
    settings, servers = led.settings, led.num_servers
    replicas, shares = settings.ps_replicas, settings.ps_shares or servers
    if shares < servers:
        raise ConfigurationError(
            f"ps_shares={shares} leaves a ps without a share, and the cluster has {servers}; "
            "raise ROPEWALK_PS_SHARES on the chief and all ps, or start fewer ps"
        )
    if replicas > servers:
        raise ConfigurationError(
            f"ps_replicas={replicas} needs as many ps, and the cluster has {servers}; start "
            "more, or lower ROPEWALK_PS_REPLICAS"
        )
    return ShareKeeper(
        led.locked_job,
        led.chief,
        led.controls,
        replicas,
        shares,
        led.write,
        led.record,
        spreads=settings.ps_shares > 0,
        rebalances=BalanceSettings.of(settings).rebalance,
        lost_s=settings.lease_s + settings.reconnect_timeout_s,
    )
