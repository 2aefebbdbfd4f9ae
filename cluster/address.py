"""HOST:PORT, as every address of a task, a chief or a cluster is written. Pure.

Where people, launchers and environments say an address, it is read here, so that a slip is refused
at once and with what to write. Dialled as it is, it would look like a host that is not there yet,
and be waited for.
"""

import ipaddress
import re
from typing import NamedTuple

from ..core.errors import ConfigurationError

_ADDRESS = re.compile(r"(?:\[(?P<ipv6>[^\[\]]*)\]|(?P<name>[^\[\]:]*)):(?P<port>[0-9]{1,5})")
_NAME = re.compile(r"[\w-]+(?:\.[\w-]+)*\.?")
_PROTOCOL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/{2,}")
_LONGEST = 253  # of a name in DNS, a dot at its end not counted
_SHOWN = 200
_WHOLE_RULE = (
    "it is a host name or an IP address, a colon, and a port from 1 to 65535, as in 'ps-0.lab:2222'"
)


class Address(NamedTuple):
    """A host, without brackets, and a port of it."""

    host: str
    port: int


def parse_address(text: str, owner: object = None) -> Address:
    """Read ``host:port``; an IPv6 address stands in brackets.

    Args:
        text: The address.
        owner: The task that has it, for the error.

    Raises:
        ConfigurationError: It is none: a port is missing or out of range, the host is no name, or
            there is more, such as a protocol or a blank. Says what to write instead.
    """
    address = _read(text)
    if address is None:
        shown = repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
        whose = "" if owner is None else f" of {owner}"
        raise ConfigurationError(
            f"address {shown}{whose} does not read as host:port: {_remedy(text)}",
            address=text[:_SHOWN],
        )
    return address


def _read(text: str) -> Address | None:
    match = _ADDRESS.fullmatch(text)
    if match is None or not 0 < int(match["port"]) < 65536:
        return None
    ipv6, name = match["ipv6"], match["name"]
    is_host = _is_name(name) if ipv6 is None else _is_ipv6(ipv6)
    return Address(name if ipv6 is None else ipv6, int(match["port"])) if is_host else None


def _is_name(name: str) -> bool:
    """Return whether a resolver can be asked for a name: an empty or a long label would be its
    ValueError.
    """
    if not _NAME.fullmatch(name) or len(name.removesuffix(".")) > _LONGEST:
        return False
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _remedy(text: str) -> str:
    """Suggest what to write instead, if it can be told what was meant; else say what an address
    is.
    """
    meant = text.strip()
    if protocol := _PROTOCOL.match(meant):
        meant = meant[protocol.end() :].partition("/")[0]
        why = "an address has no protocol; TensorFlow's `rpc_layer` may name one"
    elif meant != text:
        why = "there are blanks around it"
    else:
        why = "an IPv6 address stands in brackets"
    host, _, port = meant.rpartition(":")
    if _is_ipv6(host):
        meant = f"[{host}]:{port}"
    return f"write {meant!r} ({why})" if _read(meant) else _WHOLE_RULE
