"""SimpleClusterResolver and UnionClusterResolver: clusters given in code, and unions."""

from copy import copy
from typing import Any

from ..spec import ClusterSpec
from .resolver import ClusterResolver, format_master_url


class SimpleClusterResolver(ClusterResolver):
    """A resolver that returns what it was given. As TensorFlow's."""

    _asks_nobody = True

    def __init__(
        self,
        cluster_spec: ClusterSpec,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: dict[str, int] | None = None,
        rpc_layer: str | None = None,
        *,
        dynamic: bool = False,
    ) -> None:
        """Keep a cluster; ``dynamic``: it may list fewer tasks than there are.

        Raises:
            TypeError: ``cluster_spec`` is no ClusterSpec or ``master`` no string.
        """
        if not isinstance(cluster_spec, ClusterSpec):
            raise TypeError("cluster_spec must be a ClusterSpec")
        if not isinstance(master, str):
            raise TypeError("master must be a string")
        self._cluster_spec = cluster_spec
        self._given_master = master
        self._task_type = task_type
        self._task_id = task_id
        self._environment = environment
        self._num_accelerators = num_accelerators
        self._rpc_layer = rpc_layer
        self._dynamic = dynamic

    @property
    def dynamic(self) -> bool:
        """Whether the cluster is dynamic, as the constructor was told."""
        return self._dynamic

    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster."""
        return self._cluster_spec

    def _master(self, kind: str | None, index: int | None, layer: str | None) -> str:
        """Find the address of a task when both type and id are given, else the master of the
        constructor.

        TensorFlow puts the rpc layer even before an empty master; we leave that empty.
        """
        if kind is not None and index is not None:
            address = self._cluster_spec.task_address(kind, index)
        else:
            address = self._given_master
        return format_master_url(address, layer or self._rpc_layer) if address else ""

    def _accelerators(self, kind: str | None, index: int | None) -> dict[str, int]:
        """Return the accelerators that the constructor was given, of every task; else count
        them.
        """
        if self._num_accelerators is not None:
            return dict(self._num_accelerators)
        return super()._accelerators(kind, index)

    @property
    def environment(self) -> str:
        """Environment that the constructor was given."""
        return self._environment


class UnionClusterResolver(ClusterResolver):
    """Several resolvers as one cluster. As ``tf.distribute.cluster_resolver.UnionResolver``.

    Lists of the same job are joined in order. If any part of a job is a mapping, all are merged by
    index. Environment and accelerators are the first resolver's; it is dynamic if any of them is.
    Unless set here, type and id are those of the first resolver that knows them, the id counted in
    the joined list. TensorFlow asks the first one alone.
    """

    def __init__(
        self,
        *args: ClusterResolver,
        rpc_layer: str | None = None,
        task_type: str | None = None,
        task_id: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Join resolvers.

        Raises:
            ValueError: None were given, or an unknown keyword.
            TypeError: One is no ClusterResolver.
        """
        if kwargs:
            raise ValueError(f"Unexpected keyword arguments: {sorted(kwargs)}")
        if not args:
            raise ValueError("At least one ClusterResolver is needed.")
        for resolver in args:
            if not isinstance(resolver, ClusterResolver):
                raise TypeError("All arguments must be ClusterResolvers.")
        self._resolvers = args
        self._rpc_layer = rpc_layer
        self._task_type = task_type
        self._task_id = task_id

    def _shown(self) -> dict[str, Any]:
        return {"of": list(self._resolvers)}

    def cluster_spec(self) -> ClusterSpec:
        """Join the clusters of the resolvers.

        Raises:
            KeyError: Two resolvers give one job the same index.
        """
        joined: dict[str, list[list[str] | dict[int, str]]] = {}
        for resolver in self._resolvers:
            for job, tasks in resolver.cluster_spec().as_dict().items():
                joined.setdefault(job, []).append(tasks)
        return ClusterSpec({job: _join(job, parts) for job, parts in joined.items()})

    @property
    def dynamic(self) -> bool:
        """Whether any resolver is."""
        return any(resolver.dynamic for resolver in self._resolvers)

    def snapshot(self) -> "UnionClusterResolver":
        """Make the union of what the resolvers say now."""
        fixed = copy(self)
        fixed._resolvers = tuple(resolver.snapshot() for resolver in self._resolvers)
        return fixed

    def _master(self, kind: str | None, index: int | None, layer: str | None) -> str:
        """Find the address of a task when both type and id are given, else the first resolver's
        master.
        """
        if kind is not None and index is not None:
            address = self.cluster_spec().task_address(kind, index)
            return format_master_url(address, layer or self._rpc_layer)
        return self._resolvers[0].master(rpc_layer=layer)

    def _accelerators(self, kind: str | None, index: int | None) -> dict[str, int]:
        """Return the first resolver's accelerators, if this task or none is asked for."""
        return self._resolvers[0].num_accelerators() if self._is_this_task(kind, index) else {}

    @property
    def environment(self) -> str:
        """The first resolver's."""
        return self._resolvers[0].environment

    @property
    def sources(self) -> dict[str, str]:
        """Sources of its resolvers: of the cluster all, of the task the one that knows it."""
        all_of = [part.sources.get("cluster", part.source) for part in self._resolvers]
        resolver = next((part for part in self._resolvers if part.task_type is not None), None)
        task = {} if resolver is None else {"task": resolver.sources.get("task", resolver.source)}
        return {"cluster": "; ".join(dict.fromkeys(all_of)), **task}

    @property
    def from_launcher(self) -> bool:
        """Whether any resolver's is."""
        return any(part.from_launcher for part in self._resolvers)

    def _found(self, name: str) -> Any:
        if name == "rpc_layer":
            return self._resolvers[0].rpc_layer
        number = next(
            (n for n, part in enumerate(self._resolvers) if part.task_type is not None), 0
        )
        resolver = self._resolvers[number]
        if name == "task_type" or resolver.task_id is None:
            return getattr(resolver, name)
        return resolver.task_id + self._tasks_before(number, resolver.task_type or "")

    def _tasks_before(self, number: int, job: str) -> int:
        """Count the tasks of a job that come before those of a resolver, where lists are joined."""
        if not number:
            return 0
        parts = [part.cluster_spec().as_dict().get(job, []) for part in self._resolvers]
        if not all(isinstance(part, list) for part in parts):
            return 0
        return sum(len(part) for part in parts[:number])


def _join(job: str, parts: list[list[str] | dict[int, str]]) -> list[str] | dict[int, str]:
    if all(isinstance(part, list) for part in parts):
        return [address for part in parts for address in part if isinstance(address, str)]
    merged: dict[int, str] = {}
    for part in parts:
        for index, address in part.items() if isinstance(part, dict) else enumerate(part):
            if index in merged:
                raise KeyError(f"Job {job!r} has a clash of task index {index} between resolvers")
            merged[index] = address
    return merged
