"""Versions of both sides of a connection, and whether they are compatible."""

import platform
from dataclasses import astuple, dataclass, fields
from importlib import metadata

from .errors import ProtocolMismatchError

# Increased when the wire contract changes incompatibly; see proto/README.md.
PROTOCOL = 5


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of one side. Only ``protocol`` must agree."""

    protocol: int
    windlass: str
    python: str
    numpy: str


def package_version() -> str:
    """Windlass's own."""
    try:
        return metadata.version("windlass")
    except metadata.PackageNotFoundError:
        return "source tree"  # PYTHONPATH=src, not installed


def own_versions() -> Versions:
    """Versions of this process."""
    return Versions(
        protocol=PROTOCOL,
        windlass=package_version(),
        python=platform.python_version(),
        numpy=metadata.version("numpy"),
    )


def check_protocol(ours: Versions, theirs: Versions, *, peer: str) -> None:
    """Refuse a peer with another protocol version.

    Raises:
        ProtocolMismatchError: With a table of both sides' versions.
    """
    if ours.protocol == theirs.protocol:
        return
    rows = [
        f"  {field.name:9} {mine!s:>12} {other!s:>12}"
        for field, mine, other in zip(fields(Versions), astuple(ours), astuple(theirs), strict=True)
    ]
    table = "\n".join([f"  {'':9} {'here':>12} {'there':>12}", *rows])
    raise ProtocolMismatchError(
        f"{peer} speaks another protocol; install the same windlass on both sides\n{table}",
        peer=peer,
        here=ours.protocol,
        there=theirs.protocol,
    )
