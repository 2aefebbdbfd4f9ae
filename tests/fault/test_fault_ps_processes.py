"""Sessions of which one side is killed or stopped: real processes, over every connection."""

import contextlib
import json
import os
import queue
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import processes, ps_process
from helpers.ps_peers import F32, REMOTE
from helpers.ps_process import BLOCKS, NAMES, PS
from helpers.waiting import scaled, wait_until
from ropewalk.client.ps.control import PsControl
from ropewalk.client.ps.parameter_session import ParameterSession
from ropewalk.client.ps.remote_ps import RemotePs
from ropewalk.client.ps.step import Step
from ropewalk.cluster.access import Principal
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.core.settings import Settings
from ropewalk.core.task import Incarnation, Phase, TaskId
from ropewalk.testing import FaultPlan, run_script

MANY = 100_000_000  # steps: more than anybody waits for
# What settings of both sides make of each connection. (A Unix socket without memory is taken care
# of in the contract's tests: no setting asks for it.)
WAYS: dict[str, dict[str, Any]] = {
    "shm": {},
    "tcp": {"shared_memory": False},
    "grpc": {"shared_memory": False, "tcp_sessions": False},
}
ways = pytest.mark.parametrize("way", [way for way in WAYS if way in REMOTE])


class Process:
    """A process of :mod:`helpers.ps_process`, and what it says."""

    def __init__(self, role: str, **arguments: Any) -> None:
        self._process: subprocess.Popen[str] = processes.start(
            [sys.executable, ps_process.__file__, role, json.dumps(arguments)],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.pid = self._process.pid
        self.step = 0  # the last one it knows to be done
        self.last = ""
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("step "):
                self.step = int(line.split()[1])
            else:
                self.last = line.strip()
                self._lines.put(self.last)

    def until(self, word: str) -> str:
        """The next line that begins so; any other one fails the test."""
        line = self._lines.get(timeout=scaled(30))
        assert line.startswith(word), line
        return line

    def until_step(self, step: int) -> None:
        wait_until(lambda: self.step >= step or self.last, 30, f"step {step}")
        assert self.step >= step, self.last

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """kill -9; all it had said is known afterwards."""
        if self._process.poll() is None:
            self.signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        self._process.wait(scaled(10))
        self._reader.join(scaled(10))
        if self._process.stdout is not None:
            self._process.stdout.close()


class Cluster:
    """A ps process, its workers, and a session of this process with it."""

    def __init__(self, way: str) -> None:
        self._settings = WAYS[way]
        self._started: list[Process] = []
        self.ps = self._start("ps")
        self.address = f"127.0.0.1:{self.ps.until('ready').split()[1]}"
        self._control = PsControl(PS, self.address, Settings(), Principal("chief", index=0))
        self.session: ParameterSession | None = None

    def _start(self, role: str, **arguments: Any) -> Process:
        self._started.append(Process(role, **arguments, **self._settings))
        return self._started[-1]

    def worker(self, generation: int = 1, steps: int = MANY, **settings: Any) -> Process:
        return self._start(
            "worker", address=self.address, generation=generation, steps=steps, **settings
        )

    def look(self) -> tuple[dict[str, int], int]:
        """How many pushes each block shows, and the global step. No block is torn."""
        if self.session is None:
            who, settings = Incarnation(TaskId("worker", 1), 1), Settings(**self._settings)
            self.session = ParameterSession(
                [RemotePs(PS, self.address, who, settings)], who, settings
            )
            self.session.connect()
            zeros = {block.name: np.zeros(block.shape, F32) for block in BLOCKS}
            self.session.define(BLOCKS, zeros, create=True)
        result = self.session.step(Step(reads=NAMES))
        for name in NAMES:
            assert result.values[name].min() == result.values[name].max(), f"{name} is torn"
        return {name: int(result.values[name][0]) for name in NAMES}, result.global_step

    def until_sessions(self, count: int) -> None:
        chief = Incarnation(TaskId("chief", 0), 1)

        def sessions() -> int:
            answer = self._control.attach(chief, "127.0.0.1:1", lease_s=60, timeout_s=scaled(10))
            return answer.counters.sessions

        wait_until(lambda: sessions() == count, 30, f"{count} sessions")

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self._control.close()
        for process in reversed(self._started):
            process.kill()


@pytest.fixture
def cluster(way: str, no_process_left: str) -> Iterator[Cluster]:
    """A ps process and what belongs to it; none of it is left."""
    made = Cluster(way)
    yield made
    made.close()


def pause(rng: random.Random) -> None:
    """Where in a step a process is hit is left to chance."""
    threading.Event().wait(rng.uniform(0, 0.02))


@ways
def test_a_worker_killed_in_mid_push_leaves_whole_blocks_and_its_next_generation_goes_on(
    cluster: Cluster,
) -> None:
    rng = random.Random(20)
    done, steps = cluster.look()
    maps = Path(f"/proc/{cluster.ps.pid}/maps")
    held = maps.read_text().count("memfd:ropewalk")
    for generation in range(1, 5):
        worker = cluster.worker(generation)
        worker.until_step(rng.randrange(1, 6))
        pause(rng)
        worker.kill()
        cluster.until_sessions(1)
        now, global_step = cluster.look()
        # All of what was acknowledged, and at most the push under way.
        added = {now[name] - done[name] for name in NAMES}
        assert added <= {worker.step, worker.step + 1}
        assert worker.step <= global_step - steps <= min(added)
        done, steps = now, global_step
    last = cluster.worker(5, steps=5)
    last.until("done")
    assert cluster.look() == ({name: count + 5 for name, count in done.items()}, steps + 5)
    cluster.until_sessions(1)
    wait_until(lambda: maps.read_text().count("memfd:ropewalk") <= held, 10, "memory given back")


@ways
def test_a_generation_that_only_hung_is_fenced_and_changes_nothing(cluster: Cluster) -> None:
    older = cluster.worker(1)
    older.until_step(3)
    older.signal(signal.SIGSTOP)
    newer = cluster.worker(2, steps=5)
    newer.until("done")
    before = cluster.look()
    assert set(before[0].values()) <= {older.step + 5, older.step + 6}
    older.signal(signal.SIGCONT)
    older.until("failed FencedError")
    assert cluster.look() == before


@ways
def test_a_ps_killed_in_mid_push_is_an_error_that_names_it(cluster: Cluster) -> None:
    worker = cluster.worker(reconnect_timeout_s=0.5)
    worker.until_step(3)
    pause(random.Random(21))
    cluster.ps.kill()
    failed = worker.until("failed PeerLostError")
    assert "/job:ps/task:0" in failed
    assert cluster.address in failed


@ways
def test_a_ps_that_hangs_and_wakes_up_has_every_step_once(cluster: Cluster) -> None:
    rng = random.Random(23)
    worker = cluster.worker(steps=60, request_timeout_s=0.5, reconnect_timeout_s=60.0)
    for _ in range(3):
        worker.until_step(min(60, worker.step + 3))
        pause(rng)
        cluster.ps.signal(signal.SIGSTOP)
        time.sleep(1.0)  # longer than a step may take: it is given up and repeated
        cluster.ps.signal(signal.SIGCONT)
    worker.until("done")
    assert cluster.look() == (dict.fromkeys(NAMES, 60), 60)


@ways
def test_a_ps_that_hangs_for_too_long_is_lost_and_its_next_worker_finds_each_push_once(
    cluster: Cluster,
) -> None:
    worker = cluster.worker(request_timeout_s=1.0, reconnect_timeout_s=0.5)
    worker.until_step(5)
    cluster.ps.signal(signal.SIGSTOP)
    assert "/job:ps/task:0" in worker.until("failed PeerLostError")
    cluster.ps.signal(signal.SIGCONT)
    cluster.until_sessions(0)  # what it still had to read of the dead session is done
    counts, step = cluster.look()
    assert set(counts.values()) <= {worker.step, worker.step + 1}
    assert step in (worker.step, worker.step + 1)
    cluster.worker(2, steps=5).until("done")
    assert cluster.look() == ({name: count + 5 for name, count in counts.items()}, step + 5)


@pytest.mark.skipif("shm" not in REMOTE, reason="no shared memory here")
@pytest.mark.parametrize("lives", [3, pytest.param(30, marks=pytest.mark.soak)])
def test_killed_processes_leave_neither_files_nor_sockets(lives: int, no_process_left: str) -> None:
    used: set[str] = set()
    for _ in range(lives):
        cluster = Cluster("shm")
        worker = cluster.worker()
        worker.until_step(1)
        used |= names_of(cluster.ps.pid)
        cluster.ps.kill()  # while the worker pushes
        worker.kill()
        cluster.close()
    assert len(used) >= lives
    # Named sockets are in one list for all processes, of which other tests have some.
    wait_until(lambda: not used & {name for _, name in named_sockets()}, 10, "the sockets to go")
    assert not list(Path("/dev/shm").glob("*ropewalk*"))  # noqa: S108 - looked at


def named_sockets() -> list[tuple[str, str]]:
    """(inode, name) of the Unix sockets of this machine that have one of ours."""
    rows = [row.split() for row in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return [(row[6], row[7]) for row in rows if len(row) > 7 and "ropewalk" in row[7]]


def names_of(pid: int) -> set[str]:
    """Names of the Unix sockets that a process has open."""
    inodes = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            inodes.add(os.readlink(entry))
    return {name for inode, name in named_sockets() if f"socket:[{inode}]" in inodes}


WriteProgram = Callable[..., str]


@pytest.mark.usefixtures("no_process_left")
@pytest.mark.parametrize(
    ("prefetch", "way"),
    [
        pytest.param(False, "shm", id="waiting"),
        pytest.param(True, "shm", id="prefetch-shm"),
        pytest.param(True, "tcp", id="prefetch-tcp", marks=pytest.mark.soak),
        pytest.param(True, "grpc", id="prefetch-grpc", marks=pytest.mark.soak),
    ],
)
def test_a_job_that_prefetches_survives_a_killed_worker_as_one_that_waits(
    write_program: WriteProgram, tmp_path: Path, prefetch: bool, way: str
) -> None:
    program = write_program(
        replace={
            "ParameterServerStrategy()": f"ParameterServerStrategy(prefetch={prefetch})",
            # Large enough not to travel in a message.
            'name="b")': 'name="b")\n'
            '        big = rw.Variable(np.zeros(40_000, np.float32), name="big")',
            "(np.float32(2 * rest.mean()), b)]": "(np.float32(2 * rest.mean()), b), "
            "(big.read_value() - 1, big)]",
        }
    )
    result = run_script(
        program, "300", "0.005", model_dir=str(tmp_path / "model"), workers=2,
        faults=FaultPlan().kill("worker", 1, at_step=50), **WAYS[way],
    )  # fmt: skip
    assert result.exit_code == 0, result.text
    assert [code for code in result.exits.values() if code] == [-signal.SIGKILL]
    assert result.first_failure is None
    assert result.status is not None
    assert result.status.phase is Phase.DONE
    assert result.status.global_step >= 300
    last = latest_checkpoint(result.model_dir)
    assert last is not None
    reader = CheckpointReader(last.path)
    reader.verify()
    assert reader.manifest.final
    # 300 steps of rate 0.05 on least squares without noise leave 0.95**300 < 1e-6 of the distance
    # to the answer, at the pace of the curvature's mean; a few times slower at its smallest. Values
    # that are some steps older change nothing about that.
    np.testing.assert_allclose(reader.read("w"), np.arange(4), atol=0.03)
    np.testing.assert_allclose(reader.read("big"), np.ones(40_000), atol=0.03)
