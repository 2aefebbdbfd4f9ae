"""Readers of one store: which rows changed, and rows of one moment.

A reader holds a session, in which it looks rows up as a worker does. Beside that it asks which rows
changed since it asked last, and pulls those; and it names rows of which it wants the values at the
next cut. What that costs is kept for as long as any reader has a session here, and no longer.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from ....core.arrays.dtypes import Array, as_bytes
from ....core.errors import LimitExceededError, RefusedError, RopewalkError
from ....core.task import Incarnation
from ....core.wire import error_table
from ....core.wire.bounds import MAX_NAME_BYTES, check_text
from ....core.wire.steps import Encoding, LayoutEntry, Operation
from ....engine.push_target import RowsByKey
from ....engine.row_changes import ChangeMark
from ....net.connection import Connection, Lender
from ....proto.v1 import session_pb2
from ....server.ps.layout import Layout, compile_layout
from ....server.ps.session_service import HandleMessage, ServeReader
from ....server.ps.store import Store
from ..readers.followed_rows import (
    FollowAnswer,
    FollowRequest,
    Position,
    answer_to_wire,
    request_from_wire,
    within,
)

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


# -- Messages of a reader's session beside its steps --------------------------------------------

KeptRows = Callable[[Store, int, Incarnation], Sequence[Array]]
"""Takes the rows of a cut that a reader has named."""

_ID_BYTES = 8


def reader_sessions(kept_rows: KeptRows) -> ServeReader:
    """Make what serves a reader beside its steps, for as long as its session lasts."""

    @contextmanager
    def serve(
        connection: Connection, store: Store, who: Incarnation, check: Callable[[str], None]
    ) -> Iterator[HandleMessage]:
        with store.part(Readers).session(who) as wanted:
            yield ReaderMessages(connection, store, wanted, check, kept_rows).handle

    return serve


class ReaderMessages:
    """Carries out a reader's messages on one connection, in order. What is refused is answered.

    Args:
        connection: Connection of the reader.
        store: The variables.
        wanted: Rows that it wants of one moment.
        check: Refuses an operation that this reader may not.
        kept_rows: Takes the rows of a cut.
    """

    def __init__(
        self,
        connection: Connection,
        store: Store,
        wanted: NamedRows,
        check: Callable[[str], None],
        kept_rows: KeptRows,
    ) -> None:
        self._kept_rows = kept_rows
        self._connection = connection
        self._store = store
        self._wanted = wanted
        self._check = check

    def handle(self, message: session_pb2.ClientMessage, kind: str | None, lend: Lender) -> bool:
        """Carry out a message; returns whether it is one of a reader's."""
        if kind == "follow_rows":
            self._check("read FOLLOW")
            self._follow(message.follow_rows)
        elif kind == "keep_rows":
            self._check("read KEEP")
            self._keep(message.keep_rows, lend)
        elif kind == "read_kept_rows":
            self._check("read KEEP")
            self._read_kept(message.read_kept_rows.cut)
        else:
            return False
        return True

    def _follow(self, message: session_pb2.FollowRows) -> None:
        keys = np.empty(0, np.int64)
        try:
            answer, keys = self._store.part(Readers).changed(request_from_wire(message))
            # As for a pull: a ps that leads no more knows nothing of later changes.
            self._store.confirm_read()
        except RopewalkError as error:
            answer, keys = FollowAnswer(error=error), np.empty(0, np.int64)
        wire = answer_to_wire(answer)
        wire.payload_bytes = keys.nbytes
        self._send(session_pb2.ServerMessage(followed_rows=wire), [keys])

    def _keep(self, message: session_pb2.KeepRows, lend: Lender) -> None:
        answer = session_pb2.KeptRows()
        waiting, most = self._connection.unread_bytes, self._store.settings.max_message_bytes
        if waiting > most:  # it is not read, so the session is over
            raise LimitExceededError(
                f"{self._store.task}: a reader names rows in {waiting} bytes, more than "
                f"max_message_bytes={most}; ask for fewer ids at once",
                limit="max_message_bytes",
                value=waiting,
            )
        try:
            self._want(message.entries, lend)
        except RopewalkError as error:
            self._connection.skip()
            answer.error.CopyFrom(error_table.to_detail(error))
        self._send(session_pb2.ServerMessage(kept_rows=answer), [])

    def _want(self, entries: Sequence[session_pb2.KeptEntry], lend: Lender) -> None:
        total = sum(each.rows for each in entries)
        waiting = self._connection.unread_bytes
        if not entries or waiting != total * _ID_BYTES:
            raise RefusedError(
                f"{waiting} bytes follow a message that names {total} rows of {_ID_BYTES} bytes in "
                f"{len(entries)} shards"
            )
        named = {(each.variable, each.part) for each in entries}
        if len(named) < len(entries) or not all(each.rows for each in entries):
            raise RefusedError("a reader names each shard once, and rows of it")
        ids = np.frombuffer(bytes(self._connection.read(waiting, lend)), np.int64)
        layout = compile_layout(self._store.table, [self._entry(each) for each in entries])
        ends = np.cumsum([each.rows for each in entries], dtype=np.int64)[:-1]
        self._store.part(Readers).want(self._wanted, layout, np.split(ids, ends))

    def _entry(self, message: session_pb2.KeptEntry) -> LayoutEntry:
        check_text(message.variable, MAX_NAME_BYTES, "the name of a variable", "a reader")
        target, _ = self._store.table.target_of((message.variable, message.part))
        encoding = Encoding.KEYS if isinstance(target, RowsByKey) else Encoding.ROWS
        return LayoutEntry(message.variable, message.part, Operation.PULL, encoding)

    def _read_kept(self, cut: int) -> None:
        answer, values = session_pb2.KeptRows(), list[Array]()
        try:
            values += self._kept_rows(self._store, cut, self._wanted.reader)
            self._wanted.rows = ()
            self._store.confirm_read()
        except RopewalkError as error:
            values = []
            answer.error.CopyFrom(error_table.to_detail(error))
        answer.payload_bytes = sum(each.nbytes for each in values)
        self._send(session_pb2.ServerMessage(kept_rows=answer), values)

    def _send(self, message: session_pb2.ServerMessage, parts: Sequence[Array]) -> None:
        size = sum(part.nbytes for part in parts)
        self._store.count_bytes(sent=size)
        data = [as_bytes(part) for part in parts]
        self._connection.send([message.SerializeToString()], data, size)


def rows_of(store: Store, who: Incarnation | None) -> Sequence[Array]:
    """Copy the rows that a reader has named; the caller lets no push be applied."""
    return store.part(Readers).rows_of(who)
