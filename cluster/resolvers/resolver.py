"""ClusterResolver, those of clusters given in code, and how hosts become tasks."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from ...core.errors import ConfigurationError, RopewalkError
from ...core.process.accelerators import count_gpus
from ...core.task import TaskId
from ...core.terminal import Shown
from ..spec import WORKER, ClusterSpec

# -- ClusterResolver: the source of the cluster and of this process's task ---------------------


def format_master_url(master: str, rpc_layer: str | None = None) -> str:
    """Write ``rpc_layer://master``, or just ``master`` without a layer."""
    return f"{rpc_layer}://{master}" if rpc_layer else master


class ClusterResolver(Shown, ABC):
    """A cluster resolver like ``tf.distribute.cluster_resolver.ClusterResolver``."""

    _task_type: str | None = None
    _task_id: int | None = None
    _rpc_layer: str | None = None
    _asks_nobody: bool = False  # its answers are here: no call to a service

    @abstractmethod
    def cluster_spec(self) -> ClusterSpec:
        """Return the cluster as known now; evaluated at each call."""

    def master(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        rpc_layer: str | None = None,
    ) -> str:
        """Find the address of a task, this one by default, with its layer; empty if it is not known
        which.

        Raises:
            ValueError: The cluster has no such task.
        """
        return self._master(task_type, task_id, rpc_layer)

    def _master(self, kind: str | None, index: int | None, layer: str | None) -> str:
        kind = kind if kind is not None else self.task_type
        index = index if index is not None else self.task_id
        if kind is None or index is None:
            return ""
        address = self.cluster_spec().task_address(kind, index)
        return format_master_url(address, layer or self.rpc_layer)

    def num_accelerators(
        self,
        task_type: str | None = None,
        task_id: int | None = None,
        config_proto: Any = None,  # noqa: ARG002 - TensorFlow's signature
    ) -> dict[str, int]:
        """Count accelerators by type, e.g. ``{"GPU": 2}``: of this machine, or of a task.

        Those of another task are not known here: empty, as for a task without any.

        Raises:
            ValueError: The cluster has no such task.
        """
        return self._accelerators(task_type, task_id)

    def _accelerators(self, kind: str | None, index: int | None) -> dict[str, int]:
        if not self._is_this_task(kind, index):
            return {}
        gpus = count_gpus()
        return {"GPU": gpus} if gpus else {}

    def _is_this_task(self, task_type: str | None, task_id: int | None) -> bool:
        """Return whether both name this process, or not both are given.

        Raises:
            ValueError: The cluster has no such task.
        """
        if task_type is None or task_id is None:
            return True
        if spec := self.cluster_spec():
            spec.task_address(task_type, task_id)
        return (task_type, task_id) == (self.task_type, self.task_id)

    @property
    def dynamic(self) -> bool:
        """Whether :meth:`cluster_spec` may list fewer tasks than there are."""
        return False

    @property
    def source(self) -> str:
        """Name of the resolver in messages."""
        return type(self).__name__

    @property
    def sources(self) -> dict[str, str]:
        """Exact source of each finding, if that says more than :attr:`source`."""
        return {}

    @property
    def from_launcher(self) -> bool:
        """Whether the cluster is what started this process, and not one that the program made."""
        return False

    def snapshot(self) -> "ClusterResolver":
        """Make a resolver with this one's current answers; one that cannot change returns
        itself.
        """
        return self

    @property
    def environment(self) -> str:
        """Environment of the cluster; ``""`` for on premises, ``"google"`` or ``"cloud"``
        elsewhere.
        """
        return ""

    @property
    def task_type(self) -> str | None:
        """Job of this process; None: not known. Setting it wins over everything else."""
        kind = self._task_type if self._task_type is not None else self._found("task_type")
        return None if kind is None else str(kind)

    @task_type.setter
    def task_type(self, value: str | None) -> None:
        self._task_type = value

    @property
    def task_id(self) -> int | None:
        """Index of this process in its job; None: not known.

        Setting it wins over everything else.
        """
        number = self._task_id if self._task_id is not None else self._found("task_id")
        return None if number is None else int(number)

    @task_id.setter
    def task_id(self, value: int | None) -> None:
        self._task_id = value

    @property
    def rpc_layer(self) -> str | None:
        """Protocol in front of addresses, e.g. ``"grpc"``. Setting it wins over everything else."""
        layer = self._rpc_layer if self._rpc_layer is not None else self._found("rpc_layer")
        return None if layer is None else str(layer)

    @rpc_layer.setter
    def rpc_layer(self, value: str | None) -> None:
        self._rpc_layer = value

    def _shown(self) -> dict[str, Any]:
        if not self._asks_nobody:
            return {}
        try:
            kind, index = self.task_type, self.task_id
            place = {} if kind is None else {"task": f"{kind}:{index}"}
            return {"cluster": self.cluster_spec().as_dict(), **place}
        except (RopewalkError, ValueError, KeyError) as error:
            return {"unknown": str(error)}

    def _found(self, name: str) -> Any:  # noqa: ARG002 - for subclasses
        """Find out the property ``name`` if neither constructor nor setter gave it."""
        return None


