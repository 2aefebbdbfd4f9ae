"""Tasks started by plain ``python train.py`` with TF_CONFIG: every role, and every way to end."""

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers import processes
from helpers.clusters import HandStarted, as_command, tf_configs
from ropewalk.core.exit_codes import ExitCode
from ropewalk.net.this_machine import free_ports

pytestmark = [pytest.mark.scenario, pytest.mark.usefixtures("no_process_left")]
QUICK = {"ROPEWALK_HEARTBEAT_S": "0.1", "ROPEWALK_JOIN_TIMEOUT_S": "20"}
LINES = 25  # of an error, at most
WriteProgram = Callable[..., str]
WaitUntil = Callable[..., None]

IN_SYNC = """\
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy()
number = 0
while True:
    strategy.reduce("SUM", strategy.run(lambda: np.ones(3)), axis=None)
    number += 1
    if number == 10:
        print("ten rounds", flush=True)
"""


def codes(started: HandStarted) -> dict[str, int]:
    return {task: end.code for task, end in started.wait().items()}


@pytest.mark.real_start
def test_every_role_ends_in_order(write_program: WriteProgram, tmp_path: Path) -> None:
    command = ["python", write_program(), "200", "0.002"]
    configs = tf_configs(chief=1, worker=2, ps=2, evaluator=1)
    model_dir = str(tmp_path / "model")
    ended = HandStarted(command, configs, tmp_path, ROPEWALK_MODEL_DIR=model_dir, **QUICK).wait()
    assert {task: end.code for task, end in ended.items()} == dict.fromkeys(ended, 0), ended
    assert "saved " in ended["chief:0"].text
    assert "(final)" in ended["evaluator:0"].text


def test_a_lost_job_ends_the_others_with_138_and_a_line(
    write_program: WriteProgram, tmp_path: Path, wait_until: WaitUntil
) -> None:
    command = ["python", write_program(), "1000000", "0.01"]
    started = HandStarted(
        command,
        tf_configs(chief=1, worker=1, ps=2),
        tmp_path,
        **QUICK,
        ROPEWALK_LEASE_S="1",
        ROPEWALK_RECONNECT_TIMEOUT_S="2",
    )
    wait_until(lambda: "has done 5 steps" in started.said("worker:0"), 30, "the worker's steps")
    started.running["ps:1"].kill()
    ended = started.wait()
    for task in ("chief:0", "worker:0"):
        assert ended[task].code == ExitCode.PEER_LOST, ended
        assert "Traceback" not in ended[task].text
        assert "/job:ps/task:1" in ended[task].text
        assert len(ended[task].text.splitlines()) <= LINES
    assert ended["ps:0"].code == ExitCode.PEER_LOST


def test_sigterm_at_the_chief_saves_and_ends_all_with_143(
    write_program: WriteProgram, tmp_path: Path, wait_until: WaitUntil
) -> None:
    command = ["python", write_program(), "1000000", "0.01"]
    model_dir = str(tmp_path / "model")
    configs = tf_configs(chief=1, worker=1, ps=1)
    started = HandStarted(command, configs, tmp_path, **QUICK, ROPEWALK_MODEL_DIR=model_dir)
    wait_until(lambda: "has done 5 steps" in started.said("worker:0"), 30, "the worker's steps")
    started.running["chief:0"].send_signal(signal.SIGTERM)
    ended = started.wait()
    assert {end.code for end in ended.values()} == {ExitCode.DRAINED}, ended
    assert "saved " in ended["chief:0"].text
    assert not any("Traceback" in end.text for end in ended.values())
    why = "/job:chief/task:0 was asked to stop by SIGTERM"
    assert f"the job is stopping: {why}" in ended["worker:0"].text
    assert f"the job was stopped: {why}" in ended["ps:0"].text


