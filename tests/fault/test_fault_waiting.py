"""Who waits says for whom, since when and until when, as the user sees it."""

import json
import logging
import re
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ropewalk as rw
from ropewalk.core.errors import JoinTimeoutError
from ropewalk.core.task import TaskId
from ropewalk.net.this_machine import free_ports
from ropewalk.testing import FaultPlan, run_script

pytestmark = pytest.mark.usefixtures("no_process_left")

Cli = Callable[..., subprocess.CompletedProcess[str]]

SYNC = """
import ropewalk as rw
rw.distribute.MultiWorkerMirroredStrategy()
"""


def cluster_of(*roles: str) -> dict[str, list[str]]:
    spec: dict[str, list[str]] = {}
    for role, port in zip(roles, free_ports(len(roles)), strict=True):
        spec.setdefault(role, []).append(f"127.0.0.1:{port}")
    return spec


@pytest.mark.parametrize(
    ("roles", "me", "whom", "limit", "code"),
    [
        pytest.param(
            ["chief", "ps", "worker"],
            ["worker", 0],
            r"the chief at 127\.0\.0\.1:\d+",
            "join_timeout_s",
            140,
            id="worker without its chief",
        ),
        pytest.param(["chief", "ps"], ["chief", 0], "/job:ps/task:0", "join_timeout_s", 140, id="chief without a ps"),
        pytest.param(["chief", "ps"], ["ps", 0], "a chief", "orphan_timeout_s", 144, id="ps without a chief"),
        pytest.param(
            ["worker", "worker"],
            ["worker", 0],
            r"/job:worker/task:1 \(127\.0\.0\.1:\d+\) to join the ring",
            "join_timeout_s",
            140,
            id="synchronous worker alone",
            marks=pytest.mark.annex("ring"),
        ),
        pytest.param(
            ["chief", "ps"], ["evaluator", 0], "a new checkpoint in .*", "idle_timeout_s", 138, id="evaluator"
        ),
    ],
)  # fmt: skip
def test_a_task_that_waits_alone_says_for_whom(
    run_cli: Cli,
    tmp_path: Path,
    roles: list[str],
    me: list[Any],
    whom: str,
    limit: str,
    code: int,
) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        SYNC
        if "ps" not in roles
        else "import ropewalk as rw\n"
        "if rw.training.is_evaluator():\n"
        "    rw.training.SidecarEvaluator(lambda values: {}, idle_timeout_s=5).start()\n"
    )
    config = {"cluster": cluster_of(*roles), "task": {"type": me[0], "index": me[1]}}
    result = run_cli(
        "run", "--join-timeout-s", "5", "--orphan-timeout-s", "5", "--model-dir",
        str(tmp_path / "model"), str(program), TF_CONFIG=json.dumps(config), timeout_s=40,
    )  # fmt: skip
    assert result.returncode == code, result.stderr
    clock = r"\d\d:\d\d:\d\d"
    assert re.search(
        rf"waits for {whom} since {clock} \(\d+ s\), until {clock} \({limit} 5 s\)", result.stderr
    ), result.stderr
    assert len(result.stderr.splitlines()) <= 25, result.stderr


def test_a_worker_whose_variables_the_chief_does_not_create_says_which(
    caplog: pytest.LogCaptureFixture, restored_logger: logging.Logger
) -> None:
    restored_logger.propagate = True

    failed = threading.Event()

    def train() -> None:
        strategy = rw.distribute.ParameterServerStrategy()
        try:
            with strategy.scope():
                rw.Variable(np.zeros(2, np.float32), name="w" if strategy.is_chief else "v")
        except JoinTimeoutError:
            failed.set()
            raise
        failed.wait(60)  # else it is clear sooner: the chief's program has ended without it

    with (
        rw.testing.LocalCluster(workers=1, join_timeout_s=5) as cluster,
        pytest.raises(JoinTimeoutError, match="for the chief to create 'v'"),
    ):
        cluster.run(train)
    [line] = {line for line in caplog.messages if "to create" in line and "waits" in line}
    assert line.startswith("/job:worker/task:0 waits for the chief to create 'v' since ")
    assert "(join_timeout_s 5 s): do both run one program?" in line


HANGS = """
import time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros(2, np.float32), name="w")
strategy.run(w.read_value)  # by then a task knows both ps
strategy.barrier()
while strategy.global_step < 10**6:
    strategy.run(lambda: w.assign_add(np.ones(2, np.float32)))
    time.sleep(0.01)
"""


@pytest.mark.parametrize(
    "way",
    [
        pytest.param({}, id="shared memory"),
        pytest.param({"shared_memory": False}, id="tcp", marks=pytest.mark.soak),
        pytest.param({"shared_memory": False, "tcp_sessions": False}, id="tunnel"),
    ],
)
def test_a_step_that_a_hanging_ps_does_not_answer_says_which_ps(
    tmp_path: Path, way: dict[str, Any]
) -> None:
    program = tmp_path / "train.py"
    program.write_text(HANGS)
    result = run_script(
        str(program), model_dir=str(tmp_path / "model"), ps=2, lease_s=5, **way,
        faults=FaultPlan().pause("ps", 0, at_step=20),
    )  # fmt: skip
    clock = r"\d\d:\d\d:\d\d"
    for task in (TaskId("chief", 0), TaskId("worker", 0)):
        assert re.search(
            rf"{task} waits for /job:ps/task:0 \(127\.0\.0\.1:\d+\) since {clock} \(3 s\), until "
            rf"{clock} \(request_timeout_s \d+ s\): it has not answered this step yet",
            "\n".join(result.output[task]),
        ), result.text
    assert result.exit_code == 138


BUSY = """
import ctypes, json, os
import numpy as np
import ropewalk as rw

me = json.loads(os.environ["TF_CONFIG"])["task"]["type"]
with rw.distribute.ParameterServerStrategy().scope():
    w = rw.Variable(np.zeros(3, np.float32), name="w")
for step in range(4):
    if me == "worker" and step == 2:
        ctypes.PyDLL(None).sleep(8)  # with the interpreter's lock
    w.assign_add(np.ones(3, np.float32))
print("w is", w.numpy()[0], flush=True)
"""


def test_a_worker_that_keeps_the_lock_for_longer_than_its_lease_is_waited_for(
    run_cli: Cli, tmp_path: Path
) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    options = ["--lease-s", "2", "--heartbeat-s", "0.3", "--model-dir", "m"]
    result = run_cli("local", "--workers", "1", "--ps", "1", "--plain", *options, "busy.py")
    assert result.returncode == 0, result.stdout + result.stderr
    said = result.stdout + result.stderr
    assert "was lost" not in said
    assert "worker:0 | w is 8.0" in said, said  # its last steps are in the model
