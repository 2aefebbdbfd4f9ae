"""Commands in poor surroundings: closed or full streams, few open files, little memory."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import processes
from helpers.waiting import scaled
from ropewalk.core.exit_codes import ExitCode

WriteProgram = Callable[..., str]

# Limits and closed streams are those of a real process; a shell makes them.
pytestmark = [pytest.mark.usefixtures("no_process_left"), pytest.mark.real_start]


def shell(command: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    """A command line, in which ``$W`` is ``ropewalk``."""
    return subprocess.run(
        ["sh", "-c", command],  # noqa: S607 - every machine has it
        cwd=folder,
        env={**os.environ, "W": " ".join(map(str, processes.ROPEWALK))},
        capture_output=True,
        text=True,
        timeout=scaled(60),
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        pytest.param(
            "$W local --workers 1 train.py 5 0 > /dev/full",
            ExitCode.STORAGE,
            "ropewalk: standard output cannot be written: No space left on device",
            id="full output",
        ),
        pytest.param(
            "$W local --workers 1 train.py 5 0 >&-",
            ExitCode.USAGE,
            "ropewalk: standard output is closed",
            id="closed output",
        ),
        pytest.param(
            "$W run train.py 5 0 >&-", ExitCode.USAGE, "standard output is closed", id="of a task"
        ),
        pytest.param(
            "ulimit -n 64; $W local --workers 1 train.py 5 0",
            ExitCode.USAGE,
            "ropewalk: this process may have 64 open files, and a launcher of 3 tasks needs 268",
            id="few open files",
        ),
        pytest.param(
            "ulimit -n 64; $W run train.py 5 0",
            ExitCode.USAGE,
            "64 open files, and a task needs 256",
            id="few open files of a task",
        ),
        pytest.param(
            "ulimit -v 700000; $W local --workers 1 train.py 5 0",
            ExitCode.USAGE,
            "this process may have 716 MB of address space, and a task needs 2000 MB",
            id="little memory",
        ),
    ],
)
def test_it_ends_with_a_sentence_and_a_stated_code(
    write_program: WriteProgram, tmp_path: Path, command: str, code: int, words: str
) -> None:
    write_program()
    done = shell(command, tmp_path)
    assert words in done.stderr
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 5


def test_without_standard_input_and_errors_a_job_runs(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    write_program()
    done = shell("$W local --workers 0 train.py 20 0 <&- 2>&-", tmp_path)
    assert done.returncode == 0, done.stdout
    assert done.stderr == ""
