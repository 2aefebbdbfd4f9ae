"""A job that counts how often each example was trained, and what happens to it at random."""

import json
import os
import random
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path

from ropewalk.client.chief.calls import ChiefClient, JobStatus
from ropewalk.cluster.access import Principal
from ropewalk.core.checkpoint import CheckpointReader, latest_checkpoint
from ropewalk.core.errors import RopewalkError
from ropewalk.core.settings import Settings

from ..clusters import HandStarted, tf_configs
from ..waiting import scaled, wait_until

_PROGRAM = Path(__file__).with_name("counting_program.py")
_PS = 2
_HASTE_S = 1.5  # a worker that is asked to leave may be killed within
_CHIEF = "chief:0"


class CountingRun(HandStarted):
    """A chief, workers and two ps of which each has a replica; all may be started again.

    Args:
        folder: Where they run.
        seed: Says what happens.
        workers: Number of workers beside the chief.
        program: Arguments of :mod:`helpers.ledger.counting_program`.

    Attributes:
        done: What has happened, in words.
    """

    def __init__(
        self, folder: Path, seed: int, *, workers: int = 2, program: Sequence[str]
    ) -> None:
        self.done: list[str] = []
        self._draw, self._folder, self._away = random.Random(seed), folder, ""
        self._workers = [f"worker:{index}" for index in range(workers)]
        self._configs = tf_configs(chief=1, worker=workers, ps=_PS)
        super().__init__(
            ["ropewalk", "run", str(_PROGRAM), "--", *program],
            self._configs,
            folder,
            ROPEWALK_PS_REPLICAS="2",
            ROPEWALK_MODEL_DIR=str(folder / "model"),
            ROPEWALK_SAVE_EVERY_S="1",
            ROPEWALK_HEARTBEAT_S="0.1",
            ROPEWALK_CHIEF_RETURNS="true",
            ROPEWALK_LEASE_S=str(scaled(1)),
            ROPEWALK_RECONNECT_TIMEOUT_S=str(scaled(15)),
        )

    # -- that all is well ----------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the chief has ended its last epoch."""
        if '"counts"' in self.said(_CHIEF):
            return True
        here = {task: each for task, each in self.running.items() if task != self._away}
        ended = [task for task, process in here.items() if process.poll() is not None]
        assert not ended, "\n".join(f"{task} ended: {self.said(task)[-3000:]}" for task in ended)
        return False

    def _steps(self) -> int:
        return sum(int(each.read_text().split()[0]) for each in self._folder.glob("steps-*-?"))

    def _status(self) -> JobStatus | None:
        address = json.loads(self._configs[_CHIEF])["cluster"]["chief"][0]
        with closing(ChiefClient(address, Settings(), Principal("driver"))) as chief:
            try:
                return chief.status(timeout_s=2)
            except RopewalkError:
                return None

    def go_on(self, steps: int = 10) -> None:
        """Wait until shares have their replicas and steps were made, or the data is over."""

        def is_whole() -> bool:
            if self.is_over:
                return True
            status = self._status()
            followed = [share for share in status.shares if share.followers] if status else []
            return len(followed) == _PS

        wait_until(is_whole, 90, "replicas of all shares")
        before = self._steps()
        wait_until(lambda: self.is_over or self._steps() >= before + steps, 90, "steps")

    # -- what happens --------------------------------------------------------------------------

    def happen(self, faults: int) -> None:
        """Let so many faults happen, or as many as there is time for."""
        kinds: list[Callable[[], None]] = [
            self.kill_worker,
            self.kill_worker,
            self.kill_workers,
            self.freeze_worker,
            self.drain_worker,
            self.leave_worker_away,
            self.kill_ps,
            self.kill_chief,
            self.begin_again,
        ]
        while len(self.done) < faults and not self.is_over:
            self._draw.choice(kinds)()
            self.go_on()

    def _worker(self) -> str:
        return self._draw.choice(self._workers)

    def _send(self, task: str, number: int) -> None:
        with suppress(ProcessLookupError):
            self.running[task].send_signal(number)

    def _start_again(self, *tasks: str) -> None:
        for task in tasks:
            self.running[task].wait(scaled(30))
            before = self._folder / f"before-{task.replace(':', '-')}.txt"
            with before.open("a") as file:
                file.write(self.said(task))
            self.begin(task, self._configs[task])

    def _strike(self, *tasks: str) -> None:
        self.done.append(f"kill {', '.join(tasks)}")
        for task in tasks:
            self.running[task].kill()
        self._start_again(*tasks)

    def kill_worker(self) -> None:
        """A worker ends without a word, and another one begins."""
        self._strike(self._worker())

    def kill_workers(self) -> None:
        """All workers do, at once."""
        self._strike(*self._workers)

    def leave_worker_away(self) -> None:
        """A worker ends without a word, and comes back when others have trained on."""
        task = self._worker()
        self.done.append(f"keep {task} away")
        self._away = task
        self.running[task].kill()
        self.go_on(30)
        self._start_again(task)
        self._away = ""

    def freeze_worker(self) -> None:
        """A worker stands still, perhaps until it is given up, and comes back."""
        task, seconds = self._worker(), self._draw.uniform(0.2, 4)
        self.done.append(f"freeze {task} for {seconds:.1f} s")
        self._send(task, signal.SIGSTOP)
        _pause(seconds)
        self._send(task, signal.SIGCONT)

    def drain_worker(self) -> None:
        """A worker is asked to leave, and leaves or is killed before it has; one joins."""
        task, grace_s = self._worker(), self._draw.uniform(0, _HASTE_S)
        self.done.append(f"drain {task} within {grace_s:.1f} s")
        self._send(task, signal.SIGTERM)
        _pause(grace_s)
        self.running[task].kill()
        self._start_again(task)

    def kill_ps(self) -> None:
        """A ps ends without a word; what it had, another one has, too."""
        self._strike(f"ps:{self._draw.randrange(_PS)}")

    def kill_chief(self) -> None:
        """The chief ends without a word, and with it the table of leases."""
        self._strike(_CHIEF)

    def begin_again(self) -> None:
        """All end without a word, and go on from the last checkpoint, in the middle of an epoch.

        One for which no moment of all ps could be had is not of one moment; it is not tried.
        """
        newest = latest_checkpoint(str(self._folder / "model"))
        if newest is None or not CheckpointReader(newest.path).manifest.cut:
            return
        self.done.append(f"kill all, and go on from {Path(newest.path).name}")
        for process in self.running.values():
            process.kill()
        self._start_again(*self.running)

    # -- the end -------------------------------------------------------------------------------

    def end(self) -> dict[str, list[list[float]]]:
        """Wait for the end of the job; returns which counts there are, and of how many each."""
        ended = self.wait(300)
        assert {task: each.code for task, each in ended.items()} == dict.fromkeys(ended, 0), (
            "\n".join(f"{task}: {each.text[-3000:]}" for task, each in ended.items())
        )
        line = [each for each in self.said(_CHIEF).splitlines() if '"counts"' in each][-1]
        found: dict[str, list[list[float]]] = json.loads(line[line.index("{") :])
        return found

    def stop(self) -> None:
        """End what still runs."""
        for process in self.running.values():
            if process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
                process.kill()
            process.wait(scaled(10))


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
