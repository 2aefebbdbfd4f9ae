"""Limits of what a ps holds, in bytes and in shards, checked before any memory is taken.

Pure, but for the constructor.

A definition costs its caller a hundred bytes and the ps as much as it says. Without a limit one
with a nought too many ends the ps, and with it the job, by the kernel's hand; so it is refused,
and the error says how much there is.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from ...core.arrays.dtypes import is_float
from ...core.errors import ConfigurationError, LimitExceededError
from ...core.process.memory import memory_bytes
from ...core.rules.definitions import ShardDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.settings import Settings
from ...core.task import Incarnation, TaskId
from ...engine.block import Block
from ...engine.push_target import PushTarget


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
