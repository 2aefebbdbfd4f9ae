"""The address under which other machines reach this process."""

import socket


def own_host_towards(address: str) -> str:
    """Find the address of this machine on the way to another one; nothing is sent.

    Args:
        address: The other machine's, ``host:port``.

    Returns:
        An IP address, in brackets for version 6; ``127.0.0.1`` if the other machine's name is not
        known or there is no route to it.
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
