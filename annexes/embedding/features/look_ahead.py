"""Batches of which the rows are looked up while the steps before them compute."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from ....core.arrays.dtypes import Array
from ....core.step_times import PULL, clock_here

MAX_BATCHES = 64
"""Largest number of batches whose rows are looked up ahead."""

Batch = TypeVar("Batch")
Found = list[tuple[Array, Array | None]]
"""The distinct rows of each table, and which of them belongs to each id."""


class _Wanted(Protocol):
    """A table of a lookup."""

    @property
    def ids(self) -> Array:
        """int64, shape ``(n,)``."""
        ...

    @property
    def table(self) -> object:
        """The table."""
        ...


LookUp = Callable[[Sequence[tuple[Any, Array]]], Callable[[], Found]]
"""Looks up ids of tables, and returns what gives their rows when a step uses them."""


@dataclass(frozen=True)
class _Ahead:
    """A lookup that was begun: tables and their ids, and then how their rows come."""

    wanted: Sequence[tuple[Any, Array]]
    rows: Future[Callable[[], Found]]


@dataclass
class _Entry(Generic[Batch]):
    """A batch, or why there is none, and its lookup until a step has used it.

    Attributes:
        no_ids: Why the batch's ids are not known; for the step that looks rows up.
    """

    batch: Batch | None = None
    failure: Exception | None = None
    ahead: _Ahead | None = None
    no_ids: Exception | None = None


class LookAhead(Iterator[Batch]):
    """Gives batches, and has their rows looked up by another thread. For one thread.

    Args:
        batches: The batches.
        uses_of: The tables of a batch, with ids.
        look_up: Looks up a batch; called in another thread, for one batch after the other.
        count: Number of batches that are read and looked up ahead.
    """

    def __init__(
        self,
        batches: Iterable[Batch],
        uses_of: Callable[[Batch], Sequence[_Wanted]],
        look_up: LookUp,
        count: int,
    ) -> None:
        self._batches: Iterator[Batch] | None = iter(batches)
        self._uses_of, self._look_up = uses_of, look_up
        self._count = count
        self._looks_up = True
        self._entries: deque[_Entry[Batch]] = deque()
        self._now: _Entry[Batch] = _Entry()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="look-ahead")

    def __next__(self) -> Batch:
        self._now = _Entry()  # what its step has not used is not needed any more
        while len(self._entries) <= self._count and self._batches is not None:
            self._entries.append(self._read(self._batches))
        if not self._entries:
            self.close()
            raise StopIteration
        self._now = now = self._entries.popleft()
        if now.failure is not None:  # in its turn, though it happened earlier
            self.close()
            raise now.failure
        batch: Batch = now.batch  # type: ignore[assignment]
        return batch

    def _read(self, batches: Iterator[Batch]) -> _Entry[Batch]:
        try:
            batch = next(batches)
        except Exception as error:  # noqa: BLE001 - raised in its turn
            self._batches = None
            return _Entry(failure=error)
        if not self._looks_up:
            return _Entry(batch)
        try:
            # The step may change its batch in place.
            wanted = [(use.table, use.ids.copy()) for use in self._uses_of(batch)]
        except Exception as error:  # noqa: BLE001 - raised by the lookup
            return _Entry(batch, no_ids=error)
        return _Entry(batch, ahead=_Ahead(wanted, self._pool.submit(self._look_up, wanted)))

    def take(self, uses: Sequence[_Wanted]) -> Found | None:
        """Take the rows of the batch that came last, if these are its ids; once.

        Raises:
            Exception: What the batch's lookup, or the function that tells its ids, has raised.
        """
        now = self._now
        if now.no_ids is not None:
            raise now.no_ids
        if now.ahead is None or not _equal(now.ahead.wanted, uses):
            return None
        ahead, now.ahead = now.ahead, None
        clock = clock_here()
        began = clock.begin()
        rows = ahead.rows.result()()
        clock.end(PULL, began)
        return rows

    def stop(self) -> None:
        """Look up nothing more; the batches go on."""
        for entry in (self._now, *self._entries):
            entry.ahead = entry.no_ids = None
        self._looks_up = False
        self._pool.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Look up nothing more, and forget what was looked up."""
        self._batches, self._now = None, _Entry()
        self._entries.clear()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _equal(wanted: Sequence[tuple[Any, Array]], uses: Sequence[_Wanted]) -> bool:
    return len(wanted) == len(uses) and all(
        table is use.table and np.array_equal(ids, use.ids)
        for (table, ids), use in zip(wanted, uses, strict=True)
    )
