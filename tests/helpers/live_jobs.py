"""Jobs that train while something else happens, and know at their end that nothing was lost."""

import json
from collections.abc import Mapping
from pathlib import Path

from ropewalk.core import annexes

from .clusters import HandStarted, tf_configs
from .fuzzing import Port
from .waiting import scaled, wait_until

TRAIN = """
import os, sys, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    w = rw.Variable(np.zeros((), np.float32), name="w")
me = rw.training.task_type()
steps = 0

def step():
    w.assign_add(np.float32(1))

while not os.path.exists("stop"):
    strategy.run(step)
    steps += 1
    with open(f"{me}.tmp", "w") as out:
        out.write(str(steps))
    os.replace(f"{me}.tmp", f"{me}.steps")
    time.sleep(0.01)
strategy.barrier(60)
print("value", int(w.numpy()), "steps", steps)
"""
IN_SYNC = """
import os, time
import numpy as np
import ropewalk as rw

strategy = rw.distribute.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
steps = 0
while True:
    stop = np.float32(os.path.exists("stop"))
    steps += 1
    with open(f"sync-{me}.tmp", "w") as out:
        out.write(str(steps))
    os.replace(f"sync-{me}.tmp", f"sync-{me}.steps")
    if strategy.reduce(rw.distribute.ReduceOp.SUM, stop, axis=None) > 0:
        break
    time.sleep(0.01)
print("steps", steps)
"""


class Live:
    """A job with a chief, a worker and a ps; one of two synchronous workers, where the annex is.

    Args:
        folder: Where they run.
        environment: Variables of all tasks.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self._folder = folder
        (folder / "train.py").write_text(TRAIN)
        configs = tf_configs(chief=1, worker=1, ps=1)
        job = HandStarted(["ropewalk", "run", "train.py"], configs, folder, **environment)
        self.ports = [
            self._port(job, "chief:0", configs, "chief", ""),
            self._port(job, "ps:0", configs, "ps", "ps"),
        ]
        self._names = ["chief", "worker"]
        self._jobs = [job]
        if "ring" in annexes.installed():
            self._start_in_sync(environment)

    def _start_in_sync(self, environment: Mapping[str, str]) -> None:
        (self._folder / "sync.py").write_text(IN_SYNC)
        by_task = tf_configs(worker=2)
        configs = {f"sync:{task[-1]}": config for task, config in by_task.items()}
        job = HandStarted(["ropewalk", "run", "sync.py"], configs, self._folder, **environment)
        self._jobs.append(job)
        self._names += ["sync-0", "sync-1"]
        self.ports.append(self._port(job, "sync:0", configs, "worker", "ring"))

    @staticmethod
    def _port(
        started: HandStarted, task: str, configs: dict[str, str], role: str, session: str
    ) -> Port:
        config = json.loads(configs[task])
        address = config["cluster"][config["task"]["type"]][config["task"]["index"]]
        return Port(role, int(address.rpartition(":")[2]), started.running[task].pid, session)

    def steps(self) -> list[int]:
        """What each of those that train has done."""
        files = [self._folder / f"{name}.steps" for name in self._names]
        return [int(file.read_text()) if file.exists() else 0 for file in files]

    def goes_on(self) -> None:
        """Wait until everybody has made more steps."""
        before = self.steps()
        wait_until(
            lambda: all(now > was for now, was in zip(self.steps(), before, strict=True)),
            20,
            f"steps after {before}",
        )

    def end(self) -> None:
        """Let it end, and check that nothing but its own work was done."""
        (self._folder / "stop").touch()
        ended = {task: each for job in self._jobs for task, each in job.wait().items()}
        assert {task: each.code for task, each in ended.items()} == dict.fromkeys(ended, 0), ended
        told = [ended[task].text.split() for task in ("chief:0", "worker:0")]
        values = {int(words[words.index("value") + 1]) for words in told}
        steps = sum(int(words[words.index("steps") + 1]) for words in told)
        assert values == {steps}
        for each in ended.values():
            assert "Traceback" not in each.text, each.text

    def kill(self) -> None:
        """End what is left."""
        for process in (each for job in self._jobs for each in job.running.values()):
            if process.poll() is None:
                process.kill()
            process.wait(scaled(10))
