"""The nodes of a standalone cluster: which process is one, and which of them runs which task."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ....core.errors import RefusedError
from ....core.task import TaskId
from .orders import Orders

TAKEOVER_S = 5.0  # twice the time between messages of a node, and some
_REMEMBERED = 8  # processes of one node, before and beside this one


@dataclass(slots=True)
class Node:
    """A daemon that runs tasks of one role.

    Attributes:
        task: Role and number of the node.
        instance: Id of the node's process.
        host: Host at which others reach its tasks.
        ports: Free ports there, assigned to no task.
        heard: Time of its last message, or of the end of an answer that it waited for.
        running: Tasks assigned to it, each as (job, task), with the number of the order.
        orders: Orders to the node.
        has_own_index: Whether its credentials are good for the task of its own index alone.
    """

    task: TaskId
    instance: str
    host: str
    heard: float
    ports: list[int] = field(default_factory=list)
    running: dict[tuple[str, TaskId], int] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    orders: Orders = field(default_factory=Orders)
    is_lost: bool = False
    has_own_index: bool = False
    _asked: float = field(init=False)  # time at which its last message came
    _newcomers: dict[str, float] = field(default_factory=dict)  # by instance, since when
    _before: list[str] = field(default_factory=list)  # instances whose place this one has

    def __post_init__(self) -> None:
        self._asked = self.heard

    def replaced_by(self, instance: str, host: str, *, now: float) -> "Node":
        """Make the node of another process in its place."""
        before = [*self._before, self.instance][-_REMEMBERED:]
        return Node(self.task, instance, host, now, _before=before)

    def why_wait(self, instance: str, host: str, *, now: float) -> str:
        """Say why a process that comes as this node has to wait; empty: it is this one, or next.

        A process that restarts finds its place taken by the one before it, which has ended without
        a word. So it waits until that one has been silent for :data:`TAKEOVER_S`.

        Args:
            instance: Id of the process.
            host: Host of the process, for messages.
            now: Current time.

        Raises:
            RefusedError: Both processes are running, or this one has been replaced.
        """
        name = self.task.short
        if instance == self.instance:
            self._asked = now
            return ""
        if instance in self._before:
            raise RefusedError(
                f"another process, on {self.host}, has become the node {name} while this one was "
                "silent; this one ends",
                task=self.task,
            )
        if self.is_lost:
            return ""
        since = self._newcomers.setdefault(instance, now)
        while len(self._newcomers) > _REMEMBERED:
            del self._newcomers[next(iter(self._newcomers))]
        if self._asked > since:
            raise RefusedError(
                f"there are two processes for the node {name}: one on {self.host}, which is here "
                f"and works, and this one on {host}; end one of them, or give it an index of its "
                "own",
                task=self.task,
            )
        if now - since >= TAKEOVER_S:
            return ""
        return f"the process that was the node {name} on {self.host} to be silent"


def choose_nodes(free: Sequence[Node], indices: Sequence[int]) -> tuple[list[Node], int | None]:
    """Choose nodes for tasks of a role: those with the fewest tasks, in the order of their indices.

    Args:
        free: Nodes that have room.
        indices: Indices of the tasks, at most as many as nodes.

    Returns:
        A node for each task; and the first index for which there is none, if so.
    """
    own = {node.task.index: node for node in free if node.has_own_index}
    chosen = {index: own[index] for index in indices if index in own}
    rest = [index for index in indices if index not in own]
    others = [node for node in free if not node.has_own_index]
    others.sort(key=lambda node: (len(node.running), node.task.index))
    others = sorted(others[: len(rest)], key=lambda node: node.task.index)
    if len(others) < len(rest):
        return [], rest[len(others)]
    chosen.update(zip(rest, others, strict=True))
    return [chosen[index] for index in indices], None
