"""A job with replicas of which a test ends any process: every task counts its own steps."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from windlass.client.chief.calls import ChiefClient
from windlass.cluster.access.principal import Principal
from windlass.cluster.replication.moves import Move
from windlass.cluster.replication.reports import ShareLeader
from windlass.core.errors import WindlassError
from windlass.core.settings import Settings
from windlass.core.task import TaskId
from windlass.net.free_ports import free_ports

from .clusters import HandStarted, tf_configs
from .waiting import scaled, wait_until

# Each task counts its own steps on all ps, until the test says that it is enough. A chief that is
# to be killed counts nothing: nobody would know whether its last step was answered.
PROGRAM = """
import json, os, pathlib, sys, time
import numpy as np
import windlass as wl

config = json.loads(os.environ["TF_CONFIG"])
task, ps = config["task"], COUNTS
slot = 0 if task["type"] == "chief" else task["index"] + 1
counts_steps = slot or "--chief-counts" in sys.argv
strategy = wl.distribute.ParameterServerStrategy()
with strategy.scope():
    counts = [wl.Variable(np.zeros(3, np.int64), name=f"count{i}") for i in range(ps)]
    table = wl.Variable(np.zeros((20_000, 32), np.float32), name="table")
one = np.eye(3, dtype=np.int64)[slot]
ones = np.ones(table.shape, np.float32)

def step():
    for count in counts:
        count.assign_add(one)
    table.assign_add(ones)

def say(steps):
    pathlib.Path(f"new-{slot}").write_text(str(steps))
    os.replace(f"new-{slot}", f"steps-{slot}")

steps = 0
say(steps)
while not pathlib.Path("enough").exists():
    if not counts_steps:
        time.sleep(0.05)
        continue
    strategy.run(step)
    steps += 1
    say(steps)
    seen = [int(count.read_value()[slot]) for count in counts]
    assert seen == [steps] * ps, (seen, steps)
say(f"{steps} in all")
if slot == 0:
    while not all(pathlib.Path(f"steps-{i}").read_text().endswith("all") for i in range(3)):
        time.sleep(0.05)
    found = [count.read_value().tolist() for count in counts]
    print(json.dumps({"counts": found, "table": table.read_value()[[0, -1], 0].tolist()}))
