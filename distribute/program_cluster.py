"""The cluster a program runs in, for lines that do not name one: ``ParameterServerStrategy()``.

The worker daemon and ``ropewalk.testing`` join a cluster and then run the user's program
:func:`in_cluster`. A program that was started by plain ``python`` joins when it first needs the
cluster: :func:`join_cluster`. Two doors look it up: the public constructors of strategies, unless
they are given a runtime, and ``ropewalk.training``. Nothing below them does, so that one process
can have several runtimes.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..cluster.resolvers.resolver import ClusterResolver
from ..core.public_face import provided
from .runtime import ClusterRuntime

_here: ContextVar[ClusterRuntime | None] = ContextVar("ropewalk_cluster", default=None)
_everywhere: list[ClusterRuntime] = []  # at most one


def program_cluster() -> ClusterRuntime | None:
    """The cluster that the calling code runs in; None for a plain Python program."""
    return _here.get() or (_everywhere[0] if _everywhere else None)


@contextmanager
def in_cluster(runtime: ClusterRuntime, *, all_threads: bool = False) -> Iterator[None]:
    """Run a block's code in a cluster.

    Args:
        runtime: The task's connection to it.
        all_threads: Also for code in other threads of the process that has no cluster of its own: a
            program may start threads, and those begin with an empty context.
    """
    before, token = _everywhere[:], _here.set(runtime)
    if all_threads:
        _everywhere[:] = [runtime]
    try:
        yield
    finally:
        _here.reset(token)
        _everywhere[:] = before


def enter_cluster(runtime: ClusterRuntime) -> Callable[[], None]:
    """From now on this process's code runs in a cluster; returns what ends that."""
    _everywhere[:] = [runtime]

    def leave() -> None:
        if _everywhere[:] == [runtime]:
            _everywhere.clear()

    return leave


def join_cluster(
    resolver: ClusterResolver | None = None, *, synchronous: bool = False
) -> ClusterRuntime | None:
    """Join the cluster of a program that was started by plain ``python``, for the rest of it.

    A ps serves instead of going on with the program, and ends the process. Otherwise the process
    leaves the job when its program ends, with the exit code of docs/exit-codes.md.

    Args:
        resolver: Names the cluster and this process's task; None: TF_CONFIG or the launcher does.
        synchronous: For a strategy whose workers find each other, and need no ps.

    Returns:
        None if this process is the whole cluster.

    Raises:
        ConfigurationError: The resolver's answers do not fit together.
        RopewalkError: The cluster cannot be joined.
    """
    join = provided("join_cluster")
    runtime: ClusterRuntime | None = join(resolver, synchronous=synchronous)
    if runtime is not None:
        _everywhere[:] = [runtime]
    return runtime
