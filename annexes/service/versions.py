"""Whether a driver's program can run on a cluster: the versions of both sides, compared.

:func:`own_environment` asks the metadata of what is installed and imports nothing;
:func:`mismatches` is pure. The rules:

- protocol: equal, or refused.
- Ropewalk: the same minor version (0.1.2 and 0.1.7), or refused. What cannot be compared, as a
  source tree that was not installed, is a warning.
- Python: the same minor version where closures are pickled, as bytecode of one is not that of
  another, or refused; where a script is sent, another one is a warning.
- NumPy, JAX, PyTorch, Keras, cloudpickle: another minor version, or one that the cluster lacks, is
  a warning; what the driver lacks does not matter.
"""

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata

from ...core.errors import EnvironmentMismatchError, ProtocolMismatchError
from ...core.versions import PROTOCOL, package_version
from ...core.wire.bounds import shorten

_LIBRARIES = ("numpy", "jax", "torch", "keras", "cloudpickle")
_NAMES = ("protocol", "ropewalk", "python", *_LIBRARIES)
_MAX_ROWS = 32  # of the table; the other side may send anything
_MAX_BYTES = 40  # of a cell
_MINOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?![0-9])")
_NONE = "-"


class Severity(StrEnum):
    """The meaning of a mismatch for the job."""

    REFUSED = "refused"
    WARNED = "warned"


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A version that differs.

    Attributes:
        name: ``"python"``, ``"protocol"``, ``"torch"``, …
        ours: Version here; None: not installed.
        theirs: Version there; None: not installed.
        severity: Whether the job can run.
        reason: Why it matters, for people.
    """

    name: str
    ours: str | None
    theirs: str | None
    severity: Severity
    reason: str


def own_environment() -> dict[str, str]:
    """Collect the versions of this process, by name; libraries that are not installed are
    missing.
    """
    versions = {
        "protocol": str(PROTOCOL),
        "ropewalk": package_version(),
        "python": platform.python_version(),
    }
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions


def mismatches(
    ours: Mapping[str, str], theirs: Mapping[str, str], *, pickled: bool = False
) -> list[Mismatch]:
    """Compare the versions of a driver and a cluster, and say what a difference means.

    Args:
        ours: The driver's :func:`own_environment`.
        theirs: The cluster's.
        pickled: Whether closures are sent, not a script alone.

    Returns:
        Mismatches that refuse the job first, then in the order of the table.
    """
    differences = []
    for name in _NAMES:
        here, there = ours.get(name), theirs.get(name)
        verdict = _compare(name, here, there, pickled=pickled)
        if verdict is not None:
            differences.append(Mismatch(name, here, there, *verdict))
    return sorted(differences, key=lambda mismatch: mismatch.severity is Severity.WARNED)


def check_environments(
    ours: Mapping[str, str], theirs: Mapping[str, str], *, peer: str, pickled: bool = False
) -> list[Mismatch]:
    """Refuse a cluster whose versions differ in what matters.

    Args:
        ours: The driver's.
        theirs: The cluster's.
        peer: Address of the cluster, for messages: ``"chief.example:2222"``.
        pickled: Whether closures are sent.

    Returns:
        Mismatches to warn of.

    Raises:
        ProtocolMismatchError: The protocols differ. With the table of both sides.
        EnvironmentMismatchError: Something else that matters does.
    """
    differences = mismatches(ours, theirs, pickled=pickled)
    refused = [mismatch for mismatch in differences if mismatch.severity is Severity.REFUSED]
    if not refused:
        return differences
    error = ProtocolMismatchError if refused[0].name == "protocol" else EnvironmentMismatchError
    reasons = "; ".join(mismatch.reason for mismatch in refused)
    raise error(
        f"{peer} cannot run this: {reasons}\n{table(ours, theirs, differences)}",
        peer=peer,
        differ=", ".join(mismatch.name for mismatch in refused),
    )


def table(
    ours: Mapping[str, str], theirs: Mapping[str, str], found: list[Mismatch] | None = None
) -> str:
    """Write both sides' versions as text, a row for each name, of a bounded size.

    Args:
        ours: Here.
        theirs: There; names and versions may be a stranger's.
        found: Mismatches to mark; None: none.
    """
    marks = {mismatch.name: mismatch.severity.value for mismatch in found or ()}
    names = [name for name in _NAMES if name in ours or name in theirs]
    names += sorted((ours.keys() | theirs.keys()) - set(names))[: _MAX_ROWS - len(names)]
    rows = [("", "here", "there", "")]
    for name in names:
        here, there = (_cell(side.get(name, _NONE)) for side in (ours, theirs))
        rows.append((_cell(name), here, there, marks.get(name, "")))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"  {name:{widths[0]}} {here:>{widths[1]}} {there:>{widths[2]}} {mark}".rstrip()
        for name, here, there, mark in rows
    )


def _compare(
    name: str, here: str | None, there: str | None, *, pickled: bool
) -> tuple[Severity, str] | None:
    if name == "protocol":
        if here is not None and here == there:
            return None
        return Severity.REFUSED, "the protocols differ: install the same ropewalk on both sides"
    if here is None and name in _LIBRARIES:
        return None
    minor_here, minor_there = _minor(here), _minor(there)
    if here == there or (minor_here is not None and minor_here == minor_there):
        return None
    if there is None and name in _LIBRARIES:
        return Severity.WARNED, f"{name} is not installed there: install it if the job needs it"
    if name == "ropewalk":
        if minor_here is None or minor_there is None:
            return Severity.WARNED, "whether the versions of ropewalk fit cannot be seen"
        return Severity.REFUSED, "install the same minor version of ropewalk on both sides"
    if name == "python" and pickled:
        return (
            Severity.REFUSED,
            "closures need the same minor version of Python on both sides (a script does not)",
        )
    return Severity.WARNED, f"the program runs with another {name} there"


def _minor(version: str | None) -> tuple[int, int] | None:
    match = _MINOR.match(version or "")
    return None if match is None else (int(match[1]), int(match[2]))


def _cell(text: str) -> str:
    """Clean a name or version of a stranger: short and without what a terminal would obey."""
    readable = (c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:_MAX_BYTES])
    return shorten("".join(readable), _MAX_BYTES)
