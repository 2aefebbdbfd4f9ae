"""Folders removed in the background: in turns, and nobody waits for one that cannot be removed."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ropewalk.core.files.remover import Remover
from ropewalk.core.files.tree_removal import Remains

WaitUntil = Callable[..., None]


def test_a_large_folder_does_not_hold_up_another_one(tmp_path: Path) -> None:
    turns: list[str] = []
    both = threading.Event()

    def remove_for(_: float, path: Path) -> Remains | None:
        both.wait(10)
        turns.append(path.name)
        large = path.name == "large" and turns.count("large") < 3
        return Remains() if large else None

    remover = Remover(remove_for)
    first, second = remover.remove(tmp_path / "large"), remover.remove(tmp_path / "small")
    both.set()
    assert first.wait(10)
    assert second.wait(10)
    assert turns == ["large", "small", "large", "large"]


def test_what_cannot_be_removed_is_told_once_and_the_next_one_is_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def remove_for(_: float, path: Path) -> Remains | None:
        if path.name == "defect":
            raise RecursionError("of ours")
        return Remains(3, PermissionError(1, "Operation not permitted", "held"))

    remover = Remover(remove_for)
    (tmp_path / "stuck").mkdir()
    called: list[str] = []
    with caplog.at_level(logging.WARNING):
        events = [
            remover.remove(tmp_path / name, then=lambda name=name: called.append(name))  # type: ignore[misc]
            for name in ("defect", "stuck")
        ]
        assert all(event.wait(10) for event in events)
    assert called == ["defect", "stuck"]
    [line] = [record.message for record in caplog.records if "held" in record.message]
    assert line == (
        f"{tmp_path / 'stuck'} cannot be removed: 'held': Operation not permitted and 2 more; "
        "the next process of its kind tries again"
    )


def test_its_thread_ends_when_nothing_is_left_and_begins_anew(
    tmp_path: Path, wait_until: WaitUntil
) -> None:
    remover = Remover()
    for name in ("a", "b"):
        (tmp_path / name / "inner").mkdir(parents=True)
        assert remover.remove(tmp_path / name).wait(10)
        assert not (tmp_path / name).exists()
        wait_until(lambda: "remover" not in _threads(), 10, "the thread to end")


def _threads() -> list[str]:
    return [thread.name for thread in threading.enumerate()]
