"""Under which address others reach this process."""

import socket


def own_host_towards(address: str) -> str:
    """The address of this machine on the way to another one; nothing is sent.

    Args:
        address: Of the other one, ``host:port``.

    Returns:
        An IP address, in brackets if it is of version 6; ``127.0.0.1`` if the other one's name is
        not known or there is no way to it.
    """
    host, _, port = address.rpartition(":")
    try:
        family, kind, *_, there = socket.getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind) as probe:
            probe.connect(there)
            found = str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
    return f"[{found}]" if ":" in found else found
