"""Nonsense at every port, beside a live job: nothing ends, nothing is believed, nothing is left."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.clusters import HandStarted, tf_configs
from helpers.fuzzing import Cost, Credentials, Fuzzer, Port
from helpers.waiting import scaled, wait_until

MIB = 1024 * 1024


TRAIN = """
import os, sys, time
import numpy as np
import windlass as wl

strategy = wl.distribute.ParameterServerStrategy()
with strategy.scope():
    w = wl.Variable(np.zeros((), np.float32), name="w")
me = wl.training.task_type()
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
import windlass as wl

strategy = wl.distribute.MultiWorkerMirroredStrategy()
me = strategy.cluster_resolver.task_id
steps = 0
while True:
    stop = np.float32(os.path.exists("stop"))
    steps += 1
    with open(f"sync-{me}.tmp", "w") as out:
        out.write(str(steps))
    os.replace(f"sync-{me}.tmp", f"sync-{me}.steps")
    if strategy.reduce(wl.distribute.ReduceOp.SUM, stop, axis=None) > 0:
        break
    time.sleep(0.01)
print("steps", steps)
"""


class Live:
    """A job with a chief, a worker and a ps, and one of two synchronous workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "train.py").write_text(TRAIN)
        (folder / "sync.py").write_text(IN_SYNC)
        configs = tf_configs(chief=1, worker=1, ps=1)
        in_sync = tf_configs(worker=2)
        self.job = HandStarted(["windlass", "run", "train.py"], configs, folder)
        self.in_sync = HandStarted(
            ["windlass", "run", "sync.py"],
            {f"sync:{task[-1]}": config for task, config in in_sync.items()},
            folder,
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
        import json

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


@pytest.fixture
def live(tmp_path: Path, no_process_left: str) -> Iterator[Live]:
    made = Live(tmp_path)
    wait_until(lambda: all(made.steps()), 60, "the jobs to begin")
    yield made
    for process in (*made.job.running.values(), *made.in_sync.running.values()):
        if process.poll() is None:
            process.kill()
        process.wait(scaled(10))


def attack(live: Live, count: int, seed: int) -> None:
    """Nonsense for every port; what it leaves is measured after a first part."""
    for port in live.ports:
        with Fuzzer(port, Credentials(), seed) as fuzzer:
            fuzzer.attack(min(count, 300))
            before = Cost.of(port.pid)
            fuzzer.attack(count)
        wait_until(
            lambda port=port, before=before: Cost.of(port.pid).is_near(before, 10 * MIB, 5, 20),  # type: ignore[misc]
            30,
            f"{port}, that had {before}, to be as it was",
        )
    live.goes_on()


@pytest.mark.timeout(300)
@pytest.mark.scenario
@pytest.mark.parametrize(
    "count", [200, pytest.param(33_000, marks=[pytest.mark.soak, pytest.mark.timeout(3000)])]
)
def test_nonsense_at_every_port_leaves_a_live_job_as_it_was(live: Live, count: int) -> None:
    attack(live, count, seed=int(os.environ.get("FUZZ_SEED", "1")))
    live.end()
