"""Limits of a ps: what it holds, its sessions, and the memory that their steps take."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from ...core.arrays.dtypes import is_float
from ...core.errors import ConfigurationError, LimitExceededError, TooManyWorkersError
from ...core.process.processes import memory_bytes
from ...core.rules.definitions import ShardDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...engine.block import Block
from ...engine.push_target import PushTarget

# -- What a ps holds, in bytes and in shards, checked before any memory is taken ---------------
# A definition costs its caller a hundred bytes and the ps as much as it says. Without a limit one
# with a nought too many ends the ps, and with it the job, by the kernel's hand; so it is refused,
# and the error says how much there is.


class HeldBytes(NamedTuple):
    """Bytes of values and slots.

    Attributes:
        memory: Bytes in memory.
        disk: Reserved on disk.
    """

    memory: int = 0
    disk: int = 0


class MemoryLimits:
    """The limits of one ps.

    Args:
        task: The ps, for messages.
        settings: ``max_variables``, ``max_ps_bytes``, ``max_variable_bytes``, and for its disk
            ``table_folder`` and ``max_ps_disk_bytes``.
        beside: Counts what the ps holds in other stores.

    Attributes:
        max_ps_bytes: Most memory of values and slots together.
    """

    def __init__(
        self, task: TaskId, settings: Settings, beside: Callable[[], HeldBytes] = HeldBytes
    ) -> None:
        self._task = task
        self._beside = beside
        self._max_variables = settings.max_variables
        self.max_ps_bytes = settings.max_ps_bytes or memory_bytes() * 4 // 5
        self._has_disk = bool(settings.table_folder)
        self._max_disk_bytes = settings.max_ps_disk_bytes
        self._max_variable_bytes = settings.max_variable_bytes or self.max_ps_bytes

    def check_count(self, shards: int) -> None:
        """Check that the ps may hold so many shards.

        Raises:
            LimitExceededError: It may not.
        """
        if shards > self._max_variables:
            raise LimitExceededError(
                f"{self._task} would hold {shards} shards, more than "
                f"max_variables={self._max_variables}; raise ROPEWALK_MAX_VARIABLES on the ps",
                task=self._task,
                limit="max_variables",
            )

    def check_shards(
        self, new: Sequence[ShardDefinition], blocks: Collection[PushTarget], who: Incarnation
    ) -> None:
        """Check that new shards fit beside those in ``blocks``; tables at their largest.

        What is noted about changes gives way: readers and deltas have all rows again then.

        Raises:
            LimitExceededError: They do not; names the variable, both numbers and the setting.
        """
        if not new:
            return
        more: Counter[str] = Counter()
        for shard in new:
            more[shard.variable.name] += self._memory_of(shard)
        held: Counter[str] = Counter()
        used = self._beside().memory
        for block in blocks:
            used += block.most_bytes - block.followed_bytes
            for shard in block.shards:
                if shard.variable.name in more:
                    held[shard.variable.name] += self._memory_of(shard)
        largest = max(more, key=lambda name: more[name])
        self._check(used + more.total(), self.max_ps_bytes, "max_ps_bytes", largest, who)
        for name, num_bytes in more.items():
            total = held[name] + num_bytes
            self._check(total, self._max_variable_bytes, "max_variable_bytes", name, who)
        if self._has_disk:
            self._check_disk(new, blocks, who)
        self._give_way(blocks, used + more.total())

    def _memory_of(self, shard: ShardDefinition) -> int:
        return shard.memory_bytes if self._has_disk else shard.num_bytes

    def _check_disk(
        self, new: Sequence[ShardDefinition], blocks: Collection[PushTarget], who: Incarnation
    ) -> None:
        largest = max(new, key=lambda shard: shard.file_bytes)
        if largest.file_bytes and self._max_disk_bytes:
            more = sum(shard.file_bytes for shard in new)
            reserved = self._beside().disk + sum(block.reserved_bytes for block in blocks)
            name, most = largest.variable.name, self._max_disk_bytes
            self._check(reserved + more, most, "max_ps_disk_bytes", name, who)

    def check_folder(self, new: Iterable[ShardDefinition]) -> None:
        """Check that this ps has a folder for tables that are larger than their memory.

        Raises:
            ConfigurationError: It has none.
        """
        for shard in new:
            if shard.file_bytes and not self._has_disk:
                name = shard.variable.name
                raise ConfigurationError(
                    f"table {name!r} has memory_bytes, and {self._task} no folder for the rows "
                    "beyond it: set ROPEWALK_TABLE_FOLDER on every ps to a folder of a local disk, "
                    "or leave memory_bytes out",
                    table=name,
                    task=self._task,
                )

    def check_slots(
        self,
        names: Collection[str],
        rule: UpdateRule,
        blocks: Collection[PushTarget],
        who: Incarnation,
    ) -> None:
        """Check that the slot variables fit that a rule needs for these variables.

        What is noted about changes gives way, as in :meth:`check_shards`.

        Raises:
            LimitExceededError: They do not.
        """
        wanted, slots = set(names), rule.active_slots()
        used, more, label = self._beside().memory, 0, ""
        for block in blocks:
            used += block.most_bytes - block.followed_bytes
            if not isinstance(block, Block) or not is_float(block.dtype):
                continue
            missing = sum(slot not in block.slots for slot in slots)
            if missing and any(shard.variable.name in wanted for shard in block.shards):
                more += missing * block.value.size * block.compute_dtype.itemsize
                label = label or block.shards[0].variable.name
        if more:
            self._check(used + more, self.max_ps_bytes, "max_ps_bytes", label, who)
            self._give_way(blocks, used + more)

    def check_followed(self, num_bytes: int, name: str, blocks: Iterable[PushTarget]) -> None:
        """Check that what notes which rows of a variable change fits.

        Raises:
            LimitExceededError: It does not.
        """
        used = self._beside().memory + sum(block.most_bytes for block in blocks)
        if used + num_bytes > self.max_ps_bytes:
            raise LimitExceededError(
                f"{self._task} would hold {used + num_bytes} bytes if it noted which rows of "
                f"{name!r} change, and max_ps_bytes is {self.max_ps_bytes}; raise "
                "ROPEWALK_MAX_PS_BYTES on the ps, or let readers look rows up without keeping them",
                task=self._task,
                variable=name,
                limit="max_ps_bytes",
                value=used + num_bytes,
            )

    def _give_way(self, blocks: Collection[PushTarget], total: int) -> None:
        if total + sum(block.followed_bytes for block in blocks) > self.max_ps_bytes:
            for block in blocks:
                block.forget_changes()

    def _check(self, total: int, most: int, limit: str, name: str, who: Incarnation) -> None:
        if total <= most:
            return
        raise LimitExceededError(
            f"{self._task} would hold {total} bytes with what {who.task} asks for {name!r}, and "
            f"{limit} is {most}; use more ps or a partitioner, or raise ROPEWALK_{limit.upper()} "
            "on the ps",
            task=self._task,
            variable=name,
            limit=limit,
            value=total,
        )


# -- Limits of the sessions with a ps: places for workers, and memory for steps and layouts ----
# A session carries out one step at a time, and has a bound for its layouts; but one caller may
# have many sessions. So the bytes of a caller's steps are counted together, and one that would be
# too much waits until another step of the same caller has ended. Nobody waits for another caller.
#
# A step that is alone always fits: it has a bound of its own. Small steps and small answers are
# not counted: a client may send those one after the other, and read them so, and a wait of one for
# another would not end.

_CONNECTIONS_PER_SHARE = 4  # two while it upgrades, and those it gave up that are still at work;
# counted together, since one worker whose connection breaks again and again may leave more for a
# moment
_SMALL_BYTES = 1024 * 1024
_LOOK_S = 1.0  # how soon a caller that has gone gives up its turn
_SESSIONS = 2  # whose layouts one caller may have: those of a session that broke, and of the next

LAYOUT_MESSAGES = 16
"""Most memory that the layouts of a session take. Unit: ``max_message_bytes``."""


def connections_per_worker(shares: int) -> int:
    """Count the connections that a worker may have with a ps, on average over all workers.

    Args:
        shares: All shares of the job, which one ps may come to lead; 0: it has its own alone.
    """
    return _CONNECTIONS_PER_SHARE * max(1, shares)


class SessionLimiter:
    """Counts workers that have a session against their limit. Thread-safe.

    One worker has half of all sessions at most, so that it cannot keep the others out.

    A worker has two for a moment when it upgrades to a better connection, or comes back before we
    know that its last session is dead; it is not in its own way.

    Args:
        task: The ps, for messages.
        limit: Most workers.
        per_worker: Most sessions for each of them, on average.
        kind: Name of what is counted, for messages.
        allowed: Setting that allows so many, for messages; empty: ``max_sessions``.
    """

    def __init__(
        self,
        task: TaskId,
        limit: int,
        per_worker: int = _CONNECTIONS_PER_SHARE,
        kind: str = "workers",
        allowed: str = "",
    ) -> None:
        self._task = task
        self._limit = limit
        self.per_worker = per_worker
        self._kind = kind
        self._allowed = allowed or f"max_sessions={limit}"
        self._lock = threading.Lock()
        self._sessions: Counter[TaskId] = Counter()

    @property
    def task(self) -> TaskId:
        """The ps."""
        return self._task

    @property
    def count(self) -> int:
        """Workers that have a session."""
        with self._lock:
            return len(self._sessions)

    @contextmanager
    def session(self, worker: TaskId) -> Iterator[None]:
        """Count a session of a worker, for as long as it lasts.

        Raises:
            TooManyWorkersError: There are too many workers, or connections in all.
        """
        with self._lock:
            workers, connections = len(self._sessions), self._sessions.total()
            is_new = worker not in self._sessions
            most = self.per_worker * self._limit
            full = connections >= most
            is_greedy = self._sessions[worker] >= max(self.per_worker, most // 2)
            if full or is_greedy or (is_new and workers >= self._limit):
                raise TooManyWorkersError(
                    f"{self._task} has {connections} sessions of {workers} {self._kind} already "
                    f"({self._allowed} {self._kind}, {self.per_worker} for each on average), so "
                    f"{worker} is refused; raise ROPEWALK_MAX_SESSIONS on the ps, or run fewer "
                    f"{self._kind}",
                    limit="max_sessions",
                    value=self._limit,
                )
            self._sessions[worker] += 1
        try:
            yield
        finally:
            with self._lock:
                self._sessions[worker] -= 1
                self._sessions += Counter()  # forget zeros


class SessionRoom:
    """Memory that one session takes. Used by one thread; see :class:`StepRoom`."""

    def __init__(
        self, room: "StepRoom", caller: Hashable, is_there: Callable[[], bool] = lambda: True
    ) -> None:
        self._room = room
        self._caller = caller
        self._is_there = is_there
        self._step_bytes = 0
        self._layout_bytes = 0

    def begin_step(self, num_bytes: int) -> None:
        """Count a step's bytes, once there is room for them.

        Raises:
            LimitExceededError: There was none in time.
            ConnectionError: The caller has gone.
        """
        counted = _counted(num_bytes)
        if counted:
            self._room.wait(self._caller, counted, self._is_there)
        self._step_bytes = counted

    def keep(self, num_bytes: int) -> None:
        """Give back what the step under way needs no more; 0: it has ended."""
        kept = min(self._step_bytes, _counted(num_bytes))
        self._room.give_back(self._caller, self._step_bytes - kept)
        self._step_bytes = kept

    def set_layouts(self, num_bytes: int) -> None:
        """Count the bytes of the session's layouts.

        Raises:
            LimitExceededError: The caller has too many.
        """
        self._room.add_layouts(self._caller, num_bytes - self._layout_bytes)
        self._layout_bytes = num_bytes

    def close(self) -> None:
        """Give everything back."""
        self.keep(0)
        self.set_layouts(0)


class StepRoom:
    """Counts what all sessions with a ps take, by caller. Thread-safe.

    Args:
        task: The ps, for messages.
        settings: ``max_step_bytes`` for the steps of one caller that are under way,
            ``request_timeout_s`` for their wait, and ``max_message_bytes`` for layouts.
    """

    def __init__(self, task: TaskId, settings: Settings) -> None:
        self._task = task
        self._most = settings.max_step_bytes
        self._most_layouts = _SESSIONS * LAYOUT_MESSAGES * settings.max_message_bytes
        self._timeout_s = settings.request_timeout_s
        self._changed = threading.Condition()
        self._steps: Counter[Hashable] = Counter()
        self._layouts: Counter[Hashable] = Counter()

    @contextmanager
    def session(self, caller: Hashable, is_there: Callable[[], bool]) -> Iterator[SessionRoom]:
        """Count what a session of a caller takes, for as long as it lasts.

        Args:
            caller: Identity of the caller; sessions of equal ones are counted together.
            is_there: Returns whether the caller still waits for an answer.
        """
        room = SessionRoom(self, caller, is_there)
        try:
            yield room
        finally:
            room.close()

    def wait(self, caller: Hashable, num_bytes: int, is_there: Callable[[], bool]) -> None:
        """Take bytes for a step; see :meth:`SessionRoom.begin_step`."""
        until = time.monotonic() + self._timeout_s
        with self._changed:
            while not self._fits(caller, num_bytes):
                if not is_there():
                    raise ConnectionError("the caller left while its step waited for another one")
                left_s = until - time.monotonic()
                if left_s <= 0:
                    raise self._too_much(caller, num_bytes)
                self._changed.wait(min(left_s, _LOOK_S))
            self._steps[caller] += num_bytes

    def _fits(self, caller: Hashable, num_bytes: int) -> bool:
        taken = self._steps[caller]
        return not taken or taken + num_bytes <= self._most

    def _too_much(self, caller: Hashable, num_bytes: int) -> LimitExceededError:
        return LimitExceededError(
            f"{self._task}: a step of {num_bytes} bytes has waited {self._timeout_s:g} s for other "
            f"steps of {caller}, which have {self._steps[caller]} bytes under way, of "
            f"max_step_bytes={self._most} for all sessions of one caller; raise "
            "ROPEWALK_MAX_STEP_BYTES on the ps, or use fewer sessions at the same time",
            task=self._task,
            limit="max_step_bytes",
            value=self._most,
        )

    def give_back(self, caller: Hashable, num_bytes: int) -> None:
        """Give back bytes of a step."""
        if num_bytes:
            with self._changed:
                self._steps[caller] -= num_bytes
                self._steps += Counter()  # forget zeros
                self._changed.notify_all()

    def add_layouts(self, caller: Hashable, num_bytes: int) -> None:
        """Count more bytes of layouts, or less; see :meth:`SessionRoom.set_layouts`."""
        with self._changed:
            total = self._layouts[caller] + num_bytes
            if num_bytes > 0 and total > self._most_layouts:
                raise LimitExceededError(
                    f"{self._task}: the sessions of {caller} have sent layouts of {total} bytes, "
                    f"more than {self._most_layouts}; push and pull the same sets of variables "
                    "from step to step, or use fewer sessions at the same time",
                    task=self._task,
                    limit="layouts",
                    value=total,
                )
            self._layouts[caller] = total
            self._layouts += Counter()  # forget zeros


def _counted(num_bytes: int) -> int:
    return num_bytes if num_bytes > _SMALL_BYTES else 0
