"""Versions of both sides of a connection, and whether they are compatible."""

import platform
from dataclasses import astuple, dataclass, fields
from importlib import metadata

from .errors import ProtocolMismatchError

# Increased when the wire contract changes incompatibly; see proto/README.md.
PROTOCOL = 6


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


def check_protocol(ours: Versions, theirs: Versions, *, peer: str, own: str = "here") -> None:
    """Refuse a peer with another protocol version.

    Args:
        ours: Versions here.
        theirs: Versions of the peer.
        peer: The peer's name.
        own: This side's name, where the peer is to read the error, too.

    Raises:
        ProtocolMismatchError: With a table of both sides' versions.
    """
    if ours.protocol == theirs.protocol:
        return
    there = "there" if own == "here" else peer
    width = max(12, len(own), len(there))
    rows = [
        f"  {field.name:9} {mine!s:>{width}} {other!s:>{width}}"
        for field, mine, other in zip(fields(Versions), astuple(ours), astuple(theirs), strict=True)
    ]
    table = "\n".join([f"  {'':9} {own:>{width}} {there:>{width}}", *rows])
    raise ProtocolMismatchError(
        f"{peer} speaks another protocol{'' if own == 'here' else f' than {own}'}; install the "
        f"same windlass on both sides\n{table}",
        peer=peer,
        here=ours.protocol,
        there=theirs.protocol,
    )
