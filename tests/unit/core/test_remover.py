"""Folders removed in the background: nobody waits for one that cannot be removed."""

import logging
import threading
from functools import partial
from pathlib import Path

import pytest

from ropewalk.core.files.temporary import remove_later


def test_a_large_folder_does_not_hold_up_another_one(tmp_path: Path) -> None:
    small_is_removed = threading.Event()

    def remove(path: Path) -> None:
        if path.name == "large":
            assert small_is_removed.wait(10)

    large = remove_later(tmp_path / "large", remove=remove)
    assert remove_later(tmp_path / "small", small_is_removed.set, remove).wait(10)
    assert large.wait(10)


def test_what_cannot_be_removed_is_told_and_whoever_waits_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def remove(path: Path) -> None:
        if path.name == "defect":
            raise ValueError("of ours")
        raise PermissionError(1, "Operation not permitted", "held")

    called: list[str] = []
    with caplog.at_level(logging.WARNING):
        for name in ("defect", "stuck"):
            assert remove_later(tmp_path / name, partial(called.append, name), remove).wait(10)
    assert called == ["defect", "stuck"]
    [line] = [record.message for record in caplog.records if "held" in record.message]
    assert line == (
        f"{tmp_path / 'stuck'} cannot be removed: 'held': Operation not permitted; "
        "the next process of its kind tries again"
    )


def test_folders_go_and_one_that_is_not_there_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a/inner").mkdir(parents=True)
    for name in ("a", "b"):
        assert remove_later(tmp_path / name).wait(10)
    assert list(tmp_path.iterdir()) == []
    assert caplog.messages == []
