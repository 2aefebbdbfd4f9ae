"""Changes of rows: none is forgotten between two questions, and what is remembered is bounded."""

import numpy as np
import pytest

from ropewalk.core.arrays.dtypes import Array
from ropewalk.core.rules.definitions import ShardDefinition, VariableDefinition
from ropewalk.core.rules.initializers import Initializer
from ropewalk.engine.block import Block
from ropewalk.engine.row_changes import RowChanges


def changed(changes: RowChanges, since: int, rows: int = 10) -> list[int]:
    found: list[int] = changes.since(since, 0, rows).tolist()
    return found


def gone(changes: RowChanges, since: int) -> list[int]:
    found: list[int] = changes.removed_since(since, 0, 1 << 30).tolist()
    return found


def keys(*some: int) -> Array:
    return np.array(some, np.int64)


def test_a_position_has_the_changes_of_after_its_question() -> None:
    changes = RowChanges(10)
    changes.note(keys(1, 2))
    first = changes.advance()
    changes.note(keys(2, 7))
    changes.note_removed(keys(-4))
    second = changes.advance()
    changes.note(keys(8, 9))
    assert changed(changes, first) == [2, 7, 8, 9]
    assert changed(changes, second) == [8, 9]
    assert changed(changes, 0) == list(range(10))
    assert changes.since(first, 3, 9).tolist() == [7, 8]
    assert (gone(changes, first), gone(changes, second)) == ([-4], [])


def test_rows_that_changed_again_since_a_later_mark_are_left_out_of_a_pass() -> None:
    changes = RowChanges(10)
    first = changes.advance()
    changes.note(keys(2, 7))
    second = changes.advance()
    changes.note(keys(7, 8))
    assert changes.since(first, 0, 10, before=second).tolist() == [2]
    assert changes.since(0, 1, 9, before=second).tolist() == [1, 2, 3, 4, 5, 6]
    assert changes.since(second, 0, 10).tolist() == [7, 8]


def test_more_removed_keys_are_remembered_if_that_is_asked_for() -> None:
    changes = RowChanges(10)
    changes.remember_removed(4200)
    first = changes.advance()
    changes.note_removed(np.arange(4200))
    assert changes.knows(first)
    changes.note_removed(keys(5))
    assert not changes.knows(first)


def test_removed_keys_are_read_in_pieces() -> None:
    changes = RowChanges(10)
    position = changes.advance()
    for start in range(0, 90, 30):
        changes.note_removed(np.arange(start, start + 30))
    pieces = [changes.removed_since(position, start, 40).tolist() for start in (0, 40, 80, 120)]
    assert [key for piece in pieces for key in piece] == list(range(90))
    assert [len(piece) for piece in pieces] == [40, 40, 10, 0]
    assert changes.removed_since(position, 2**64, 40).size == 0


def test_a_position_of_before_the_log_of_removed_keys_is_unknown() -> None:
    changes = RowChanges(10)
    first = changes.advance()
    changes.note_removed(np.arange(4000))
    second = changes.advance()
    changes.note_removed(np.arange(200))
    assert not changes.knows(first)
    assert changes.knows(second)
    assert changes.knows(0), "all rows that are there can always be read"
    assert not changes.knows(changes.position + 1)
    assert gone(changes, second) == list(range(200))


def test_a_batch_beyond_the_log_makes_all_before_unknown() -> None:
    changes = RowChanges(10)
    first = changes.advance()
    changes.note_removed(np.arange(5000))
    assert not changes.knows(first)
    assert changes.knows(changes.advance())


@pytest.mark.parametrize("rows", [1, 1 << 20])
def test_its_memory_is_what_was_counted(rows: int) -> None:
    changes = RowChanges(rows)
    for start in range(20):
        changes.note_removed(np.arange(start * 10_000, (start + 1) * 10_000))
    held = sum(each.nbytes for _, each in changes._removed) + 4 * rows
    assert held <= changes.num_bytes
    assert RowChanges(rows, removes=False).num_bytes == 4 * rows


def test_a_change_of_all_rows_is_one_for_each_of_them() -> None:
    changes = RowChanges(10)
    first = changes.advance()
    changes.note(None)
    second = changes.advance()
    changes.note(keys(4))
    assert changed(changes, first) == list(range(10))
    assert changes.since(first, 8, 20).tolist() == [8, 9]
    assert changed(changes, second) == [4]


def test_versions_that_were_not_noted_are_changes_of_all_rows() -> None:
    changes = RowChanges(10, removes=False, version=7)
    first = changes.advance()
    changes.note_version(8, keys(3))
    changes.note_version(8)
    assert changed(changes, first) == [3]
    second = changes.advance()
    changes.note_version(10, keys(5))
    assert changed(changes, second) == list(range(10))


def test_keys_that_went_before_a_position_are_apart() -> None:
    changes = RowChanges(10)
    first = changes.advance()
    changes.note_removed(keys(1))
    second = changes.advance()
    changes.note_removed(keys(2))
    assert [each.tolist() for each in changes.removed_parts(first, second)] == [[1]]
    assert [each.tolist() for each in changes.removed_parts(first)] == [[1], [2]]


def test_several_holders_ask_since_moments_of_their_own() -> None:
    definition = VariableDefinition("w", (10, 1), np.dtype(np.float32), Initializer("zeros"))
    block = Block([ShardDefinition(definition)])
    one, other = block.follow(0, "one"), block.follow(0, "other")
    assert one is other
    block.unfollow("one")
    assert block.changes == {0: other}
    assert block.followed_bytes == 40
    block.unfollow("other")
    assert block.followed_bytes == 0
