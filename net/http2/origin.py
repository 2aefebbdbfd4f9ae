"""The origin of a connection."""

from dataclasses import dataclass

from ...cluster.access.principal import Principal


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a connection.

    Attributes:
        address: The client's, for messages.
        principal: Principal of the client, if the connection itself shows that.
    """

    address: str
    principal: Principal | None = None
