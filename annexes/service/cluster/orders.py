"""Orders to a node: numbered, and kept until the node says that it has taken them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from ....core.task import TaskId


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
    """

    job: str
    task: TaskId
    attempt: int
    tf_config: str
    digest: str
    command: tuple[str, ...]
    settings: Mapping[str, str] = field(default_factory=dict)


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
