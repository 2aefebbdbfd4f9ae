"""Jobs that train while something else happens, and know at their end that nothing was lost."""

import json
from pathlib import Path

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
    """A job with a chief, a worker and a ps, and one of two synchronous workers.

    Args:
        folder: Where they run.
        environment: Variables of all tasks.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self._folder = folder
        (folder / "train.py").write_text(TRAIN)
        (folder / "sync.py").write_text(IN_SYNC)
        configs = tf_configs(chief=1, worker=1, ps=1)
        in_sync = tf_configs(worker=2)
        self.job = HandStarted(["ropewalk", "run", "train.py"], configs, folder, **environment)
        self.in_sync = HandStarted(
            ["ropewalk", "run", "sync.py"],
            {f"sync:{task[-1]}": config for task, config in in_sync.items()},
            folder,
            **environment,
        )
        self.ports = [
            self._port(self.job, "chief:0", configs, "chief", ""),
            self._port(self.job, "ps:0", configs, "ps", "ps"),
            self._port(self.in_sync, "sync:0", {"sync:0": in_sync["worker:0"]}, "worker", "ring"),
        ]

    @staticmethod
    def _port(
        started: HandStarted, task: str, configs: dict[str, str], role: str, session: str
    ) -> Port:
        config = json.loads(configs[task])
        address = config["cluster"][config["task"]["type"]][config["task"]["index"]]
        return Port(role, int(address.rpartition(":")[2]), started.running[task].pid, session)

    def steps(self) -> list[int]:
        """What each of the four that train has done."""
        names = ("chief", "worker", "sync-0", "sync-1")
        files = [self._folder / f"{name}.steps" for name in names]
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
        ended = self.job.wait() | self.in_sync.wait()
        assert {task: each.code for task, each in ended.items()} == dict.fromkeys(ended, 0), ended
        told = [ended[task].text.split() for task in ("chief:0", "worker:0")]
        values = {int(words[words.index("value") + 1]) for words in told}
        steps = sum(int(words[words.index("steps") + 1]) for words in told)
        assert values == {steps}
        for each in ended.values():
            assert "Traceback" not in each.text, each.text

    def kill(self) -> None:
        """End what is left."""
        for process in (*self.job.running.values(), *self.in_sync.running.values()):
            if process.poll() is None:
                process.kill()
            process.wait(scaled(10))
