"""Steps of a program whose only parameter server is in its own process, without a session.

A program alone has nobody to exchange messages with, and a session's headers, buffers and layouts
take longer than the update of a small model. Here gradients go to the update rules directly, on the
memory of the same blocks, so everything else (checkpoints, reads, other strategies' restores) finds
what it always finds. What is not simply a step of dense gradients or rows, or may have to be
refused, is left to the session: every method says whether it did its work.
"""

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from ..core.arrays.any_framework import to_host
from ..core.arrays.buffers import BufferPools
from ..core.arrays.dtypes import Array, size_of
from ..core.arrays.finite import all_finite
from ..core.arrays.indexed_slices import IndexedSlices
from ..core.rules.update_rules import UpdateRule
from ..core.wire.steps import LayoutEntry, Operation
from ..engine.block import Block
from ..engine.push_target import Gradient, StepInfo
from ..engine.rows import deduplicate, sum_duplicates
from ..server.ps.layout import LayoutRange, compile_layout, join_ranges
from .base.interface import Updates
from .base.moved_average import MovedAverage
from .local_ps import LocalPs, OwnMemory


class HeldVariable(Protocol):
    """A variable on parameter servers, as it is known here."""

    @property
    def name(self) -> str:
        """Unique in the job."""

    @property
    def shape(self) -> Any:
        """Shape of the whole variable."""


_MAX_PLANS = 64
_ON_HOST = (np.ndarray, IndexedSlices)
_Update = tuple[LayoutRange, Gradient, UpdateRule]


@dataclass(slots=True)
class _Part:
    """Neighbouring dense variables in one block, updated by one call of a kernel.

    Attributes:
        where: The variables' place, with their update rule.
        first: Position of the first variable in the step's pairs.
        views: Views of ``gradient``, one per variable, in its shape; empty: there is one variable,
            whose gradient is used where it is.
        gradient: Buffer for all gradients.
    """

    where: LayoutRange
    first: int
    views: list[Array]
    gradient: Array


class _Plan:
    """A plan by which the gradients of certain variables get to their blocks."""

    def __init__(
        self,
        rule: UpdateRule,
        variables: Sequence[HeldVariable],
        sparse: Sequence[bool],
        ranges: Sequence[LayoutRange],
    ) -> None:
        self.kept = rule, variables  # so that nothing else gets their ids
        self.shapes = [variable.shape for variable in variables]
        self.ranges = ranges
        self.dense: list[_Part] = []
        self.rows = [i for i, is_sparse in enumerate(sparse) if is_sparse]
        self.changed: tuple[Mapping[str, Any], UpdateRule] | None = None
        start = 0
        while start < len(ranges):
            stop = start + 1
            if not sparse[start]:
                while stop < len(ranges) and not sparse[stop] and self._joins(start, stop):
                    stop += 1
                self.dense.append(self._part(start, stop))
            start = stop

    def _joins(self, start: int, stop: int) -> bool:
        return len(join_ranges(self.ranges[start : stop + 1]).ranges) == 1

    def _part(self, start: int, stop: int) -> _Part:
        (whole,) = join_ranges(self.ranges[start:stop]).ranges
        if stop == start + 1:
            return _Part(whole, start, [], np.empty(0, whole.dtype))
        gradient = np.zeros(whole.where.stop - whole.where.start, whole.dtype)
        views = []
        for i in range(start, stop):
            where = self.ranges[i].where
            first = where.start - whole.where.start
            views.append(gradient[first : first + where.stop - where.start].reshape(self.shapes[i]))
        return _Part(whole, start, views, gradient)

    def gather(
        self, gradients: Sequence[Any], memory: BufferPools
    ) -> list[tuple[LayoutRange, Gradient]] | None:
        """Gather gradients for the blocks; None: one is not of its variable's shape and dtype."""
        parts: list[tuple[LayoutRange, Gradient]] = []
        for part in self.dense:
            dtype, first = part.where.dtype, part.first
            for i in range(first, first + max(1, len(part.views))):
                gradient = gradients[i]
                if (
                    not isinstance(gradient, np.ndarray)
                    or gradient.shape != self.shapes[i]
                    or gradient.dtype != dtype
                ):
                    return None
                if part.views:
                    part.views[i - first][...] = gradient
            values = part.gradient if part.views else gradients[first].reshape(-1)
            parts.append((part.where, Gradient(values)))
        for i in self.rows:
            rows = _row_sums(gradients[i], self.shapes[i], memory)
            if rows is None or rows.values.dtype != self.ranges[i].dtype:
                return None
            parts.append((self.ranges[i], rows))
        return parts


