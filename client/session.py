"""A parameter session: all the variables of a program, wherever their shards are.

Everything a step needs from one ps travels in one round trip, and the ps are asked in parallel. What a set
of variables means in bytes (which shard is where, in which order) is worked out once per set and kept; a
step then only cuts, sends and receives.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from ..cluster.partitioners import Partitioner, parts_of
from ..cluster.placement import Placement, greedy_by_bytes
from ..core import codec
from ..core.arrays import Array, num_rows, row_shape
from ..core.definitions import ShardDefinition, VariableDefinition, cut
from ..core.errors import (
    JoinTimeoutError,
    PeerLostError,
    ShapeMismatchError,
    UnknownVariableError,
    WindlassError,
)
from ..core.indexed_slices import IndexedSlices
from ..core.settings import Settings
from ..core.steps import HeldShard, LayoutEntry, Operation, PushResult, StepRequest, WireLayout
from ..core.task import Incarnation
from ..core.update_rules import UpdateRule
from .plans import Cut, Placed, PullPlan, PushItem, PushPlan, plan_pull
from .transport import PsTransport

log = logging.getLogger(__name__)

_WATCHDOG_S = 0.25


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought back.

    Attributes:
        values: Pulled variables by name. Read-only arrays; they stay as they are.
        global_step: After the step.
        staleness: Steps others took between this push's pull and it.
    """

    values: dict[str, Array]
    global_step: int
    staleness: int


@dataclass(slots=True)
class SessionCounters:
    """Payload moved since the session began. Unit: bytes."""

    pushed: int = 0
    pulled: int = 0


