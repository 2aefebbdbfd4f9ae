"""The cluster a program runs in, for lines that do not name one: ``ParameterServerStrategy()``.

The worker daemon runs the user's program :func:`while_joining`, and ``ropewalk.testing`` runs
functions :func:`in_cluster`. A program that was started by plain
``python`` joins when it first needs the cluster: :func:`join_cluster`. Two doors look it up: the
public constructors of strategies, unless they are given a runtime, and ``ropewalk.training``.
Nothing below them does, so that one process can have several runtimes.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from contextvars import ContextVar

from ..cluster.resolvers.resolver import ClusterResolver
from ..core.errors import RopewalkError
from ..core.public_face import provided
from .runtime import ClusterRuntime

_here: ContextVar[ClusterRuntime | None] = ContextVar("ropewalk_cluster", default=None)
# At most one: returns the cluster of the whole process, when the process has joined it.
_everywhere: list[Callable[[], ClusterRuntime]] = []


def program_cluster() -> ClusterRuntime | None:
    """Find the cluster that the calling code runs in; None for a plain Python program.

    Waits for a process that is still joining.

    Raises:
        JobStoppedError: The process could not join.
    """
    return _here.get() or (_everywhere[0]() if _everywhere else None)


@contextmanager
def in_cluster(runtime: ClusterRuntime, *, all_threads: bool = False) -> Iterator[None]:
    """Run a block's code in a cluster.

    Args:
        runtime: The task's connection to it.
        all_threads: Also for code in other threads of the process that has no cluster of its own: a
            program may start threads, and those begin with an empty context.
    """
    token = _here.set(runtime)
    try:
        with while_joining(lambda: runtime) if all_threads else nullcontext():
            yield
    finally:
        _here.reset(token)


@contextmanager
def while_joining(joined: Callable[[], ClusterRuntime]) -> Iterator[None]:
    """Run a block's code, in all threads, in a cluster that the process may be joining still.

    Args:
        joined: Waits until the process has joined, and returns its connection to the cluster.
    """
    before, _everywhere[:] = _everywhere[:], [joined]
    try:
        yield
    finally:
        _everywhere[:] = before


def _finish_joining() -> None:
    # A copy of this process does not have the thread that joins, and would wait for ever for it.
    with suppress(RopewalkError):
        for joined in _everywhere[:]:
            joined()


os.register_at_fork(before=_finish_joining)


def enter_cluster(runtime: ClusterRuntime) -> Callable[[], None]:
    """Run this process's code in a cluster from now on; returns what ends that."""

    def joined() -> ClusterRuntime:
        return runtime

    def leave() -> None:
        if _everywhere[:] == [joined]:
            _everywhere.clear()

    _everywhere[:] = [joined]
    return leave


def join_cluster(
    resolver: ClusterResolver | None = None, *, synchronous: bool = False
) -> ClusterRuntime | None:
    """Join the cluster of a program that was started by plain ``python``, for the rest of it.

    A ps serves instead of going on with the program, and ends the process. Otherwise the process
    leaves the job when its program ends, with the exit code of docs/exit-codes.md.

    Args:
        resolver: Names the cluster and this process's task; None: TF_CONFIG or the launcher does.
        synchronous: Whether the strategy's workers find each other, and need no ps.

    Returns:
        Runtime of the task; None if this process is the whole cluster.

    Raises:
        ConfigurationError: The resolver's answers do not fit together.
        RopewalkError: The cluster cannot be joined.
    """
    join = provided("join_cluster")
    runtime: ClusterRuntime | None = join(resolver, synchronous=synchronous)
    if runtime is not None:
        enter_cluster(runtime)
    return runtime
