"""The steps of a strategy whose replicas are in sync: counted, and between two of them saved.

Copies of mirrored variables are equal on all workers after each step, so the first worker saves
alone. ON_READ variables are made one value by a collective call, and a request to stop must end all
workers after the same step; so all have to know what the first one is about to do. They agree in a
*look*, one small all-reduce after a step: whether to copy the variables now, who was asked to stop,
and how many steps the next look is away. There are about two looks a second, or one for each step
that takes longer: a step of a quarter of a millisecond gets under half a percent slower.

Between steps each worker changes its own copies, so all have to make the same changes. A look
compares how many each has made: what the chief alone has loaded would train two models in silence.
It compares some of the values, too (``equal_copies.py``).
"""

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import numpy as np

from ...core.arrays.dtypes import Array
from ...core.checkpoint import CheckpointReader
from ...core.errors import (
    CheckpointError,
    IncompatibleError,
    JobStoppedError,
    PeerLostError,
    RopewalkError,
    StorageError,
)
from ...core.process.frameworks import note_shared_step
from ...core.step_times import CHECKPOINT, StepClock
from ...core.task import TaskId
from ...core.terminal import counted
from ..base.reductions import VariableAggregation
from ..job_snapshots import JobSnapshots, SavedVariable, Snapshot
from ..runtime import TaskProgress
from ..saved_variables import capture, restore_variables, saved_value
from ..variables.mirrored import SyncOnReadVariable
from ..variables.variable import Variable

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_MOST_STEPS = 200  # until the next look: steps may become slow
_NEVER = 2**63
_SHOWN = 5


