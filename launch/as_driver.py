"""Clients of a chief, as whoever drives jobs from a terminal.

A command that is only asked what may be given to it loads no client.
"""

from contextlib import closing
from typing import TYPE_CHECKING

from ..core.settings import Settings

if TYPE_CHECKING:
    from ..client.chief.calls import ChiefClient
    from ..cluster.access.principal import Principal


def chief_client(address: str, settings: Settings) -> "closing[ChiefClient]":
    """Open a client of the chief of a job, until the block ends."""
    from ..client.chief.calls import ChiefClient

    return closing(ChiefClient(address, settings, driver(settings)))


def driver(settings: Settings) -> "Principal":
    """Make the principal of a driver."""
    from ..cluster.access.principal import DRIVER, Principal

    return Principal(DRIVER, settings.job_id)
