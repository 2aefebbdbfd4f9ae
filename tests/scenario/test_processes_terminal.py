"""What somebody sees of a local job: in a terminal of 80 columns, and in a pipe."""

import json
import os
import pty
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers import processes
from helpers.waiting import scaled

RunCli = Callable[..., subprocess.CompletedProcess[str]]
StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]
WaitUntil = Callable[..., None]
WriteProgram = Callable[..., str]

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]
QUICK = ("--heartbeat-s", "0.1")
ENDLESS = ("1000000", "0.02")
LINES = 25


class Terminal:
    """What a process has written to a terminal of 80 columns."""

    def __init__(self, process: subprocess.Popen[Any], master: int) -> None:
        self.process = process
        self._data = b""
        self._reader = threading.Thread(target=self._read, args=(master,), daemon=True)
        self._reader.start()

    def _read(self, master: int) -> None:
        try:
            while data := os.read(master, 65536):
                self._data += data
        except OSError:
            return  # Linux: the other side is closed

    def wait(self) -> int:
        code: int = self.process.wait(scaled(60))
        self._reader.join(10)
        return code

    @property
    def lines(self) -> list[str]:
        """Every line that was shown at some time, without colours."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._data.decode(errors="replace"))
        return [line.rstrip() for line in re.split(r"[\r\n]+", plain) if line.strip()]

    @property
    def kept(self) -> list[str]:
        """The lines that stay: not those of the progress bar."""
        return [line for line in self.lines if "━" not in line and not line.startswith("starting")]


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = processes.start(
        [*processes.ROPEWALK, *arguments],
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "40"},
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        os.close(master)


def shown_of_a_failure(folder: Path, program: str, *, exit_code: int) -> str:
    """What a terminal shows of a job whose program fails; few lines but those of the tasks."""
    with terminal(
        folder, "local", *QUICK, "--workers", "2", "--ps", "2", program, *ENDLESS
    ) as shown:
        assert shown.wait() == exit_code
        text = "\n".join(shown.kept)
    own = [line for line in shown.kept if not re.match(r" *\w+:\d │", line)]
    assert len(own) <= LINES, text
    return text


def test_a_mistake_in_the_program_is_shown_once_in_at_most_25_lines(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    program = write_program(replace={"x @ w.read_value()": "x @ np.ones(7)"})
    text = shown_of_a_failure(tmp_path, program, exit_code=1)
    assert text.count("Traceback") == 1
    assert text.count("ValueError: matmul") == 1
    assert "failed first: exit code 1, the user's program raised an exception" in text
    assert "calls inside ropewalk" in text
    assert "strategies/" not in text


def test_so_it_is_in_a_pipe(write_program: WriteProgram, run_cli: RunCli) -> None:
    program = write_program("raise ValueError('no good')")
    done = run_cli("local", *QUICK, "--workers", "2", program, *ENDLESS)
    assert done.returncode == 1
    assert done.stdout.count("Traceback") == done.stdout.count("ValueError: no good") == 1
    assert len(done.stdout.splitlines()) <= LINES + 5, done.stdout  # and 5 that the program wrote


def test_the_bar_of_a_terminal_of_80_columns_is_one_line_with_what_is_reported(
    write_program: WriteProgram, tmp_path: Path, wait_until: WaitUntil
) -> None:
    last = "while strategy.global_step < STEPS"
    program = write_program(
        "rw.training.report(accuracy=0.25)",
        replace={
            "import sys": "import os\nimport sys",
            last: f"{last} or not os.path.exists('seen')",
        },
    )
    reported = re.compile(r"running [━╸╺]+ step \d+/150 .*loss [\d.e-]+ · accuracy 0.25")
    with terminal(tmp_path, "local", *QUICK, program, "150", "0.02") as shown:
        wait_until(lambda: any(map(reported.search, shown.lines)), 30, "the bar of a step")
        (tmp_path / "seen").touch()
        assert shown.wait() == 0
    bars = [line for line in shown.lines if "━" in line and "step" in line]
    assert max(map(len, bars)) <= 80
    assert not any("done" in line and "steps/s" in line for line in shown.lines)


def test_ctrl_c_is_one_line_and_the_end_says_how_to_resume(
    write_program: WriteProgram, tmp_path: Path, wait_until: WaitUntil
) -> None:
    program = write_program()
    with terminal(tmp_path, "local", *QUICK, "--workers", "2", program, *ENDLESS) as shown:
        wait_until(lambda: "has done 5 steps" in "\n".join(shown.lines), 30, "the first steps")
        shown.process.send_signal(signal.SIGINT)
        assert shown.wait() == 143
        kept = shown.kept
    begin = kept.index("Ctrl-C: saving a checkpoint and stopping; Ctrl-C again ends it at once")
    lines = [line for line in kept[begin:] if "│" in line]
    late = ("has done 5 steps", "done; waiting for")  # a worker that began late, or ends late
    said = [line for line in lines if not any(words in line for words in late)]
    assert len(said) <= 2, said  # the checkpoints
    last = "".join(kept).partition("to resume: ")[2]
    assert last.startswith("ropewalk local --model-dir runs/")
    assert last.endswith(f"--workers 2 {program} {' '.join(ENDLESS)}")


def test_a_running_job_is_found_without_its_address_and_by_its_model_directory(
    write_program: WriteProgram, start_cli: StartCli, run_cli: RunCli, tmp_path: Path,
    wait_until: WaitUntil,
) -> None:  # fmt: skip
    launcher, output = start_cli("local", *QUICK, "--model-dir", "model", write_program(), *ENDLESS)
    wait_until(lambda: "has done 5 steps" in output.read_text(), 30, "the first steps")
    found = re.search(r"the chief is at (\S+)", output.read_text())
    assert found is not None
    for job in ([], ["model"], [found[1]]):
        text = run_cli("status", *job, COLUMNS="80").stdout
        assert f"chief {found[1]}" in text
        assert "job running for" in text
    jobs = [json.loads(line) for line in run_cli("status", "--json").stdout.splitlines()]
    mine = [job for job in jobs if found[1] in [task["address"] for task in job["tasks"]]]
    assert [job["phase"] for job in mine] == ["running"]
    with terminal(tmp_path, "status", "model") as shown:
        assert shown.wait() == 0
    assert max(map(len, shown.lines)) <= 80
    launcher.send_signal(signal.SIGKILL)
    launcher.wait(10)
    # The tasks end with their launcher; what they leave is not a running job.
    wait_until(
        lambda: run_cli("status", found[1], "--timeout-s", "1").returncode == 138, 20, "the end"
    )
    gone = run_cli("status", "model", "--timeout-s", "1")
    assert "Traceback" not in gone.stderr
    assert len(gone.stderr.splitlines()) <= 3


def test_bars_of_tqdm_do_not_stick_together(write_program: WriteProgram, run_cli: RunCli) -> None:
    hook = "print(f'\\r{count} of many', end='', file=sys.stderr, flush=True)"
    done = run_cli("local", *QUICK, "--workers", "0", write_program(hook), "60", "0.01")
    assert done.returncode == 0, done.stdout
    bars = [line for line in done.stdout.splitlines() if " of many" in line]
    assert 1 <= len(bars) <= 8, bars
    assert all(re.fullmatch(r"chief:0 \| \d+ of many", line.strip()) for line in bars), bars


def test_a_mistake_that_only_the_servers_notice_is_one_error_and_nothing_of_what_follows(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    program = write_program(replace={"(x.T @ rest / 8, w)": "(np.ones(7), w)"})
    text = shown_of_a_failure(tmp_path, program, exit_code=6)
    assert text.count("ShapeMismatchError") == 1
    assert "a step was refused: wrong shapes" in text
    # Each was refused, or was told to end before its first step; neither is news.
    assert not re.search(r"failed too|ended with 1\d\d|could not report|asked to stop", text), text


def test_a_variable_of_another_shape_is_an_error_without_the_frames_of_libraries(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    other = "np.zeros([2] * strategy.task_index, np.float32), name"  # () on the chief
    program = write_program(replace={"np.zeros((), np.float32), name": other})
    text = shown_of_a_failure(tmp_path, program, exit_code=5)
    assert "DefinitionMismatchError" in text
    assert "'b' as float32[2" in text
    assert "site-packages" not in text
    assert "concurrent" not in text


def test_a_variable_that_the_chief_never_creates_is_an_error_once_its_program_has_ended(
    write_program: WriteProgram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_WAIT_FOR_WORKERS", "0")  # whose first step would never come
    program = write_program(
        replace={
            'name="b"': 'name=f"b{strategy.task_index > 0}"',
            "while strategy.global_step < STEPS": "while count < 3",
        }
    )
    text = shown_of_a_failure(tmp_path, program, exit_code=5)
    assert re.search(
        r"DefinitionMismatchError: /job:worker/task:\d creates 'bTrue', and the chief's program "
        r"has ended without it",
        text.replace("\n", ""),
    ), text


@pytest.mark.annex("ring")
def test_synchronous_workers_that_end_with_another_are_not_blamed(
    tmp_path: Path, write_program: WriteProgram
) -> None:
    program = Path(write_program())
    program.write_text(
        "import ropewalk as rw\n"
        "strategy = rw.distribute.MultiWorkerMirroredStrategy()\n"
        "for _ in range(3 if strategy.extended.should_checkpoint else 2):\n"
        "    strategy.reduce('SUM', strategy.run(lambda: 1.0), axis=None)\n"
    )
    sync = ("--ps", "0", "--no-chief", "--workers", "3")
    with terminal(tmp_path, "local", *QUICK, *sync, str(program)) as shown:
        assert shown.wait() == 5
        text = "\n".join(shown.kept)
    said = re.findall(r"^(.*) failed; ending the job", text, flags=re.MULTILINE)
    assert said in (["a task"], ["worker:0"]), text
    assert "worker:0 failed first: exit code 5" in text
    assert len(shown.kept) <= LINES, text


def test_status_of_what_is_neither_a_folder_nor_an_address_says_so(run_cli: RunCli) -> None:
    done = run_cli("status", "runs/misspelt")
    assert done.returncode == 2
    assert "runs/misspelt is neither a folder (looked in " in done.stderr
    assert len(done.stderr.splitlines()) == 1
