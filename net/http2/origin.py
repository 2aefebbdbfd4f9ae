"""Where a connection comes from."""

from dataclasses import dataclass

from ...cluster.access.principal import Principal


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a connection comes from.

    Attributes:
        address: The client's, for messages.
        principal: Who the client is, if the connection itself shows that.
    """

    address: str
    principal: Principal | None = None
