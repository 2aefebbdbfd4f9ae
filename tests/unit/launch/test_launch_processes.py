"""Ports, folders and log lines of a launcher."""

import logging
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from windlass.core.errors import AddressInUseError
from windlass.core.settings import load_settings
from windlass.core.task import TaskId
from windlass.launch import processes
from windlass.launch.cluster import LocalCluster, default_model_dir
from windlass.launch.processes import free_ports, new_line_queue
from windlass.worker.logs import LAUNCHER_MARK, set_up_logging
from windlass.worker.program import Program


def test_ports_are_free_and_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))


def test_ports_are_not_those_the_system_gives_to_clients() -> None:
    low, high = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert not [port for port in free_ports(20) if low <= port <= high]


@pytest.fixture
def one_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every search for ports begins at the same one."""
    monkeypatch.setattr("os.getpid", lambda: 0)
    monkeypatch.setattr("time.time_ns", lambda: 0)


@pytest.mark.usefixtures("one_beginning")
def test_a_port_in_use_is_passed_over() -> None:
    (first,) = free_ports(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first))
        processes._reserved.pop().close()
        assert first not in free_ports(2)


@pytest.mark.usefixtures("one_beginning")
def test_a_port_is_given_to_one_of_two_processes() -> None:
    program = """
import os, sys, time
os.getpid = time.time_ns = lambda: 0
from windlass.launch.processes import free_ports
print(*free_ports(3), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        text=True,
    ) as other:
        assert other.stdout is not None
        theirs = {int(word) for word in other.stdout.readline().split()}
        assert len(theirs) == 3
        assert not theirs & set(free_ports(20))
        other.communicate()
    assert theirs & set(free_ports(20)), "the process has ended, so its ports are free again"


def test_a_process_holds_a_bounded_number_of_ports() -> None:
    for _ in range(10):
        free_ports(20)
    assert len(processes._reserved) == 64


def test_too_many_ports_are_an_error_and_not_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(AddressInUseError, match="no 1 free ports"):
        free_ports(1)


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
        pytest.param(LocalCluster(), "ps:0 chief:0 worker:0", "chief:0", id="default"),
        pytest.param(
            LocalCluster(workers=2, ps=2, evaluator=True),
            "ps:0 ps:1 chief:0 worker:0 worker:1 evaluator:0",
            "chief:0",
            id="everybody",
        ),
        pytest.param(LocalCluster(2, 1, chief=False), "ps:0 worker:0 "
                                                      "worker:1", "worker:0", id="no"),
    ],
)  # fmt: skip
def test_servers_start_first_and_worker_0_leads_without_a_chief(
    cluster: LocalCluster, tasks: str, leads: str
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
