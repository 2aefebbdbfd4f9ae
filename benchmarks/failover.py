"""How long training stands still when a ps with replicas is lost, moved from, or leaves in order.

    python -m benchmarks.failover                    # four minutes
    python -m benchmarks.failover --sizes 4 --faults kill --times 50
    python -m benchmarks.failover --without-replicas --faults leave

Starts a job of real processes: a chief, two workers that push, and two ps of which each follows the
other. Again and again one thing happens to the ps that leads share 0: it is killed (``kill -9``) or
asked to leave (SIGTERM) and started again, stands still for five seconds (SIGSTOP), or its share is
moved to its follower. Without replicas a ps that leaves copies its share to the other one first.
Every task writes down when each of its steps ended. Shown is how long after that the last of them
had ended the longest step that was under way, and after how long the ps had ended; at the end every
step is counted on all ps: a count that is wrong is an error.
"""

import argparse
import json
import os
import signal
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.standalone import ROPEWALK, environment
from ropewalk.client.chief.calls import ChiefClient
from ropewalk.cluster.access import Principal
from ropewalk.cluster.replication.configuration import ShareLeader
from ropewalk.core.errors import RopewalkError
from ropewalk.core.settings import Settings
from ropewalk.core.task import TaskId
from ropewalk.net.this_machine import free_ports

TIMEOUT_S = 60
FAULTS = ("kill", "leave", "stand still", "move")
_STANDS_STILL_S = 5.0
_AFTER_S = 1.5  # in which steps have to go on, beside what a fault itself takes
_WORKERS = 2
_PS = 2

# Arguments: elements of the large variable. Each step adds one to each count and to the variable.
PROGRAM = """\
import json, os, pathlib, struct, sys, time
import numpy as np
import ropewalk as rw

task = json.loads(os.environ["TF_CONFIG"])["task"]
slot = None if task["type"] == "chief" else task["index"]
strategy = rw.distribute.ParameterServerStrategy()
with strategy.scope():
    counts = [rw.Variable(np.zeros(2, np.int64), name=f"count{i}") for i in range(2)]
    large = rw.Variable(np.zeros((int(sys.argv[1]), 64), np.float32), name="large")
ones = np.ones(large.shape, np.float32)

def step():
    for count in counts:
        count.assign_add(np.eye(2, dtype=np.int64)[slot])
    large.assign_add(ones)

enough = pathlib.Path("enough")
if slot is None:
    while not all(pathlib.Path(f"done-{i}").exists() for i in range(2)):
        time.sleep(0.05)
    steps = [int(pathlib.Path(f"done-{i}").read_text()) for i in range(2)]
    found = [count.read_value().tolist() for count in counts]
    last = large.read_value()[-1, -1].item()
    pathlib.Path("verdict").write_text(json.dumps([steps, found, last]))
else:
    steps = 0
    with open(f"times-{slot}", "ab", buffering=0) as times:
        while not enough.exists():
            strategy.run(step)
            steps += 1
            times.write(struct.pack("d", time.monotonic()))
    pathlib.Path(f"done-{slot}").write_text(str(steps))
"""


