"""Client of a standing cluster, as whoever drives jobs from a terminal."""

from contextlib import closing
from typing import TYPE_CHECKING

from ....core.settings import Settings
from ....launch.as_driver import driver

if TYPE_CHECKING:
    from ..client.calls import GatewayClient


def cluster_client(address: str, settings: Settings) -> "closing[GatewayClient]":
    """Open a client of the gateway of a standing cluster, until the block ends."""
    from ..client.calls import GatewayClient

    return closing(GatewayClient(address, settings, driver(settings)))
