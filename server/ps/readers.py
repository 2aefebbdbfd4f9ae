"""Readers of one store: which rows changed, and rows of one moment.

A reader holds a session, in which it looks rows up as a worker does. Beside that it asks which rows
changed since it asked last, and pulls those; and it names rows of which it wants the values at the
next cut. What that costs is kept for as long as any reader has a session here, and no longer.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.errors import LimitExceededError
from ...core.task import Incarnation
from ...core.wire.followed_rows import FollowAnswer, FollowRequest, Position, within
from ...engine.row_changes import ChangeMark
from .layout import Layout
from .store import Store

_PLACES = 1 << 17  # looked at under the lock at a time: half a megabyte of positions
_MOST_PLACES = 1 << 22  # in one answer
_ENOUGH_KEYS = 1 << 16  # for one answer
_NAMED_MESSAGES = 16  # of max_message_bytes: rows that all readers have named
_GONE = 1 << 62  # from this cursor on come keys whose rows are gone


_NO_KEYS = np.empty(0, np.int64)


@dataclass(slots=True)
class NamedRows:
    """Rows that a reader wants of the next cut.

    Attributes:
        reader: The reader.
        layout: Places of the rows.
        rows: Keys or numbers of rows, by range of the layout.
    """

    reader: Incarnation
    layout: Layout = field(default_factory=Layout)
    rows: Sequence[Array] = ()


class Readers:
    """The readers that have sessions with a store. Thread-safe.

    Args:
        store: The variables.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._wanted: list[NamedRows] = []

    @contextmanager
    def session(self, reader: Incarnation) -> Iterator[NamedRows]:
        """Open a reader's session; after the last one nothing is noted for readers any more."""
        wanted = NamedRows(reader)
        with self._lock:
            self._wanted.append(wanted)
        try:
            yield wanted
        finally:
            with self._lock:
                # By identity: two readers that want nothing are equal.
                self._wanted = [each for each in self._wanted if each is not wanted]
                if not self._wanted:
                    self._store.table.unfollow(self)

    # -- changed rows --------------------------------------------------------------------------

    def changed(self, request: FollowRequest) -> tuple[FollowAnswer, Array]:
        """Find rows that changed; returns also their keys, int64.

        Raises:
            UnknownVariableError: The shard is not held here.
            LimitExceededError: There is no memory left to note changes in.
        """
        target, entry = self._store.table.target_of((request.variable, request.part))
        changes = self._store.table.follow(target, entry, self)
        position, cursor, now = request.position, request.cursor, Position(changes.log)
        since = ChangeMark(changes, position.since)
        with target.lock:
            if position.log != changes.log or not target.knows(since, entry):
                now = Position(changes.log, changes.advance())
                return FollowAnswer(now, unknown=True), _NO_KEYS
            if not cursor:
                now = Position(changes.log, changes.advance())
            if cursor >= _GONE:
                start = cursor - _GONE
                keys = changes.removed_since(position.since, start, _ENOUGH_KEYS)
                following = cursor + keys.size if keys.size == _ENOUGH_KEYS else 0
                return FollowAnswer(now, following), keys[within(keys, request.ranges)]
            cursor = min(cursor, target.places(entry))
        parts, found, most = [_NO_KEYS], 0, cursor + _MOST_PLACES
        while cursor < most and found < _ENOUGH_KEYS:
            with target.lock:
                # The share is led elsewhere now, or more keys went than are remembered.
                if not target.knows(since, entry):
                    return FollowAnswer(unknown=True), _NO_KEYS
                keys = target.changed_keys(entry, position.since, cursor, cursor + _PLACES)
                cursor += _PLACES
                is_last = cursor >= target.places(entry)
                has_gone = changes.removed_since(position.since, 0, 1).size > 0
            parts.append(keys[within(keys, request.ranges)])
            found += parts[-1].size
            if is_last:
                cursor = _GONE if has_gone else 0
                break
        return FollowAnswer(now, cursor), np.concatenate(parts)

    # -- rows of one moment --------------------------------------------------------------------

    def want(self, wanted: NamedRows, layout: Layout, rows: Sequence[Array]) -> None:
        """Name the rows of which a reader wants the values at the next cut.

        Raises:
            LimitExceededError: They do not fit an answer, or all readers have named too many.
            ShapeMismatchError: The number of a row is out of range.
        """
        layout.check_rows(rows, self._store.task)
        sizes = zip(layout.ranges, rows, strict=True)
        total = sum(part.numbered_bytes(numbers.size) for part, numbers in sizes)
        most = self._store.settings.max_message_bytes
        if total > most:
            raise LimitExceededError(
                f"{self._store.task}: {total} bytes of rows are wanted of one moment, more than "
                f"max_message_bytes={most}; ask for fewer ids at once",
                limit="max_message_bytes",
                value=total,
            )
        named, room = sum(part.nbytes for part in rows), _NAMED_MESSAGES * most
        with self._lock:
            others = [each for each in self._wanted if each is not wanted]
            named += sum(part.nbytes for each in others for part in each.rows)
            if named > room:
                raise LimitExceededError(
                    f"{self._store.task}: readers have named rows in {named} bytes, more than "
                    f"{_NAMED_MESSAGES} times max_message_bytes; ask for fewer ids at once, or "
                    "when others have read theirs",
                    limit="max_message_bytes",
                    value=named,
                )
            wanted.layout, wanted.rows = layout, rows

    def rows_of(self, reader: Incarnation | None) -> list[Array]:
        """Copy the rows that a reader has named last.

        The caller lets no push be applied.
        """
        with self._lock:
            named = [each for each in self._wanted if each.reader == reader and each.rows]
        if not named:
            return []
        return self._store.read(named[-1].layout, named[-1].rows)
