"""Logs that are followed in pieces, and checkpoints, as the page reads them from the folder."""

from pathlib import Path

import pytest

from ropewalk.annexes.dashboard.folder_views import checkpoints, log_lines
from ropewalk.core.task import TaskId
from ropewalk.launch.local.log_files import LogFiles


def texts(piece: dict[str, object]) -> list[str]:
    lines = piece["lines"]
    assert isinstance(lines, list)
    return [line[24:] for _, line in lines]


def test_a_page_that_follows_has_each_line_once_in_the_order_of_time(tmp_path: Path) -> None:
    logs = LogFiles(str(tmp_path))
    seen, after = list[str](), ""
    for number in range(30):
        logs.write(TaskId("worker", number % 3), f"line {number}")
        if number % 4 == 0:
            piece = log_lines(str(tmp_path), after)
            seen, after = seen + texts(piece), piece["after"]
    seen += texts(log_lines(str(tmp_path), after))
    assert sorted(seen) == sorted(f"line {number}" for number in range(30))
    own = [line[24:] for task, line in log_lines(str(tmp_path), "")["lines"] if task == "worker-1"]
    assert own == [f"line {number}" for number in range(1, 30, 3)]
    logs.close()


def test_the_first_piece_is_the_end_of_a_long_file_in_whole_lines(tmp_path: Path) -> None:
    logs = LogFiles(str(tmp_path))
    for number in range(6000):
        logs.write(TaskId("chief", 0), f"line {number}")
    logs.close()
    seen = texts(log_lines(str(tmp_path), ""))
    assert seen[-1] == "line 5999"
    assert len(seen) < 6000
    assert all(text.startswith("line ") for text in seen)


def test_a_line_without_an_end_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "ps-0.log"
    path.write_text(f"{'x' * 23} half")
    piece = log_lines(str(tmp_path), "")
    assert piece["lines"] == []
    with path.open("a") as file:
        file.write(" a line\n")
    assert texts(log_lines(str(tmp_path), str(piece["after"]))) == ["half a line"]


def test_a_line_as_long_as_a_piece_holds_up_none(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "ps-0.log").write_text("y" * 250 + "\nend\n")
    after, seen = "ps-0:0", ""
    for _ in range(5):
        piece = log_lines(str(tmp_path), after, piece_bytes=100)
        after, seen = str(piece["after"]), seen + "".join(line for _, line in piece["lines"])
    assert seen == "y" * 250 + "end"


@pytest.mark.parametrize(
    "after", ["x", "ps-0", "ps-0:-1", "ps-0:1e3", "../../x:0", "ps-0:" + "9" * 99, "," * 9999]
)
def test_an_offset_that_somebody_made_up_reads_nothing_else(tmp_path: Path, after: str) -> None:
    logs = LogFiles(str(tmp_path))
    logs.write(TaskId("ps", 0), "one")
    logs.close()
    (tmp_path / "x.log").write_text("secret\n")
    (tmp_path / "logs" / "worker-1.log").symlink_to(tmp_path / "x.log")
    assert set(texts(log_lines(str(tmp_path), after))) <= {"one"}


def test_without_a_folder_there_are_no_lines_and_no_checkpoints(tmp_path: Path) -> None:
    assert log_lines("", "") == {"lines": [], "after": "", "folder": ""}
    assert log_lines(str(tmp_path), "")["lines"] == []
    assert checkpoints("") == []


def test_a_checkpoint_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    folder = tmp_path / "ckpt-0000000007"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    [shown] = checkpoints(str(tmp_path))
    assert shown["path"] == str(folder)
    assert shown["problem"]
