"""Messages of a reader's session beside its steps: see :mod:`ropewalk.server.ps.readers`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from ...core.arrays.dtypes import Array, as_bytes
from ...core.errors import LimitExceededError, RefusedError, RopewalkError
from ...core.task import Incarnation
from ...core.wire import error_table
from ...core.wire.bounds import MAX_NAME_BYTES, check_text
from ...core.wire.followed_rows import FollowAnswer, answer_to_wire, request_from_wire
from ...core.wire.steps import Encoding, LayoutEntry, Operation
from ...engine.push_target import RowsByKey
from ...net.connection import Connection, Lender
from ...proto.v1 import session_pb2
from .layout_compiler import compile_layout
from .readers import NamedRows, Readers
from .session_service import HandleMessage, ServeReader
from .store import Store

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
