"""Open files: as many as the system lets us have, and some kept back from connections.

Each connection costs a descriptor. Without a reserve, strangers that connect and
say nothing take the last one, and then no checkpoint can be written.
"""

import resource

_MOST = 65_536
_RESERVE = 128  # for checkpoints, logs, shared memory and connections of our own


def raise_limit() -> int:
    """Let this process have as many open files as it may, up to 65,536; returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else _MOST
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # a system that does not let us
        return soft
    return wanted


def has_spare(descriptor: int) -> bool:
    """Whether there are more descriptors than the reserve, one having just been opened.

    The kernel gives out the lowest free number, so it tells how many are taken.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft == resource.RLIM_INFINITY or descriptor < soft - min(_RESERVE, soft // 4)


def most_silent_connections(wanted: int) -> int:
    """How many connections may be silent, so that most of the descriptors are left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else max(1, min(wanted, soft // 8))


def most_grpc_connections(wanted: int) -> int:
    """How many connections of gRPC there may be, so that half of the descriptors are left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return max(1, min(wanted, soft // 2))
