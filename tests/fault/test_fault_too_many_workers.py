"""One worker more than a ps has places for ends alone; the job does not notice."""

from pathlib import Path

import pytest

from helpers.clusters import HandStarted, tf_configs
from helpers.waiting import wait_until

PROGRAM = """
import os, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros((), np.float32), name="w")

def step():
    w.assign_add(np.float32(1))

steps = 0
while not os.path.exists("stop"):
    strategy.run(step)
    steps += 1
    open(f"began-{os.getpid()}", "w").close()
    time.sleep(0.01)
print("value", int(w.numpy()), "steps", steps)
"""


@pytest.mark.timeout(120)
@pytest.mark.scenario
def test_a_worker_too_many_is_refused_and_the_job_ends_well(
    tmp_path: Path, no_process_left: str
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    configs = tf_configs(chief=1, worker=2, ps=1)
    late = {"worker:1": configs.pop("worker:1")}
    command = ["ropewalk", "run", "--max-sessions", "2", "train.py"]
    job = HandStarted(command, configs, tmp_path)
    wait_until(lambda: len(list(tmp_path.glob("began-*"))) == 2, 30, "both programs")
    refused = HandStarted(command, late, tmp_path).wait()["worker:1"]
    assert refused.code == 6, refused.text
    for word in ("/job:worker/task:1 is refused", "max_sessions=2", "/job:ps/task:0"):
        assert word in refused.text
    assert "Traceback" not in refused.text
    (tmp_path / "stop").touch()
    ended = job.wait()
    assert {task: each.code for task, each in ended.items()} == dict.fromkeys(configs, 0)
    last = ended["chief:0"].text.split()
    assert int(last[last.index("value") + 1]) >= int(last[last.index("steps") + 1])
