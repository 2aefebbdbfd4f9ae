"""Faults drawn at random, that happen to a counting job of ``ropewalk local``.

Its launcher starts again what was lost, and has as many ps as the job was asked to have. At most
one replica of a share is lost at a time.
"""

import json
import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ropewalk.annexes.replication.share_commands import missing
from ropewalk.core.exit_codes import ExitCode

from ..local_run import LivePids, LocalRun
from ..waiting import scaled, wait_until
from .histories import check_histories, read_history

_CHIEF = "chief:0"
_SHARES, _WORKERS, _MOST_PS = 4, 2, 4
_HASTE_S = 1.5  # a ps that is asked to leave may be killed within
_AWAY_S = 60.0  # for which a chief may be away
_PROGRAM = Path(__file__).with_name("counting_program.py")
_COUNTS = ["--counts", str(_SHARES), "--workers", str(_WORKERS), "--rows", "2000"]


class LocalChaos:
    """Faults of one local job.

    Args:
        folder: Where it runs.
        live: Processes of the test.
        seed: Says what happens.

    Attributes:
        done: What has happened, in words.
    """

    def __init__(self, folder: Path, live: LivePids, seed: int) -> None:
        self.done: list[str] = []
        self._draw = random.Random(seed)
        self._ps = 2
        flags = ["--workers", str(_WORKERS), "--ps", str(self._ps), "--ps-replicas", "2"]
        flags += ["--ps-shares", str(_SHARES), "--restarts", "1000"]
        flags += ["--reconnect-timeout-s", str(scaled(15))]
        program = [str(_PROGRAM), "--", *_COUNTS, "--pause-s", "0.005"]
        self.job = LocalRun(folder, live, [*flags, *program])

    def begin(self) -> None:
        """Wait until it has begun."""
        self._until_well()

    def happen(self, faults: int) -> None:
        """Let so many faults happen; when it returns, all is well again."""
        kinds: list[Callable[[], None]] = [
            self.kill,
            self.leave,
            self.leave_in_haste,
            self.scale,
            self.kill_chief,
            self.keep_chief_away,
        ]
        for _ in range(faults):
            self._draw.choice(kinds)()
            self._until_well()

    def _say(self, *words: str) -> None:
        self.done.append(" ".join(words))

    def _a_ps(self) -> str:
        return f"ps:{self._draw.randrange(self._ps)}"

    # -- that all is well ----------------------------------------------------------------------

    def _until_well(self) -> None:
        """Wait until the job has its ps, all shares two replicas, and each worker goes on."""

        def is_whole() -> bool:
            assert self.job.launcher.poll() is None, self.job.said
            if "the chief is at" not in self.job.said or (status := self.job.status()) is None:
                return False
            followed = [share for share in status.shares if share.followers]
            return len(followed) == _SHARES and not missing(status, self._ps)

        wait_until(is_whole, 90, f"{self._ps} ps and replicas of all shares")
        self._go_on()

    def _steps(self) -> list[int]:
        files = [self.job.folder / f"steps-{slot}" for slot in range(1, _WORKERS + 1)]
        return [int(each.read_text().split()[0]) if each.exists() else 0 for each in files]

    def _go_on(self) -> None:
        before = self._steps()

        def has_gone_on() -> bool:
            assert self.job.launcher.poll() is None, self.job.said
            return all(now >= n + 5 for now, n in zip(self._steps(), before, strict=True))

        wait_until(has_gone_on, 60, "steps of all workers")

    # -- what happens --------------------------------------------------------------------------

    def _is_another(self, task: str, former: int) -> bool:
        return self.job.pid(task) not in (None, former)

    def _until_another(self, task: str, former: int) -> None:
        wait_until(lambda: self._is_another(task, former), 60, f"{task} to be started again")

    def kill(self) -> None:
        """A ps ends without a word."""
        task = self._a_ps()
        self._say("kill", task)
        self._until_another(task, self.job.send(task, signal.SIGKILL))

    def leave(self) -> None:
        """A ps is asked to leave, and does; then the job is asked to have as many as before."""
        task = self._a_ps()
        self._say("leave", task, "and scale to", str(self._ps))
        pid = self.job.send(task, signal.SIGTERM)
        wait_until(lambda: self.job.pid(task) != pid, 60, f"{task} to leave")
        self.job.scale(self._ps)

    def leave_in_haste(self) -> None:
        """The same, but it is killed before it may have left, as by a kubelet."""
        task, grace_s = self._a_ps(), self._draw.uniform(0, _HASTE_S)
        self._say("leave", task, f"within {grace_s:.1f} s")
        pid = self.job.send(task, signal.SIGTERM)
        _pause(grace_s)
        if self.job.pid(task) == pid:
            with suppress(ProcessLookupError):  # it leaves just now
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: self.job.pid(task) != pid, 60, f"{task} to end")
        self.job.scale(self._ps)

    def scale(self) -> None:
        """The job is asked to have more ps, or fewer."""
        self._ps = self._draw.randint(2, _MOST_PS)
        self._say("scale to", str(self._ps))
        self.job.scale(self._ps)

    def kill_chief(self) -> None:
        """The chief ends without a word."""
        self._say("kill", _CHIEF)
        self._until_another(_CHIEF, self.job.send(_CHIEF, signal.SIGKILL))

    def keep_chief_away(self, seconds: float | None = None) -> None:
        """The same, and it is back after up to a minute; a ps may be asked to leave meanwhile.

        That one leaves early, since nobody has others take over what it has.
        """
        seconds = seconds or self._draw.uniform(5, _AWAY_S)
        task = self._a_ps() if self._draw.random() < 0.5 else ""
        self._say("keep", _CHIEF, f"away for {seconds:.0f} s", f"and leave {task}" if task else "")
        self.job.send_away()
        before = self.job.said.count("leaving before the job is over")
        self.job.send(_CHIEF, signal.SIGKILL)
        self._go_on()
        pid = self.job.send(task, signal.SIGTERM) if task else 0
        _pause(seconds)
        if task and self.job.pid(task) != pid:
            assert self.job.said.count("leaving before the job is over") > before, self.job.said
        self.job.have_back()
        if task:
            wait_until(lambda: self.job.pid(task) != pid, 60, f"{task} to leave")
            wait_until(lambda: self.job.status() is not None, 60, "the chief")
            self.job.scale(self._ps)

    # -- the end -------------------------------------------------------------------------------

    def end(self) -> None:
        """Let the program end, and check every count and every read."""
        folder = self.job.folder
        assert self.job.end() == ExitCode.DONE, self.job.said
        [line] = [each for each in self.job.said.splitlines() if '{"counts"' in each]
        counts = json.loads(line[line.index("{") :])["counts"]
        histories = [read_history(folder / f"history-{i}", i) for i in range(_WORKERS + 1)]
        check_histories(histories, counts)


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)
