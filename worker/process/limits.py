"""Resource limits that a process needs before it begins: open files, and address space.

With too little it would fail later, in the middle of a library, or wait for a peer that failed.
"""

import resource

from ...core.errors import ConfigurationError
from ...net.this_machine import raise_limit

_FILES = 256  # half are kept from connections; a task of a small job has 60 open
_FILES_PER_TASK = 4  # of a launcher: two pipes, and for a moment those of its start
_ADDRESS_SPACE = 2_000_000_000  # of NumPy, gRPC, Numba and the stacks of 60 threads, mostly unused
_MB = 1_000_000


def check_limits(tasks: int = 0) -> None:
    """Check the limits of this process, which those that it starts inherit.

    Args:
        tasks: Number of tasks that this process starts and watches.

    Raises:
        ConfigurationError: Too few open files, or too little address space.
    """
    wanted = _FILES + _FILES_PER_TASK * tasks
    files = raise_limit()
    if files < wanted:
        user = f"a launcher of {tasks} tasks" if tasks else "a task"
        raise ConfigurationError(
            f"this process may have {files} open files, and {user} needs {wanted}: raise the limit "
            "(ulimit -n, LimitNOFILE of systemd)",
            allowed=files,
            needed=wanted,
        )
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and space < _ADDRESS_SPACE:
        raise ConfigurationError(
            f"this process may have {space // _MB} MB of address space, and a task needs "
            f"{_ADDRESS_SPACE // _MB} MB, most of which it never touches: raise the limit "
            "(ulimit -v), and bound memory by a cgroup",
            allowed=space,
            needed=_ADDRESS_SPACE,
        )
