"""Lines of tasks lie in files of bounded size, for this user alone, and steer no terminal."""

import re
from pathlib import Path

import pytest

from ropewalk.core.task import TaskId
from ropewalk.launch.local.log_files import LogFiles

WORKER = TaskId("worker", 0)


def test_each_line_has_its_time_and_no_control_sequence(tmp_path: Path) -> None:
    logs = LogFiles(str(tmp_path / "model"))
    logs.write(WORKER, "one \x1b[31mred\x1b[0m\x1b]0;title\x07")
    logs.close()
    path = tmp_path / "model" / "logs" / "worker-0.log"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} one red\n", path.read_text())
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_task_that_is_started_again_goes_on_in_its_file(tmp_path: Path) -> None:
    for text in ("first", "second"):
        logs = LogFiles(str(tmp_path))
        logs.write(WORKER, text)
        logs.close()
    lines = (tmp_path / "logs" / "worker-0.log").read_text().splitlines()
    assert [line[24:] for line in lines] == ["first", "second"]


def test_a_task_that_prints_for_ever_takes_bounded_room(tmp_path: Path) -> None:
    logs = LogFiles(str(tmp_path), full_bytes=1000)
    for number in range(500):
        logs.write(WORKER, f"line {number}")
    logs.close()
    files = {path.name: path.stat().st_size for path in (tmp_path / "logs").iterdir()}
    assert files.keys() == {"worker-0.log", "worker-0.log.1"}
    assert max(files.values()) <= 1000 + 60
    assert (tmp_path / "logs" / "worker-0.log").read_text().endswith(" line 499\n")


def test_a_disk_that_refuses_lines_is_no_failure_of_the_job(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file in the way")
    logs = LogFiles(str(tmp_path))
    logs.write(WORKER, "one")
    logs.write(WORKER, "two")
    assert (tmp_path / "logs").read_text() == "a file in the way"


@pytest.mark.parametrize("url", ["memory://model", "s3://bucket/model"])
def test_a_model_directory_that_is_elsewhere_has_no_log_files(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    LogFiles(url).write(WORKER, "one")
    assert list(tmp_path.iterdir()) == []