# -- SimpleClusterResolver and UnionClusterResolver: clusters given in code, and unions --------


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


# -- Addresses divided among jobs, where a launcher starts equal processes and numbers them ----


def jobs_or_workers(jobs: Mapping[str, int] | None, total: int, launcher: str) -> dict[str, int]:
    """Count the tasks of each job, by the names of the jobs: the order in which they get addresses.

    Args:
        jobs: Tasks of each job, from the user; None: all are workers.
        total: Processes there are.
        launcher: Launcher that started them, for the error.

    Raises:
        ConfigurationError: The jobs have more or fewer tasks than there are processes.
    """
    if jobs is None:
        return {WORKER: total}
    for job, count in jobs.items():
        if not isinstance(count, int) or isinstance(count, bool) or count < 0:
            raise ConfigurationError(f"jobs: job {job!r} has {count!r} tasks; a number is needed")
    wanted = sum(jobs.values())
    if wanted != total:
        shown = ", ".join(f"{job}={count}" for job, count in sorted(jobs.items())) or "none"
        raise ConfigurationError(
            f"the jobs ({shown}) have {wanted} tasks, but {launcher} runs {total}; start "
            f"{wanted} of them, or change the jobs",
            tasks=total,
            wanted=wanted,
        )
    return {job: count for job, count in sorted(jobs.items()) if count}


def divide(addresses: Sequence[str], jobs: Mapping[str, int]) -> ClusterSpec:
    """Make a cluster of the addresses: the first job has the first of them, and so on.

    Args:
        addresses: Addresses of the processes, by rank.
        jobs: Tasks per job, from :func:`jobs_or_workers`.
    """
    rest = list(addresses)
    cluster: dict[str, list[str]] = {}
    for job, count in jobs.items():
        cluster[job], rest = rest[:count], rest[count:]
    return ClusterSpec(cluster)


def task_of_rank(rank: int, jobs: Mapping[str, int]) -> TaskId:
    """Find the task that has an address.

    Args:
        rank: Position of the address; below the number of tasks.
        jobs: Tasks per job, from :func:`jobs_or_workers`.
    """
    first = 0
    for job, count in jobs.items():
        if rank < first + count:
            return TaskId(job, rank - first)
        first += count
    raise IndexError(rank)


# -- Names in the order that people expect: ``w-2`` before ``w-10`` ----------------------------


def natural(name: str) -> list[tuple[int, str]]:
    """Sort key by which numbers in names are compared as numbers, and come before letters."""
    parts = [part for part in re.split(r"([0-9]+)", name) if part]
    return [(-1, part.lstrip("0").zfill(20)) if part.isdigit() else (0, part) for part in parts]
