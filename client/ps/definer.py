"""Making variables usable: created by one task, found by the others."""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from ...cluster.placement import PartitionFunction, Placement, parts_of
from ...core.arrays.dtypes import Array, num_rows
from ...core.errors import (
    ConfigurationError,
    DefinitionMismatchError,
    JoinTimeoutError,
    UnknownVariableError,
)
from ...core.process.waiting import WaitLog
from ...core.rules.definitions import ShardDefinition, VariableDefinition, cut
from ...core.rules.update_rules import UpdateRule
from ...core.settings import Settings
from ...core.task import Incarnation
from ...core.wire.steps import HeldShard, Operation
from .step import PsPeer, Step, Write

_POLL_S = 0.05
_ASK_S = 1.0  # between two questions to the chief
_SMALL_TABLES = 4  # of what a ps has of all tables: one up to this part of it is not cut

Held = Mapping[str, Sequence[tuple[int, HeldShard]]]


@dataclass(frozen=True, slots=True)
class PlacedVariable:
    """A variable and its shards: (index of the ps, shard), by part."""

    definition: VariableDefinition
    shards: tuple[tuple[int, ShardDefinition], ...]


class Definer:
    """The variables of a program, and where their shards are. The caller locks.

    Args:
        peers: Clients of the ps, one each, by index.
        who: Incarnation of the calling task.
        settings: Settings, for the join timeout.
        step: Makes a step that assigns values to variables that were placed.
        closed: Set when the session ends.
    """

    def __init__(
        self,
        peers: Sequence[PsPeer],
        who: Incarnation,
        settings: Settings,
        step: Callable[[Step], object],
        closed: threading.Event,
    ) -> None:
        self._peers = peers
        self._who = who
        self._settings = settings
        self._step = step
        self._closed = closed
        self.placed: dict[str, PlacedVariable] = {}

    def place(self, name: str) -> PlacedVariable:
        """Find a variable and its shards.

        Raises:
            UnknownVariableError: It was not defined.
        """
        placed = self.placed.get(name)
        if placed is None:
            raise UnknownVariableError(
                f"{self._who.task}: no variable {name!r} was defined; define it in "
                "strategy.scope()",
                task=self._who.task,
                variable=name,
            )
        return placed

    def definition(self, variable: str) -> VariableDefinition:
        """Find a variable's definition.

        Raises:
            UnknownVariableError: It was not defined.
        """
        return self.place(variable).definition

    def shards(self, variable: str) -> list[tuple[int, ShardDefinition]]:
        """List the shards of a variable in order, as (index of the ps, shard).

        Raises:
            UnknownVariableError: It was not defined.
        """
        return list(self.place(variable).shards)

    def placement(self) -> dict[str, list[tuple[str, str, int]]]:
        """List shards per ps as (shard, shape, bytes), for people."""
        table: dict[str, list[tuple[str, str, int]]] = {}
        for placed in self.placed.values():
            for ps, shard in placed.shards:
                row = (shard.label, "×".join(map(str, shard.shape)) or "scalar", shard.num_bytes)
                table.setdefault(self._peers[ps].task.short, []).append(row)
        return table

    def create(
        self,
        definitions: Sequence[VariableDefinition],
        initial: Mapping[str, Array],
        partitioner: PartitionFunction | None,
        placement: Placement,
        restore_from: str,
    ) -> list[str]:
        """Create what does not exist, and give it its first values.

        Returns:
            Names of the variables whose values came from the checkpoint.

        Raises:
            DefinitionMismatchError: Another task defined one differently.
        """
        held = self._lookup(definitions)
        missing = [d for d in definitions if d.name not in held or _lacks_parts(d, held[d.name])]
        whole = self._tables_on_one_ps(definitions)
        restored = self._create(missing, whole, partitioner, placement, restore_from)
        values = {
            d.name: initial[d.name]
            for d in missing
            if d.initializer is None and d.table is None and d.name not in restored
        }
        # A chief that died may have created some only: no other task would ever assign them.
        for definition in definitions:
            parts = held.get(definition.name)
            if parts is None:
                continue
            has_all = sum(item.shard.rows for _, item in parts) == num_rows(definition.shape)
            if definition.name in initial and has_all and not _complete(definition, parts):
                self._note(definition, parts)
                values[definition.name] = initial[definition.name]
        if values:
            self._step(Step([Write(Operation.ASSIGN, values)]))
        return sorted(restored)

    def wait_for(
        self,
        definitions: Sequence[VariableDefinition],
        check: Callable[[], None],
        chief_has_ended: Callable[[], bool],
    ) -> None:
        """Wait until all exist and have values.

        Args:
            definitions: Definitions of the variables to wait for.
            check: Called while waiting; raises to give up.
            chief_has_ended: Whether the chief's program is over. May take a round trip.

        Raises:
            DefinitionMismatchError: Another task defined one differently, or the chief has ended
                without one.
            JoinTimeoutError: The chief did not create them in time.
        """
        waits = WaitLog(
            self._who.task, limit_s=self._settings.join_timeout_s, limit="join_timeout_s"
        )
        held, in_vain, ask_at = self._lookup(definitions), False, time.monotonic() + _ASK_S
        while waiting := [d.name for d in definitions if not _complete(d, held.get(d.name))]:
            check()
            if in_vain:
                raise DefinitionMismatchError(
                    f"{self._who.task} creates {waiting[0]!r}, and the chief's program has ended "
                    "without it; all tasks must run the same program and name variables alike",
                    task=self._who.task,
                    variable=waiting[0],
                )
            more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
            waits.tick(f"the chief to create {waiting[0]!r}{more}", "do both run one program?")
            if waits.is_over:
                raise JoinTimeoutError(
                    f"{self._who.task} waited {self._settings.join_timeout_s:g} s "
                    "(join_timeout_s) for "
                    f"the chief to create {waiting[0]!r}{more}; do all tasks run the same program?",
                    task=self._who.task,
                    variable=waiting[0],
                )
            self._closed.wait(_POLL_S)
            if time.monotonic() >= ask_at:
                # Asked before the lookup: what a chief creates last is found by it.
                in_vain, ask_at = chief_has_ended(), time.monotonic() + _ASK_S
            held = self._lookup(definitions)
        waits.done()
        for definition in definitions:
            self._note(definition, held[definition.name])

    def adopt(self, held: Held) -> list[str]:
        """Use variables that other tasks have created, as the ps describe them.

        Args:
            held: Shards of each variable, with the indices of their ps.

        Returns:
            Names of those that have all their parts and values.
        """
        complete = {
            name: parts
            for name, parts in held.items()
            if _complete(parts[0][1].shard.variable, parts)
        }
        for parts in complete.values():
            in_order = sorted(parts, key=lambda pair: pair[1].shard.part)
            self._note(parts[0][1].shard.variable, in_order)
        return list(complete)

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule to variables, on every ps that holds a part.

        Raises:
            DefinitionMismatchError: Another task bound a different rule; names both.
        """
        holders: dict[int, dict[str, None]] = {}
        for name in variables:
            for ps, _ in self.place(name).shards:
                holders.setdefault(ps, {})[name] = None
        for ps, names in holders.items():
            self._peers[ps].bind(list(names), rule)

    def _note(self, definition: VariableDefinition, parts: Sequence[tuple[int, HeldShard]]) -> None:
        shards = tuple((ps, item.shard) for ps, item in parts)
        self.placed[definition.name] = PlacedVariable(definition, shards)

    def _lookup(self, definitions: Sequence[VariableDefinition]) -> Held:
        shards: dict[str, list[tuple[int, HeldShard]]] = {}
        wanted = [ShardDefinition(definition) for definition in definitions]
        for ps, peer in enumerate(self._peers):
            for item in peer.define(wanted, create=False):
                shards.setdefault(item.shard.variable.name, []).append((ps, item))
        for parts in shards.values():
            parts.sort(key=lambda pair: pair[1].shard.part)
        return shards

    def _tables_on_one_ps(self, definitions: Sequence[VariableDefinition]) -> set[str]:
        """Return the names of the tables that are not cut: those that are small among all of them.

        A step costs each part of a table as much as some thousand rows. It follows from all
        definitions, not from what is missing: a chief that starts again cuts as the one before.
        """
        sizes = {d.name: ShardDefinition(d).num_bytes for d in definitions if d.table is not None}
        most = sum(sizes.values()) / (_SMALL_TABLES * len(self._peers))
        return {name for name, size in sizes.items() if size <= most}

    def _parts_of_table(self, definition: VariableDefinition) -> list[ShardDefinition]:
        parts = cut(definition, len(self._peers))
        if len(parts) < len(self._peers):
            raise ConfigurationError(
                f"table {definition.name!r} may have {definition.shape[0]} rows, and there are "
                f"{len(self._peers)} ps; each has a part, so raise max_rows",
                table=definition.name,
            )
        return parts

    def _create(
        self,
        definitions: Sequence[VariableDefinition],
        whole: Collection[str],
        partitioner: PartitionFunction | None,
        placement: Placement,
        restore_from: str,
    ) -> set[str]:
        shards: list[ShardDefinition] = []
        for definition in definitions:
            if definition.name in whole:
                shards.append(ShardDefinition(definition))
            elif definition.table is None:
                count = parts_of(partitioner, definition.shape, definition.dtype)
                shards += cut(definition, count)
        loads = [peer.held_bytes() for peer in self._peers]
        placed_before = sum(len(placed.shards) for placed in self.placed.values())
        choices = list(placement([shard.num_bytes for shard in shards], loads, placed_before))
        # Every ps has a part of each other table: the keys whose hash says so.
        for definition in definitions:
            if definition.table is not None and definition.name not in whole:
                shards += self._parts_of_table(definition)
                choices += range(len(self._peers))
        restored: set[str] = set()
        for ps, peer in enumerate(self._peers):
            mine = [s for s, choice in zip(shards, choices, strict=True) if choice == ps]
            for item in peer.define(mine, create=True, restore_from=restore_from):
                if item.restored:
                    restored.add(item.shard.variable.name)
        by_name: dict[str, list[tuple[int, ShardDefinition]]] = {}
        for shard, ps in zip(shards, choices, strict=True):
            by_name.setdefault(shard.variable.name, []).append((ps, shard))
        for definition in definitions:
            parts = tuple(by_name[definition.name])
            self.placed[definition.name] = PlacedVariable(definition, parts)
        return restored


def _lacks_parts(definition: VariableDefinition, parts: Sequence[tuple[int, HeldShard]]) -> bool:
    """Return whether a chief that died has created a table on some ps only."""
    return definition.table is not None and not _complete(definition, parts)


def _complete(
    definition: VariableDefinition, parts: Sequence[tuple[int, HeldShard]] | None
) -> bool:
    if not parts or not all(item.initialized for _, item in parts):
        return False
    rows = sum(item.shard.rows for _, item in parts)
    return rows == (definition.shape[0] if definition.shape else 1)
