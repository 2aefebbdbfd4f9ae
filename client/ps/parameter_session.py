"""A parameter session: all the variables of a program, wherever their shards are.

Everything a step needs from one ps travels in one round trip, and the ps are asked in parallel.
What a set of variables means in bytes is worked out once and kept (``plan_cache.py``); a step then
only cuts, sends and receives (``fan_out.py``).
"""

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from ...cluster.placement.balance import Placement, greedy_by_bytes
from ...cluster.placement.partitioners import PartitionFunction
from ...core.arrays.dtypes import Array, DType, row_shape, size_of
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.arrays.scaled_rows import INT8, SCALE_BYTES, unpack_rows
from ...core.errors import WindlassError
from ...core.rules.definitions import ShardDefinition, VariableDefinition
from ...core.rules.update_rules import UpdateRule
from ...core.settings import Settings
from ...core.task import Incarnation
from ...core.wire.closure_pushes import ClosureRun
from ...core.wire.compression import WireFormat
from ...core.wire.steps import NO_TARGET, Operation, PullTarget, StepRequest
from ...engine.rows import gather_rows
from .ahead import PushWatcher, RowsAhead, changes_of, part_of
from .definer import Definer, Held
from .distinct_rows import DistinctRows, DistinctRowsCache
from .error_feedback import ErrorFeedback
from .fan_out import FanOut, SessionCounters
from .joining import connect_all
from .peer import PsPeer
from .pending_step import PendingStep, StepResult
from .placed_variable import PlacedVariable
from .plan_cache import NO_PULL, PlanCache
from .push_plans import PushPayload
from .row_pulls import WantedRows, row_pulls

log = logging.getLogger(__name__)

_UINT8 = np.dtype(np.uint8)  # of rows that came with their scales