"""


class CountingJob(HandStarted):
    """A chief, two workers and some ps, between which shares move.

    Args:
        folder: Where they run.
        ps: Number of ps.
        chief_counts: The chief counts its steps, too.
        rows: Rows of the large variable, each of 128 bytes.
        rebalances: The chief moves shares by itself.
        replicas: How many ps have each share.
        shares: Number of shares; 0: one for each ps.
    """

    def __init__(
        self,
        folder: Path,
        ps: int = 2,
        *,
        chief_counts: bool = True,
        rows: int = 20_000,
        rebalances: bool = False,
        replicas: int = 2,
        shares: int = 0,
    ) -> None:
        self.folder = folder
        self.configs = tf_configs(chief=1, worker=2, ps=ps)
        self.environment = {
            "WINDLASS_PS_REPLICAS": str(replicas),
            "WINDLASS_PS_SHARES": str(shares),
            "WINDLASS_MODEL_DIR": str(folder / "model"),
            "WINDLASS_REBALANCE": str(int(rebalances)),
        }
        self._has_followers = replicas > 1
        self._shares = shares or ps
        program = PROGRAM.replace("20_000", str(rows)).replace("COUNTS", str(self._shares))
        (folder / "program.py").write_text(program)
        arguments = ["--chief-counts"] if chief_counts else []
        self.command = ["windlass", "run", "program.py", "--", *arguments]
        self._counting = range(0 if chief_counts else 1, 3)
        super().__init__(self.command, self.configs, folder, **self.environment)

    def until_said(self, *words: str) -> None:
        """Wait until the chief has said each of these, in this order."""

        def has_said() -> bool:
            text, start = self.said("chief:0"), 0
            for each in words:
                start = text.find(each, start) + 1
                if not start:
                    return False
            return True

        wait_until(has_said, 60, " … ".join(words))

    def steps(self) -> list[int]:
        """How many steps each task has made."""
        files = [self.folder / f"steps-{slot}" for slot in range(3)]
        return [int(file.read_text().split()[0]) if file.exists() else 0 for file in files]

    def go_on(self) -> None:
        """Wait until each task has made some more steps."""
        before = self.steps()
        wait_until(
            lambda: all(self.steps()[slot] >= before[slot] + 5 for slot in self._counting),
            30,
            "steps of all tasks",
        )

    @property
    def address(self) -> str:
        """Where the chief is."""
        return str(json.loads(self.configs["chief:0"])["cluster"]["chief"][0])

    @contextmanager
    def chief(self) -> Iterator[ChiefClient]:
        """Calls to the chief."""
        chief = ChiefClient(self.address, Settings(), Principal("driver"))
        try:
            yield chief
        finally:
            chief.close()

    def shares(self) -> tuple[ShareLeader, ...]:
        """Who leads and follows, as the chief says; nothing if it does not answer."""
        try:
            with self.chief() as chief:
                return chief.status(timeout_s=2).shares
        except WindlassError:
            return ()

    def move(self, share: int, to: TaskId) -> Move:
        """Have another ps lead a share, and wait until it does, or cannot."""
        with self.chief() as chief:
            number = chief.move_share(share, to, timeout_s=10).number

            def over() -> Move | None:
                move = chief.status(timeout_s=10).move
                return move if move is not None and move.phase.is_over else None

            wait_until(lambda: over() is not None, 30, f"the move of share {share} to {to.short}")
            move = over()
        assert move is not None
        assert move.number == number
        return move

    def until_whole(self) -> None:
        """Wait until every share is led, and has as many followers as are wanted."""
        wait_until(
            lambda: (
                len(shares := self.shares()) == self._shares
                and all(bool(each.followers) is self._has_followers for each in shares)
            ),
            60,
            "replicas of all shares",
        )

    def start_again(self, task: str) -> None:
        """Start a task again, as a cluster manager does."""
        self.running[task].wait(scaled(10))
        said = self.said(task)
        again = HandStarted(
            self.command, {task: self.configs[task]}, self.folder, **self.environment
        )
        (self.folder / f"before-{task.replace(':', '-')}.txt").write_text(said)
        self.running[task] = again.running[task]

    def start_more(self, *indices: int) -> None:
        """Start ps that the cluster did not have; each finds the chief by its own TF_CONFIG."""
        config = json.loads(self.configs["ps:0"])
        for index, port in zip(indices, free_ports(len(indices)), strict=True):
            config["cluster"]["ps"].append(f"127.0.0.1:{port}")
            config["task"]["index"] = index
            self.configs[f"ps:{index}"] = json.dumps(config)
        added = {f"ps:{index}": self.configs[f"ps:{index}"] for index in indices}
        more = HandStarted(self.command, added, self.folder, **self.environment)
        self.running |= more.running
        self._files |= more._files

    def leave(self, *tasks: str) -> None:
        """Ask ps to leave, all at once, and wait until they have ended in order."""
        for task in tasks:
            self.running[task].terminate()
        for task in tasks:
            code = self.running[task].wait(scaled(15))
            assert code == 0, self.said("chief:0") + self.said(task)

    def kill(self) -> None:
        """End all processes."""
        for process in self.running.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.wait(10)

    def end(self) -> None:
        """Let the program end, and check every count."""
        (self.folder / "enough").touch()
        ended = self.wait()
        assert {task: each.code for task, each in ended.items()} == dict.fromkeys(ended, 0), (
            "\n".join(f"{task}: {each.text[-3000:]}" for task, each in ended.items())
        )
        [line] = [line for line in ended["chief:0"].text.splitlines() if line[:1] == "{"]
        steps = self.steps()
        assert json.loads(line) == {"counts": [steps] * self._shares, "table": [sum(steps)] * 2}


@contextmanager
def counting_job(folder: Path, ps: int = 2, **options: Any) -> Iterator[CountingJob]:
    """A job whose counts are checked at the end; see :class:`CountingJob`."""
    job = CountingJob(folder, ps, **options)
    try:
        job.until_whole()
        yield job
        job.end()
    finally:
        job.kill()
