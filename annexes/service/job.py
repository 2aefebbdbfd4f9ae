"""A job of a standalone cluster: its tasks, where they run, and what that makes of the job."""

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from ...cluster.resolvers.tf_config import write_tf_config
from ...cluster.spec import CHIEF, PS, WORKER
from ...cluster.supervision.decisions import Supervision, TaskRun
from ...cluster.supervision.policy import (
    Cause,
    End,
    Ended,
    EndingStep,
    Event,
    JobNeeds,
    Measure,
    Policy,
    Restarts,
    Signal,
    StartAgain,
    StopRequested,
    Tick,
)
from ...core.errors import RefusedError
from ...core.exit_codes import ExitCode
from ...core.setting_groups import Concern
from ...core.settings import ALL_WORKERS, settings_of
from ...core.task import TaskId
from ...core.wire.bounds import MAX_TEXT_BYTES
from .nodes import Order, Start, Stop

# -- A driver's request: a job for a standalone cluster -----------------------------------------

ALL = -1  # tasks: as many as there are nodes

_ID = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,62}[A-Za-z0-9])?")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MAX_TASKS = 1024
MOST_GPUS = 64  # of one node, and of a task there
_MAX_WORDS = 1000
_MAX_WORDS_BYTES = 256 * 1024  # of all words: jobs are kept, and listed in one answer
_MAX_PROGRAM_WORDS = 2
_MAX_GRACE_S = 86_400.0

# What a driver may set for its job; the rest is the cluster's: addresses, credentials, paths.
SETTINGS = frozenset(settings_of(Concern.DRIVER))


def new_id(name: str) -> str:
    """Make an id for a job that is called so."""
    word = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:50] or "job"
    return f"{word}-{secrets.token_hex(3)}"


@dataclass(frozen=True, slots=True)
class Submission:
    """A job as the driver submitted it.

    Attributes:
        id: Id from the driver, so that asking twice begins one job.
        name: Name for people.
        digest: Digest of the package with the program; empty: the program stays with the driver.
        program: ``("train.py",)`` or ``("-m", "package.module")``.
        arguments: Arguments of the program.
        workers: Number of workers; :data:`ALL`: one on each node for workers.
        ps: Number of parameter servers, in the same way.
        coordinator: The chief alone runs the program; workers run what it schedules.
        detached: Whether it goes on without its driver.
        grace_s: Longest time that the driver of a job that is not detached may be silent. Unit:
            seconds.
        settings: Settings of all tasks, by name.
        model: Folder of the model below the cluster's; empty: the id. A job continues from what
            another one has left there.
        owner: Name of the submitter, for people.
        gpus_per_worker: GPUs of each worker, and of a chief that runs the program.
    """

    id: str
    name: str = ""
    digest: str = ""
    program: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    workers: int = ALL
    ps: int = ALL
    coordinator: bool = False
    detached: bool = False
    grace_s: float = 30.0
    settings: Mapping[str, str] = field(default_factory=dict)
    owner: str = ""
    model: str = ""
    gpus_per_worker: int = 0

    def __post_init__(self) -> None:
        """Check it.

        Raises:
            RefusedError: Something in it is not possible.
        """
        if not _ID.fullmatch(self.id):
            raise RefusedError(
                f"a job's id cannot be {self.id[:70]!r}: up to 64 letters, digits, '-', '_' and "
                "'.', a letter or digit first and last"
            )
        if self.model and not _ID.fullmatch(self.model):
            raise RefusedError(
                f"{self.id}: a model's folder cannot be {self.model[:70]!r}: "
                "it is below the cluster's, and named as a job's id is (often by one)"
            )
        if self.digest and not _DIGEST.fullmatch(self.digest):
            raise RefusedError(f"{self.id}: the package has no SHA-256 digest in hex")
        for what, count in (("workers", self.workers), ("ps", self.ps)):
            if not ALL <= count <= _MAX_TASKS:
                raise RefusedError(f"{self.id}: {count} {what}; there can be 0 to {_MAX_TASKS}")
        if not 0 <= self.gpus_per_worker <= MOST_GPUS:
            raise RefusedError(
                f"{self.id}: {self.gpus_per_worker} GPUs for each worker; there can be 0 to "
                f"{MOST_GPUS}"
            )
        if self.is_driven_from_outside and self.detached:
            raise RefusedError(f"{self.id}: a program that runs at its driver cannot be detached")
        if not self.is_driven_from_outside and not self.digest:
            raise RefusedError(f"{self.id}: the program has no package")
        words = (*self.program, *self.arguments)
        too_long = any(len(word.encode()) > MAX_TEXT_BYTES or "\0" in word for word in words)
        if len(words) > _MAX_WORDS or too_long or sum(map(len, words)) > _MAX_WORDS_BYTES:
            raise RefusedError(
                f"{self.id}: a command line has up to {_MAX_WORDS} words of {MAX_TEXT_BYTES} "
                f"bytes, {_MAX_WORDS_BYTES} together"
            )
        if len(self.program) > _MAX_PROGRAM_WORDS:
            raise RefusedError(f"{self.id}: a program is a file, or -m and a module")
        if not 0 < self.grace_s <= _MAX_GRACE_S:
            raise RefusedError(
                f"{self.id}: a driver may be silent for up to {_MAX_GRACE_S:g} s, "
                f"not {self.grace_s:g}"
            )
        if foreign := sorted(set(self.settings) - SETTINGS):
            raise RefusedError(
                f"{self.id}: {', '.join(foreign)} cannot be set by a job; these can: "
                f"{', '.join(sorted(SETTINGS))}"
            )
        if long := [name for name, said in self.settings.items() if len(said) > MAX_TEXT_BYTES]:
            raise RefusedError(f"{self.id}: {min(long)} is longer than {MAX_TEXT_BYTES} bytes")

    @property
    def folder(self) -> str:
        """Folder of the model, below the cluster's."""
        return self.model or self.id

    @property
    def shares_move(self) -> bool:
        """Whether its settings say that shares move; see :attr:`Settings.shares_move`."""
        said = self.settings
        is_said = said.get("ps_replicas", "1") not in ("", "1")
        return is_said or said.get("ps_shares", "0") not in ("", "0")

    @property
    def is_driven_from_outside(self) -> bool:
        """Whether the chief's program runs at the driver."""
        return not self.program


