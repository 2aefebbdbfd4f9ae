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
    open("began", "w").close()
    time.sleep(0.01)
print("value", int(w.numpy()), "steps", steps)
"""


@pytest.mark.timeout(120)
@pytest.mark.scenario
def test_a_worker_too_many_is_refused_and_the_job_ends_well(
    tmp_path: Path, no_process_left: str
) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    configs = tf_configs(chief=1, worker=1, ps=1)
    late = {"worker:0": configs.pop("worker:0")}
    command = ["ropewalk", "run", "--max-sessions", "1", "train.py"]
    job = HandStarted(command, configs, tmp_path)
    wait_until((tmp_path / "began").exists, 30)
    refused = HandStarted(command, late, tmp_path).wait()["worker:0"]
    assert refused.code == 6, refused.text
    for word in ("/job:worker/task:0 is refused", "max_sessions=1", "/job:ps/task:0"):
        assert word in refused.text
    assert "Traceback" not in refused.text
    (tmp_path / "stop").touch()
    ended = job.wait()
    assert {task: each.code for task, each in ended.items()} == {"chief:0": 0, "ps:0": 0}
    words = ended["chief:0"].text.split()
    assert words[words.index("value") + 1] == words[words.index("steps") + 1]
