"""A block: contiguous memory of shards of one dtype, with one lock.

Small shards share a block, so that a step over ten thousand small variables is a few kernel calls
over a few ranges, not ten thousand; a large shard has a block, and so a lock, of its own. What one
push does to a block happens under the lock at once (``push_target.py``).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

import numpy as np

from ..core.arrays.dtypes import Array, DType, is_float, row_shape, size_of
from ..core.rules.definitions import ShardDefinition
from ..core.rules.update_rules import UpdateRule
from ..core.wire.steps import MemoryLocation, Operation
from .arena import Arena, Memory, zeros
from .library import library
from .push_target import Gradient, PushTarget, Range, StepInfo, UpdatePart
from .update_kernel import UpdateKernel, apply_formula, formula_kernel, hyperparameters

_UFUNCS: dict[Operation, np.ufunc] = {
    Operation.ASSIGN_ADD: np.add,
    Operation.MULTIPLY: np.multiply,
    Operation.DIVIDE: np.divide,
    Operation.MINIMUM: np.minimum,
    Operation.MAXIMUM: np.maximum,
    Operation.ADVANCE: np.maximum,
}
_TILE = 1 << 15  # elements of a half-precision variable converted at a time; fits the L2 cache
_FEW = 64
_EMPTY: dict[DType, Array] = {np.dtype(t): np.empty(0, t) for t in (np.float32, np.float64)}


class Block(PushTarget):
    """Memory of some shards. Hold ``lock`` around everything but the constructor.

    Args:
        shards: Shards in order, all of one dtype.
        arena: Arena that the memory is taken from; None: the heap.
        number: Number of the block among those of its store.
    """

    def __init__(
        self, shards: Sequence[ShardDefinition], arena: Arena | None = None, number: int = 0
    ) -> None:
        """Allocate, without initializing."""
        super().__init__(shards, number)
        # Half-precision variables keep their slots, and compute, in float32.
        self.compute_dtype: DType = (
            np.dtype(np.float32) if self.dtype.itemsize < 4 and is_float(self.dtype) else self.dtype
        )
        sizes = [shard.size for shard in shards]
        self.offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).tolist()
        self.memory = (arena or Arena()).allocate(self.offsets[-1], self.dtype)
        self.value: Array = self.memory.values
        self.slots: dict[str, Array] = {}

    @property
    def value_bytes(self) -> int:
        """Bytes of all values."""
        return self.value.nbytes

    @property
    def slot_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(slot.nbytes for slot in self.slots.values())

    def location(self, entry: int) -> MemoryLocation | None:
        """Find an entry's values in shared memory; None: they are not there."""
        return self.memory.location(self.offsets[entry])

    def range_of(self, entry: int) -> Range:
        """Return the range of an entry's elements."""
        return Range(entry, entry + 1, self.offsets[entry], self.offsets[entry + 1])

    def view(self, entry: int, slot: str = "") -> Array:
        """View an entry's value or slot, in its shape. Memory of the block, not a copy."""
        memory = self.slots[slot] if slot else self.value
        return memory[self.offsets[entry] : self.offsets[entry + 1]].reshape(
            self.shards[entry].shape
        )

    def bind(self, entry: int, rule: UpdateRule) -> None:
        """Give an entry its update rule and its slots their first values."""
        self.rules[entry] = rule
        for slot, start in rule.slot_start().items():
            self.add_slot(slot)
            self.view(entry, slot)[...] = start
        if entry in self.changes:
            self.changes[entry].note(None)

    def add_slot(self, slot: str) -> None:
        """Have a slot array, of zeros if it is new."""
        if slot not in self.slots:
            self.slots[slot] = zeros(self.value.size, self.compute_dtype)

    def adopt(self, array: Array) -> bool:
        """Use a program's array, with its values, as the memory of the only shard.

        Args:
            array: Array of as many elements, which the program may change between two steps.

        Returns:
            Whether it is used; False: no kernel could work on it.
        """
        flags = array.flags
        usable = flags.c_contiguous and flags.aligned and flags.writeable
        if not usable or array.dtype != self.dtype or array.size != self.value.size:
            return False
        with self.writing():
            self.value = array.reshape(-1)
        self.memory = Memory(self.value, self.memory.sequence)
        return True

    @contextmanager
    def writing(self, parts: Sequence[UpdatePart] = ()) -> Iterator[None]:  # noqa: ARG002 - for rows on disk
        """Hold the lock, and show readers of shared memory that the values are changing."""
        sequence = self.memory.sequence
        with self.lock:
            sequence[0] += 1
            try:
                yield
            finally:
                sequence[0] += 1

    def run(self, parts: Sequence[UpdatePart], info: StepInfo) -> None:
        """Do what a push does to this block, and remember it. The same on every replica."""
        for part in parts:
            if part.rule is not None:
                self.apply(part.where, part.gradient, part.rule, info)
            elif part.operation is Operation.ASSIGN:
                self.assign(part.where, part.gradient)
            else:
                self.combine(part.where, part.gradient, part.operation, part.decay)
            if self.changes:
                self._note_changes(part)
        self.mark_applied(info)

    def _note_changes(self, part: UpdatePart) -> None:
        for entry in range(part.where.first, part.where.last):
            if entry in self.changes:
                self.changes[entry].note_version(int(self.versions[entry]), part.gradient.rows)

    def places(self, entry: int) -> int:
        """Count the rows of an entry."""
        return self.shards[entry].rows

    def changed_keys(self, entry: int, since: int, start: int, stop: int) -> Array:
        """Find the rows of the variable that changed, by their numbers."""
        changes = self.changes[entry]
        changes.note_version(int(self.versions[entry]))  # changed by another way than a push
        return changes.since(since, start, stop) + self.shards[entry].row_offset

    def assign(self, where: Range, gradient: Gradient) -> None:
        """Overwrite a range, or rows of its shard."""
        if gradient.rows is None:
            self.value[where.start : where.stop] = gradient.values
            self.initialized[where.first : where.last] = True
        else:
            table = self._table(where, self.value)
            table[gradient.rows] = gradient.values.reshape(gradient.rows.size, table.shape[1])
        self.versions[where.first : where.last] += 1

    def combine(
        self, where: Range, gradient: Gradient, operation: Operation, decay: float = 0.0
    ) -> None:
        """Add to a range, or to rows of its shard; or multiply rows, and so on.

        Integers are divided as by NumPy's ``divide.at``: the fraction is cut off.

        Args:
            where: Range to change, or the one of the rows' shard.
            gradient: Values to combine with, and their rows if there are any.
            operation: An operation that combines two values.
            decay: Fraction by which the old values are reduced first, for a moving average of a
                range; 0: none.
        """
        ufunc = _UFUNCS[operation]
        if operation is Operation.ADVANCE and gradient.rows is not None:  # one row, or two
            for row, number in zip(gradient.rows.tolist(), gradient.values.tolist(), strict=True):
                place = where.start + row
                self.value[place] = max(number, int(self.value[place]))
        elif gradient.rows is None:
            value = self.value[where.start : where.stop]
            if decay == 1:
                value[...] = 0  # also of what is NaN
            elif decay:
                np.multiply(value, 1 - decay, out=value)
            ufunc(value, gradient.values, out=value)
        else:
            table = self._table(where, self.value)
            values = gradient.values.reshape(gradient.rows.size, table.shape[1])
            table[gradient.rows] = ufunc(table[gradient.rows], values)
        self.versions[where.first : where.last] += 1

    def apply(self, where: Range, gradient: Gradient, rule: UpdateRule, info: StepInfo) -> None:
        """Run an update rule, which all entries of the range are bound to."""
        if rule.skips_rate_zero and not rule.rate(info.global_step):
            return
        chosen, dtype = rule.chosen_kernel(), self.compute_dtype
        compiled = library.update_kernel_if_ready(chosen, dtype) if chosen else None
        for counts in (self.updates, self.versions):
            entries = counts[where.first : where.last]
            entries += 1
        if chosen is None:
            self._apply_formula(where, gradient, rule, info)
            return
        # Adam's correction depends on the number of updates, which may differ between entries.
        for part in self._runs(where) if rule.counts_updates else (where,):
            values = gradient.values[part.start - where.start : part.stop - where.start]
            piece = gradient if gradient.rows is not None else Gradient(values)
            updates = rule.count(int(self.updates[part.first]), info.global_step)
            scalars = hyperparameters(
                rule,
                updates=updates,
                global_step=info.global_step,
                gradient_scale=info.gradient_scale,
            ).astype(dtype)
            kernel = compiled or formula_kernel(
                rule, chosen, dtype, rate=rule.rate(info.global_step), updates=updates
            )
            self._run(kernel, self._slots(rule, part), part, piece, scalars)

    def _apply_formula(
        self, where: Range, gradient: Gradient, rule: UpdateRule, info: StepInfo
    ) -> None:
        """Run a rule without a kernel, on each shard in its own shape."""
        active, rows = rule.active_slots(), gradient.rows
        for number in range(where.first, where.last):
            value = self.view(number)
            part = gradient.values
            if rows is None:
                start = self.offsets[number] - where.start
                part = part[start : start + value.size].reshape(value.shape)
            elif rows.size:
                part = part.reshape(rows.size, *value.shape[1:])
            else:
                continue
            apply_formula(
                np,
                rule,
                value,
                {slot: self.view(number, slot) for slot in active},
                part,
                ... if rows is None else rows,
                rate=rule.rate(info.global_step),
                updates=rule.count(int(self.updates[number]), info.global_step),
                scale=info.gradient_scale,
            )

    def _runs(self, where: Range) -> list[Range]:
        """Cut a range where the number of updates differs."""
        counts = self.updates[where.first : where.last]
        if counts.size <= _FEW:  # NumPy takes longer to begin
            same = len(set(counts.tolist())) == 1
        else:
            same = bool((counts == counts[0]).all())
        if same:
            return [where]
        cuts = (np.flatnonzero(np.diff(counts)) + 1 + where.first).tolist()
        ends = [where.first, *cuts, where.last]
        return [
            Range(first, last, self.offsets[first], self.offsets[last])
            for first, last in pairwise(ends)
        ]

    def _slots(self, rule: UpdateRule, where: Range) -> list[Array]:
        """View the slots of a range in the kernel's order; empty arrays for slots that are not in
        use.
        """
        active, none = rule.active_slots(), _EMPTY[self.compute_dtype]
        return [
            self.slots[name][where.start : where.stop] if name in active else none
            for name in rule.slots
        ]

    def _run(
        self,
        kernel: UpdateKernel,
        slots: list[Array],
        where: Range,
        gradient: Gradient,
        scalars: Array,
    ) -> None:
        value = self.value[where.start : where.stop]
        rows, width = gradient.rows, 0
        if rows is not None:
            rows, width = _aligned(rows), self._width(where)
        if self.dtype == self.compute_dtype:
            kernel(value, slots, _aligned(gradient.values), rows, width, scalars)
        elif rows is None:
            self._run_tiles(kernel, value, slots, gradient.values, scalars)
        elif value.size:
            self._run_gathered(
                kernel, value, slots, Gradient(gradient.values, rows), width, scalars
            )

    def _run_tiles(
        self, kernel: UpdateKernel, value: Array, slots: list[Array], g: Array, scalars: Array
    ) -> None:
        if g.size != value.size:
            raise ValueError(f"the gradient has {g.size} elements, the value {value.size}")
        for start in range(0, value.size, _TILE):
            tile = slice(start, start + _TILE)
            wide = value[tile].astype(self.compute_dtype)
            parts = [slot[tile] for slot in slots]
            kernel(wide, parts, g[tile].astype(self.compute_dtype), None, 0, scalars)
            value[tile] = wide

    def _run_gathered(
        self,
        kernel: UpdateKernel,
        value: Array,
        slots: list[Array],
        gradient: Gradient,
        width: int,
        scalars: Array,
    ) -> None:
        rows = gradient.rows
        wide = value.reshape(-1, width)[rows].astype(self.compute_dtype).reshape(-1)
        parts = [slot.reshape(-1, width)[rows].reshape(-1) if slot.size else slot for slot in slots]
        kernel(wide, parts, gradient.values.astype(self.compute_dtype), None, 0, scalars)
        value.reshape(-1, width)[rows] = wide.reshape(-1, width)
        for slot, part in zip(slots, parts, strict=True):
            if slot.size:
                slot.reshape(-1, width)[rows] = part.reshape(-1, width)

    def _table(self, where: Range, memory: Array) -> Array:
        shard = self.shards[where.first]
        return memory[where.start : where.stop].reshape(shard.rows, self._width(where))

    def _width(self, where: Range) -> int:
        return size_of(row_shape(self.shards[where.first].shape))


def _aligned(array: Array) -> Array:
    """Align an array: some come from received frames, anywhere in them."""
    flags = array.flags
    return array if flags.aligned and flags.c_contiguous else array.copy()


def warm_up(rule: UpdateRule, dtype: DType) -> None:
    """Begin to load the rule's kernel, or to compile it."""
    compute_dtype = np.dtype(np.float32) if dtype.itemsize < 4 else dtype
    if (kernel := rule.chosen_kernel()) is not None:
        library.load_in_background(kernel, compute_dtype)
