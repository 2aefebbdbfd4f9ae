"""Readers of a store: which rows changed, piece by piece, and rows of one moment."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import pytest

from helpers.tables import DIM, F32, gradients, table
from ropewalk.annexes.embedding.readers.followed_rows import FollowRequest, Position
from ropewalk.annexes.embedding.server.readers import Readers
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.step import Step
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.errors import (
    CutVoidError,
    LimitExceededError,
    PermissionDeniedError,
    ShapeMismatchError,
)
from ropewalk.core.rules.definitions import VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, TaskId
from ropewalk.core.wire.steps import Encoding, LayoutEntry, Operation
from ropewalk.distribute.local_ps import LocalPs
from ropewalk.server.ps.layout import compile_layout
from ropewalk.server.ps.store import Store

WHO = Incarnation(TaskId("worker", 0), 1)
READER = Incarnation(TaskId("reader", 1), 1)
ROWS = 300_000
ARRAY = VariableDefinition("w", (ROWS, 1), F32, Initializer("zeros"))


def training(
    *definitions: VariableDefinition, max_ps_bytes: int = 1 << 30, max_message_bytes: int = 1 << 24
) -> tuple[Store, ParameterSession]:
    settings = Settings(max_ps_bytes=max_ps_bytes, max_message_bytes=max_message_bytes)
    store = Store(TaskId("ps", 0), settings)
    session = ParameterSession([LocalPs(store.task, WHO, settings, store)], WHO, settings)
    session.connect()
    session.define(definitions, {}, create=True)
    return store, session


def cut_rows(store: Store, number: int, reader: Incarnation) -> None:
    from ropewalk.annexes.moments.server.cuts import ShareCuts

    """Take a cut of the rows that a reader has named; with no workers it is taken at once."""

    def rows() -> Sequence[Array]:
        return store.part(Readers).rows_of(reader)

    cuts = store.part(ShareCuts)
    cuts.begin(number, set(), 1.0, with_slots=False, reader=reader, rows=rows)


def asked(
    store: Store, name: str, since: Position, ranges: tuple[tuple[int, int], ...] = ()
) -> tuple[Position, list[Array], bool]:
    """All answers to a question: (position, keys of each answer, whether it is unknown)."""
    cursor, parts, first = 0, [], Position()
    while True:
        request = FollowRequest(name, 0, since, cursor, ranges)
        answer, keys = store.part(Readers).changed(request)
        first = first if cursor else answer.position
        parts.append(keys)
        cursor = answer.next
        if not cursor:
            return first, parts, answer.unknown


def test_changes_of_many_rows_come_in_pieces() -> None:
    store, _ = training(ARRAY)
    with store.part(Readers).session(READER):
        position, parts, unknown = asked(store, "w", Position())
        assert unknown
        assert [part.size for part in parts] == [0]
        position, parts, unknown = asked(store, "w", Position(position.log, 0))
        assert not unknown
        assert max(part.size for part in parts) < ROWS
        assert np.array_equal(np.concatenate(parts), np.arange(ROWS))
        _, parts, _ = asked(store, "w", Position(position.log, 0), ((5, 9), (299_999, 2**63 - 1)))
        assert np.concatenate(parts).tolist() == [5, 6, 7, 8, 9, 299_999]


def test_keys_that_are_gone_come_in_pieces() -> None:
    store, session = training(table("t", max_rows=1 << 21))
    keys = np.arange(70_000)
    with store.part(Readers).session(READER):
        position, _, _ = asked(store, "t", Position())
        session.step(Step(gradients(t=(keys, np.ones((keys.size, DIM), F32)))))
        position, parts, _ = asked(store, "t", position)
        assert np.array_equal(np.sort(np.concatenate(parts)), keys)
        [part] = store.table.tables()
        part.table.evict(keys)  # type: ignore[attr-defined]
        _, parts, unknown = asked(store, "t", position)
        assert not unknown
        assert max(part.size for part in parts) < keys.size
        assert np.array_equal(np.sort(np.concatenate(parts)), keys)


@pytest.mark.parametrize("cursor", [1, ROWS - 1, ROWS, 2**40, 2**62, 2**64 - 1])
def test_a_cursor_of_nowhere_is_answered(cursor: int) -> None:
    store, _ = training(ARRAY)
    with store.part(Readers).session(READER):
        position, _, _ = asked(store, "w", Position())
        answer, keys = store.part(Readers).changed(FollowRequest("w", 0, position, cursor))
        assert (answer.next, keys.size) == (0, 0)


def test_positions_of_another_log_mean_nothing() -> None:
    store, _ = training(ARRAY)
    with store.part(Readers).session(READER):
        first, _, _ = asked(store, "w", Position())
    with store.part(Readers).session(READER):  # the last reader had left
        again, _, unknown = asked(store, "w", first)
        assert unknown
        assert again.log != first.log


def test_what_is_followed_counts_as_memory_of_the_ps_and_gives_way() -> None:
    store, _ = training(ARRAY, max_ps_bytes=4 * ROWS + 1000)
    with (
        store.part(Readers).session(READER),
        pytest.raises(LimitExceededError, match="max_ps_bytes"),
    ):
        asked(store, "w", Position())
    store, session = training(ARRAY, max_ps_bytes=12 * ROWS - 1)
    with store.part(Readers).session(READER):
        asked(store, "w", Position())
        session.define([replace(ARRAY, name="v")], {}, create=True)  # training comes first
        with pytest.raises(LimitExceededError, match="max_ps_bytes"):
            asked(store, "w", Position())


@pytest.mark.annex("moments")
def test_rows_of_a_cut_are_those_of_its_moment() -> None:
    from ropewalk.annexes.moments.server.cuts import ShareCuts

    store, session = training(ARRAY, table("t"))
    entries = [
        LayoutEntry("w", 0, Operation.PULL, Encoding.ROWS),
        LayoutEntry("t", 0, Operation.PULL, Encoding.KEYS),
    ]
    rows = [np.array([3, 5]), np.array([-7])]
    with store.part(Readers).session(READER) as wanted:
        store.part(Readers).want(wanted, compile_layout(store.table, entries), rows)
        cut_rows(store, 1, READER)
        before = session.rows.lookup("t", np.array([-7]))
        session.step(Step(gradients(t=(np.array([-7]), np.ones((1, DIM), F32)))))
        assert (session.rows.lookup("t", np.array([-7])) < before).all()
        image = store.part(ShareCuts).kept(1, READER)
        values = image.take_rows()
        assert [each.tolist() for each in values] == [[0, 0], before[0].tolist()]
        assert image.blocks == [], "nothing else is kept"
        with pytest.raises(CutVoidError, match="no rows that were named"):
            image.take_rows()
        # The first one was void.
        cut_rows(store, 2, READER)
        now = session.rows.lookup("t", np.array([-7]))
        assert store.part(ShareCuts).kept(2, READER).take_rows()[1].tolist() == now[0].tolist()


@pytest.mark.annex("moments")
def test_rows_of_a_cut_that_is_over_or_of_another_reader_are_not_kept() -> None:
    from ropewalk.annexes.moments.server.cuts import ShareCuts

    store, _ = training(ARRAY)
    layout = compile_layout(store.table, [LayoutEntry("w", 0, Operation.PULL, Encoding.ROWS)])
    with store.part(Readers).session(READER) as wanted:
        store.part(Readers).want(wanted, layout, [np.array([1])])
        other = Incarnation(TaskId("reader", 2), 1)
        cut_rows(store, 1, other)
        with pytest.raises(PermissionDeniedError, match="was taken for /job:reader/task:2"):
            store.part(ShareCuts).kept(1, READER)
        with pytest.raises(CutVoidError):
            store.part(ShareCuts).kept(1, other).take_rows()
        cut_rows(store, 2, READER)
        image = store.part(ShareCuts).kept(2, READER)
        store.part(ShareCuts).end(2)
        with pytest.raises(CutVoidError):
            image.take_rows()


def test_what_all_readers_have_named_has_a_bound() -> None:
    store, _ = training(ARRAY, max_message_bytes=1 << 16)
    layout = compile_layout(store.table, [LayoutEntry("w", 0, Operation.PULL, Encoding.ROWS)])
    rows = [np.zeros(1 << 13, np.int64)]
    with ExitStack() as sessions:
        others = [sessions.enter_context(store.part(Readers).session(READER)) for _ in range(17)]
        for each in others[:16]:
            store.part(Readers).want(each, layout, rows)
        store.part(Readers).want(others[0], layout, rows)  # in the place of those of before
        with pytest.raises(LimitExceededError, match="readers have named rows"):
            store.part(Readers).want(others[16], layout, rows)
        others[0].rows = ()  # read
        store.part(Readers).want(others[16], layout, rows)


def test_more_rows_than_fit_an_answer_are_not_kept() -> None:
    store, _ = training(ARRAY, max_message_bytes=64 * 1024)
    layout = compile_layout(store.table, [LayoutEntry("w", 0, Operation.PULL, Encoding.ROWS)])
    with store.part(Readers).session(READER) as wanted:
        with pytest.raises(LimitExceededError, match="max_message_bytes"):
            store.part(Readers).want(wanted, layout, [np.arange(20_000)])
        with pytest.raises(ShapeMismatchError, match="out of range"):
            store.part(Readers).want(wanted, layout, [np.array([ROWS])])
