"""The shares of a ps: what it asks of them, and the one that it has where shares do not move."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from ...core.errors import MovedError
from ...core.report import PsCounters
from ...core.settings import Settings
from ...core.task import TaskId
from ...telemetry.catalogue import Sample
from .store import Store


class ServedShare(Protocol):
    """A share on this ps.

    Attributes:
        store: Content of the share.
    """

    @property
    def store(self) -> Store:
        """Content of the share."""
        ...

    def serving(self, cancel: Callable[[], None] = lambda: None) -> AbstractContextManager[Store]:
        """Lend the share's store, for a session or call that may change it.

        Args:
            cancel: Makes it end soon, since this ps leads no more.

        Raises:
            MovedError: This ps does not lead the share.
        """
        ...


class ServedShares(Protocol):
    """All shares of a ps. Thread-safe."""

    def at(self, number: int) -> ServedShare:
        """Find the share of a number.

        Raises:
            MovedError: This ps never has it.
        """
        ...

    def led(self, number: int) -> Store:
        """Return the store of a share that this ps leads.

        Raises:
            MovedError: It does not.
        """
        ...

    def counters(self, sessions: int = 0) -> PsCounters:
        """Add up the counters of the shares that this ps leads, with so many workers connected."""
        ...

    def held(self) -> tuple[int, int, bool]:
        """Count what a restarted chief asks for.

        Returns:
            (shards, global step) that are here whole, and whether this ps has any part in a share.
        """
        ...

    @property
    def max_bytes(self) -> int:
        """Most bytes of values and slots of all shares."""
        ...

    def samples(self) -> Iterator[Sample]:
        """Yield what metrics tell of the shares beside their counters."""
        ...

    def drain(self) -> None:
        """Report that this ps was asked to leave."""
        ...

    def close(self) -> None:
        """End what goes on beside sessions and calls."""
        ...


class OnlyShare:
    """The one share of a ps that leads it from the start to the end.

    Args:
        task: Task of this ps.
        settings: Settings of this ps.
        contents: Identity of what the share holds.
    """

    def __init__(self, task: TaskId, settings: Settings, contents: int) -> None:
        self.store = Store(task, settings)
        self.store.contents = contents

    def at(self, number: int) -> "OnlyShare":
        """See :meth:`ServedShares.at`."""
        task = self.store.task
        if number != task.index:
            raise MovedError(
                f"{task} has share {task.index} alone, and was asked for {number}: its shares do "
                "not move (ps_shares, ps_replicas); say the same of them on the chief and all ps",
                task=task,
                share=number,
            )
        return self

    def led(self, number: int) -> Store:
        """See :meth:`ServedShares.led`."""
        return self.at(number).store

    def serving(self, cancel: Callable[[], None] = lambda: None) -> AbstractContextManager[Store]:  # noqa: ARG002 - it never ends
        """See :meth:`ServedShare.serving`."""
        return nullcontext(self.store)

    def counters(self, sessions: int = 0) -> PsCounters:
        """See :meth:`ServedShares.counters`."""
        return self.store.counters(sessions)

    def held(self) -> tuple[int, int, bool]:
        """See :meth:`ServedShares.held`."""
        counters = self.store.counters()
        return counters.shards, counters.global_step, True

    @property
    def max_bytes(self) -> int:
        """See :attr:`ServedShares.max_bytes`."""
        return self.store.table.max_bytes

    def samples(self) -> Iterator[Sample]:
        """See :meth:`ServedShares.samples`."""
        return iter(())

    def drain(self) -> None:
        """See :meth:`ServedShares.drain`."""

    def close(self) -> None:
        """See :meth:`ServedShares.close`."""