@pytest.mark.parametrize(
    ("last_line", "code", "words"),
    [
        pytest.param("raise ValueError('no good')", 1, "ValueError: no good", id="raises"),
        pytest.param("sys.exit(3)", 3, "the program exited with 3", id="exits"),
        pytest.param("sys.exit('why')", 1, "why", id="exits with text"),
        pytest.param("w.assign(np.zeros(7, np.float32))", None, "w", id="breaks a rule of ours"),
    ],
)
def test_a_program_that_fails_ends_with_its_code_and_its_own_frames(
    write_program: WriteProgram, tmp_path: Path, last_line: str, code: int | None, words: str
) -> None:
    program = write_program(f"if me == 'worker:1' and count == 5:\n    {last_line}")
    command = ["python", program, "1000000", "0.01"]
    started = HandStarted(command, tf_configs(chief=1, worker=1, ps=1), tmp_path, **QUICK)
    ended = started.wait()
    worker = ended["worker:0"]
    assert worker.code == code if code is not None else 0 < worker.code < 128, ended
    assert words in worker.text
    assert len(worker.text.splitlines()) <= LINES
    assert "ropewalk/worker" not in worker.text
    assert ended["chief:0"].code == ended["ps:0"].code == ExitCode.PEER_LOST
    assert "/job:worker/task:0 failed" in ended["chief:0"].text


def test_a_code_that_is_raised_by_hand_at_the_end_is_kept(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    program = write_program(replace={"    train()\n": "    train()\nraise SystemExit(7)\n"})
    started = HandStarted(
        ["python", program, "50", "0"], tf_configs(worker=1, ps=1), tmp_path, **QUICK
    )
    assert codes(started) == {"worker:0": 7, "ps:0": 0}


@pytest.mark.parametrize(
    "last_line", ["sys.exit()", "sys.exit(0)", "raise SystemExit(main())", "main()"]
)
def test_a_program_that_has_come_to_its_end_is_done(
    write_program: WriteProgram, tmp_path: Path, last_line: str
) -> None:
    end = f"    train()\n\n\ndef main():\n    pass\n\n\n{last_line}\n"
    program = write_program(replace={"    train()\n": end})
    started = HandStarted(
        ["python", program, "50", "0"], tf_configs(chief=1, worker=1, ps=1), tmp_path, **QUICK
    )
    assert set(codes(started).values()) == {0}, started.said("chief:0")


def test_functions_registered_for_the_exit_still_run(
    write_program: WriteProgram, tmp_path: Path
) -> None:
    hook = "if count == 1:\n    import atexit\n    atexit.register(print, 'bye')"
    command = ["python", write_program(hook), "50", "0"]
    ended = HandStarted(command, tf_configs(chief=1, ps=1), tmp_path, **QUICK).wait()
    assert ended["chief:0"].text.splitlines()[-1] == "bye"
    assert ended["chief:0"].code == 0


# -- workers in sync -------------------------------------------------------------------------


@pytest.mark.annex("ring")
def test_a_lost_worker_in_sync_ends_the_other_with_138_and_no_traceback(
    tmp_path: Path, wait_until: WaitUntil
) -> None:
    (tmp_path / "train.py").write_text(IN_SYNC)
    started = HandStarted(["python", "-m", "train"], tf_configs(worker=2), tmp_path)
    wait_until(lambda: "ten rounds" in started.said("worker:0"), 30, "the first rounds")
    started.running["worker:1"].kill()
    worker = started.wait()["worker:0"]
    assert worker.code == ExitCode.PEER_LOST, worker
    assert "Traceback" not in worker.text
    assert "/job:worker/task:1" in worker.text
    assert len(worker.text.splitlines()) <= LINES


@pytest.mark.annex("ring")
def test_sigterm_at_a_worker_in_sync_is_143(tmp_path: Path, wait_until: WaitUntil) -> None:
    (tmp_path / "train.py").write_text(IN_SYNC)
    started = HandStarted(["python", "train.py"], tf_configs(worker=2), tmp_path)
    wait_until(lambda: "ten rounds" in started.said("worker:0"), 30, "the first rounds")
    started.running["worker:1"].send_signal(signal.SIGTERM)
    ended = started.wait()
    assert ended["worker:1"].code == ExitCode.DRAINED
    assert ended["worker:0"].code == ExitCode.PEER_LOST
    assert not any("Traceback" in end.text for end in ended.values())


# -- the cluster cannot be joined --------------------------------------------------------------

HERE = "127.0.0.1:HERE"  # with a free port
SPEC = {"ps": ["127.0.0.1:1"], "worker": {"0": HERE}}
TASK = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    "strategy",
    [
        "ParameterServerStrategy",
        pytest.param("MultiWorkerMirroredStrategy", marks=pytest.mark.annex("ring")),
    ],
)
@pytest.mark.parametrize(
    ("config", "code"),
    [
        pytest.param({"cluster": SPEC, "task": TASK}, None, id="form B"),
        pytest.param({"sparseCluster": {"worker": SPEC["worker"]}, "task": TASK}, 2, id="no ps"),
        pytest.param({"sparseCluster": {}, "task": {"type": "chief", "index": 0}}, 2, id="form D"),
        pytest.param({"cluster": {}, "task": {"type": "chief", "index": 0}}, 2, id="empty"),
        pytest.param({"cluster": {"worker": ["a"]}, "task": TASK}, 2, id="bad address"),
    ],
)
def test_nobody_trains_alone_who_was_told_of_a_cluster(
    tmp_path: Path, strategy: str, config: dict[str, object], code: int | None
) -> None:
    text = f"import ropewalk as rw\nrw.distribute.{strategy}()\nprint('ready')\n"
    (tmp_path / "train.py").write_text(text)
    [port] = free_ports(1)
    started = HandStarted(
        ["python", "train.py"],
        {"worker:0": json.dumps(config).replace(HERE, f"127.0.0.1:{port}")},
        tmp_path,
        ROPEWALK_JOIN_TIMEOUT_S="1",
    )
    ended = started.wait()["worker:0"]
    # Form B names a ps, so such a worker waits for it; workers in sync have no use for one.
    waits = code is None and strategy == "ParameterServerStrategy"
    assert ended.code == (ExitCode.JOIN_TIMEOUT if waits else ExitCode.USAGE), ended
    assert "ready" not in ended.text
    assert len(ended.text.splitlines()) <= 6, ended.text
    assert "/ropewalk/" not in ended.text.replace("rw.distribute", "")