class Workers(Protocol):
    """The workers in sync; a ``CollectiveGroup`` is that."""

    @property
    def rank(self) -> int:
        """Number of this worker."""

    @property
    def members(self) -> Sequence[TaskId]:
        """All, by rank."""

    def all_reduce(self, values: Array) -> Array:
        """Sum values over all workers."""

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Wait for all of them."""


class OneWorker:
    """A worker that is in sync with itself alone."""

    rank = 0

    def __init__(self, task: TaskId) -> None:
        self.members = (task,)

    def all_reduce(self, values: Array) -> Array:
        """Return the values: the sum over one worker."""
        return values

    def barrier(self, *, timeout_s: float | None = None) -> None:
        """Return at once: there is no worker to wait for."""


class SynchronousSteps:
    """Counts a strategy's steps, and keeps and restores its variables for the job.

    A step is a ``run``, or ``apply_gradients`` outside of one, that changes what the replicas have
    in common; so the count is the same on all workers. Use it from the program's thread.

    Args:
        progress: Progress of this task, for the status; None: it is not reported.
        clock: The time in seconds.
    """

    def __init__(
        self, progress: TaskProgress | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.global_step = 0
        self.joins = False  # what changes belongs to the step before
        self._progress = progress
        self._step_clock = StepClock() if progress is None else progress.clock
        self._clock = clock
        self._is_running = self._has_changed = self._is_part = False
        self._variables: dict[str, Variable] = {}
        self._job: JobSnapshots | None = None
        self._workers: Workers = OneWorker(TaskId("worker", 0))
        self._reader: CheckpointReader | None = None
        self._restored: list[str] = []
        self._new: list[str] = []
        self._first_step = 0
        self._next_look = _NEVER
        self._interval = 1
        self._looked_at = 0.0
        self._by_hand = 0  # changes between steps

    # -- the job -----------------------------------------------------------------------------

    def join(self, job: JobSnapshots, workers: Workers, restore_from: str) -> None:
        """Let the job save these variables; begin with a checkpoint's.

        Args:
            job: Snapshots of this task's job.
            workers: The workers in sync; the first one writes.
            restore_from: Path of the checkpoint, the same on all of them; empty: begin anew.

        Raises:
            CheckpointError: It is damaged, or not here.
            StorageError: This worker may not read it.
            PeerLostError: It cannot be read now.
        """
        if restore_from:
            try:
                self._reader = CheckpointReader(restore_from)
            except (CheckpointError, StorageError) as error:
                raise type(error)(
                    f"{workers.members[workers.rank]} cannot read {restore_from}, from which the "
                    f"job resumes: {error}. Every worker reads it; give a model_dir that all of "
                    "them reach",
                    path=restore_from,
                ) from error
            self.global_step = self._first_step = self._reader.manifest.global_step
            self._show()
        self._job = job
        self.join_workers(workers)
        job.adopt(self)

    def join_workers(self, workers: Workers) -> None:
        """Look at the steps of these from the next one on."""
        self._workers = workers
        self._next_look = self.global_step + 1
        self._looked_at = self._clock()

    def add(self, variable: Variable) -> None:
        """Keep a new variable, and give it what the checkpoint has for its name.

        Raises:
            CheckpointError: The checkpoint is damaged.
            ShapeMismatchError: The variable has another shape there.
        """
        if self._job is None and len(self._workers.members) == 1:
            return
        self._variables[variable.name] = variable
        if self._job is not None and self._writes and _has_no_value(variable):
            log.warning(
                "%r is not in the job's checkpoints: it is ON_READ without aggregation, so its "
                "copies make no value",
                variable.name,
            )
        if self._reader is not None:
            before = self._has_changed, self._by_hand
            found = restore_variables(self._reader, {variable.name: variable}, {})
            # Restoring in the first step makes it no step.
            self._has_changed, self._by_hand = before
            (self._restored if found else self._new).append(variable.name)

    def tell_restored(self) -> None:
        """Say what was restored since the last time; on the first worker."""
        if self._reader is None or not self._writes:
            return
        if self._restored:
            restored = counted(len(self._restored), "variable")
            log.info("restored %s from %s", restored, self._reader.path)
        if self._new:
            more = f" and {len(self._new) - _SHOWN} more" if len(self._new) > _SHOWN else ""
            log.warning(
                "%s has no %s%s: they begin anew",
                self._reader.path,
                ", ".join(self._new[:_SHOWN]),
                more,
            )
        self._restored, self._new = [], []

    @property
    def _writes(self) -> bool:
        return self._workers.rank == 0

    # -- steps -------------------------------------------------------------------------------

    @contextmanager
    def as_one(self) -> Iterator[None]:
        """Count all steps of the block as one, which ends with it."""
        self.begin()
        self._is_part = True
        try:
            yield
        finally:
            self._is_part = False
        self.end()

    def begin(self) -> None:
        """Begin a step."""
        if not self._is_part:
            self._is_running, self._has_changed = True, False

    def note_write(self, *, by_hand: bool = False) -> None:
        """Note that what the replicas have in common changes.

        Args:
            by_hand: The program changes it between two steps.
        """
        self._has_changed = True
        self._by_hand += by_hand

    def end(self) -> None:
        """End a step without an error.

        Raises:
            IncompatibleError: Workers have not made the same changes between steps.
            JobStoppedError: This task, or the whole job, was asked to stop.
            PeerLostError: Another worker was asked to stop.
        """
        if self._is_part:
            return
        self._is_running = False
        if self._has_changed and not self.joins:
            self._has_changed = False
            self.global_step += 1
            if self._progress is not None:
                self._progress.steps += 1
            note_shared_step()
            self._show()
            if self.global_step >= self._next_look:
                self._look()
            self._step_clock.step_ended()

    def _show(self) -> None:
        if self._progress is not None:
            self._progress.global_step = self.global_step

    @property
    def has_begun(self) -> bool:
        """Whether there was a step."""
        return self.global_step > self._first_step

    def _look(self) -> None:
        """Find out what the first worker wants of all, who was asked to stop, who has changed
        variables, and whether copies are equal.
        """
        from . import equal_copies  # which asynchronous workers do without

        job, workers = self._job, self._workers
        count = len(workers.members)
        names = equal_copies.chosen(self._variables, self.global_step) if count > 1 else []
        mine = np.zeros(2 + (2 + equal_copies.COUNT) * count, np.int64)
        if self._writes:
            mine[:2] = job is not None and job.wanted, self._steps_until_next_look()
        mine[2 + workers.rank] = job is not None and job.stop is not None
        mine[2 + count + workers.rank] = self._by_hand
        numbers = mine[2 + 2 * count :].view(np.float64).reshape(count, -1)
        numbers[workers.rank] = equal_copies.numbers_of([self._variables[name] for name in names])
        everyones = workers.all_reduce(mine)  # each adds zeros to what is another's
        wanted, interval, *rest = everyones[: 2 + 2 * count].tolist()
        self._next_look = self.global_step + interval
        _require_same_changes(workers, rest[count:], self.global_step)
        numbers = everyones[2 + 2 * count :].view(np.float64).reshape(count, -1)
        equal_copies.require_equal(names, numbers, workers.members, workers.rank, self.global_step)
        if job is None:
            return
        asked = [member for member, stop in zip(workers.members, rest, strict=False) if stop]
        if asked:
            job.give_last(self._snapshot())
            raise job.stop or _stop_error(workers.members, workers.rank, asked, self.global_step)
        if wanted:
            began = self._step_clock.begin()
            job.give(self._snapshot())
            self._step_clock.end(CHECKPOINT, began)

    def _steps_until_next_look(self) -> int:
        now = self._clock()
        step_s = (now - self._looked_at) / self._interval
        self._looked_at = now
        wished = int(_LOOK_EVERY_S / step_s) if step_s > 0 else _MOST_STEPS
        self._interval = max(1, min(wished, 2 * self._interval, _MOST_STEPS))
        return self._interval

    # -- snapshots ---------------------------------------------------------------------------

    def last_snapshot(self, *, together: bool) -> Snapshot | None:
        """Take the variables of a program that has ended; None if they do not belong together.

        Args:
            together: Every worker calls this. Otherwise a value that needs all workers, or a step
                that was broken off after it had changed something, is a reason to save nothing.
        """
        shared = [name for name, variable in self._variables.items() if _is_shared(variable)]
        if together:
            if shared:
                # What another does after its last step may take longer than a step's calls may.
                self._workers.barrier(timeout_s=0)
            return self._snapshot()
        if not self._writes or not self.has_begun:
            return None
        if self._is_running and self._has_changed:
            log.warning("step %d was broken off: it is not saved", self.global_step + 1)
            return None
        if shared and len(self._workers.members) > 1:
            log.warning(
                "step %d is not saved: %s is a value of all workers (ON_READ), and one of them has "
                "left",
                self.global_step,
                shared[0],
            )
            return None
        return self._snapshot()

    def _snapshot(self) -> Snapshot:
        """Copy the variables on the first worker; the others only take part."""
        copies: dict[str, SavedVariable] = {}
        for name, variable in self._variables.items():
            value = saved_value(variable) if _is_shared(variable) else None
            if self._writes and not _has_no_value(variable):
                copies[name] = capture(variable, value)
        return Snapshot(self.global_step, copies)


def _is_shared(variable: Variable) -> bool:
    """Return whether a variable's value is made of every worker's."""
    return isinstance(variable, SyncOnReadVariable) and not _has_no_value(variable)


def _has_no_value(variable: Variable) -> bool:
    is_on_read = isinstance(variable, SyncOnReadVariable)
    return is_on_read and variable.aggregation is VariableAggregation.NONE


def _require_same_changes(workers: Workers, changes: Sequence[int], step: int) -> None:
    """Refuse workers of which some have changed variables that others have not.

    Args:
        workers: Workers in sync.
        changes: Number of changes that each has made between steps so far, by rank.
        step: The one after which they were counted.

    Raises:
        IncompatibleError: They have not made as many.
    """
    if len(set(changes)) == 1:
        return
    shown = ", ".join(
        f"{member} {count}" for member, count in zip(workers.members, changes, strict=True)
    )
    raise IncompatibleError(
        f"workers in sync have not changed the same variables between their steps (assignments by "
        f"step {step}: {shown}), so each trains other values than the next. What loads or assigns "
        "weights has to do so on every worker: call load_weights, load_state_dict, restore or "
        "assign outside of `if strategy.should_save:` and the like",
        task=workers.members[workers.rank],
    )


def _stop_error(
    members: Sequence[TaskId], rank: int, asked: Sequence[TaskId], step: int
) -> RopewalkError:
    """Make the error of a worker that ends because others were asked to stop."""
    task, names = members[rank], " and ".join(str(member) for member in asked)
    if members[0] in asked:
        return JobStoppedError(f"{task} ends because {names} was asked to stop", task=task)
    return PeerLostError(
        f"{task} ends after step {step}, as {names} was asked to stop; restart the job: it resumes "
        "from the last checkpoint",
        task=task,
        peer=asked[0],
    )
