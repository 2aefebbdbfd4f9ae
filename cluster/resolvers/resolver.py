"""ClusterResolver: the source of the cluster and of this process's task."""

from abc import ABC, abstractmethod
from typing import Any

from ...core.errors import RopewalkError
from ...core.process.accelerators import count_gpus
from ...core.showing import Shown
from ..spec import ClusterSpec


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
