"""What a task leaves of its events: after a bad end, and now and then while it runs."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from helpers.processes import ROOT
from helpers.waiting import scaled
from ropewalk.core.errors import StorageError
from ropewalk.core.process import events
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.worker.process import event_file
from ropewalk.worker.process.event_file import KeptEvents, kept_events, read_events

TASK = TaskId("worker", 1)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A model directory that a chief has begun to use."""
    (tmp_path / "status.json").write_text("{}")
    return tmp_path


def _settings(model_dir: Path) -> Settings:
    return Settings(model_dir=str(model_dir))


def test_a_bad_end_leaves_the_events_and_what_the_process_was(model_dir: Path) -> None:
    with kept_events(TASK, _settings(model_dir)) as kept:
        events.record("signal.received", signal="SIGTERM")
        kept.close(is_well=False)
    [(name, lines)] = read_events(str(model_dir)).items()
    assert name.startswith("worker-1.")
    began, *_, last = [line for line in lines if line["event"] in ("task.began", "signal.received")]
    assert {"task", "pid", "host", "version", "python"} <= set(began)
    assert (last["event"], last["signal"]) == ("signal.received", "SIGTERM")


def test_a_good_end_leaves_nothing(model_dir: Path) -> None:
    with kept_events(TASK, _settings(model_dir)) as kept:
        kept.close(is_well=True)
    assert read_events(str(model_dir)) == {}


def test_an_error_is_the_last_event(model_dir: Path) -> None:
    with pytest.raises(StorageError), kept_events(TASK, _settings(model_dir)):
        raise StorageError("the disk is full")
    [lines] = read_events(str(model_dir)).values()
    assert lines[-1]["message"] == "the disk is full"


def test_a_task_without_a_model_directory_of_a_job_makes_none(tmp_path: Path) -> None:
    for folder in ("", str(tmp_path / "missing")):
        with kept_events(TASK, Settings(model_dir=folder)) as kept:
            kept.close(is_well=False)
    assert list(tmp_path.iterdir()) == []


def test_a_killed_task_leaves_what_was_written_while_it_ran(
    model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = threading.Event()
    write = KeptEvents._write

    def note(self: KeptEvents) -> None:
        write(self)
        written.set()

    monkeypatch.setattr(KeptEvents, "_write", note)
    file = KeptEvents(TASK, _settings(model_dir), every_s=0.02)
    file.start()
    events.record("ps.broken", peer="ps:0")
    assert written.wait(10)
    file._over.set()  # as a SIGKILL: nothing more is written
    [lines] = read_events(str(model_dir)).values()
    assert "ps.broken" in {line["event"] for line in lines}


def test_the_last_files_of_a_task_are_kept(model_dir: Path) -> None:
    folder = model_dir / event_file.FOLDER
    folder.mkdir()
    for name in [f"worker-1.2026010{day}T000000-7.jsonl" for day in range(1, 6)]:
        (folder / name).write_text(json.dumps({"event": "task.began"}) + "\n")
    (folder / "worker-10.20260101T000000-7.jsonl").write_text("")
    with kept_events(TASK, _settings(model_dir)) as kept:
        kept.close(is_well=False)
    names = sorted(path.name for path in folder.iterdir())
    assert names[:3] == [
        "worker-1.20260104T000000-7.jsonl",
        "worker-1.20260105T000000-7.jsonl",
        names[2],
    ]
    assert names[3:] == ["worker-10.20260101T000000-7.jsonl"]
    assert len(names) == 4


def test_a_folder_that_cannot_be_written_is_no_error(model_dir: Path) -> None:
    (model_dir / event_file.FOLDER).write_text("a file in its place")
    with kept_events(TASK, _settings(model_dir)) as kept:
        kept.close(is_well=False)
    assert (model_dir / event_file.FOLDER).read_text() == "a file in its place"


_WAITS = """
import signal, sys, time
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.worker.process.event_file import kept_events

signal.signal(signal.SIGQUIT, signal.SIG_IGN)
with kept_events(TaskId("worker", 1), Settings(model_dir=sys.argv[1])):
    print("waits", flush=True)
    time.sleep(600)
"""


def test_a_signal_that_ends_the_process_is_written_first_and_one_that_is_ignored_stays_so(
    model_dir: Path,
) -> None:
    command = [sys.executable, "-c", _WAITS, str(model_dir)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"waits\n"
        process.send_signal(signal.SIGQUIT)
        process.send_signal(signal.SIGHUP)
        assert process.wait(scaled(30)) == -signal.SIGHUP
    [lines] = read_events(str(model_dir)).values()
    assert (lines[-1]["event"], lines[-1]["signal"]) == ("signal.received", "SIGHUP")
