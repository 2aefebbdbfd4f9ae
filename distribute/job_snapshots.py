"""Exchange between a synchronous program and its job: copies of the variables one way, requests to
stop and the checkpoint to begin with the other.

A job saves in a thread of its own, when it is time. The variables of synchronous workers belong
together only between two steps, which the program's thread makes. So the saving thread asks, and
the program's thread answers at the end of a step (``strategies/synchronous_steps.py``).
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from ..core.arrays.dtypes import Array
from ..core.errors import RopewalkError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedVariable:
    """A variable as it was at one moment, with what its update rule keeps.

    Attributes:
        value: array of the whole variable, on the host.
        slots: Slot variables by name, on the host.
        updates: Number of times that the rule had been applied.
        rule: Fields of the rule; None: no rule has updated the variable.
        trainable: Whether optimizers update it, as the program made it.
    """

    value: Array
    slots: Mapping[str, Array]
    updates: int
    rule: Mapping[str, Any] | None
    trainable: bool


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The variables of a synchronous program, by name, after ``global_step`` steps."""

    global_step: int
    variables: Mapping[str, SavedVariable]


class ProgramSteps(Protocol):
    """The program's side: the steps of its strategy."""

    @property
    def has_begun(self) -> bool:
        """Whether it has made a step; then it answers at the end of one."""

    def last_snapshot(self, *, together: bool) -> Snapshot | None:
        """Take the variables of a program that has ended; None if they do not belong together.

        Args:
            together: Every worker calls this.
        """


class JobSnapshots:
    """The job's side in one task. The program's thread, the saving one and a signal handler use it.

    Args:
        drain_grace_s: Longest time that a request to stop waits for the end of a step.

    Attributes:
        saves: Whether this task writes the job's checkpoints.
        restore_from: The checkpoint to begin with; empty: none. Of use where ``saves`` is set.
        wanted: The saving thread waits for a snapshot.
        stop: Why the program should end after its step, if it should.
    """

    def __init__(self, drain_grace_s: float = 0.0) -> None:
        self.saves = False
        self.restore_from = ""
        self.wanted = False
        self.stop: RopewalkError | None = None
        self._stop_by = 0.0
        self._grace_s = drain_grace_s
        self._changed = threading.Condition()
        self._program: ProgramSteps | None = None
        self._snapshot: Snapshot | None = None
        self._ended = False

    # -- the program's thread ------------------------------------------------------------------

    @property
    def is_adopted(self) -> bool:
        """Whether the job keeps a strategy's variables."""
        return self._program is not None

    def offer(self) -> bool:
        """Offer to save; returns whether this task saves, and the strategy that asks is the
        program's first.
        """
        if self.saves and self._program is not None:
            log.warning(
                "the job saves and resumes the variables of the program's first synchronous "
                "strategy alone, not of this one"
            )
        return self.saves and self._program is None

    def adopt(self, program: ProgramSteps) -> None:
        """Keep the variables of this strategy."""
        self._program = program

    def give(self, snapshot: Snapshot) -> None:
        """Hand over what the saving thread waits for."""
        with self._changed:
            self._snapshot, self.wanted = snapshot, False
            self._changed.notify_all()

    def give_last(self, snapshot: Snapshot | None) -> None:
        """Hand over what the job ends with; None: nothing that could be saved."""
        with self._changed:
            if not self._ended:
                self._snapshot, self._ended = snapshot, True
            self._changed.notify_all()

    # -- the task ------------------------------------------------------------------------------

    def ask_to_stop(self, error: RopewalkError) -> bool:
        """Have the program end after its step; False if it makes none."""
        if self._program is None or self._ended or not self._program.has_begun:
            return False
        if self.stop is None:
            self._stop_by = time.monotonic() + self._grace_s
            self.stop = error
        return True

    def check(self) -> None:
        """Raise why the program should end, if the end of its step is overdue."""
        if self.stop is not None and time.monotonic() > self._stop_by:
            raise self.stop

    def end(self, *, together: bool) -> None:
        """Take the last snapshot of the program, which has ended.

        Args:
            together: Every worker's program has come to its end, and calls this.

        Raises:
            RopewalkError: Another worker does not make this call.
        """
        if self._ended:
            return
        try:
            program = self._program
            self.give_last(program.last_snapshot(together=together) if program else None)
        finally:
            self.give_last(None)

    # -- the saving thread ---------------------------------------------------------------------

    def take(self) -> Snapshot | None:
        """Take the variables at the end of the step under way, or of the last one of all.

        Blocks until then. None: the program has ended meanwhile, or can give none.
        """
        with self._changed:
            if self._ended:
                return self._snapshot
            self.wanted = True
            self._changed.wait_for(lambda: self._ended or not self.wanted)
            if self.wanted:
                self.wanted = False
                return None
            taken, self._snapshot = self._snapshot, None
            return taken
