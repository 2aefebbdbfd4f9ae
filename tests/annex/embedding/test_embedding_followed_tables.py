"""Rows that a reader keeps: what a lookup may leave behind, beside a source that is only told."""

from collections.abc import Callable

import numpy as np

from helpers.tables import DIM, F32, table
from ropewalk.annexes.embedding.readers.followed_rows import FollowAnswer, FollowRequest, Position
from ropewalk.annexes.embedding.readers.followed_tables import FollowedTable, ranges_of
from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.rules.definitions import ShardDefinition

KEYS = np.arange(6)


class Source:
    """One ps whose rows all have one value, and which knows which keys changed."""

    def __init__(self) -> None:
        self.value = 0.0
        self.changed_keys = KEYS[:0]
        self.log, self.asked = 1, list[FollowRequest]()
        self.meanwhile: Callable[[], object] = lambda: None

    def shards(self, name: str) -> list[tuple[int, ShardDefinition]]:
        return [(0, ShardDefinition(table(name)))]

    def changed(self, ps: int, request: FollowRequest) -> tuple[FollowAnswer, Array]:
        assert ps == 0
        self.asked.append(request)
        now = Position(self.log, 5)
        if request.position.log != self.log:
            return FollowAnswer(now, unknown=True), KEYS[:0]
        return FollowAnswer(now), self.changed_keys

    def lookup_rows(self, wanted: dict[str, Array]) -> dict[str, tuple[Array, Array | None]]:
        self.meanwhile()
        [(name, keys)] = wanted.items()
        return {name: (np.full((keys.size, DIM), self.value, F32), None)}


def made(source: Source, keys: tuple[tuple[int, int], ...] | Array | None = None) -> FollowedTable:
    followed = FollowedTable(table("t"), keys, 1 << 16, source)
    followed.follow()
    return followed


def look(
    followed: FollowedTable,
    source: Source,
    before_keeping: Callable[[], object],
    keys: Array = KEYS,
) -> Array:
    lookup = followed.rows.begin(keys)
    value = source.value
    before_keeping()
    rows: Array = followed.rows.finish(lookup, np.full((lookup.missing.size, DIM), value, F32))
    return rows


def test_a_lookup_keeps_nothing_that_a_round_has_passed() -> None:
    source = Source()
    followed = made(source)

    def change_and_follow() -> None:
        source.value, source.changed_keys = 1.0, KEYS
        followed.follow()

    assert (look(followed, source, change_and_follow) == 0).all()
    assert len(followed.rows) == 0, "what it has pulled is of before the change"
    assert (look(followed, source, lambda: None) == 1).all()
    assert len(followed.rows) == KEYS.size


def test_a_lookup_during_a_round_keeps_nothing() -> None:
    source = Source()
    followed = made(source)
    look(followed, source, lambda: None)
    source.changed_keys = KEYS
    source.meanwhile = lambda: look(followed, source, lambda: None, KEYS + 10)
    followed.follow()
    assert len(followed.rows) == KEYS.size


def test_rows_are_pulled_again_where_not_all_changes_are_known() -> None:
    source = Source()
    followed = made(source, KEYS[:3])
    assert len(followed.rows) == 3
    source.value, source.log = 1.0, 2  # another ps leads
    followed.follow()
    assert (look(followed, source, lambda: None)[:3] == 1).all()
    followed.follow()
    assert source.asked[-1].position == Position(2, 5)


def test_a_range_asks_for_its_keys_alone() -> None:
    source = Source()
    followed = made(source, ranges_of("t", [(0, 3), (9, 9)]))
    assert {request.ranges for request in source.asked} == {((0, 3), (9, 9))}
    assert [request.position for request in source.asked] == [Position(), Position(1, 0)]
    assert len(followed.rows) == 0, "a table without rows has none to keep"
