"""The nodes of a standalone cluster: which process is one, and which of them runs which task."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from ...core.errors import RefusedError
from ...core.task import TaskId

# -- A line of a job's log, as the gateway keeps it and who follows the job gets it -------------


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """A line of a task; of stdout, or of stderr."""

    task: TaskId
    text: str
    is_error: bool = False


# -- Orders to a node: numbered, and kept until the node says that it has taken them -----------


@dataclass(frozen=True, slots=True)
class Start:
    """Start a task.

    Attributes:
        job: Id of the job.
        task: The task to start.
        attempt: 0 at first; a task that is started again keeps its address.
        tf_config: ``TF_CONFIG`` of the task.
        digest: Digest of the package; empty: there is none.
        command: Arguments for the ``ropewalk`` command.
        settings: Settings of the task, by name.
        gpus: GPUs that the task alone has.
    """

    job: str
    task: TaskId
    attempt: int
    tf_config: str
    digest: str
    command: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop a task: by SIGTERM, or at once."""

    job: str
    task: TaskId
    kill: bool = False


Order = Start | Stop


class Orders:
    """The orders of one node, in order."""

    def __init__(self) -> None:
        self._waiting: list[tuple[int, Order]] = []
        self._last = 0

    def add(self, order: Order) -> int:
        """Give an order; returns its number."""
        self._last += 1
        self._waiting.append((self._last, order))
        return self._last

    def clear(self) -> None:
        """Withdraw those that the node has not taken; numbers go on, as the node knows them."""
        self._waiting.clear()

    def taken(self, number: int) -> None:
        """Note that the node has taken all orders up to ``number``, of which this may know
        nothing.
        """
        self._last = max(self._last, number)
        self._waiting = [order for order in self._waiting if order[0] > number]

    def waiting(self) -> list[tuple[int, Order]]:
        """List the orders that the node has not taken, each with its number."""
        return list(self._waiting)


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
        gpus: GPUs that its tasks may have.
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
    gpus: tuple[str, ...] = ()
    _asked: float = field(init=False)  # time at which its last message came
    _newcomers: dict[str, float] = field(default_factory=dict)  # by instance, since when
    _before: list[str] = field(default_factory=list)  # instances whose place this one has

    def __post_init__(self) -> None:
        self._asked = self.heard

    @property
    def load(self) -> tuple[int, int]:
        """The order in which nodes of a role get tasks: those with the fewest first."""
        return len(self.running), self.task.index

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
    others.sort(key=lambda node: node.load)
    others = sorted(others[: len(rest)], key=lambda node: node.task.index)
    if len(others) < len(rest):
        return [], rest[len(others)]
    chosen.update(zip(rest, others, strict=True))
    return [chosen[index] for index in indices], None


# -- Division of a standing cluster among its drivers: who is next, and whose things make room. Pure
# Drivers are told apart by what their credentials say, which is a role and a job (or a team,
# called so). One of them has half at most of what there is a bound for; and where something has to
# go, it is of whoever has most, so that a driver within its share loses nothing to another one.

UNKNOWN = "somebody"
"""Name of a driver that has not shown who it is: it is bounded by the whole alone."""

_Item = TypeVar("_Item")
_Owner = TypeVar("_Owner", bound=Hashable)


def share_of(owner: str, limit: int) -> int:
    """Compute how much of a limit one driver may have."""
    return limit if owner in ("", UNKNOWN) else max(1, limit // 2)


def next_of(
    waiting: Sequence[_Item], owner: Callable[[_Item], str], has: Mapping[str, int]
) -> _Item:
    """Find the item whose owner has least; the first of several.

    Args:
        waiting: The items, in the order in which they came.
        owner: Returns the owner of an item.
        has: Number of items that each owner has already.
    """
    return min(waiting, key=lambda item: has.get(owner(item), 0))


def to_go(
    items: Iterable[_Item],
    owner: Callable[[_Item], _Owner],
    most: int,
    size: Callable[[_Item], int] = lambda _: 1,
) -> list[_Item]:
    """Choose items to drop until the others fit, each the oldest of the owner who has most then.

    Args:
        items: The oldest first.
        owner: Returns the owner of an item.
        most: Size of all that fits.
        size: Returns the size of an item.
    """
    left = list(items)
    has: Counter[_Owner] = Counter()
    for item in left:
        has[owner(item)] += size(item)
    gone: list[_Item] = []
    while has.total() > most:
        [(largest, _)] = has.most_common(1)
        oldest = next(item for item in left if owner(item) == largest)
        left.remove(oldest)
        has[largest] -= size(oldest)
        gone.append(oldest)
    return gone
