"""Tasks that are killed, hang, are asked to leave or raise, as real processes."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.waiting import scaled
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.task import Phase, State, TaskId
from ropewalk.testing import FaultPlan, ProcessResult, run_script

StartCli = Callable[..., tuple[subprocess.Popen[bytes], Path]]
WriteProgram = Callable[..., str]

pytestmark = pytest.mark.usefixtures("no_process_left")

ENDLESS = ("1000000", "0.01")  # steps, pace: it ends only if somebody ends it
PS0, PS1, CHIEF = TaskId("ps", 0), TaskId("ps", 1), TaskId("chief", 0)
WORKER = TaskId("worker", 0)
QUICK = ["--plain", "--heartbeat-s", "0.1"]


def said(result: ProcessResult, task: TaskId | None) -> str:
    return "\n".join(result.output.get(task, []))


# -- killed ----------------------------------------------------------------------------------


def test_a_killed_worker_does_not_end_the_job(write_program: WriteProgram, tmp_path: Path) -> None:
    result = run_script(
        write_program(), "300", "0.005", model_dir=str(tmp_path / "model"), workers=2,
        faults=FaultPlan().kill("worker", 1, at_step=50),
    )  # fmt: skip
    assert result.exit_code == 0, result.text
    assert result.exits[TaskId("worker", 1)] == -signal.SIGKILL
    assert [code for code in result.exits.values() if code] == [-signal.SIGKILL]
    assert result.first_failure is None
    assert "worker:1 ended with signal 9" in said(result, None)
    assert "goes on without it" in said(result, None)
    assert result.status is not None
    assert result.status.phase is Phase.DONE
    assert result.status.global_step >= 300
    states = {item.task: item.state for item in result.status.tasks}
    assert states[TaskId("worker", 1)] is State.LEFT
    last = latest_checkpoint(result.model_dir)
    assert last is not None
    assert CheckpointReader(last.path).manifest.final


def test_a_killed_ps_fails_the_job_by_name(write_program: WriteProgram, tmp_path: Path) -> None:
    result = run_script(
        write_program(), *ENDLESS, model_dir=str(tmp_path / "model"), ps=2,
        faults=FaultPlan().kill("ps", 1, at_step=20),
    )  # fmt: skip
    assert result.first_failure == PS1, result.text
    assert result.exit_code == ExitCode.KILLED
    assert result.stop_s < scaled(30)
    assert "ps:1 failed first" in said(result, None)
    assert all(code != 0 for code in result.exits.values())


def test_a_killed_chief_ends_the_job(write_program: WriteProgram, tmp_path: Path) -> None:
    result = run_script(
        write_program(), *ENDLESS, model_dir=str(tmp_path / "model"),
        faults=FaultPlan().kill("chief", at_step=20),
    )  # fmt: skip
    assert result.first_failure == CHIEF, result.text
    assert result.exit_code == ExitCode.KILLED
    assert result.stop_s < scaled(30)
    assert "chief:0 failed first" in said(result, None)


def test_the_status_of_an_earlier_job_is_not_shown_for_a_killed_one(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    program, model_dir = write_program(), str(tmp_path / "model")
    assert run_script(program, "20", "0", model_dir=model_dir, workers=0).exit_code == 0
    result = run_script(
        program, *ENDLESS, model_dir=model_dir, workers=0, faults=FaultPlan().kill("chief")
    )
    assert result.exit_code == ExitCode.KILLED, result.text
    assert result.status is None or result.status.phase is not Phase.DONE


@pytest.mark.real_start
def test_tasks_notice_that_their_launcher_was_killed(
    write_program: WriteProgram,
    start_cli: StartCli,
    live_pids: Callable[[], dict[int, dict[str, str]]],
    wait_until: Callable[..., None],
) -> None:
    launcher, output = start_cli("local", *QUICK, "--ps", "2", write_program(), *ENDLESS)
    wait_until(lambda: "worker:1 has done 5 steps" in output.read_text(), 30, "the worker's steps")
    tasks = set(live_pids()) - {launcher.pid}
    assert len(tasks) == 4
    os.kill(launcher.pid, signal.SIGKILL)
    launcher.wait(scaled(5))
    wait_until(lambda: not tasks & set(live_pids()), 10, "the tasks to end")


# -- hanging ---------------------------------------------------------------------------------


@pytest.mark.scenario
def test_a_hanging_ps_fails_the_job_by_name(write_program: WriteProgram, tmp_path: Path) -> None:
    lease_s = 2.0
    result = run_script(
        write_program(), *ENDLESS, model_dir=str(tmp_path / "model"), ps=2,
        faults=FaultPlan().pause("ps", 0, at_step=20),
        lease_s=lease_s, reconnect_timeout_s=2.0,
    )  # fmt: skip
    assert result.exit_code == ExitCode.PEER_LOST, result.text
    # It is the chief that finds out; the other ps, which was only told, is not to blame.
    assert result.first_failure != PS1
    assert result.first_failure is not None
    assert str(PS0) in said(result, result.first_failure)
    assert "was lost" in said(result, result.first_failure)
    # After the lease: calls to the hanging ps that run into their deadlines of 2 s (one under way,
    # one for the last counters, one to tell it), the leave grace of 5 s, 4.5 s until it is killed.
    assert result.stop_s < scaled(lease_s + 3 * 2 + 5 + 4.5 + 3)
    assert result.exits[PS0] == -signal.SIGKILL
    assert result.status is not None
    assert result.status.phase is Phase.FAILED
    assert str(PS0) in result.status.reason


@pytest.mark.scenario
def test_a_hanging_chief_ends_the_job_within_a_lease_and_a_grace(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    lease_s, grace_s = 2.0, 1.0
    result = run_script(
        write_program(), *ENDLESS, model_dir=str(tmp_path / "model"), workers=2,
        faults=FaultPlan().pause("chief", at_step=20),
        lease_s=lease_s, leave_grace_s=grace_s, reconnect_timeout_s=2.0,
    )  # fmt: skip
    assert result.first_failure == CHIEF, result.text
    assert result.exit_code == ExitCode.KILLED
    assert "chief:0 has been stopped (SIGSTOP) for" in said(result, None)
    # Beyond them half a second to look, 4.5 s until the others are killed, and a moment.
    assert result.stop_s < scaled(lease_s + grace_s + 0.5 + 4.5 + 2)


# -- asked to leave --------------------------------------------------------------------------


def test_ctrl_c_saves_and_stops_within_five_seconds(
    write_program: WriteProgram,
    start_cli: StartCli,
    wait_until: Callable[..., None],
    tmp_path: Path,
) -> None:
    launcher, output = start_cli(
        "local", *QUICK, "--ps", "2", "--evaluator", "--model-dir", "model",
        "--save-every-s", "0", write_program(), *ENDLESS,
    )  # fmt: skip
    wait_until(lambda: "worker:1 has done 5 steps" in output.read_text(), 30, "the worker's steps")
    launcher.send_signal(signal.SIGINT)
    # 1 s: the launcher's own exit on a busy machine.
    assert launcher.wait(scaled(5 + 1)) == ExitCode.DRAINED
    text = output.read_text()
    assert "Ctrl-C: saving a checkpoint and stopping; Ctrl-C again ends it at once" in text
    assert "SIGTERM" not in text  # that the tasks are told to end is no news
    assert text.splitlines()[-1].startswith("to resume: ropewalk local --plain")
    assert "failed first" not in text
    assert "Traceback" not in text
    saved = latest_checkpoint(str(tmp_path / "model"))
    assert saved is not None
    assert saved.global_step >= 5
    reader = CheckpointReader(saved.path)
    reader.verify()
    assert not reader.manifest.final


@pytest.mark.parametrize("who", ["worker:1", "chief:0"])
def test_a_program_that_never_comes_to_its_next_step_is_stopped_all_the_same(
    write_program: WriteProgram,
    start_cli: StartCli,
    wait_until: Callable[..., None],
    tmp_path: Path,
    who: str,
) -> None:
    program = write_program(
        f"if me == '{who}' and count == 5:\n    print('stuck')\n    threading.Event().wait()"
    )
    launcher, output = start_cli(
        "local", *QUICK, "--model-dir", "model", "--save-every-s", "0", program, *ENDLESS
    )
    wait_until(lambda: "| stuck" in output.read_text(), 30, "the program to be stuck")
    launcher.send_signal(signal.SIGINT)
    assert launcher.wait(scaled(5 + 1)) == ExitCode.DRAINED
    assert "failed first" not in output.read_text()
    assert latest_checkpoint(str(tmp_path / "model")) is not None


def test_a_second_ctrl_c_does_not_wait(
    write_program: WriteProgram, start_cli: StartCli, wait_until: Callable[..., None]
) -> None:
    program = write_program(
        "while True:\n    try:\n        print('deaf')\n        threading.Event().wait()\n"
        "    except BaseException:\n        pass"
    )
    launcher, output = start_cli("local", *QUICK, "--workers", "0", program, *ENDLESS)
    wait_until(lambda: "| deaf" in output.read_text(), 30, "the program to be deaf")
    launcher.send_signal(signal.SIGINT)
    wait_until(lambda: "saving a checkpoint" in output.read_text(), 5, "the first to be heard")
    launcher.send_signal(signal.SIGINT)
    # Well under the 4.5 s after which the first one alone would kill.
    assert launcher.wait(scaled(3)) == ExitCode.DRAINED


def test_a_worker_that_is_asked_to_leave_leaves_and_the_job_is_done(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    # So many steps that the launcher on a busy machine sees the fiftieth before the last.
    result = run_script(
        write_program(), "1500", "0.005", model_dir=str(tmp_path / "model"), workers=2,
        faults=FaultPlan().terminate("worker", 0, at_step=50),
    )  # fmt: skip
    assert result.exit_code == 0, result.text
    assert {task: code for task, code in result.exits.items() if code} == {WORKER: ExitCode.DRAINED}
    assert "SIGTERM: ending at the next step" in said(result, WORKER)
    assert result.status is not None
    assert result.status.phase is Phase.DONE


def test_a_ps_that_is_asked_to_leave_has_the_job_saved_and_stopped(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    result = run_script(
        write_program(), *ENDLESS, model_dir=str(tmp_path / "model"), ps=2,
        faults=FaultPlan().terminate("ps", 1, at_step=50),
    )  # fmt: skip
    assert result.exit_code == ExitCode.DRAINED, result.text
    assert set(result.exits.values()) == {ExitCode.DRAINED}, result.text
    assert result.first_failure != PS0  # it was only told
    assert "goes on without it" not in said(result, None)
    assert result.status is not None
    assert result.status.phase is Phase.STOPPED
    assert str(PS1) in result.status.reason
    saved = latest_checkpoint(result.model_dir)
    assert saved is not None
    assert saved.global_step >= 50
    CheckpointReader(saved.path).verify()


# -- raising ---------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["worker:1", "chief:0"])
def test_a_program_that_raises_on_one_task_is_named_first_with_its_last_words(
    write_program: WriteProgram, tmp_path: Path, who: str
) -> None:
    program = write_program(f"if me == '{who}' and count == 20:\n    raise ValueError('no good')")
    result = run_script(program, *ENDLESS, model_dir=str(tmp_path / "model"), ps=2)
    culprit = WORKER if who == "worker:1" else CHIEF  # numbered from the chief on
    assert result.first_failure == culprit, result.text
    assert result.exit_code == ExitCode.PROGRAM_FAILED
    assert result.exits[culprit] == ExitCode.PROGRAM_FAILED
    launcher = said(result, None)
    assert f"{culprit.short} failed first: exit code 1, the user's program raised" in launcher
    words = launcher[launcher.index("failed first") :]
    assert "    Traceback (most recent call last):" in words
    assert "    ValueError: no good" in words
    # Nobody else is accused, or said to be done without.
    assert launcher.count("failed first") == 1
    assert "goes on without it" not in launcher
    # Once: the others do not repeat it.
    assert result.text.count("ValueError: no good") == 1
    assert result.status is not None
    assert result.status.reason == f"{culprit} failed: ValueError: no good"
    assert result.status is not None
    assert result.status.phase is Phase.FAILED


def test_an_evaluator_that_raises_does_not_stop_training_but_is_the_jobs_exit_code(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    program = write_program(
        replace={'return {"error"': 'raise ValueError("odd")\n    return {"error"'}
    )
    result = run_script(
        program, "200", "0.005", model_dir=str(tmp_path / "model"), workers=0, evaluator=True,
        save_every_steps=20,
    )  # fmt: skip
    assert result.first_failure == TaskId("evaluator", 0), result.text
    assert result.exit_code == ExitCode.PROGRAM_FAILED
    others = {code for task, code in result.exits.items() if task.type != "evaluator"}
    assert others == {ExitCode.DONE}, result.text
    assert result.status is not None
    assert result.status.phase is Phase.DONE
