"""Clients of a chief or of a standalone cluster, as whoever drives jobs from a terminal.

A command that is only asked what may be given to it loads no client.
"""

from contextlib import closing
from typing import TYPE_CHECKING

from ..core.settings import Settings

if TYPE_CHECKING:
    from ..annexes.service.client.calls import GatewayClient
    from ..client.chief.calls import ChiefClient
    from ..cluster.access.principal import Principal


def chief_client(address: str, settings: Settings) -> "closing[ChiefClient]":
    """Open a client of the chief of a job, until the block ends."""
    from ..client.chief.calls import ChiefClient

    return closing(ChiefClient(address, settings, _driver(settings)))


def cluster_client(address: str, settings: Settings) -> "closing[GatewayClient]":
    """Open a client of the chief of a standalone cluster, until the block ends."""
    from ..annexes.service.client.calls import GatewayClient

    return closing(GatewayClient(address, settings, _driver(settings)))


def _driver(settings: Settings) -> "Principal":
    from ..cluster.access.principal import DRIVER, Principal

    return Principal(DRIVER, settings.job_id)
