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
from dataclasses import dataclass

import numpy as np

from ...cluster.partitioners import PartitionFunction, parts_of
from ...cluster.placement import Placement, greedy_by_bytes
from ...core.arrays import Array, as_bytes, num_rows, row_shape, total_bytes
from ...core.definitions import ShardDefinition, VariableDefinition, cut
from ...core.errors import (
    JoinTimeoutError,
    PeerLostError,
    ShapeMismatchError,
    UnknownVariableError,
    WindlassError,
)
from ...core.indexed_slices import IndexedSlices
from ...core.settings import Settings
from ...core.steps import (
    Encoding,
    HeldShard,
    LayoutEntry,
    Operation,
    PushResult,
    StepRequest,
    WireLayout,
)
from ...core.task import Incarnation
from ...core.update_rules import UpdateRule
from ...core.wire_format import WireFormat
from .error_feedback import ErrorFeedback
from .peer import PsPeer
from .plans import Landing, Placed, PullPlan, Push, PushPlan, Recent, plan_pull, plan_push

log = logging.getLogger(__name__)

_PARALLEL_BYTES = 1024 * 1024  # below, handing a pull to another thread costs more than it saves
_MAX_RECEIVERS = 16
_KEPT_PLANS = 64
_KEPT_BUFFERS = 16  # each pull plan has memory for its values


