"""``--cluster HOST:PORT``: where a standalone cluster is reached."""

from contextlib import closing
from typing import TYPE_CHECKING

import click

from ...core.settings import CLUSTER_VARIABLE, Settings
from ...launch.options import driver

if TYPE_CHECKING:
    from .calls import GatewayClient

# -- Client of a standing cluster, as whoever drives jobs from a terminal -----------------------


def cluster_client(address: str, settings: Settings) -> "closing[GatewayClient]":
    """Open a client of the gateway of a standing cluster, until the block ends."""
    from .calls import GatewayClient

    return closing(GatewayClient(address, settings, driver(settings)))


cluster_option = click.option(
    "--cluster",
    required=True,
    envvar=CLUSTER_VARIABLE,
    metavar="HOST:PORT",
    help=f"The chief of the cluster; also in {CLUSTER_VARIABLE}.",
)
