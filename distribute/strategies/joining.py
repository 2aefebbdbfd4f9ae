"""Cluster of a new strategy: a given one, the program's, or this process alone."""

from dataclasses import replace
from ipaddress import ip_address

from ...cluster.address import parse_address
from ...cluster.resolvers.launchers import environment_resolver
from ...cluster.resolvers.resolved import ResolvedTask, resolve
from ...cluster.resolvers.resolver import ClusterResolver
from ...cluster.spec import canonical_spec, canonical_type
from ...core.settings import load_settings
from ...core.task import TaskId
from ..program_cluster import join_cluster, program_cluster
from ..runtime import ClusterRuntime, local_runtime


def runtime_with_servers(
    given: ClusterRuntime | None, resolver: ClusterResolver | None
) -> ClusterRuntime:
    """Choose the runtime of a strategy that uses parameter servers; without a cluster, a local one.

    Args:
        given: The answer, if there is one.
        resolver: Resolver that the user gave; must name the cluster the program runs in, and its
            task.

    Raises:
        RopewalkError: The process belongs to a cluster and cannot join it.
        ValueError: ``resolver`` names another cluster or task.
    """
    runtime = given or program_cluster()
    if runtime is None:
        joined = join_cluster(resolver)
        return joined or local_runtime(resolve(resolver or environment_resolver()))
    if resolver is not None:
        _check_names(resolver, runtime.task)
    return runtime


def runtime_of_workers(
    given: ClusterRuntime | None, resolver: ClusterResolver | None
) -> ClusterRuntime:
    """Choose the runtime of a strategy whose workers need no servers, and may be plain Python
    programs.

    Args:
        given: The answer, if there is one.
        resolver: Names the workers; where the program runs in a cluster of several, it must be
            that one. None: TF_CONFIG or the launcher does.

    Raises:
        ConfigurationError: ``resolver`` names no cluster this process could be part of.
        ValueError: ``resolver`` names another cluster or task than the program runs in.
    """
    runtime = given or program_cluster()
    if runtime is not None and not runtime.alone:
        if resolver is not None:
            _check_names(resolver, runtime.task)
        return runtime
    may_join = runtime is None and (resolver is None or resolver.from_launcher)
    if may_join and (joined := join_cluster(resolver, synchronous=True)):
        return joined
    task = resolve(resolver or environment_resolver())
    return replace(runtime, task=task) if runtime else ClusterRuntime(task, load_settings())


def runtime_of_job() -> ClusterRuntime | None:
    """Find the runtime of a program whose job saves the variables of synchronous strategies, if
    any.
    """
    runtime = program_cluster()
    return runtime if runtime is not None and runtime.snapshots is not None else None


def _check_names(resolver: ClusterResolver, task: ResolvedTask) -> None:
    """Check that a resolver does not name another cluster or task than the one this process joined.

    Clusters grow and shrink, so only addresses of tasks that both list are compared.
    """
    said = resolver.snapshot()
    named = (
        TaskId(canonical_type(said.task_type), said.task_id or 0) if said.task_type else task.task
    )
    if named != task.task:
        raise ValueError(
            f"cluster_resolver says this is {named.short}, but the process runs as "
            f"{task.task.short}"
        )
    joined = dict(task.addresses())
    spec = canonical_spec(said.cluster_spec())
    for other in spec.tasks():
        address = spec.task_address(other.type, other.index)
        parse_address(address, other)
        if _differ(address, joined.get(other, address)):
            raise ValueError(
                f"cluster_resolver names another cluster: {other.short} is at {address} there and "
                f"at {joined[other]} in the cluster that this process runs in. A process belongs "
                "to one cluster: give the same addresses, or use the other in another process"
            )


def _differ(address: str, other: str) -> bool:
    """Return whether two addresses are surely not the same; a name may stand for any number
    (DNS).
    """
    host, _, port = address.rpartition(":")
    other_host, _, other_port = other.rpartition(":")
    comparable = _is_ip_address(host) == _is_ip_address(other_host)
    return port != other_port or (comparable and host != other_host)


def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True
