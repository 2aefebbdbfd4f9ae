"""Parts of a ps that annexes bring, and what it has without them: its share, and no moments."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from ...core import annexes
from ...core.arrays.dtypes import Array
from ...core.checkpoint.folder import Folder
from ...core.checkpoint.manifest import SavedPart
from ...core.errors import CutVoidError, MovedError
from ...core.report import PsCounters
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...proto.v1 import ps_pb2
from ...telemetry.catalogue import Sample
from .lease import ChiefLease
from .saving import save_shards
from .store import Store

# -- The shares of a ps, and the one that it has where shares do not move ----------------------


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


# -- Moments of a ps, as the annex that takes them serves them, and what a ps without it does --
# The annex has a module ``ps_part`` with ``moments``, which makes its part of a ps.

RowsOf = Callable[[Store, Incarnation | None], Sequence[Array]]
"""Copies the rows that a reader has named."""


@dataclass(frozen=True, slots=True)
class ServedPs:
    """A ps, for what takes its moments.

    Attributes:
        task: Task of the ps.
        shares: The variables.
        lease: Lease of the job's chief.
        rows_of: Copies the rows that a reader has named.
    """

    task: TaskId
    shares: ServedShares
    lease: ChiefLease
    rows_of: RowsOf


class PsMoments(Protocol):
    """Moments of a ps; it has a method for each call that it serves, too. Thread-safe."""

    def save(self, store: Store, folder: Folder, request: ps_pb2.SaveShardsRequest) -> SavedPart:
        """Write a store's part of a checkpoint: of a moment, if it names one, or what changed.

        Raises:
            CutVoidError: The moment is not there any more.
        """

    def rows(self, store: Store, number: int, who: Incarnation | None) -> Sequence[Array]:
        """Take the rows that a moment has for a reader.

        Raises:
            CutVoidError: The moment is not there any more.
        """


class NoMoments:
    """A ps that takes no moments: it saves what it has."""

    def save(self, store: Store, folder: Folder, request: ps_pb2.SaveShardsRequest) -> SavedPart:
        """Write a store's part of a checkpoint, whole."""
        if request.cut:
            raise _refusal(request.cut)
        return save_shards(store, folder)

    def rows(self, store: Store, number: int, who: Incarnation | None) -> Sequence[Array]:  # noqa: ARG002
        """Refuse: there is no moment."""
        raise _refusal(number)


def _refusal(number: int) -> CutVoidError:
    return CutVoidError(
        f"this ps has no moment {number}: the annex moments was taken out of its installation"
    )


def moments_of(served: ServedPs) -> PsMoments:
    """Make what takes moments of a ps.

    Args:
        served: The ps.
    """
    makers = [module.moments for module in annexes.at("ps_part")]
    made: PsMoments = makers[0](served) if makers else NoMoments()
    return made