class Job:
    """The job, every process of which can be ended.

    Args:
        folder: Where it runs.
        rows: Rows of the large variable, each of 256 bytes.
        has_replicas: Whether shares have followers; else they move to another ps.
    """

    def __init__(self, folder: Path, rows: int, *, has_replicas: bool) -> None:
        self._folder = folder
        self._has_replicas = has_replicas
        self._own = {"ROPEWALK_PS_REPLICAS": "2"} if has_replicas else {"ROPEWALK_PS_SHARES": "2"}
        self._arguments = [*ROPEWALK, "run", "program.py", "--", str(rows)]
        (folder / "program.py").write_text(PROGRAM)
        numbers = {"chief": 1, "worker": _WORKERS, "ps": _PS}
        ports = iter(free_ports(sum(numbers.values())))
        self._cluster = {
            role: [f"127.0.0.1:{next(ports)}" for _ in range(count)]
            for role, count in numbers.items()
        }
        self.running = {
            f"{role}:{index}": self._started(role, index)
            for role, count in numbers.items()
            for index in range(count)
        }

    def _started(self, role: str, index: int) -> subprocess.Popen[bytes]:
        config = {"cluster": self._cluster, "task": {"type": role, "index": index}}
        with (self._folder / f"{role}-{index}.txt").open("ab") as output:
            return subprocess.Popen(
                self._arguments,
                cwd=self._folder,
                env=environment(
                    TF_CONFIG=json.dumps(config),
                    **self._own,
                    ROPEWALK_MODEL_DIR=str(self._folder / "model"),
                ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def until_gone(self, ps: TaskId) -> float:
        """Wait until a ps has ended; when it had, by the clock of time.monotonic."""
        self.running[ps.short].wait(TIMEOUT_S)
        return time.monotonic()

    def start_again(self, ps: TaskId) -> None:
        """Start a ps again that has ended."""
        self.running[ps.short] = self._started("ps", ps.index)

    @contextmanager
    def chief(self) -> Iterator[ChiefClient]:
        """Calls to the chief."""
        chief = ChiefClient(self._cluster["chief"][0], Settings(), Principal("driver"))
        try:
            yield chief
        finally:
            chief.close()

    def until_stepping(self) -> None:
        """Wait until each worker has made some steps."""
        deadline = time.monotonic() + TIMEOUT_S
        while any(len(self.ends(worker)) < 5 for worker in range(_WORKERS)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the workers make no steps: {self._folder}")
            time.sleep(0.05)

    def until_whole(self) -> ShareLeader:
        """Wait until every share has a follower, or each ps leads one; who leads share 0."""
        deadline = time.monotonic() + TIMEOUT_S
        while time.monotonic() < deadline:
            with suppress(RopewalkError), self.chief() as chief:
                shares = chief.status(timeout_s=2).shares
                followed = all(share.followers for share in shares)
                spread = len({share.leader for share in shares}) == _PS
                if len(shares) == _PS and (followed if self._has_replicas else spread):
                    return shares[0]
            time.sleep(0.05)
        raise TimeoutError(f"not every share is where it is to be: {self._folder}")

    def ends(self, worker: int) -> list[float]:
        """When each step of a worker has ended, by the clock of time.monotonic."""
        file = self._folder / f"times-{worker}"
        data = file.read_bytes() if file.exists() else b""
        return [each[0] for each in struct.iter_unpack("d", data[: len(data) // 8 * 8])]

    def end(self) -> None:
        """Let the job end, and check every count.

        Raises:
            RuntimeError: A step was lost, or counted twice.
        """
        (self._folder / "enough").touch()
        for process in self.running.values():
            process.wait(TIMEOUT_S)
        steps, counts, last = json.loads((self._folder / "verdict").read_text())
        if counts != [steps] * _PS or last != sum(steps):
            raise RuntimeError(f"steps {steps}, counted {counts} and {last}")

    def kill(self) -> None:
        """End what runs still."""
        for process in self.running.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            process.wait()


def kill(job: Job, share: ShareLeader) -> None:
    """Kill the leader, which is started again once others lead."""
    job.running[share.leader.short].kill()


def leave(job: Job, share: ShareLeader) -> None:
    """Ask the leader to leave."""
    job.running[share.leader.short].terminate()


def stand_still(job: Job, share: ShareLeader) -> None:
    """Stop the leader for a while."""
    os.kill(job.running[share.leader.short].pid, signal.SIGSTOP)


def move(job: Job, share: ShareLeader) -> None:
    """Have the follower lead."""
    with job.chief() as chief:
        chief.move_share(share.share, share.followers[0], timeout_s=TIMEOUT_S)


_DO: dict[str, Callable[[Job, ShareLeader], None]] = {
    "kill": kill, "leave": leave, "stand still": stand_still, "move": move,
}  # fmt: skip


def pause_s(job: Job, fault: str) -> tuple[float, float]:
    """Let something happen to the leader of share 0.

    Returns:
        (seconds until the last worker goes on, seconds until the ps has ended; 0: it does not)
    """
    share = job.until_whole()
    before = [len(job.ends(worker)) for worker in range(_WORKERS)]
    began = time.monotonic()
    _DO[fault](job, share)
    gone_s = job.until_gone(share.leader) - began if fault in ("kill", "leave") else 0.0
    time.sleep(_AFTER_S + (_STANDS_STILL_S if fault == "stand still" else 0))
    if fault == "stand still":
        os.kill(job.running[share.leader.short].pid, signal.SIGCONT)
    elif fault != "move":
        job.start_again(share.leader)
    until_on = [_until_on(job.ends(i)[before[i] - 1 :], began) for i in range(_WORKERS)]
    return max(until_on), gone_s


def _until_on(ends: Sequence[float], began: float) -> float:
    """From a moment to the end of the longest step that ended after it."""
    steps = [(after - before, after) for before, after in pairwise(ends)]
    _, end = max((step for step in steps if step[1] > began), default=(0, float("inf")))
    return end - began


def measure(
    megabytes: float, faults: Sequence[str], times: int, *, has_replicas: bool
) -> dict[str, list[tuple[float, float]]]:
    """Of each kind what :func:`pause_s` returns, each time."""
    with tempfile.TemporaryDirectory() as name:
        job = Job(Path(name), max(1, int(megabytes * 2**20 / 256)), has_replicas=has_replicas)
        try:
            job.until_stepping()
            progress = track(
                [fault for _ in range(times) for fault in faults],
                f"{megabytes:g} MB",
                console=Console(stderr=True),
            )
            pauses: dict[str, list[tuple[float, float]]] = {fault: [] for fault in faults}
            for fault in progress:
                pauses[fault].append(pause_s(job, fault))
            job.until_whole()
            job.end()
        finally:
            job.kill()
    return pauses


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=float, nargs="+", default=[4, 64], help="MB")
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--times", type=int, default=5, help="how often each happens")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument(
        "--without-replicas", action="store_true", help="each share is on one ps, and moves"
    )
    arguments = parser.parse_args()
    alone = arguments.without_replicas
    if alone and set(arguments.faults) - {"leave"}:
        parser.error("--without-replicas: only --faults leave loses nothing")
    figures = {
        f"{size:g} MB": measure(size, arguments.faults, arguments.times, has_replicas=not alone)
        for size in arguments.sizes
    }
    table = Table(title="until the last of two workers goes on (s)")
    for column in ("variables", "what happens", "times", "median", "longest", "ps gone, median"):
        table.add_column(column, justify="left" if column.startswith(("v", "w")) else "right")
    for size, pauses in figures.items():
        for fault, found in pauses.items():
            on, gone = zip(*found, strict=True)
            shown = [f"{each:.2f}" for each in (statistics.median(on), max(on))]
            has_gone = f"{statistics.median(gone):.2f}" if any(gone) else ""
            table.add_row(size, fault, str(len(found)), *shown, has_gone)
    console = Console(width=100)
    console.print(table)
    console.print("no step was lost or counted twice")
    console.print(f"load {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores")
    if arguments.json:
        arguments.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
