"""Folders and log lines of a launcher."""

import json
import logging
import re
from pathlib import Path

import pytest

from ropewalk.core.process.events import event
from ropewalk.core.settings import load_settings
from ropewalk.core.task import TaskId
from ropewalk.launch.local.cluster import LocalRoles, default_model_dir
from ropewalk.launch.processes.process import new_line_queue
from ropewalk.worker.process.program import Program
from ropewalk.worker.process.surroundings import LAUNCHER_MARK, set_up_logging


def test_what_tasks_say_is_bounded() -> None:
    assert new_line_queue().maxsize > 0


@pytest.mark.parametrize(
    ("script", "name"),
    [
        pytest.param("examples/digits/train.py", "digits", id="train.py is named by its folder"),
        pytest.param("x/main.py", "x", id="so is main.py"),
        pytest.param("deep/mnist.py", "mnist", id="others by themselves"),
    ],
)
def test_the_default_model_directory_is_new_and_tells_the_script(script: str, name: str) -> None:
    folder = default_model_dir(Program(Path(script)))
    assert re.fullmatch(rf"runs/{name}-\d{{8}}-\d{{6}}-\d{{3}}", folder)
    assert not Path(folder).exists()


def test_a_script_in_the_working_directory_is_named_by_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert default_model_dir(Program(Path("train.py").resolve())).startswith("runs/here-")


@pytest.mark.parametrize(
    ("cluster", "tasks", "leads"),
    [
        pytest.param(LocalRoles(), "ps:0 chief:0 worker:0", "chief:0", id="default"),
        pytest.param(
            LocalRoles(workers=2, ps=2, evaluator=True),
            "ps:0 ps:1 chief:0 worker:0 worker:1 evaluator:0",
            "chief:0",
            id="everybody",
        ),
        pytest.param(LocalRoles(2, 1, chief=False), "ps:0 worker:0 "
                                                      "worker:1", "worker:0", id="no"),
    ],
)  # fmt: skip
def test_servers_start_first_and_worker_0_leads_without_a_chief(
    cluster: LocalRoles, tasks: str, leads: str
) -> None:
    assert " ".join(task.short for task in cluster.tasks()) == tasks
    assert cluster.chief_task == TaskId(leads.partition(":")[0], 0)


# -- log lines -------------------------------------------------------------------------------


def test_bare_lines_name_their_level_only_if_it_is_not_ordinary(
    restored_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(load_settings({"log_format": "bare"}))
    restored_logger.info("saved")
    restored_logger.warning("odd")
    restored_logger.debug("not shown")
    assert capsys.readouterr().err == "\x1esaved\n\x1eWARNING odd\n"


def test_a_line_that_quotes_others_steers_no_terminal(
    restored_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(load_settings({"log_format": "bare"}))
    restored_logger.warning("refused job %s", "\x1b]52;c;cm0=\x07a\x1b[2J\x1b[31mb\r")
    assert capsys.readouterr().err == f"{LAUNCHER_MARK}WARNING refused job ab\ufffd\n"


def test_lines_with_time_have_one_shape(
    restored_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(load_settings({"log_level": "WARNING"}))
    set_up_logging(load_settings({"log_level": "WARNING"}))  # twice is not twice the lines
    restored_logger.info("not shown")
    restored_logger.error("bad")
    assert re.fullmatch(r"\d\d:\d\d:\d\d ERROR   bad\n", capsys.readouterr().err)


def test_lines_of_json_have_the_name_and_the_fields_of_their_event(
    restored_logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up_logging(load_settings({"log_format": "json"}))
    broken = event("ps.broken", peer="ps:1", step=3)
    restored_logger.warning("%s broke;\nreconnecting \x1b[31m", "ps:1", extra=broken)
    restored_logger.info("plain")
    try:
        raise ValueError("bad")
    except ValueError:
        restored_logger.exception("failed")
    first, plain, failed = map(json.loads, capsys.readouterr().err.splitlines())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first.pop("time"))
    first.pop("task")
    assert first == {
        "level": "WARNING",
        "event": "ps.broken",
        "message": "ps:1 broke;\nreconnecting \x1b[31m",
        "fields": {"peer": "ps:1", "step": 3},
    }
    assert (plain["event"], plain["message"]) == ("log.line", "plain")
    assert failed["traceback"].endswith("ValueError: bad")