class ParameterSession:
    """Push, pull and define variables on all ps. Thread-safe; one step at a time.

    Args:
        transports: One per ps, by index. The first one owns the global step.
        who: This task.
        settings: Deadlines and bounds.
    """

    def __init__(
        self, transports: Sequence[PsTransport], who: Incarnation, settings: Settings
    ) -> None:
        self._transports = list(transports)
        self._who = who
        self._settings = settings
        self._lock = threading.RLock()
        self._placed: dict[str, Placed] = {}
        self._sequences = [0] * len(transports)
        self._push_plans: dict[tuple[tuple[str, Operation, bool], ...], PushPlan] = {}
        self._pull_plans: dict[tuple[str, ...], PullPlan] = {}
        self._row_layouts: dict[str, dict[int, WireLayout]] = {}
        self._next_layout = 0
        self._aborted: WindlassError | None = None
        self.counters = SessionCounters()
        self.global_step = 0
        self._closed = threading.Event()
        self._watchdog: threading.Thread | None = None

    # -- life --------------------------------------------------------------------------------

    def connect(
        self,
        *,
        still_wanted: Callable[[], None] = lambda: None,
        on_wait: Callable[[list[str]], None] | None = None,
    ) -> None:
        """Open a session with every ps, waiting for late ones until the join timeout.

        Args:
            still_wanted: Called between attempts; raises to give up.
            on_wait: Told now and then which peers are missing.

        Raises:
            JoinTimeoutError: Names the ps that did not answer, and the last reason.
        """
        self._watchdog = threading.Thread(target=self._watch, name="ps-deadlines", daemon=True)
        self._watchdog.start()
        timeout_s = self._settings.join_timeout_s
        deadline = time.monotonic() + timeout_s
        missing = list(self._transports)
        told = 0.0

        def attempt(transport: PsTransport) -> PeerLostError | None:
            return _try_connect(transport, min(2.0, max(0.1, deadline - time.monotonic())))

        with ThreadPoolExecutor(min(16, len(missing)) or 1) as pool:
            while missing:
                results = list(pool.map(attempt, missing))
                late = [(t, e) for t, e in zip(missing, results, strict=True) if e is not None]
                missing = [transport for transport, _ in late]
                still_wanted()
                if not missing:
                    break
                names = [str(transport.task) for transport in missing]
                if time.monotonic() >= deadline:
                    raise JoinTimeoutError(
                        f"{self._who.task} waited {timeout_s:g} s (join_timeout_s) for "
                        f"{', '.join(names)}; the last answer: {late[0][1]}. Is it started, and can this "
                        "machine reach its address?",
                        task=self._who.task,
                        missing=",".join(names),
                    ) from late[0][1]
                if on_wait is not None and time.monotonic() - told > 5:
                    told = time.monotonic()
                    on_wait(names)
                self._closed.wait(0.1)

    def close(self) -> None:
        """End the sessions."""
        self._closed.set()
        for transport in self._transports:
            transport.close()

    def abort(self, error: WindlassError) -> None:
        """Make a running and every later call raise ``error``. From any thread."""
        self._aborted = error
        for transport in self._transports:
            transport.abort(error)

    @property
    def transports(self) -> tuple[str, ...]:
        """How bytes travel to each ps, for the status."""
        return tuple(f"{t.task.short} {t.description}" for t in self._transports)

    def _watch(self) -> None:
        while not self._closed.wait(_WATCHDOG_S):
            now = time.monotonic()
            for transport in self._transports:
                transport.expire(now)

    # -- definitions -------------------------------------------------------------------------

    def define(
        self,
        definitions: Sequence[VariableDefinition],
        initial: Mapping[str, Array],
        *,
        create: bool,
        partitioner: Partitioner | None = None,
        placement: Placement = greedy_by_bytes,
        restore_from: str = "",
        still_wanted: Callable[[], None] = lambda: None,
    ) -> list[str]:
        """Make variables usable: create them (the chief), or wait until the chief has.

        Where shards are is decided once, by the task that creates them; the others ask.

        Args:
            definitions: In the order of creation.
            initial: Values of variables without an initializer.
            create: Whether this task creates what does not exist.
            partitioner: Into how many parts a variable is cut.
            placement: Which ps gets which shard.
            restore_from: Checkpoint to take values from, where it has them.
            still_wanted: Called while waiting; raises to give up.

        Returns:
            Names of the variables whose values came from the checkpoint.

        Raises:
            DefinitionMismatchError: Another task defined one differently; names both.
            JoinTimeoutError: The chief did not create them in time.
        """
        with self._lock:
            self._raise_if_aborted()
            held = self._lookup(definitions)
            restored: list[str] = []
            if create:
                missing = [d for d in definitions if d.name not in held]
                restored = self._create(missing, initial, partitioner, placement, restore_from)
                held = self._lookup(definitions)
                if self._assign_left_over(definitions, initial, held):
                    held = self._lookup(definitions)
            deadline = time.monotonic() + self._settings.join_timeout_s
            while waiting := [d.name for d in definitions if not _complete(d, held.get(d.name))]:
                still_wanted()
                self._raise_if_aborted()
                if time.monotonic() >= deadline:
                    raise JoinTimeoutError(
                        f"{self._who.task} waited {self._settings.join_timeout_s:g} s (join_timeout_s) "
                        f"for the chief to create {waiting[0]!r}"
                        f"{f' and {len(waiting) - 1} more' if len(waiting) > 1 else ''}; do all tasks "
                        "run the same program?",
                        task=self._who.task,
                        variable=waiting[0],
                    )
                self._closed.wait(0.05)
                held = self._lookup(definitions)
            for definition in definitions:
                parts = tuple((ps, item.shard) for ps, item in held[definition.name])
                self._placed[definition.name] = Placed(definition, parts)
            # A program may ask for the global step before its first step.
            answer = self._exchange({0: StepRequest()}, {})[0]
            self.global_step = max(self.global_step, answer.global_step)
            return restored

    def _lookup(
        self, definitions: Sequence[VariableDefinition]
    ) -> dict[str, list[tuple[int, HeldShard]]]:
        found: dict[str, list[tuple[int, HeldShard]]] = {}
        wanted = [ShardDefinition(definition) for definition in definitions]
        for ps, transport in enumerate(self._transports):
            for item in transport.define(wanted, create=False):
                found.setdefault(item.shard.variable.name, []).append((ps, item))
        for parts in found.values():
            parts.sort(key=lambda pair: pair[1].shard.part)
        return found

    def _create(
        self,
        definitions: Sequence[VariableDefinition],
        initial: Mapping[str, Array],
        partitioner: Partitioner | None,
        placement: Placement,
        restore_from: str,
    ) -> list[str]:
        shards = [
            shard
            for definition in definitions
            for shard in cut(definition, parts_of(partitioner, definition.shape, definition.dtype))
        ]
        loads = [transport.held_bytes() for transport in self._transports]
        placed_before = sum(len(placed.shards) for placed in self._placed.values())
        choices = placement([shard.num_bytes for shard in shards], loads, placed_before)
        restored: set[str] = set()
        for ps, transport in enumerate(self._transports):
            mine = [s for s, choice in zip(shards, choices, strict=True) if choice == ps]
            for item in transport.define(mine, create=True, restore_from=restore_from):
                if item.restored:
                    restored.add(item.shard.variable.name)
        by_name: dict[str, list[tuple[int, ShardDefinition]]] = {}
        for shard, ps in zip(shards, choices, strict=True):
            by_name.setdefault(shard.variable.name, []).append((ps, shard))
        for definition in definitions:
            self._placed[definition.name] = Placed(definition, tuple(by_name[definition.name]))
        assigned = [
            PushItem(definition.name, Operation.ASSIGN, initial[definition.name])
            for definition in definitions
            if definition.initializer is None and definition.name not in restored
        ]
        if assigned:
            self.step(assigned)
        return sorted(restored)

    def _assign_left_over(
        self,
        definitions: Sequence[VariableDefinition],
        initial: Mapping[str, Array],
        held: Mapping[str, list[tuple[int, HeldShard]]],
    ) -> bool:
        """Assign what a chief that died had created only: nobody else would ever do it."""
        left = []
        for definition in definitions:
            parts = held.get(definition.name, [])
            whole = sum(item.shard.rows for _, item in parts) == num_rows(definition.shape)
            if definition.name in initial and whole and not _complete(definition, parts):
                shards = tuple((ps, item.shard) for ps, item in parts)
                self._placed[definition.name] = Placed(definition, shards)
                left.append(PushItem(definition.name, Operation.ASSIGN, initial[definition.name]))
        if left:
            self.step(left)
        return bool(left)

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule to variables, on every ps that holds a part. Idempotent.

        Raises:
            DefinitionMismatchError: Another task bound a different rule; names both.
        """
        with self._lock:
            self._raise_if_aborted()
            holders: dict[int, dict[str, None]] = {}
            for name in variables:
                for ps, _ in self._place(name).shards:
                    holders.setdefault(ps, {})[name] = None
            for ps, names in holders.items():
                self._transports[ps].bind(list(names), rule)

    def placement(self) -> dict[str, list[tuple[str, str, int]]]:
        """Per ps: (shard, shape, bytes), for people."""
        table: dict[str, list[tuple[str, str, int]]] = {}
        for placed in self._placed.values():
            for ps, shard in placed.shards:
                row = (shard.label, "×".join(map(str, shard.shape)) or "scalar", shard.num_bytes)
                table.setdefault(self._transports[ps].task.short, []).append(row)
        return table

    # -- steps -------------------------------------------------------------------------------

    def step(
        self,
        pushes: Sequence[PushItem] = (),
        pulls: Sequence[str] = (),
        *,
        step_increment: int = 0,
        gradient_scale: float = 1.0,
        seen_step: int | None = None,
    ) -> StepResult:
        """Push, then pull, in one round trip per ps.

        Args:
            pushes: At most one per variable.
            pulls: Whole variables to fetch, as they are after the push.
            step_increment: Added to the global step.
            gradient_scale: Multiplies the gradients (clipping by global norm).
            seen_step: Global step of the values the gradients were computed from; None: the last seen.

        Raises:
            ShapeMismatchError: A value is not of its variable's shape; nothing was sent.
            RefusedError: A ps refused; nothing was applied there.
            PeerLostError: A ps is gone.
        """
        with self._lock:
            self._raise_if_aborted()
            push_plan = self._push_plan(pushes)
            pull_plan = self._pull_plan(pulls)
            parts = push_plan.fill(pushes, self._who)
            values, targets = pull_plan.allocate()
            requests: dict[int, StepRequest] = {}
            for ps in range(len(self._transports)):
                push, pull = push_plan.layouts.get(ps), pull_plan.layouts.get(ps)
                increment = step_increment if ps == 0 else 0
                if push is None and pull is None and not increment:
                    continue
                rows, buffers = parts.get(ps, ([], []))
                requests[ps] = StepRequest(
                    sequence=self._sequences[ps] + 1 if push is not None or increment else 0,
                    push=push,
                    pull=pull,
                    push_rows=rows,
                    values=buffers,
                    global_step=self.global_step if seen_step is None else seen_step,
                    step_increment=increment,
                    gradient_scale=gradient_scale,
                )
            results = self._exchange(requests, targets)
            step = max([self.global_step, *(result.global_step for result in results.values())])
            self.global_step = step
            staleness = max((result.staleness for result in results.values()), default=0)
            return StepResult(values, step, staleness)

    def lookup(self, variable: str, indices: Array) -> Array:
        """Rows of a variable, in the order of ``indices``; repeated ones are fetched once.

        Args:
            variable: Its name.
            indices: integer array of any shape.

        Returns:
            Array of shape ``(*indices.shape, *variable.shape[1:])``.

        Raises:
            ShapeMismatchError: An index is out of range.
        """
        with self._lock:
            self._raise_if_aborted()
            placed = self._place(variable)
            definition = placed.definition
            flat = np.asarray(indices).reshape(-1)
            unique, inverse = np.unique(flat.astype(np.int64), return_inverse=True)
            rows = definition.shape[0] if definition.shape else 0
            if unique.size and (unique[0] < 0 or unique[-1] >= rows):
                raise ShapeMismatchError(
                    f"{self._who.task}: row {unique[0] if unique[0] < 0 else unique[-1]} of "
                    f"{variable!r} is out of range: it has {rows} rows",
                    task=self._who.task,
                    variable=variable,
                )
            out = np.empty((unique.size, *row_shape(definition.shape)), definition.dtype)
            layouts = self._rows_layout(variable, placed)
            requests: dict[int, StepRequest] = {}
            targets: dict[int, list[memoryview]] = {}
            by_ps: dict[int, list[tuple[Array, memoryview]]] = {}
            for ps, shard in placed.shards:
                low, high = np.searchsorted(
                    unique, (shard.row_offset, shard.row_offset + shard.rows)
                )
                local = unique[low:high] - shard.row_offset
                by_ps.setdefault(ps, []).append((local, codec.as_bytes(out[low:high])))
            for ps, pieces in by_ps.items():
                if not any(local.size for local, _ in pieces):
                    continue
                requests[ps] = StepRequest(
                    pull=layouts[ps],
                    pull_rows=[local for local, _ in pieces],
                    global_step=self.global_step,
                )
                targets[ps] = [target for _, target in pieces]
            self._exchange(requests, targets)
            return out[inverse].reshape(*np.shape(indices), *row_shape(definition.shape))

    def _exchange(
        self, requests: Mapping[int, StepRequest], targets: Mapping[int, Sequence[memoryview]]
    ) -> dict[int, PushResult]:
        """Send to all, then receive from all. One that fails does not leave others unread."""
        results: dict[int, PushResult] = {}
        try:
            failure = self._send_and_receive(requests, targets, results)
        except BaseException as error:
            # Nobody knows what was applied, and an answer may be unread: the numbers cannot go on.
            self._aborted = PeerLostError(
                f"{self._who.task}: a step was interrupted ({type(error).__name__}) and its outcome is not "
                "known; this session cannot go on. Restart the task, or make the strategy anew",
                task=self._who.task,
            )
            raise
        if failure is not None:
            raise failure
        return results

    def _send_and_receive(
        self,
        requests: Mapping[int, StepRequest],
        targets: Mapping[int, Sequence[memoryview]],
        results: dict[int, PushResult],
    ) -> WindlassError | None:
        failure: WindlassError | None = None
        sent: list[int] = []
        for ps, request in requests.items():
            try:
                self._transports[ps].send(request)
            except WindlassError as error:
                failure = error
                break
            sent.append(ps)
            self.counters.pushed += codec.total_bytes(request.values)
        for ps in sent:
            into = targets.get(ps, ())
            try:
                results[ps] = self._transports[ps].receive(into)
            except WindlassError as error:
                failure = failure or error
                continue
            if requests[ps].sequence:
                self._sequences[ps] = requests[ps].sequence
            self.counters.pulled += codec.total_bytes(into)
        return failure

    # -- plans -------------------------------------------------------------------------------

    def _place(self, name: str) -> Placed:
        placed = self._placed.get(name)
        if placed is None:
            raise UnknownVariableError(
                f"{self._who.task}: no variable {name!r} was defined; define it in strategy.scope()",
                task=self._who.task,
                variable=name,
            )
        return placed

    def _new_layout(self, entries: Sequence[LayoutEntry]) -> WireLayout:
        self._next_layout += 1
        return WireLayout(self._next_layout, tuple(entries))

    def _push_plan(self, pushes: Sequence[PushItem]) -> PushPlan:
        key = tuple(
            (item.variable, item.operation, isinstance(item.value, IndexedSlices))
            for item in pushes
        )
        plan = self._push_plans.get(key)
        if plan is None:
            names = [item.variable for item in pushes]
            if len(set(names)) != len(names):
                twice = next(name for name in names if names.count(name) > 1)
                raise ShapeMismatchError(f"{twice!r} is pushed twice in one step", variable=twice)
            entries: dict[int, list[LayoutEntry]] = {}
            cuts: list[Cut] = []
            for name, operation, sparse in key:
                placed = self._place(name)
                for ps, shard in placed.shards:
                    entries.setdefault(ps, []).append(
                        LayoutEntry(name, shard.part, operation, sparse)
                    )
                cuts.append(Cut(placed, sparse))
            layouts = {ps: self._new_layout(items) for ps, items in entries.items()}
            plan = PushPlan(layouts, tuple(cuts))
            self._push_plans[key] = plan
        return plan

    def _pull_plan(self, pulls: Sequence[str]) -> PullPlan:
        key = tuple(pulls)
        plan = self._pull_plans.get(key)
        if plan is None:
            plan = plan_pull([self._place(name) for name in dict.fromkeys(key)])
            layouts = {ps: self._new_layout(items) for ps, items in plan.entries.items()}
            plan = replace(plan, layouts=layouts)
            self._pull_plans[key] = plan
        return plan

    def _rows_layout(self, name: str, placed: Placed) -> dict[int, WireLayout]:
        if name not in self._row_layouts:
            entries: dict[int, list[LayoutEntry]] = {}
            for ps, shard in placed.shards:
                entry = LayoutEntry(name, shard.part, Operation.PULL, sparse=True)
                entries.setdefault(ps, []).append(entry)
            self._row_layouts[name] = {ps: self._new_layout(items) for ps, items in entries.items()}
        return self._row_layouts[name]

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted


def _try_connect(transport: PsTransport, timeout_s: float) -> PeerLostError | None:
    try:
        transport.connect(timeout_s)
    except PeerLostError as error:
        return error
    return None


def _complete(
    definition: VariableDefinition, parts: Sequence[tuple[int, HeldShard]] | None
) -> bool:
    if not parts or not all(item.initialized for _, item in parts):
        return False
    rows = sum(item.shard.rows for _, item in parts)
    return rows == (definition.shape[0] if definition.shape else 1)
