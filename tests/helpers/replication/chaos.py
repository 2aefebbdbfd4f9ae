"""Faults drawn at random, that happen to a counting job one after the other, or beside each other.

At most one replica of a share is lost at a time: what two at once do is said in docs/replicas.md.
So a fault that a replica may be lost by waits until every share has a follower. Others happen
beside it: they slow the job down, or hold up one worker, or end one.
"""

import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from ropewalk.cluster.replication.configuration import ShareLeader
from ropewalk.core.errors import RopewalkError
from ropewalk.core.exit_codes import ExitCode
from ropewalk.core.task import TaskId

from ..small_disk import SmallDisk
from ..waiting import scaled, wait_until
from .counting_job import CountingJob

_CHIEF = "chief:0"
_HASTE_S = 1.5  # a ps that is asked to leave may be killed within
_AWAY_S = 60.0  # for which a chief may be away
_LEAVES_S = 20.0  # in which a ps leaves without a chief: leave_grace_s, drain_grace_s and lease_s
_BESIDE = 0.4  # part of the losses that something else happens beside
Pair = tuple[str, str]


class Chaos:
    """Faults of one job.

    Args:
        job: The job; it has ``links`` if faults are to happen to them.
        seed: Says what happens.
        disk: Holds the model directory, and is full from time to time; None: it is not.

    Attributes:
        done: What has happened, in words.
    """

    def __init__(self, job: CountingJob, seed: int, disk: SmallDisk | None = None) -> None:
        self._job = job
        self._draw = random.Random(seed)
        self._disk = disk
        self._beside: list[threading.Timer] = []
        self.done: list[str] = []

    def happen(self, faults: int) -> None:
        """Let so many faults happen; when it returns, all is well again."""
        while len(self.done) < faults:
            chosen = [self._draw.choice(self._losses())]
            if self._draw.random() < _BESIDE:
                chosen.insert(0, self._draw.choice(self._disturbances()))
            self.happen_together(*chosen)

    def happen_together(self, *faults: Callable[[], None]) -> None:
        """Let some faults happen, of which the last one may lose a replica, and end them."""
        self._job.until_whole()
        self._job.go_on()
        for fault in faults:
            fault()
        for each in self._beside:
            each.join()
        self._beside.clear()
        self._job.until_whole()
        self._job.go_on()

    def _losses(self) -> list[Callable[[], None]]:
        losses = [self.kill, self.kill, self.leave, self.freeze, self.move, self.move_and_kill]
        losses += [self.kill_chief, self.kill_chief_and_ps, self.freeze_chief, self.strike_joiner]
        losses += [self.leave_in_haste, self.keep_chief_away]
        if self._job.links is not None:
            losses += [
                self.cut_off,
                self.part_from_chief,
                self.part_from_ps,
                self.part_from_all_but_workers,
            ]
            losses += [self.cut_connections, self.hold_briefly, self.part_chief, self.split]
        return losses

    def _disturbances(self) -> list[Callable[[], None]]:
        found = [self.kill_worker, self.freeze_worker, self.begin_move]
        if self._job.links is not None:
            found += [self.part_worker, self.cut_worker]
            found += [self.delay] if self._job.links.can_delay else []
        return found + ([self.fill_disk, self.fill_disk] if self._disk is not None else [])

    # -- who -----------------------------------------------------------------------------------

    def _say(self, *words: str) -> None:
        self.done.append(" ".join(words))

    def _ps(self) -> str:
        """A ps that has a share; one that was just started has none yet."""
        return self._draw.choice(
            sorted({task for each in self._shares() for task in replicas(each)})
        )

    def _shares(self) -> list[ShareLeader]:
        """Who leads and follows. What happens beside may have taken a follower: it comes back."""
        found: list[ShareLeader] = []

        def are_followed() -> bool:
            found[:] = self._job.shares()
            return bool(found) and all(each.followers for each in found)

        wait_until(are_followed, 30, "replicas of all shares")
        return found

    def _worker(self) -> str:
        return f"worker:{self._draw.randrange(self._job.num_workers)}"

    def _later(self, end: Callable[[], object], at_most_s: float) -> None:
        timer = threading.Timer(self._draw.uniform(0.1, at_most_s), end)
        timer.start()
        self._beside.append(timer)

    def _epochs(self, of: Callable[[ShareLeader], bool]) -> dict[int, int]:
        return {each.share: each.epoch for each in self._job.shares() if of(each)}

    def _until_decided(self, before: dict[int, int], what: str) -> None:
        """Wait until the chief has decided about shares anew."""

        def is_decided() -> bool:
            now = self._epochs(lambda share: True)
            return all(now.get(share, 0) > epoch for share, epoch in before.items())

        wait_until(is_decided, 30, f"another epoch {what}")

    def _until_left_out(self, task: str) -> None:
        """Wait until the chief has given a ps up."""

        def is_left_out() -> bool:
            shares = self._job.shares()
            return len(shares) == len(self._job.ps) and all(task not in replicas(s) for s in shares)

        wait_until(is_left_out, 30, f"{task} to be given up")

    # -- processes -----------------------------------------------------------------------------

    def _end(self, *tasks: str) -> None:
        before = self._epochs(lambda share: bool(set(tasks) & replicas(share)))
        for task in tasks:
            self._job.running[task].kill()
        for task in tasks:
            self._job.start_again(task)
        self._until_decided(before, f"without {tasks}")

    def kill(self) -> None:
        """A ps ends without a word, and another one begins."""
        task = self._ps()
        self._say("kill", task)
        self._end(task)

    def strike_joiner(self) -> None:
        """The same; the new one is struck, too, while it is copied to, or the chief is killed."""
        task, how = self._ps(), self._draw.choice(["kill", "freeze", "kill the chief"])
        self._say(f"kill {task}, and {how} as it is copied to")
        self._end(task)
        _pause(self._draw.uniform(0, 1.5))
        if how == "freeze":
            self._signal(task, signal.SIGSTOP)
            _pause(self._draw.uniform(0.1, 4))
            self._signal(task, signal.SIGCONT)
        else:
            struck = _CHIEF if how == "kill the chief" else task
            self._job.running[struck].kill()
            self._job.start_again(struck)

    def kill_chief(self) -> None:
        """The same of the chief."""
        self._say("kill", _CHIEF)
        self._end(_CHIEF)

    def kill_chief_and_ps(self) -> None:
        """Both at once."""
        task = self._ps()
        self._say("kill", _CHIEF, "and", task)
        self._end(_CHIEF, task)

    def kill_worker(self) -> None:
        """A worker ends without a word, and another one begins."""
        task = self._worker()
        self._say("kill", task)
        self._job.running[task].kill()
        self._job.start_again(task)

    def leave(self) -> None:
        """A ps is asked to leave."""
        task = self._ps()
        self._say("leave", task)
        self._job.running[task].terminate()
        assert self._job.running[task].wait(scaled(30)) == 0, self._job.said(task)
        self._job.start_again(task)

    def leave_in_haste(self) -> None:
        """The same, but it is killed before it may have left, as by a kubelet."""
        task, grace_s = self._ps(), self._draw.uniform(0, _HASTE_S)
        self._say("leave", task, f"within {grace_s:.1f} s")
        before = self._epochs(lambda share: task in replicas(share))
        self._job.running[task].terminate()
        with suppress(subprocess.TimeoutExpired):
            self._job.running[task].wait(grace_s)
        self._job.running[task].kill()
        self._job.start_again(task)
        self._until_decided(before, f"without {task}")

    def keep_chief_away(self) -> None:
        """The chief ends, and the next one comes within a minute; a ps may be asked to leave
        meanwhile, and leaves early, since nobody has others take over what it has.
        """
        task = self._ps() if self._draw.random() < 0.5 else ""
        seconds = self._draw.uniform(_LEAVES_S if task else 5, _AWAY_S)
        self._say("keep", _CHIEF, f"away for {seconds:.0f} s", f"and leave {task}" if task else "")
        until = time.monotonic() + seconds
        before = self._epochs(lambda share: task in replicas(share))
        self._job.running[_CHIEF].kill()
        self._job.go_on()
        if task:
            self._job.running[task].terminate()
            code = self._job.running[task].wait(scaled(30))
            assert code == ExitCode.LEFT_EARLY, self._job.said(task)
        _pause(max(0.0, until - time.monotonic()))
        for each in self._draw.sample([_CHIEF, task] if task else [_CHIEF], 1 + bool(task)):
            self._job.start_again(each)
        self._until_decided(before, f"without {task}")

    def freeze(self) -> None:
        """A ps stands still until the chief has given it up."""
        task = self._ps()
        self._say("freeze", task)
        self._signal(task, signal.SIGSTOP)
        self._until_left_out(task)
        self._signal(task, signal.SIGCONT)

    def freeze_chief(self) -> None:
        """The chief stands still."""
        self._say("freeze", _CHIEF)
        self._signal(_CHIEF, signal.SIGSTOP)
        _pause(self._draw.uniform(0.5, 5))
        self._signal(_CHIEF, signal.SIGCONT)

    def freeze_worker(self) -> None:
        """A worker stands still for a while."""
        task = self._worker()
        self._say("freeze", task)
        self._signal(task, signal.SIGSTOP)
        self._later(lambda: self._signal(task, signal.SIGCONT), 3)

    def _signal(self, task: str, number: int) -> None:
        os.kill(self._job.running[task].pid, number)

    # -- moves ---------------------------------------------------------------------------------

    def _a_move(self) -> tuple[ShareLeader, TaskId]:
        shares = self._shares()
        share = self._draw.choice(shares)
        serving = {task for each in shares for task in (each.leader, *each.followers)}
        return share, self._draw.choice(sorted(serving - {share.leader}))

    def move(self) -> None:
        """A share moves to another ps."""
        self._until_no_move()
        share, to = self._a_move()
        self._say(f"move {share.share} to {to.short}")
        assert self._job.move(share.share, to).reason == ""

    def _until_no_move(self) -> None:
        """Wait until a move that has begun beside this one is over."""

        def is_over() -> bool:
            with suppress(RopewalkError), self._job.chief() as chief:
                move = chief.status(timeout_s=2).move
                return move is None or move.phase.is_over
            return False

        wait_until(is_over, 30, "the move before to be over")

    def begin_move(self) -> None:
        """A share begins to move, which what comes next may prevent."""
        share, to = self._a_move()
        self._say(f"begin to move {share.share} to {to.short}")
        with suppress(RopewalkError), self._job.chief() as chief:
            chief.move_share(share.share, to, timeout_s=10)

    def move_and_kill(self) -> None:
        """A share begins to move, and the ps that it moves from ends without a word.

        Not the one that it moves to: right after the handover it is alone with the share.
        """
        share, to = self._a_move()
        self._say(f"move {share.share} to {to.short} and kill {share.leader.short}")
        with suppress(RopewalkError), self._job.chief() as chief:
            chief.move_share(share.share, to, timeout_s=10)
        self._end(share.leader.short)

    # -- links ---------------------------------------------------------------------------------

    def _hold(self, pairs: Iterable[Pair]) -> list[Pair]:
        assert self._job.links is not None
        held = list(pairs)
        for pair in held:
            self._job.links.hold(*pair)
        return held

    def _heal(self, pairs: Iterable[Pair], *, loses: bool = False) -> None:
        assert self._job.links is not None
        self._job.links.heal(pairs, loses=loses)

    def _ways(self, one: str, other: str) -> list[Pair]:
        """Both directions between two tasks, or one of them."""
        return self._draw.choice([[(one, other)], [(other, one)], [(one, other), (other, one)]])

    def _part(self, what: str, pairs: Iterable[Pair], until: Callable[[], None]) -> None:
        loses = self._draw.random() < 0.5
        held = list(pairs)
        self._say(what, f"{held if len(held) < 3 else ''}", "loses" if loses else "late")
        self._hold(held)
        until()
        self._heal(held, loses=loses)

    def cut_off(self) -> None:
        """A ps hears of nobody, and nobody of it."""
        task = self._ps()
        pairs = [pair for each in self._job.configs if each != task for pair in both(task, each)]
        self._part(f"cut off {task}", pairs, lambda: self._until_left_out(task))

    def part_from_all_but_workers(self) -> None:
        """A ps serves workers that reach it, without chief and followers."""
        task = self._ps()
        others = [each for each in self._job.configs if each != task and not each.startswith("w")]
        pairs = [pair for each in others for pair in both(task, each)]
        self._part(f"part {task} from chief and ps", pairs, lambda: self._until_left_out(task))

    def part_chief(self, seconds: float | None = None) -> None:
        """The chief hears of no ps, and no ps of the chief; drawn for how long, if that is None."""
        pairs = [pair for each in self._job.ps for pair in both(_CHIEF, each)]
        seconds = seconds or self._draw.uniform(0.5, 6)
        self._part(f"part {_CHIEF} from all ps for {seconds:.1f} s", pairs, lambda: _pause(seconds))

    def split(self) -> None:
        """A ps and a worker are cut off together: what that worker reads there must not be old.

        The last worker, which only reads, has no push that waits for an answer.
        """
        task = self._ps()
        worker = self._draw.choice([self._worker(), f"worker:{self._job.num_workers - 1}"])
        here = {task, worker}
        pairs = [p for a in here for b in set(self._job.configs) - here for p in both(a, b)]

        def until() -> None:
            self._until_left_out(task)
            _pause(self._draw.uniform(0, 1.5))

        self._part(f"cut off {task} with {worker}", pairs, until)

    def part_from_chief(self) -> None:
        """The chief does not hear a ps, or the ps the chief."""
        task = self._ps()
        pairs = self._ways(_CHIEF, task)
        self._part("part", pairs, lambda: self._until_left_out(task))

    def part_from_ps(self) -> None:
        """Leader and follower of a share do not hear each other, or one of them not the other."""
        share = self._draw.choice(self._shares())
        one, other = share.leader.short, share.followers[0].short
        before = self._epochs(lambda each: replicas(each) == {one, other})
        self._part(
            "part",
            self._ways(one, other),
            lambda: self._until_decided(before, f"of {one}, {other}"),
        )

    def hold_briefly(self) -> None:
        """Nothing goes from one task to another for a moment, after which it may be given up."""
        one, other = self._draw.sample(sorted(self._job.configs), 2)
        seconds = self._draw.uniform(0.05, 1.5)
        self._part(f"hold for {seconds:.1f} s", self._ways(one, other), lambda: _pause(seconds))

    def cut_connections(self) -> None:
        """Connections break."""
        one, other = self._draw.sample(sorted(self._job.configs), 2)
        self._say(f"cut {one} from {other}")
        assert self._job.links is not None
        self._job.links.cut(one, other)

    def delay(self) -> None:
        """What two tasks send to each other is late for a while."""
        one, other = self._draw.sample(sorted(self._job.configs), 2)
        seconds = self._draw.uniform(0.002, 0.1)
        self._say(f"delay {one} and {other} by {seconds:.3f} s")
        assert self._job.links is not None
        for pair in both(one, other):
            self._job.links.delay(*pair, seconds)
        self._later(lambda: self._heal(both(one, other)), 3)

    def part_worker(self) -> None:
        """A worker and a task do not hear each other for a while, or one of them not the other."""
        worker = self._worker()
        pairs = self._ways(worker, self._draw.choice([_CHIEF, *self._job.ps]))
        loses = self._draw.random() < 0.5
        self._say(f"part {pairs}", "loses" if loses else "late")
        self._hold(pairs)
        self._later(lambda: self._heal(pairs, loses=loses), 4)

    def cut_worker(self) -> None:
        """All connections of a worker break."""
        worker = self._worker()
        self._say(f"cut {worker} from all")
        assert self._job.links is not None
        for each in self._job.configs:
            self._job.links.cut(worker, each)

    # -- disk ----------------------------------------------------------------------------------

    def fill_disk(self) -> None:
        """Nothing can be written to the model directory for a while."""
        assert self._disk is not None
        self._say("disk full")
        self._disk.fill()
        self._later(self._disk.free, 4)


def replicas(share: ShareLeader) -> set[str]:
    """The ps that have a share."""
    return {task.short for task in (share.leader, *share.followers)}


def _pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def both(one: str, other: str) -> list[Pair]:
    """Both directions between two tasks."""
    return [(one, other), (other, one)]
