"""A job's log on disk: read from any offset that was given out, within a bound."""

import shutil
from pathlib import Path

import pytest

from ropewalk.annexes.service import kept as job_log
from ropewalk.annexes.service.kept import JobLog
from ropewalk.annexes.service.nodes import LoggedLine
from ropewalk.core.errors import RefusedError
from ropewalk.core.task import TaskId

W0, PS = TaskId("worker", 0), TaskId("ps", 0)


def read_all(log: JobLog, offset: int = 0) -> list[LoggedLine]:
    lines: list[LoggedLine] = []
    while offset < log.end:
        piece = log.read(offset)
        assert piece.offset > offset
        lines += piece.lines
        offset = piece.offset
    return lines


def test_what_is_read_is_what_was_written_whatever_it_is(tmp_path: Path) -> None:
    log = JobLog(tmp_path)
    written = [
        LoggedLine(W0, "plain"),
        LoggedLine(PS, "ümläut, \N{SNOWMAN} and \x1b[31m", is_error=True),
        LoggedLine(W0, ""),
        LoggedLine(W0, "x" * 60_000),
        LoggedLine(W0, "\0\N{SNOWMAN}" * 60_000),
        LoggedLine(W0, "the last"),
    ]
    for line in written:
        log.append(line)
    assert read_all(log) == written


def test_reading_goes_on_from_an_offset(tmp_path: Path) -> None:
    log = JobLog(tmp_path)
    log.append(LoggedLine(W0, "first"))
    first = log.read(0)
    assert log.read(first.offset).lines == []
    log.append(LoggedLine(W0, "second"))
    assert [line.text for line in log.read(first.offset).lines] == ["second"]
    assert log.read(0).lines == [LoggedLine(W0, "first"), LoggedLine(W0, "second")]


def test_an_offset_within_a_line_is_refused(tmp_path: Path) -> None:
    log = JobLog(tmp_path)
    log.append(LoggedLine(W0, "first"))
    log.append(LoggedLine(W0, "second"))
    with pytest.raises(RefusedError, match="no line of the log begins at offset 3"):
        log.read(3)


def test_the_oldest_lines_make_room_and_the_reader_is_told(tmp_path: Path) -> None:
    log = JobLog(tmp_path, segment_bytes=1000)
    for number in range(2000):
        log.append(LoggedLine(W0, f"line {number}"))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 9 * 1100
    piece = log.read(0)
    assert piece.dropped > 0
    lines = read_all(log)
    assert lines[-1].text == "line 1999"
    assert [int(line.text.split()[1]) for line in lines] == list(range(2000 - len(lines), 2000)), (
        "without a gap"
    )


def test_nothing_is_left_of_a_log_that_was_removed(tmp_path: Path) -> None:
    folder = tmp_path / "log"
    folder.mkdir()
    log = JobLog(folder)
    log.append(LoggedLine(W0, "x"))
    log.remove()
    assert not folder.exists()


@pytest.mark.parametrize("what", ["folder", "file"])
def test_lines_that_a_cleaner_has_removed_are_dropped_and_new_ones_kept(
    tmp_path: Path, what: str
) -> None:
    log = JobLog(tmp_path / "log")
    log.append(LoggedLine(W0, "first"))
    shutil.rmtree(log.folder) if what == "folder" else (log.folder / "0.log").unlink()
    lost = log.end
    assert log.read(0) == job_log.Piece([], lost, lost)
    log.append(LoggedLine(W0, "second"))
    log.append(LoggedLine(W0, "third"))
    piece = log.read(0)
    assert (read_all(log), piece.dropped) == (
        [LoggedLine(W0, "second"), LoggedLine(W0, "third")],
        lost,
    )


def test_lines_before_one_that_was_removed_are_dropped_with_it(tmp_path: Path) -> None:
    log = JobLog(tmp_path / "log", segment_bytes=1)
    for text in ("first", "second", "third"):
        log.append(LoggedLine(W0, text))
    sorted(log.folder.iterdir(), key=lambda path: int(path.stem))[1].unlink()
    assert read_all(log) == [LoggedLine(W0, "third")]
