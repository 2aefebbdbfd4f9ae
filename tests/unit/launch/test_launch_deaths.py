"""Why a task was killed, and what of a job's status is told in its launcher's output."""

from dataclasses import replace
from pathlib import Path

import pytest

from ropewalk.core.report import Finding
from ropewalk.core.task import Phase, TaskId
from ropewalk.launch.local.result import read_result
from ropewalk.launch.local.tasks import killed_text
from ropewalk.launch.local.watch import ToldFindings
from ropewalk.worker.lead.status import read_status, status_json

from .test_launch_display import job_status

PS = TaskId("ps", 0)


@pytest.mark.parametrize(
    ("code", "now", "text"),
    [
        (-9, 3, "another process has killed it: memory has not run out on this machine meanwhile"),
        (-9, 4, "memory ran out: the kernel has killed 1 process of this machine for that since "
         "the job began (dmesg names them)"),
        (-15, 4, ""),
        (1, 4, ""),
        (None, 4, ""),
    ],
    ids=["killed", "out of memory", "another signal", "failed", "runs"],
)  # fmt: skip
def test_who_killed_a_task_is_said_as_far_as_it_is_known(
    code: int | None, now: int, text: str
) -> None:
    assert killed_text(code, 3, now) == text


def _result(folder: Path, phase: Phase, reason: str, failed: TaskId | None) -> str:
    (folder / "status.json").write_text(status_json(job_status(phase=phase, reason=reason)))
    result = read_result(137, {PS: -9}, str(folder), failed, None, {})
    written = read_status(str(folder))
    assert written == result.status
    assert written is not None
    return f"{written.phase}: {written.reason}"


@pytest.mark.parametrize(
    ("phase", "reason", "failed", "said"),
    [
        (
            "stopped",
            "chief: SIGTERM",
            PS,
            "failed: ps:0 failed: killed by SIGKILL (chief: SIGTERM)",
        ),
        ("running", "", PS, "failed: ps:0 failed: killed by SIGKILL"),
        ("failed", "worker:1 failed", PS, "failed: worker:1 failed"),
        ("stopped", "Ctrl-C", None, "stopped: Ctrl-C"),
    ],
    ids=["the chief was stopped", "the chief was killed", "the chief knows", "no failure"],
)
def test_what_a_job_leaves_says_which_task_failed_first(
    phase: str, reason: str, failed: TaskId | None, said: str, tmp_path: Path
) -> None:
    assert _result(tmp_path, Phase(phase), reason, failed) == said


@pytest.mark.parametrize(
    ("phase", "task", "code"),
    [("stopped", "chief:0", 143), ("stopped", "evaluator:0", 1), ("done", "evaluator:0", 1)],
    ids=["a chief that was asked to stop", "an evaluator of a stopped job", "of one that is done"],
)
def test_a_job_that_was_stopped_or_is_done_is_not_shown_as_failed(
    phase: str, task: str, code: int, tmp_path: Path
) -> None:
    status = status_json(job_status(phase=Phase(phase), reason="why"))
    (tmp_path / "status.json").write_text(status)
    role, _, index = task.partition(":")
    failed = TaskId(role, int(index))
    result = read_result(code, {failed: code}, str(tmp_path), failed, None, {})
    assert result.status is not None
    assert (result.status.phase, result.status.reason) == (Phase(phase), "why")


def test_what_a_job_leaves_says_that_memory_ran_out(tmp_path: Path) -> None:
    (tmp_path / "status.json").write_text(status_json(job_status()))
    errors = {PS: "memory ran out: 1 process\nits last lines:\nsaved x"}
    result = read_result(137, {PS: -9}, str(tmp_path), PS, None, errors)
    assert result.status is not None
    assert result.status.reason == ("ps:0 failed: killed by SIGKILL; memory ran out: 1 process")


def test_a_job_that_left_no_status_gets_none(tmp_path: Path) -> None:
    assert read_result(137, {PS: -9}, str(tmp_path), PS, job_status(), {}).status is not None
    assert not list(tmp_path.iterdir())


def test_a_finding_is_told_once_it_persists_and_again_after_a_while() -> None:
    news, told = ToldFindings(), list[tuple[int, str]]()
    status = job_status(findings=(Finding("straggler", "worker:1", "slow"),))
    for second in range(0, 1300, 5):
        there = 100 <= second < 110 or second >= 200
        now = replace(status, age_s=float(second), findings=status.findings if there else ())
        told += [(second, text) for text in news.of(now)]
    assert told == [(210, "slow"), (810, "slow")]
