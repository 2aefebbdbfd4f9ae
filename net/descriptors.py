"""Open files: as many as the system allows, and a reserve that connections cannot use.

Each connection costs a descriptor. Without a reserve, strangers that connect and send nothing would
take the last one, and then no checkpoint could be written.
"""

import resource

_MOST = 65_536
_RESERVE = 128  # for checkpoints, logs, shared memory and connections of our own


def raise_limit() -> int:
    """Raise the limit of open files as far as allowed, up to 65,536; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else _MOST
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # not allowed here
        return soft
    return wanted


def has_spare(descriptor: int) -> bool:
    """Return whether more descriptors are free than the reserve, judged by one that was just
    opened.

    The kernel assigns the lowest free number, which therefore tells how many are in use.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or descriptor < soft - min(_RESERVE, soft // 4)


def most_silent_connections(wanted: int) -> int:
    """Limit the connections that may be silent, such that most descriptors stay free."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 8))


def most_grpc_connections(wanted: int) -> int:
    """Limit the connections of gRPC, such that half of the descriptors stay free."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft // 2))
