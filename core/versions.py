"""Versions of both sides of a connection, and whether they are compatible."""

import platform
from dataclasses import astuple, dataclass, fields
from functools import cache
from importlib import metadata

from .errors import ProtocolMismatchError

# Increased when the wire contract changes incompatibly; see proto/README.md.
PROTOCOL = 8


@dataclass(frozen=True, slots=True)
class Versions:
    """Versions of one side. Only ``protocol`` must agree."""

    protocol: int
    ropewalk: str
    python: str
    numpy: str


def package_version() -> str:
    """Read Ropewalk's own version."""
    try:
        return metadata.version("ropewalk")
    except metadata.PackageNotFoundError:
        return "source tree"  # PYTHONPATH=src, not installed


@cache  # every greeting carries them, and metadata is a file that is parsed: 3 ms
def own_versions() -> Versions:
    """Return the versions of this process."""
    return Versions(
        protocol=PROTOCOL,
        ropewalk=package_version(),
        python=platform.python_version(),
        numpy=metadata.version("numpy"),
    )


def check_protocol(ours: Versions, theirs: Versions, *, peer: str) -> None:
    """Refuse a peer with another protocol version, by an error that is read here.

    Args:
        ours: Versions here.
        theirs: Versions of the peer.
        peer: The peer's name.

    Raises:
        ProtocolMismatchError: With a table of both sides' versions.
    """
    if ours.protocol != theirs.protocol:
        what = f"{peer} speaks another protocol"
        raise _mismatch(what, ours, theirs, peer, ("here", "there"))


def check_caller(ours: Versions, theirs: Versions, *, caller: str, task: str) -> None:
    """Refuse a caller with another protocol version, by an error that both sides read.

    Args:
        ours: Versions here.
        theirs: Versions of the caller.
        caller: The caller's name.
        task: The name of this side.

    Raises:
        ProtocolMismatchError: With a table of both sides' versions.
    """
    if ours.protocol != theirs.protocol:
        what = f"{caller} speaks another protocol than {task}"
        raise _mismatch(what, ours, theirs, caller, (task, caller))


def _mismatch(
    what: str, ours: Versions, theirs: Versions, peer: str, columns: tuple[str, str]
) -> ProtocolMismatchError:
    width = max(12, *map(len, columns))
    pairs = zip(fields(Versions), astuple(ours), astuple(theirs), strict=True)
    rows = [("", *columns), *((field.name, mine, other) for field, mine, other in pairs)]
    table = "\n".join(f"  {name:9} {one!s:>{width}} {two!s:>{width}}" for name, one, two in rows)
    return ProtocolMismatchError(
        f"{what}; install the same ropewalk on both sides\n{table}",
        peer=peer,
        here=ours.protocol,
        there=theirs.protocol,
    )