@dataclass(frozen=True, slots=True)
class _RowPlan:
    layouts: dict[int, WireLayout]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step brought back.

    Attributes:
        values: Pulled variables by name. Read-only arrays; they stay as they are.
        global_step: After the step.
        staleness: Steps others took between this push's pull and it.
    """

    values: Mapping[str, Array]
    global_step: int
    staleness: int


@dataclass(slots=True)
class SessionCounters:
    """Payload moved since the session began. Unit: bytes."""

    pushed: int = 0
    pulled: int = 0


class PendingStep:
    """A step that was sent. Its answer is read by :meth:`result`, or by the next thing the session does."""

    def __init__(
        self,
        session: "ParameterSession",
        requests: dict[int, StepRequest],
        buffer: Array | None,
        landing: Landing,
        plan: PullPlan,
    ) -> None:
        self._session = session
        self.requests = requests
        self.buffer = buffer
        self.landing = landing
        self.plan = plan
        self.answer: StepResult | None = None
        self.failure: WindlassError | None = None

    def settle(self) -> None:
        """Wait for the answer; :meth:`result` says what it was. From any thread."""
        self._session.settle(self)

    def result(self) -> StepResult:
        """Wait for the answer. From any thread.

        Raises:
            RefusedError: A ps refused; nothing was applied there.
            PeerLostError: A ps is gone.
        """
        self.settle()
        if self.failure is not None:
            self._session.told(self.failure)
            raise self.failure
        if self.answer is None:
            raise RuntimeError("a step was settled without an answer")
        return self.answer


class ParameterSession:
    """Push, pull and define variables on all ps. Thread-safe; one step at a time.

    Args:
        transports: One per ps, by index. The first one owns the global step.
        who: This task.
        settings: Deadlines and bounds.
    """

    def __init__(self, transports: Sequence[PsPeer], who: Incarnation, settings: Settings) -> None:
        self._transports = list(transports)
        self._who = who
        self._settings = settings
        self._lock = threading.RLock()
        self._placed: dict[str, Placed] = {}
        self._sequences = [0] * len(transports)
        self._wire_format = WireFormat()
        self._feedback: ErrorFeedback | None = None
        # A program that pulls other sets of variables all the time does not keep them all.
        self._push_plans: Recent[PushPlan] = Recent(_KEPT_PLANS, self._drop)
        self._pull_plans: Recent[PullPlan] = Recent(_KEPT_BUFFERS, self._drop)
        self._row_plans: Recent[_RowPlan] = Recent(_KEPT_PLANS, self._drop)
        self._free_layouts: list[int] = []
        self._next_layout = 0
        self._under_way: PendingStep | None = None
        self._untold: WindlassError | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._aborted: WindlassError | None = None
        self.counters = SessionCounters()
        self.global_step = 0
        self._closed = threading.Event()

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
        timeout_s = self._settings.join_timeout_s
        deadline = time.monotonic() + timeout_s
        missing = list(self._transports)
        told = 0.0

        def attempt(transport: PsPeer) -> PeerLostError | None:
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
        if self._pool is not None:
            self._pool.shutdown(wait=False)

    def abort(self, error: WindlassError) -> None:
        """Make a running and every later call raise ``error``. From any thread."""
        self._aborted = error
        for transport in self._transports:
            transport.abort(error)

    @property
    def transports(self) -> tuple[str, ...]:
        """How bytes travel to each ps, for the status."""
        return tuple(f"{t.task.short} {t.description}" for t in self._transports)

    # -- definitions -------------------------------------------------------------------------

    def define(
        self,
        definitions: Sequence[VariableDefinition],
        initial: Mapping[str, Array],
        *,
        create: bool,
        partitioner: PartitionFunction | None = None,
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
            self.settle()
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
            answer = self._exchange({0: StepRequest()}, Landing({}, None))[0]
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
        partitioner: PartitionFunction | None,
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
        assigned = {
            definition.name: initial[definition.name]
            for definition in definitions
            if definition.initializer is None and definition.name not in restored
        }
        if assigned:
            self.step(Push(assigned, Operation.ASSIGN))
        return sorted(restored)

    def _assign_left_over(
        self,
        definitions: Sequence[VariableDefinition],
        initial: Mapping[str, Array],
        held: Mapping[str, list[tuple[int, HeldShard]]],
    ) -> bool:
        """Assign what a chief that died had created only: nobody else would ever do it."""
        left: dict[str, Array] = {}
        for definition in definitions:
            parts = held.get(definition.name, [])
            whole = sum(item.shard.rows for _, item in parts) == num_rows(definition.shape)
            if definition.name in initial and whole and not _complete(definition, parts):
                shards = tuple((ps, item.shard) for ps, item in parts)
                self._placed[definition.name] = Placed(definition, shards)
                left[definition.name] = initial[definition.name]
        if left:
            self.step(Push(left, Operation.ASSIGN))
        return bool(left)

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule to variables, on every ps that holds a part. Idempotent.

        Raises:
            DefinitionMismatchError: Another task bound a different rule; names both.
        """
        with self._lock:
            self._raise_if_aborted()
            self.settle()
            holders: dict[int, dict[str, None]] = {}
            for name in variables:
                for ps, _ in self._place(name).shards:
                    holders.setdefault(ps, {})[name] = None
            for ps, names in holders.items():
                self._transports[ps].bind(list(names), rule)

    def shards(self, variable: str) -> list[tuple[int, ShardDefinition]]:
        """(index of the ps, shard) of a variable, in order.

        Raises:
            UnknownVariableError: It was not defined.
        """
        return list(self._place(variable).shards)

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
        push: Push | None = None,
        pulls: Sequence[str] = (),
        *,
        step_increment: int = 0,
        gradient_scale: float = 1.0,
        seen_step: int | None = None,
    ) -> StepResult:
        """Push, then pull, in one round trip per ps.

        Args:
            push: What is pushed, if anything.
            pulls: Whole variables to fetch, as they are after the push.
            step_increment: Added to the global step.
            gradient_scale: Multiplies the gradients (clipping by global norm).
            seen_step: Global step of the values the gradients were computed from; None: the last seen.

        Raises:
            ShapeMismatchError: A value is not of its variable's shape; nothing was sent.
            RefusedError: A ps refused; nothing was applied there.
            PeerLostError: A ps is gone.
        """
        return self.begin(
            push,
            pulls,
            step_increment=step_increment,
            gradient_scale=gradient_scale,
            seen_step=seen_step,
        ).result()

    def begin(
        self,
        push: Push | None = None,
        pulls: Sequence[str] = (),
        *,
        step_increment: int = 0,
        gradient_scale: float = 1.0,
        seen_step: int | None = None,
        detached: bool = False,
    ) -> PendingStep:
        """Send a step and return. One is under way at a time; arguments and errors are those of :meth:`step`.

        With ``detached`` what is pushed may be changed at once, while it is still on its way.
        """
        with self._lock:
            self.settle()
            self._raise_if_aborted()
            push_plan, pull_plan = self._push_plan(push), self._pull_plan(pulls)
            if self._feedback is not None:
                self._feedback.forget()  # the choice of a push that was not even sent
            payloads = (
                push_plan.fill(push, self._who, self._feedback)
                if push is not None and push_plan is not None
                else {}
            )
            buffer, landing = pull_plan.land()
            requests: dict[int, StepRequest] = {}
            for ps in range(len(self._transports)):
                payload, pull = payloads.get(ps), pull_plan.layouts.get(ps)
                increment = step_increment if ps == 0 else 0
                if payload is None and pull is None and not increment:
                    continue
                requests[ps] = StepRequest(
                    sequence=self._sequences[ps] + 1 if payload or increment else 0,
                    push=push_plan.layouts[ps] if payload and push_plan else None,
                    pull=pull,
                    push_rows=payload.numbers if payload else (),
                    values=payload.pieces if payload else (),
                    global_step=self.global_step if seen_step is None else seen_step,
                    step_increment=increment,
                    gradient_scale=gradient_scale,
                    has_previous=landing.previous is not None,
                    detached=detached,
                )
            pending = PendingStep(self, requests, buffer, landing, pull_plan)
            self._send(pending)
            return pending

    def settle(self, pending: PendingStep | None = None) -> None:
        """Read the answer of the step under way, if there is one; ``pending``: if it is that one.

        What went wrong with it is raised by its :meth:`PendingStep.result`.
        """
        with self._lock:
            mine = self._under_way
            if mine is None or (pending is not None and mine is not pending):
                return
            self._under_way = None
            mine.plan.pool.forget()
            try:
                results, failure = self._receive_all(mine.requests, mine.landing)
            except BaseException as error:
                self._interrupted(error)
                raise
            if self._feedback is not None:
                self._feedback.sent(results)
            if failure is not None:
                mine.failure = self._untold = failure
                return
            if mine.buffer is not None:
                mine.plan.pool.keep(mine.buffer)
            step = max([self.global_step, *(result.global_step for result in results.values())])
            self.global_step = step
            staleness = max((result.staleness for result in results.values()), default=0)
            values = mine.plan.values(mine.buffer) if mine.buffer is not None else {}
            mine.answer = StepResult(values, step, staleness)
            mine.buffer, mine.landing, mine.requests = None, Landing({}, None), {}

    def told(self, failure: WindlassError) -> None:
        """Somebody heard of it."""
        if self._untold is failure:
            self._untold = None

    def finish(self) -> None:
        """Wait for the last step.

        Raises:
            WindlassError: What went wrong with it, if nobody was told.
        """
        with self._lock:
            self.settle()
            failed, self._untold = self._untold, None
        if failed is not None:
            raise failed

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
            self.settle()
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
            layouts = self._row_plan(placed).layouts
            requests: dict[int, StepRequest] = {}
            targets: dict[int, list[memoryview]] = {}
            by_ps: dict[int, list[tuple[Array, memoryview]]] = {}
            for ps, shard in placed.shards:
                low, high = np.searchsorted(
                    unique, (shard.row_offset, shard.row_offset + shard.rows)
                )
                local = unique[low:high] - shard.row_offset
                by_ps.setdefault(ps, []).append((local, as_bytes(out[low:high])))
            for ps, pieces in by_ps.items():
                if not any(local.size for local, _ in pieces):
                    continue
                requests[ps] = StepRequest(
                    pull=layouts[ps],
                    pull_rows=[local for local, _ in pieces],
                    global_step=self.global_step,
                )
                targets[ps] = [target for _, target in pieces]
            self._exchange(requests, Landing(targets, None))
            return out[inverse].reshape(*np.shape(indices), *row_shape(definition.shape))

    def _exchange(
        self, requests: dict[int, StepRequest], landing: Landing
    ) -> dict[int, PushResult]:
        """Send to all and receive from all."""
        pending = PendingStep(self, requests, None, landing, _NOTHING)
        self._send(pending)
        self._under_way = None
        try:
            return self._receive(requests, landing)
        except WindlassError:
            raise
        except BaseException as error:
            self._interrupted(error)
            raise

    def _send(self, pending: PendingStep) -> None:
        """Send to all ps. If one cannot be sent to, the answers of the others are read first."""
        sent: dict[int, StepRequest] = {}
        try:
            for ps, request in pending.requests.items():
                self._transports[ps].send(request)
                sent[ps] = request
                self.counters.pushed += request.value_bytes
        except WindlassError as failure:
            pending.plan.pool.forget()
            results, _ = self._receive_all(sent, pending.landing)
            if self._feedback is not None:
                self._feedback.sent(results)
            raise failure
        except BaseException as error:
            self._interrupted(error)
            raise
        self._under_way = pending

    def _interrupted(self, error: BaseException) -> None:
        # Nobody knows what was applied, and an answer may be unread: the numbers cannot go on.
        self._aborted = self._aborted or PeerLostError(
            f"{self._who.task}: a step was interrupted ({type(error).__name__}) and its outcome is not "
            "known; this session cannot go on. Restart the task, or make the strategy anew",
            task=self._who.task,
        )

    def _receive(
        self, requests: Mapping[int, StepRequest], landing: Landing
    ) -> dict[int, PushResult]:
        results, failure = self._receive_all(requests, landing)
        if failure is not None:
            raise failure
        return results

    def _receive_all(
        self, requests: Mapping[int, StepRequest], landing: Landing
    ) -> tuple[dict[int, PushResult], WindlassError | None]:
        """Receive from all, large pulls at the same time. One that fails does not leave others unread."""

        def receive(ps: int) -> PushResult | WindlassError:
            into = landing.into.get(ps, ())
            previous = landing.previous.get(ps) if landing.previous is not None else None
            try:
                return self._transports[ps].receive(into, previous)
            except WindlassError as error:
                return error

        large = sum(total_bytes(spans) for spans in landing.into.values()) > _PARALLEL_BYTES
        if large and len(requests) > 1:
            answers = list(self._receivers().map(receive, requests))
        else:
            answers = [receive(ps) for ps in requests]
        results: dict[int, PushResult] = {}
        failure: WindlassError | None = None
        for (ps, request), answer in zip(requests.items(), answers, strict=True):
            if isinstance(answer, WindlassError):
                failure = failure or answer
                if isinstance(answer, PeerLostError) and request.sequence:
                    self._interrupted(answer)
                continue
            results[ps] = answer
            if request.sequence:
                self._sequences[ps] = request.sequence
            self.counters.pulled += answer.pulled_bytes
        return results, failure

    def _receivers(self) -> ThreadPoolExecutor:
        if self._pool is None:
            threads = min(_MAX_RECEIVERS, len(self._transports))
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="receive")
        return self._pool

    # -- plans -------------------------------------------------------------------------------

    @property
    def wire_format(self) -> WireFormat:
        """How values travel over the network."""
        return self._wire_format

    @wire_format.setter
    def wire_format(self, wire_format: WireFormat) -> None:
        with self._lock:
            self.settle()
            self._wire_format = wire_format
            share = wire_format.top_k
            self._feedback = ErrorFeedback(share) if share is not None else None
            self._push_plans.clear()
            self._pull_plans.clear()

    def _wire_formats(self) -> list[WireFormat]:
        """Per ps: memory that is shared carries everything as it is."""
        plain = WireFormat()
        return [plain if t.shares_memory else self._wire_format for t in self._transports]

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
        if self._free_layouts:
            return WireLayout(self._free_layouts.pop(), tuple(entries))
        self._next_layout += 1
        return WireLayout(self._next_layout, tuple(entries))

    def _drop(self, plan: PushPlan | PullPlan | _RowPlan) -> None:
        """A plan is forgotten; others take the numbers of its layouts."""
        self._free_layouts += [layout.layout_id for layout in plan.layouts.values()]

    def _push_plan(self, push: Push | None) -> PushPlan | None:
        if push is None or not push.values:
            return None
        names = tuple(push.values)
        sparse: tuple[bool, ...] = ()
        if IndexedSlices in push.kinds:
            sparse = tuple(isinstance(v, IndexedSlices) for v in push.values.values())
        return self._push_plans.get(
            (push.operation, names, sparse),
            lambda: plan_push(
                [self._place(name) for name in names],
                sparse or [False] * len(names),
                push.operation,
                self._wire_formats(),
                self._new_layout,
            ),
        )

    def _pull_plan(self, pulls: Sequence[str]) -> PullPlan:
        if not pulls:
            return _NOTHING
        key = tuple(pulls)
        return self._pull_plans.get(
            key,
            lambda: plan_pull(
                [self._place(name) for name in dict.fromkeys(key)],
                self._wire_formats(),
                self._new_layout,
            ),
        )

    def _row_plan(self, placed: Placed) -> _RowPlan:
        def make() -> _RowPlan:
            entries: dict[int, list[LayoutEntry]] = {}
            for ps, shard in placed.shards:
                entry = LayoutEntry(
                    placed.definition.name, shard.part, Operation.PULL, Encoding.ROWS
                )
                entries.setdefault(ps, []).append(entry)
            return _RowPlan({ps: self._new_layout(items) for ps, items in entries.items()})

        return self._row_plans.get(placed.definition.name, make)

    def _raise_if_aborted(self) -> None:
        if self._aborted is not None:
            raise self._aborted


_NOTHING = plan_pull((), (), lambda _: WireLayout(0, ()))


def _try_connect(transport: PsPeer, timeout_s: float) -> PeerLostError | None:
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