MOST_ATTEMPTS = 10  # of a worker that was lost

# A large checkpoint may be written, so tasks have long to end after they were asked.
_LEAVING = (
    EndingStep(15.0, Measure.ASK),
    EndingStep(120.0, Measure.KILL),
    EndingStep(150.0, Measure.GIVE_UP),  # its node cannot end it
)
_ENDING = {
    Cause.TOLD: _LEAVING,
    Cause.DONE: _LEAVING,
    Cause.FAILED: _LEAVING,
    # The chief saves, and tells the others.
    Cause.REQUESTED: (EndingStep(0.0, Measure.ASK, frozenset({CHIEF})), *_LEAVING),
}


def standalone_policy(*, synchronous: bool, shares_move: bool = False) -> Policy:
    """Make the policy by which a job of a standalone cluster is supervised.

    Args:
        synchronous: Whether the job has no ps.
        shares_move: Other ps may have what a ps has, which is started again when it is lost.
    """
    restarts = {WORKER: Restarts(most=MOST_ATTEMPTS)}
    if shares_move:
        restarts[PS] = Restarts(first_wait_s=0.2, longest_wait_s=10.0)
    return Policy(JobNeeds(TaskId(CHIEF, 0), synchronous, shares_move), _ENDING, restarts)


class JobState(StrEnum):
    """State of a job."""

    QUEUED = "queued"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(slots=True)
class PlacedTask(TaskRun):
    """A task of a job, and its process.

    Attributes:
        task: The task.
        node: Node that runs it.
        address: Address at which it serves, host:port.
        gpus: GPUs that it alone has.
    """

    task: TaskId
    node: TaskId
    address: str
    gpus: tuple[str, ...] = ()