def test_a_program_alone_says_that_its_model_directory_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import ropewalk as rw\n"
        "rw.distribute.ParameterServerStrategy()\n"
        "rw.distribute.MirroredStrategy()\n"
    )
    command = as_command(["python", "train.py"])
    code, output, errors = processes.run(
        command, timeout_s=30, cwd=tmp_path, env={**os.environ, "ROPEWALK_MODEL_DIR": "model"}
    )
    assert (code, output) == (0, "")
    [line] = errors.splitlines()
    assert line.startswith("ROPEWALK_MODEL_DIR=model is not used: this process is alone")


# -- the resolver ----------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["python", "ropewalk run"])
def test_the_strategys_resolver_is_the_tasks(
    write_program: WriteProgram, tmp_path: Path, command: str
) -> None:
    hook = (
        "if count == 1:\n"
        "    found = strategy.cluster_resolver\n"
        "    print(found.task_type, found.task_id, found.cluster_spec().num_tasks('ps'))"
    )
    words = [*command.split(), write_program(hook), "30", "0"]
    ended = HandStarted(words, tf_configs(chief=1, worker=2, ps=2), tmp_path, **QUICK).wait()
    assert "chief 0 2" in ended["chief:0"].text
    assert {end.code for end in ended.values()} == {0}


@pytest.mark.real_start
@pytest.mark.parametrize("strategy", ["ParameterServerStrategy", "MirroredStrategy"])
def test_a_mistake_of_a_program_alone_is_shown_without_our_frames(
    strategy: str, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import ropewalk as rw\n"
        f"strategy = rw.distribute.{strategy}()\n"
        "strategy.run(lambda: {}['no such key'])\n"
    )
    code, output, errors = processes.run(
        as_command(["python", "train.py"]), timeout_s=30, cwd=tmp_path
    )
    assert (code, output) == (1, "")
    kept = [line for line in errors.splitlines() if set(line.strip()) - set("~^")]
    assert len(kept) == 7, errors
    assert re.fullmatch(r"  … \d calls inside ropewalk", kept[3])
    assert kept[-1] == "KeyError: 'no such key'"
