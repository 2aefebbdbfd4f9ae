"""Which cluster a new strategy belongs to: a given one, the program's, or this process alone."""

from dataclasses import replace

from ...cluster.resolvers.launchers import environment_resolver
from ...cluster.resolvers.resolved import resolve
from ...cluster.resolvers.resolver import ClusterResolver
from ...core.settings import load_settings
from ..program_cluster import join_cluster, program_cluster
from ..runtime import ClusterRuntime, local_runtime


def runtime_with_servers(
    given: ClusterRuntime | None, resolver: ClusterResolver | None
) -> ClusterRuntime:
    """The runtime of a strategy that uses parameter servers; without a cluster, a local one.

    Args:
        given: The answer, if there is one.
        resolver: As the user gave it; must name the task of the cluster the program runs in.

    Raises:
        WindlassError: The process belongs to a cluster and cannot join it.
        ValueError: ``resolver`` names another task.
    """
    runtime = given or program_cluster()
    if runtime is None:
        joined = join_cluster(resolver)
        return joined or local_runtime(resolve(resolver or environment_resolver()))
    if resolver is not None and resolver.task_type is not None:
        named = (resolver.task_type, resolver.task_id or 0)
        if named != (runtime.task.task.type, runtime.task.task.index):
            raise ValueError(
                f"cluster_resolver says this is {named[0]}:{named[1]}, but the process runs as "
                f"{runtime.task.task.short}"
            )
    return runtime


def runtime_of_workers(
    given: ClusterRuntime | None, resolver: ClusterResolver | None
) -> ClusterRuntime:
    """The runtime of a strategy whose workers need no servers, and may be plain Python programs.

    Args:
        given: The answer, if there is one.
        resolver: Names the workers, unless the program runs in a cluster of several; None:
            TF_CONFIG or the launcher does.

    Raises:
        ConfigurationError: ``resolver`` names no cluster this process could be part of.
    """
    runtime = given or program_cluster()
    if runtime is not None and not runtime.alone:
        return runtime
    may_join = runtime is None and (resolver is None or resolver.from_launcher)
    if may_join and (joined := join_cluster(resolver, synchronous=True)):
        return joined
    task = resolve(resolver or environment_resolver())
    return replace(runtime, task=task) if runtime else ClusterRuntime(task, load_settings())


def runtime_of_job() -> ClusterRuntime | None:
    """The runtime of a program whose job saves the variables of synchronous strategies, if any."""
    runtime = program_cluster()
    return runtime if runtime is not None and runtime.snapshots is not None else None