class _Reads:
    """A plan for reading certain variables: neighbours in one block are copied by one call."""

    def __init__(self, variables: Sequence[HeldVariable], places: Sequence[LayoutRange]) -> None:
        self.kept = variables  # so that nothing else gets their ids
        self._parts: list[tuple[Block, int, int, list[tuple[int, int, Sequence[int]]]]] = []
        for variable, place in zip(variables, places, strict=True):
            block, start, stop = place.array, place.where.start, place.where.stop
            first, pieces = start, list[tuple[int, int, Sequence[int]]]()
            if self._parts and self._parts[-1][0] is block and self._parts[-1][2] == start:
                _, first, _, pieces = self._parts.pop()
            pieces.append((start - first, stop - first, variable.shape))
            self._parts.append((block, first, stop, pieces))

    def now(self) -> list[Array]:
        """Copy the values, read-only."""
        values_now: list[Array] = []
        for block, start, stop, pieces in self._parts:
            with block.lock:
                values = block.value[start:stop].copy()
            values.setflags(write=False)
            values_now += [values[first:last].reshape(shape) for first, last, shape in pieces]
        return values_now


class InProcessSteps:
    """Applies steps to the store of a :class:`LocalPs`. The caller holds the strategy's lock.

    Args:
        ps: The only one.
        check_finite: Whether gradients with NaN or infinity are refused.
    """

    def __init__(self, ps: LocalPs, *, check_finite: bool) -> None:
        self._ps, self._store = ps, ps.store
        self._check_finite = check_finite
        self._memory = BufferPools()
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._places: dict[int, LayoutRange] = {}  # by the variable's id
        self._reads: dict[tuple[int, ...], _Reads] = {}  # by the ids of the variables

    def apply(
        self,
        updates: Updates,
        averages: Sequence[tuple[HeldVariable, MovedAverage]] = (),
        *,
        step_increment: int,
    ) -> int | None:
        """Apply a step's gradients, and what it adds to moving averages.

        Args:
            updates: Updates whose rules are bound to their variables.
            averages: Moving averages, as ``move_averages`` takes them.
            step_increment: Added to the global step.

        Returns:
            The global step after it; None: nothing was done, the step is one for the session.
        """
        store = self._store
        before = store.global_step
        todo: list[_Update] = []
        for optimizer, pairs in updates:
            work = self._gathered(optimizer, pairs, before)
            if work is None:
                return None
            todo += work
        moved = self._moved(averages)
        if moved is None or not (todo or moved):
            return None
        if self._check_finite:
            if not all(all_finite(gradient.values) for _, gradient, _ in todo):
                return None
            if not all(all_finite(added) for _, added, _ in moved):
                return None
        info = StepInfo(self._ps.who, 0, before)
        for part, gradient, rule in todo:
            with part.array.writing():
                part.array.apply(part.where, gradient, rule, info)
        for place, added, decay in moved:
            with place.array.writing():
                gradient = Gradient(added.reshape(-1))
                place.array.combine(place.where, gradient, Operation.ASSIGN_ADD, decay)
        return store.count_push(step_increment)

    def count(self, step_increment: int) -> int:
        """Count a step that the program has made; returns the global step after it."""
        return self._store.count_push(step_increment)

    def _gathered(
        self, optimizer: Any, pairs: Sequence[tuple[Any, HeldVariable]], step: int
    ) -> list[_Update] | None:
        current = optimizer.current
        if current.clipnorm is not None or current.global_clipnorm is not None:
            return None
        gradients = [g if isinstance(g, _ON_HOST) else to_host(g) for g, _ in pairs]
        plan = self._plan(optimizer.rule, pairs)
        if plan is None:
            return None
        gathered = plan.gather(gradients, self._memory)
        if gathered is None:
            return None
        rule: UpdateRule = optimizer.rule
        changes = optimizer.hyperparameters(lambda: step)
        if changes is not None:
            if plan.changed is None or plan.changed[0] != changes:
                plan.changed = dict(changes), rule.changed(changes)
            rule = plan.changed[1]
        return [(part, gradient, rule) for part, gradient in gathered]

    def _plan(self, rule: UpdateRule, pairs: Sequence[tuple[Any, HeldVariable]]) -> _Plan | None:
        sparse = [type(gradient) is IndexedSlices for gradient, _ in pairs]
        key = (id(rule), *sparse, *(id(variable) for _, variable in pairs))
        plan = self._plans.get(key)
        if plan is None:
            places = [self.place(variable) for _, variable in pairs]
            there = [place for place in places if place is not None]
            if len(there) < len(places) or any(_rule_of(place) != rule for place in there):
                return None  # cut into parts, or not bound yet
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            ranges = [replace(p, operation=Operation.APPLY, rule=_rule_of(p)) for p in there]
            plan = self._plans[key] = _Plan(rule, [v for _, v in pairs], sparse, ranges)
        return plan

    def _moved(
        self, averages: Sequence[tuple[HeldVariable, MovedAverage]]
    ) -> list[tuple[LayoutRange, Array, float]] | None:
        moves = []
        for variable, moved in averages:
            place = self.place(variable)
            added = moved.added()
            if place is None or added.shape != variable.shape or added.dtype != place.dtype:
                return None
            moves.append((place, added, moved.decay))
        return moves

    def place(self, variable: HeldVariable) -> LayoutRange | None:
        """Find a variable's memory; None: it is cut into parts."""
        place = self._places.get(id(variable))
        if place is None:
            entry = LayoutEntry(variable.name, 0, Operation.PULL)
            (place,) = compile_layout(self._store.table, [entry]).ranges
            if place.where.stop - place.where.start != size_of(tuple(variable.shape)):
                return None
            self._places[id(variable)] = place
            weakref.finalize(variable, self._places.pop, id(variable), None)
        return place

    def memory(self, variable: HeldVariable) -> tuple[Block, Array]:
        """Find a variable's block, and its value there.

        Raises:
            ValueError: It is cut into parts.
        """
        place = self.place(variable)
        if place is None:
            raise ValueError(f"{variable.name!r} is cut into parts")
        where, block = place.where, place.array
        return block, block.value[where.start : where.stop].reshape(variable.shape)

    def places(self, variables: Sequence[HeldVariable]) -> list[LayoutRange] | None:
        """Find the memory of variables; None: one is cut into parts."""
        places = [self.place(variable) for variable in variables]
        there = [place for place in places if place is not None]
        return there if len(there) == len(places) else None

    def reads(self, variables: Sequence[HeldVariable]) -> "_Reads | None":
        """Make what gives the values that variables have now; None: one is cut into parts."""
        key = tuple(map(id, variables))
        reads = self._reads.get(key)
        if reads is None:
            places = self.places(variables)
            if places is None:
                return None
            if len(self._reads) >= _MAX_PLANS:
                self._reads.clear()
            reads = self._reads[key] = _Reads(variables, places)
        return reads

    def read(self, variables: Sequence[HeldVariable]) -> list[Array]:
        """Copy the values of variables, read-only, each of one part."""
        self._ps.take_own_arrays()
        reads = self.reads(variables)
        return [] if reads is None else reads.now()

    def take_own(self) -> None:
        """Take the values that programs have in memory of their own."""
        self._ps.take_own_arrays()

    def add_own(self, arrays: OwnMemory) -> None:
        """Ask for a program's values before a session's step reads or changes any, while they are.

        Args:
            arrays: Referred to weakly.
        """
        self._ps.add_own_arrays(arrays)


def _rule_of(place: LayoutRange) -> UpdateRule | None:
    return place.block.rules[place.where.first]


def _row_sums(slices: IndexedSlices, shape: Sequence[int], memory: BufferPools) -> Gradient | None:
    """Sum each row once, ascending, as kernels take them; None: the session says what is wrong."""
    values, ids = to_host(slices.values), to_host(slices.indices)
    if values.shape != (ids.size, *shape[1:]) or not ids.size:
        return None
    ids = np.ascontiguousarray(ids).reshape(-1).astype(np.int64, copy=False)
    flat = values.reshape(ids.size, -1)
    try:
        unique, inverse = deduplicate(ids, shape[0], memory)
    except ValueError:
        return None
    sums = memory.take_array((unique.size, flat.shape[1]), flat.dtype)
    return Gradient(sum_duplicates(flat, inverse, sums).reshape(-1), unique)
