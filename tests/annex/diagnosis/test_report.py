"""A report: what a job has left, in one file of this user's alone."""

import json
import os
import stat
import time
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from ropewalk.annexes.diagnosis.report import report_command, summary, write
from ropewalk.client.chief.calls import JobStatus
from ropewalk.core.errors import ConfigurationError
from ropewalk.core.task import Phase
from ropewalk.core.versions import own_versions
from ropewalk.worker.lead.status import status_json


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """What a job has left that was killed before it wrote a status."""
    folder = tmp_path / "model"
    (folder / "events").mkdir(parents=True)
    lines = [
        {"at": 1.0, "event": "task.began", "task": "worker:0"},
        {"at": 2.0, "event": "ps.broken", "peer": "ps:0", "error": "closed"},
    ]
    text = "".join(f"{json.dumps(line)}\n" for line in lines)
    (folder / "events" / "worker-0.20260101T000000-7.jsonl").write_text(text)
    (folder / "ckpt-0000000003").mkdir()
    (folder / "ckpt-0000000003" / "ps-0.safetensors").write_bytes(b"secret values")
    return folder


def _run(*arguments: object) -> str:
    words = [str(each) for each in arguments]
    done = CliRunner().invoke(report_command, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_a_report_of_a_folder_has_events_and_names_and_no_values(
    model_dir: Path, tmp_path: Path
) -> None:
    target = tmp_path / "r.zip"
    said = _run(model_dir, "-o", target)
    assert "ps.broken peer=ps:0 error=closed" in said
    with zipfile.ZipFile(target) as pack:
        names = set(pack.namelist())
        everything = b"".join(pack.read(name) for name in names)
        listing = pack.read("model_dir.txt").decode()
    assert names == {
        "here.json", "left/worker-0.20260101T000000-7.jsonl", "model_dir.txt", "summary.txt"
    }  # fmt: skip
    assert "13 ckpt-0000000003/ps-0.safetensors" in listing
    assert b"secret values" not in everything
    assert stat.S_IMODE(os.stat(target).st_mode) == 0o600


def test_a_report_of_nothing_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nothing is known of"):
        CliRunner().invoke(report_command, [str(tmp_path / "no")], catch_exceptions=False)
    assert not list(tmp_path.glob("*.zip"))


def test_a_broken_file_of_events_is_told_and_the_rest_is_packed(
    model_dir: Path, tmp_path: Path
) -> None:
    (model_dir / "events" / "worker-1.x.jsonl").write_text("{no json\n")
    (model_dir / "status.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="is not the status"):
        CliRunner().invoke(report_command, [str(model_dir)], catch_exceptions=False)


def test_a_report_is_bounded(tmp_path: Path) -> None:
    write(tmp_path / "r.zip", {f"{number}": "x" for number in range(1500)})
    with zipfile.ZipFile(tmp_path / "r.zip") as pack:
        assert len(pack.namelist()) == 1000


def test_a_summary_has_the_end_and_what_holds_tasks_up() -> None:
    files = {
        "status.json": '{"phase": "failed", "reason": "worker:1 failed", "findings": '
        '[{"text": "worker:0 has finished no step for 40 s"}]}',
        "tasks/worker-0/stacks.txt": "worker:0 (pid 7)\n  => MainThread waits for ps:0\n",
        "tasks/ps-0/stacks.txt": "ps:0 (pid 8)\n  MainThread\n",
        "tasks/ps-0/events.jsonl": "".join(map(_line, ("task.joined", "ps.broken"))),
        "left/ps-0.20260101T000000-8.jsonl": _line("ps.broken"),
        "left/worker-1.20260101T000000-9.jsonl": _line("log.line", level="INFO")
        + _line("log.line", level="ERROR"),
    }
    assert summary(files, ["no chief"]).splitlines() == [
        "the job is failed: worker:1 failed",
        "worker:0 has finished no step for 40 s",
        "worker:0 => MainThread waits for ps:0",
        "tasks/ps-0/events.jsonl: 00:00:00 ps.broken",
        "left/worker-1.20260101T000000-9.jsonl: 00:00:00 log.line level=ERROR",
        "not in it: no chief",
    ]


def _line(name: str, **fields: str) -> str:
    midnight = time.mktime((1970, 1, 2, 0, 0, 0, 0, 0, 0))
    return f"{json.dumps({'at': midnight, 'event': name, **fields})}\n"


def test_a_job_whose_chief_is_gone_does_not_run() -> None:
    said = summary({"status.json": '{"phase": "running"}'}, [])
    assert said == "the job has not ended in order, and its chief does not answer"


def test_no_secret_of_a_status_or_an_event_is_in_a_report(model_dir: Path, tmp_path: Path) -> None:
    text = '{"at": 3.0, "event": "log.line", "level": "ERROR", "text": "401: token=HIDE&page=2"}\n'
    (model_dir / "events" / "worker-1.20260101T000000-8.jsonl").write_text(text)
    reason = "FileNotFoundError: s3://me:HIDE@bucket/data"
    status = JobStatus(Phase.FAILED, reason, 80.0, 7, 0, (), "", 0, own_versions())
    (model_dir / "status.json").write_text(status_json(status))
    said = _run(model_dir, "-o", tmp_path / "r.zip")
    with zipfile.ZipFile(tmp_path / "r.zip") as pack:
        everything = b"".join(pack.read(name) for name in pack.namelist()).decode()
    assert "HIDE" not in said + everything
    assert "s3://…@bucket/data" in said
    assert "401: token=…&page=2" in everything
