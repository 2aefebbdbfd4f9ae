"""Changes of rows: none is forgotten between two questions, and what is remembered is bounded."""

import numpy as np
import pytest

from windlass.core.arrays.dtypes import Array
from windlass.engine.changed_rows import ChangedRows


def changed(changes: ChangedRows, since: int, rows: int = 10) -> list[int]:
    found: list[int] = changes.since(since, 0, rows).tolist()
    return found


def gone(changes: ChangedRows, since: int) -> list[int]:
    found: list[int] = changes.removed_since(since, 0, 1 << 30).tolist()
    return found


def keys(*some: int) -> Array:
    return np.array(some, np.int64)


def test_a_position_has_the_changes_of_after_its_question() -> None:
    changes = ChangedRows(10)
    changes.note(keys(1, 2))
    first = changes.advance()
    changes.note(keys(2, 7))
    changes.note_removed(keys(-4))
    second = changes.advance()
    changes.note(slice(8, 10))
    assert changed(changes, first) == [2, 7, 8, 9]
    assert changed(changes, second) == [8, 9]
    assert changed(changes, 0) == list(range(10))
    assert changes.since(first, 3, 9).tolist() == [7, 8]
    assert (gone(changes, first), gone(changes, second)) == ([-4], [])


def test_removed_keys_are_read_in_pieces() -> None:
    changes = ChangedRows(10)
    position = changes.advance()
    for start in range(0, 90, 30):
        changes.note_removed(np.arange(start, start + 30))
    pieces = [changes.removed_since(position, start, 40).tolist() for start in (0, 40, 80, 120)]
    assert [key for piece in pieces for key in piece] == list(range(90))
    assert [len(piece) for piece in pieces] == [40, 40, 10, 0]
    assert changes.removed_since(position, 2**64, 40).size == 0


def test_a_position_of_before_the_log_of_removed_keys_is_unknown() -> None:
    changes = ChangedRows(10)
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
    changes = ChangedRows(10)
    first = changes.advance()
    changes.note_removed(np.arange(5000))
    assert not changes.knows(first)
    assert changes.knows(changes.advance())


@pytest.mark.parametrize("rows", [1, 1 << 20])
def test_its_memory_is_what_was_counted(rows: int) -> None:
    changes = ChangedRows(rows)
    for start in range(20):
        changes.note_removed(np.arange(start * 10_000, (start + 1) * 10_000))
    held = sum(each.nbytes for _, each in changes._removed) + 4 * rows
    assert held <= changes.num_bytes
    assert ChangedRows(rows, removes=False).num_bytes == 4 * rows