@dataclass(slots=True)
class StandaloneJob:
    """A job from its submission to its end. Every change says what to do as orders.

    Attributes:
        submission: Submission of the driver.
        submitted: Time.
        driver_heard: Time of the driver's last sign of life.
        reason: Why it waits, stops or has failed, for people.
        exit_code: Once it has ended, as a shell has it.
    """

    submission: Submission
    submitted: float
    driver_heard: float
    state: JobState = JobState.QUEUED
    reason: str = ""
    exit_code: int = 0
    started: float | None = None
    ended: float | None = None
    tasks: dict[TaskId, PlacedTask] = field(default_factory=dict)
    _supervision: Supervision | None = None
    _sent_away: set[TaskId] = field(default_factory=set)  # ps that are to leave, or have left

    @property
    def id(self) -> str:
        """Id of the job."""
        return self.submission.id

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs."""
        return self.state is JobState.ENDED

    @property
    def cluster(self) -> dict[str, list[str]]:
        """TF_CONFIG's cluster."""
        spec: dict[str, list[str]] = {}
        for placed in self.tasks.values():
            spec.setdefault(placed.task.type, []).append(placed.address)
        return spec

    def begin(
        self, placed: Iterable[PlacedTask], settings: Mapping[str, str], *, now: float
    ) -> list[tuple[TaskId, Start]]:
        """Start all tasks; returns the orders, each with its node.

        Args:
            placed: The tasks.
            settings: Settings of every task, by name.
            now: The time.
        """
        self.tasks = {task.task: task for task in placed}
        synchronous = all(task.type != PS for task in self.tasks)
        policy = standalone_policy(
            synchronous=synchronous,
            shares_move=self.submission.shares_move,
        )
        self._supervision = Supervision(self.tasks, policy)
        self.state, self.started, self.reason = JobState.RUNNING, now, ""
        return [(task.node, self._start(task, settings)) for task in self.tasks.values()]

    def _start(self, placed: PlacedTask, settings: Mapping[str, str]) -> Start:
        asked = self.submission
        serves = placed.task.type == PS or (placed.task.type == WORKER and asked.coordinator)
        if placed.task.type == CHIEF and asked.is_driven_from_outside:
            command: tuple[str, ...] = ("lead",)
        elif serves:
            command = ("run",)
        else:
            command = ("run", *asked.program, "--", *asked.arguments)
        return Start(
            self.id,
            placed.task,
            placed.attempt,
            write_tf_config(self.cluster, placed.task),
            asked.digest,
            command,
            {"wait_for_workers": str(ALL_WORKERS), **settings, **asked.settings},
            placed.gpus,
        )

    def missing_ps(self, count: int) -> list[TaskId]:
        """List the ps that it lacks to have ``count``.

        Raises:
            RefusedError: It does not run, its shares do not move, or one of them is about to leave.
        """
        if self.state is not JobState.RUNNING:
            raise RefusedError(
                f"job {self.id} is {self.state}; only one that runs gets more or fewer ps",
                job=self.id,
            )
        if not self.submission.shares_move:
            raise RefusedError(
                f"the ps of job {self.id} cannot become more or fewer, since its shares do not "
                "move; submit it with --set ps_shares=N, at least the most ps that it is to "
                "have",
                job=self.id,
            )
        wanted = [TaskId(PS, index) for index in range(count)]
        runs = {task for task, run in self.tasks.items() if not run.has_ended}
        if leaving := [task for task in wanted if task in runs & self._sent_away]:
            raise RefusedError(
                f"{leaving[0].short} of job {self.id} is about to leave; ask again once it has",
                job=self.id,
            )
        return [task for task in wanted if task not in runs]

    def scale(
        self, count: int, placed: Iterable[PlacedTask], settings: Mapping[str, str]
    ) -> list[tuple[TaskId, Order]]:
        """Begin ps that are missing, and ask those beyond ``count`` to leave.

        Args:
            count: Number of ps that it is to have.
            placed: The missing ones.
            settings: Settings of the tasks, as :meth:`begin` takes them.
        """
        orders: list[tuple[TaskId, Order]] = []
        for each in placed:
            before = self.tasks.get(each.task)
            each.attempt = before.attempt + 1 if before is not None else 0
            self.tasks[each.task] = each
            self._sent_away.discard(each.task)
            orders.append((each.node, self._start(each, settings)))
        for task, run in self.tasks.items():
            is_extra = task.type == PS and task.index >= count and not run.has_ended
            if is_extra and task not in self._sent_away:
                self._sent_away.add(task)
                orders.append((run.node, Stop(self.id, task, kill=False)))
        return orders

    def task_ended(
        self,
        task: TaskId,
        code: int,
        settings: Mapping[str, str] | None,
        *,
        why: str = "",
        now: float,
    ) -> list[tuple[TaskId, Order]]:
        """Handle that a task's process has ended.

        Args:
            task: The task.
            code: Exit code as ``subprocess`` reports it.
            settings: Settings with which to start it again; None: its node is lost.
            why: Reason for people, if its code does not say it.
            now: The time.

        Returns:
            Orders to carry out, each with the node that does it.
        """
        if task not in self.tasks or self.has_ended:
            return []
        can_restart = settings is not None and task not in self._sent_away
        ended = Ended(End(task, code, why), can_restart=can_restart)
        return self._handle(ended, settings or {}, now=now)

    def stop(self, reason: str, *, kill: bool, now: float) -> list[tuple[TaskId, Order]]:
        """Ask it to save and end, or end it at once; returns the orders."""
        if self.has_ended:
            return []
        if self.state is JobState.QUEUED:
            self.state, self.ended, self.reason = JobState.ENDED, now, reason
            self.exit_code = int(ExitCode.DRAINED)
            return []
        if self.state is JobState.RUNNING:
            self.state, self.reason = JobState.STOPPING, reason
        return self._handle(StopRequested(reason, kill), now=now)

    def overdue(self, *, now: float) -> list[tuple[TaskId, Order]]:
        """Make orders for tasks that should have ended by themselves."""
        return [] if self.has_ended else self._handle(Tick(), now=now)

    def _handle(
        self, event: Event, settings: Mapping[str, str] = MappingProxyType({}), *, now: float
    ) -> list[tuple[TaskId, Order]]:
        supervision = self._supervision
        if supervision is None:  # it waits for its nodes
            return []
        orders: list[tuple[TaskId, Order]] = []
        for order in supervision.handle(event, now):
            match order:
                case StartAgain(task):
                    orders.append((self.tasks[task].node, self._start(self.tasks[task], settings)))
                case Signal(task, kill):
                    orders.append((self.tasks[task].node, Stop(self.id, task, kill)))
        self._look_at(supervision, now)
        return orders

    def _look_at(self, supervision: Supervision, now: float) -> None:
        failure = supervision.failure
        if supervision.has_ended:
            self.state, self.ended = JobState.ENDED, now
            self.exit_code = supervision.exit_code
        if failure is not None and self.state is not JobState.STOPPING:
            self.reason = failure.sentence