class ParameterSession:
    """Push, pull and define variables on all ps. Thread-safe; one step at a time.

    Args:
        peers: One per ps, by index. The first one owns the global step.
        who: This task.
        settings: Deadlines and bounds.
    """

    def __init__(self, peers: Sequence[PsPeer], who: Incarnation, settings: Settings) -> None:
        self._who = who
        self._settings = settings
        self._lock = threading.RLock()
        self._closed = threading.Event()
        self._fan_out = FanOut(peers, who)
        self._definer = Definer(peers, who, settings, self._assign, self._closed)
        self._plans = PlanCache(self._fan_out.peers, self._definer.place)
        self._distinct = DistinctRowsCache(who)
        self._feedback: ErrorFeedback | None = None
        self._under_way: PendingStep | None = None
        self._unreported: WindlassError | None = None
        self._ahead: weakref.WeakSet[RowsAhead] = weakref.WeakSet()
        self._watchers: dict[str, PushWatcher] = {}
        self.global_step = 0

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
            on_wait: Told after every attempt which peers are missing.

        Raises:
            JoinTimeoutError: Names the ps that did not answer, and the last reason.
        """
        connect_all(
            self._fan_out.peers,
            self._who,
            self._settings.join_timeout_s,
            self._closed,
            still_wanted=still_wanted,
            on_wait=on_wait,
        )

    def close(self) -> None:
        """End the sessions."""
        self._closed.set()
        self._fan_out.close()

    def abort(self, error: WindlassError) -> None:
        """Make a running and every later call raise ``error``. From any thread."""
        self._fan_out.abort(error)

    @property
    def peers(self) -> tuple[PsPeer, ...]:
        """The ps, by index."""
        return tuple(self._fan_out.peers)

    @property
    def transports(self) -> tuple[str, ...]:
        """What the session with each ps goes over, for the status."""
        return tuple(f"{p.task.short} {p.description}" for p in self._fan_out.peers)

    @property
    def counters(self) -> SessionCounters:
        """Payload moved."""
        return self._fan_out.counters

    @property
    def is_plain(self) -> bool:
        """Whether a push now is no closure's, and changes no gradient on the way.

        Raises:
            WindlassError: The session is broken.
        """
        self._fan_out.raise_if_broken()
        return self._fan_out.closure is None and self._feedback is None

    @property
    def pushes_for_closure(self) -> bool:
        """Whether a push now is a closure's."""
        return self._fan_out.closure is not None

    @property
    def wire_format(self) -> WireFormat:
        """How values travel over the network."""
        return self._plans.wire_format

    @wire_format.setter
    def wire_format(self, wire_format: WireFormat) -> None:
        with self._lock:
            self.wait()
            self._plans.wire_format = wire_format
            share = wire_format.top_k
            self._feedback = ErrorFeedback(share) if share is not None else None

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
        chief_has_ended: Callable[[], bool] = lambda: False,
    ) -> list[str]:
        """Make variables usable: create them (the chief), or wait until the chief has.

        Where shards are is decided once, by the task that creates them; the others ask.

        Args:
            definitions: In the order of creation.
            initial: Values of variables without an initializer.
            create: Whether this task creates what does not exist.
            partitioner: Into how many parts a variable is cut.
            placement: Which ps gets which shard.
            restore_from: Name of the checkpoint to take values from, where it has them.
            still_wanted: Called while waiting; raises to give up.
            chief_has_ended: Asked now and then while waiting: whether the chief's program is over.

        Returns:
            Names of the variables whose values came from the checkpoint.

        Raises:
            DefinitionMismatchError: Another task defined one differently, and is named; or the
                chief has ended without one.
            JoinTimeoutError: The chief did not create them in time.
        """

        def check() -> None:
            still_wanted()
            self._fan_out.raise_if_broken()

        with self._lock:
            self._after_last_step()
            restored: list[str] = []
            if create:
                restored = self._definer.create(
                    definitions, initial, partitioner, placement, restore_from
                )
            self._definer.wait_for(definitions, check, chief_has_ended)
            # A program may ask for the global step before its first step.
            self._exchange({0: StepRequest()}, {})
            return restored

    def _assign(self, values: Mapping[str, Array]) -> None:
        self.step(PushPayload(values, Operation.ASSIGN))

    def bind(self, variables: Sequence[str], rule: UpdateRule) -> None:
        """Bind an update rule to variables, on every ps that holds a part. Idempotent.

        Raises:
            DefinitionMismatchError: Another task bound a different rule; names both.
        """
        with self._lock:
            self._after_last_step()
            self._definer.bind(variables, rule)

    def adopt(self, held: Held) -> list[str]:
        """Use variables that other tasks have created; see :meth:`Definer.adopt`."""
        with self._lock:
            return self._definer.adopt(held)

    @contextmanager
    def between_steps(self) -> Iterator[None]:
        """Let no step begin meanwhile, so that the peers can be asked for something else."""
        with self._lock:
            self._after_last_step()
            yield

    @property
    def who(self) -> Incarnation:
        """The task whose session this is."""
        return self._who

    def definition(self, variable: str) -> VariableDefinition:
        """A variable's definition.

        Raises:
            UnknownVariableError: It was not defined.
        """
        return self._definer.place(variable).definition

    def shards(self, variable: str) -> list[tuple[int, ShardDefinition]]:
        """(index of the ps, shard) of a variable, in order.

        Raises:
            UnknownVariableError: It was not defined.
        """
        return list(self._definer.place(variable).shards)

    def placement(self) -> dict[str, list[tuple[str, str, int]]]:
        """Per ps: (shard, shape, bytes), for people."""
        table: dict[str, list[tuple[str, str, int]]] = {}
        for placed in self._definer.placed.values():
            for ps, shard in placed.shards:
                row = (shard.label, "×".join(map(str, shard.shape)) or "scalar", shard.num_bytes)
                table.setdefault(self._fan_out.peers[ps].task.short, []).append(row)
        return table

    # -- steps -------------------------------------------------------------------------------

    def step(
        self,
        push: PushPayload | None = None,
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
            seen_step: Global step of the values the gradients were computed from; None: the last
                seen.

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
        push: PushPayload | None = None,
        pulls: Sequence[str] = (),
        *,
        step_increment: int = 0,
        gradient_scale: float = 1.0,
        hyperparameters: Mapping[str, Any] | None = None,
        seen_step: int | None = None,
        detached: bool = False,
    ) -> PendingStep:
        """Send a step and return; one is under way at a time. Arguments and errors: :meth:`step`.

        With ``detached`` what is pushed may be changed at once, while it is still on its way.
        ``hyperparameters`` are those of the variables' update rules that this push changes.
        """
        with self._lock:
            self.wait()
            self._fan_out.raise_if_broken()
            push_plan, pull_plan = self._plans.push_plan(push), self._plans.pull_plan(pulls)
            if self._feedback is not None:
                self._feedback.forget()  # the choice of a push that was not even sent
            payloads = (
                push_plan.fill(
                    push, self._who, self._feedback, self._distinct, self._fan_out.pushes
                )
                if push is not None and push_plan is not None
                else {}
            )
            if push is not None and self._ahead:
                self._note_ahead(push)
            buffer, targets = pull_plan.take_targets()
            requests: dict[int, StepRequest] = {}
            for ps, sequence in enumerate(self._fan_out.sequences):
                payload, pull = payloads.get(ps), pull_plan.layouts.get(ps)
                increment = step_increment if ps == 0 else 0
                if payload is None and pull is None and not increment:
                    continue
                requests[ps] = StepRequest(
                    sequence=sequence + 1 if payload or increment else 0,
                    push=push_plan.layouts[ps] if payload and push_plan else None,
                    pull=pull,
                    push_rows=payload.numbers if payload else (),
                    values=payload.buffers if payload else (),
                    global_step=self.global_step if seen_step is None else seen_step,
                    step_increment=increment,
                    gradient_scale=gradient_scale,
                    hyperparameters=hyperparameters if payload else None,
                    has_previous=targets.get(ps, NO_TARGET).previous is not None,
                    detached=detached,
                    closure=self._fan_out.closure if payload or increment else None,
                )
            pending = PendingStep(self, requests, buffer, targets, pull_plan)
            self._send(pending)
            self._under_way = pending
            if push is not None and self._watchers:
                self._show_push(push, self.global_step if seen_step is None else seen_step)
            return pending

    def _send(self, pending: PendingStep) -> None:
        try:
            self._fan_out.send(pending.requests, pending.targets)
        except WindlassError:
            pending.plan.pool.forget()
            if self._feedback is not None:
                self._feedback.forget()
            raise

    def wait(self, pending: PendingStep | None = None) -> None:
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
                results, failure = self._fan_out.receive(mine.requests, mine.targets)
            except BaseException:  # the session has broken off; nobody may hear it where this is
                mine.failure = self._fan_out.broken
                raise
            if self._feedback is not None:
                self._feedback.sent(results.keys())
            for watcher in self._watchers.values():
                if failure is not None or any(each.duplicate for each in results.values()):
                    watcher.forget()
            if failure is not None:
                mine.failure = self._unreported = failure
                return
            if mine.buffer is not None:
                mine.plan.pool.keep(mine.buffer)
            step = max([self.global_step, *(result.global_step for result in results.values())])
            self.global_step = step
            staleness = max((result.staleness for result in results.values()), default=0)
            values = mine.plan.values(mine.buffer) if mine.buffer is not None else {}
            mine.answer = StepResult(values, step, staleness)
            mine.buffer, mine.targets, mine.requests = None, {}, {}

    def mark_reported(self, failure: WindlassError) -> None:
        """Mark a failure as already raised to the caller."""
        if self._unreported is failure:
            self._unreported = None

    def finish(self) -> None:
        """Wait for the last step.

        Raises:
            WindlassError: What went wrong with it, unless it was raised before.
        """
        with self._lock:
            self.wait()
            failure, self._unreported = self._unreported, None
        if failure is not None:
            raise failure

    @contextmanager
    def in_closure(self, closure: ClosureRun) -> Iterator[None]:
        """Make pushes as those of a closure, so that another attempt at it does not repeat them.

        Raises:
            WindlassError: What went wrong with the last push, unless it was raised before.
        """
        with self._lock:
            self.wait()
            self._fan_out.enter_closure(closure)
        try:
            yield
            self.finish()  # a closure is done when its pushes are applied
        finally:
            with self._lock:
                self.wait()
                self._fan_out.enter_closure(None)

    def is_free(self, timeout_s: float) -> bool:
        """Whether no call of another thread keeps the session busy for longer. Unit: seconds.

        A step that is sent or received, or a definition that waits for the chief, does.
        """
        is_free = self._lock.acquire(timeout=timeout_s)
        if is_free:
            self._lock.release()
        return is_free

    def mark_cut(self, number: int) -> bool:
        """Tell all ps up to which push this task's are in a cut, between two of its steps.

        It needs no step of the program: another thread calls it while that computes. The next step
        begins once all ps have answered.

        Returns:
            Whether all ps were told in time; else the cut is void, and nothing is lost.
        """
        hold_s = self._settings.cut_hold_s
        if not self._lock.acquire(timeout=hold_s):
            return False
        try:
            self._after_last_step()
            # A ps that has a mark holds at most this long: whoever waits no longer is held no more.
            self._fan_out.mark_cut(number, hold_s)
        except WindlassError as error:
            log.debug("cut %d is not marked everywhere: %s", number, error)
            return False
        finally:
            self._lock.release()
        return True

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
            ids = np.ascontiguousarray(indices).reshape(-1).astype(np.int64, copy=False)
            rows, inverse = self.lookup_rows({variable: ids})[variable]
            shape = (*np.shape(indices), *row_shape(self.definition(variable).shape))
            if inverse is None:
                return rows.reshape(shape)
            found = self._distinct.memory.take_array((ids.size, rows.shape[1]), rows.dtype)
            return gather_rows(rows, inverse, found).reshape(shape)

    def lookup_rows(self, wanted: Mapping[str, Array]) -> dict[str, tuple[Array, Array | None]]:
        """Rows of several variables and tables, in one round trip; each row is fetched once.

        Args:
            wanted: By name of the variable: numbers of rows, or keys of a table; int64, shape
                ``(n,)``. May repeat.

        Returns:
            By name: (the distinct rows, shape ``(count, elements of a row)``; int64, shape
            ``(n,)``: which of them belongs to each id. None: one after the other)

        Raises:
            ShapeMismatchError: The number of a row is out of range.
        """
        return self.lookup_states(wanted, {})[0]

    def lookup_states(
        self, wanted: Mapping[str, Array], states: Mapping[str, Array]
    ) -> tuple[dict[str, tuple[Array, Array | None]], dict[str, tuple[Array, Array | None]]]:
        """Rows as :meth:`lookup_rows` gives them, and rows of tables with their slots and counts.

        Args:
            wanted: As for :meth:`lookup_rows`.
            states: By name of the table: keys, int64, shape ``(n,)``.

        Returns:
            (the rows by name, as :meth:`lookup_rows` returns them; the same for ``states``, whose
            rows are those of ``engine/keyed/row_states.py``)
        """
        with self._lock:
            self._after_last_step()
            rows = [self._wanted(*self._distinct_ids(name, ids)) for name, ids in wanted.items()]
            whole = [
                self._wanted(*self._distinct_ids(name, keys), with_state=True)
                for name, keys in states.items()
            ]
            self._fetch([*rows, *whole])
            return _found(rows), _found(whole)

    def watch_pushes(self, table: str, watcher: PushWatcher) -> None:
        """Have gradients that this session pushes to a growing table shown to a watcher.

        Args:
            table: Its name; it may not be defined yet.
            watcher: Called under the session's lock.
        """
        with self._lock:
            self._watchers[table] = watcher

    def look_up_ahead(self, wanted: Mapping[str, Array]) -> RowsAhead:
        """Look up rows for a later step. Arguments and errors: :meth:`lookup_rows`."""
        with self._lock:
            self._after_last_step()
            rows = [self._wanted(*self._distinct_ids(name, ids)) for name, ids in wanted.items()]
            self._fetch(rows)
            ahead = RowsAhead(rows)
            self._ahead.add(ahead)
            return ahead

    def catch_up(self, ahead: RowsAhead) -> dict[str, tuple[Array, Array | None]]:
        """Rows that were looked up ahead, those that this task has changed since as they are now.

        Returns:
            As :meth:`lookup_rows`.
        """
        with self._lock:
            self._after_last_step()
            self._ahead.discard(ahead)
            stale = ahead.stale()
            if any(positions.size for positions in stale):
                # All of them are asked for, so that the layout is that of the lookup.
                changed = [
                    self._wanted(each.placed, part_of(each.distinct, positions))
                    for each, positions in zip(ahead.rows, stale, strict=True)
                ]
                self._fetch(changed)
                for each, positions, now in zip(ahead.rows, stale, changed, strict=True):
                    each.out[positions] = now.out
            return _found(ahead.rows)

    def set_row_dtype(self, variable: str, dtype: DType) -> None:
        """Have rows of a variable or table, and gradients of them, travel in a narrower dtype.

        Over shared memory they travel as they are. Gradients are rounded at random: right in the
        mean.

        Args:
            variable: Its name; it may not be defined yet.
            dtype: A dtype of floating-point numbers, or int8: with a scale for each row.
        """
        with self._lock:
            self.wait()
            self._plans.set_row_dtype(variable, dtype)

    def note_changed(self) -> None:
        """Note that variables were changed by other means than steps of this session."""
        with self._lock:
            for ahead in self._ahead:
                ahead.note_all()

    def keep_lookups(self, count: int) -> None:
        """Remember the rows of so many lookups of each table, until gradients of them are pushed.

        Args:
            count: At least 1, the default.
        """
        with self._lock:
            self._distinct.per_table = count

    def _distinct_ids(self, variable: str, ids: Array) -> tuple[PlacedVariable, DistinctRows]:
        placed = self._definer.place(variable)
        return placed, self._distinct.of_placed(placed, ids)

    def _wanted(
        self, placed: PlacedVariable, distinct: DistinctRows, *, with_state: bool = False
    ) -> WantedRows:
        definition = placed.definition
        elements = size_of(row_shape(definition.shape))
        if with_state and definition.table is not None:
            elements = definition.table.state_elements(elements)
        shape = (distinct.unique.size, elements)
        out = self._distinct.memory.take_array(shape, definition.dtype)
        return WantedRows(placed, distinct, out, with_state)

    def _fetch(self, rows: Sequence[WantedRows]) -> None:
        plan = self._plans.row_plan(rows)
        arriving = [self._arriving(*each) for each in zip(rows, plan.dtypes, strict=True)]
        self._exchange(*row_pulls(tuple(arriving), plan.layouts, self.global_step))
        for each, arrived in zip(rows, arriving, strict=True):
            if arrived is not each:
                each.out[...] = _widened(arrived.out, each.out.dtype)

    def _arriving(self, rows: WantedRows, dtype: DType | None) -> WantedRows:
        """Rows as they travel."""
        if dtype is None:
            return rows
        (count, width), memory = rows.out.shape, self._distinct.memory
        if dtype == INT8:
            return replace(rows, out=memory.take_array((count, SCALE_BYTES + width), _UINT8))
        return replace(rows, out=memory.take_array((count, width), dtype))

    def _note_ahead(self, push: PushPayload) -> None:
        for variable, rows in changes_of(push):
            changed = rows
            if rows is not None:
                placed = self._definer.place(variable)
                changed = self._distinct.of_placed(placed, rows).unique
            for ahead in self._ahead:
                ahead.note(variable, changed)

    def _show_push(self, push: PushPayload, step: int) -> None:
        for write in push.writes:
            watcher, rows = self._watchers.get(write.variable), write.value
            if watcher is None or not isinstance(rows, IndexedSlices):
                continue
            _, distinct = self._distinct_ids(write.variable, rows.indices)
            values = np.ascontiguousarray(rows.values).reshape(distinct.ids.size, -1)
            watcher.pushed(distinct, distinct.sums(values, self._distinct.memory), step)

    def _exchange(self, requests: dict[int, StepRequest], targets: dict[int, PullTarget]) -> None:
        """Send to all and receive from all."""
        self._send(PendingStep(self, requests, None, targets, NO_PULL))
        results, failure = self._fan_out.receive(requests, targets)
        if failure is not None:
            raise failure
        step = max((result.global_step for result in results.values()), default=0)
        self.global_step = max(self.global_step, step)

    def _after_last_step(self) -> None:
        """Wait for the step under way; its error is for whoever asks for its result."""
        self._fan_out.raise_if_broken()
        self.wait()


def _found(rows: Sequence[WantedRows]) -> dict[str, tuple[Array, Array | None]]:
    return {each.name: (each.out, each.distinct.inverse) for each in rows}


def _widened(rows: Array, dtype: DType) -> Array:
    """Rows as they came."""
    return unpack_rows(rows, dtype) if rows.dtype == _UINT8 else rows
