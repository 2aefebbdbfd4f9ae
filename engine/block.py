"""A block: contiguous memory of shards of one dtype, with one lock.

Small shards share a block, so that a step over ten thousand small variables is a few kernel calls
over a few ranges, not ten thousand; a large shard has a block, and so a lock, of its own.
What one push does to a block happens under the lock at once: readers see all of it or nothing, and a
push that is repeated after a broken connection finds its mark in ``applied`` and is skipped.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ..core.arrays import Array, DType, is_float, row_shape, size_of
from ..core.copying import split
from ..core.definitions import ShardDefinition, VariableDefinition
from ..core.errors import FencedError
from ..core.task import Incarnation, TaskId
from ..core.update_rules import SGD, Adagrad, Adam, AdamW, Ftrl, RMSprop, UpdateRule
from .arena import Arena
from .machine_code import find_kernel

_TILE = 1 << 15  # elements of a half-precision variable converted at a time; fits the L2 cache
_EMPTY = {np.dtype(t): np.empty(0, t) for t in (np.float32, np.float64)}


@dataclass(frozen=True, slots=True)
class Range:
    """Neighbouring entries ``[first, last)`` of a block: elements ``[start, stop)``."""

    first: int
    last: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Gradient:
    """What a push brings for a range.

    Attributes:
        values: 1-D, in the block's dtype.
        rows: int64, ascending, of the one shard in the range; None: dense.
    """

    values: Array
    rows: Array | None = None


@dataclass(frozen=True, slots=True)
class StepInfo:
    """What an update needs to know of its step."""

    who: Incarnation
    sequence: int
    global_step: int
    gradient_scale: float = 1.0


class Block:
    """Memory of some shards. Use ``lock`` around everything but the constructor."""

    def __init__(self, shards: Sequence[ShardDefinition], arena: Arena | None = None) -> None:
        """Allocate, from the heap unless an arena is given, without initializing."""
        self.lock = threading.Lock()
        self.shards = list(shards)
        self.dtype: DType = shards[0].variable.dtype
        # Half-precision variables keep their slots, and compute, in float32.
        self.compute_dtype: DType = (
            np.dtype(np.float32) if self.dtype.itemsize < 4 and is_float(self.dtype) else self.dtype
        )
        sizes = [shard.size for shard in shards]
        self.offsets = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))).tolist()
        self.memory = (arena or Arena()).allocate(self.offsets[-1], self.dtype)
        self.value: Array = self.memory.values
        self.slots: dict[str, Array] = {}
        self.rules: list[UpdateRule | None] = [None] * len(shards)
        self.versions = np.zeros(len(shards), np.int64)
        self.updates = np.zeros(len(shards), np.int64)
        self.initialized = np.zeros(len(shards), np.bool_)
        # Task → (generation, sequence) of the last push whose effect is in the values.
        self.applied: dict[TaskId, tuple[int, int]] = {}

    @property
    def slot_bytes(self) -> int:
        """Bytes of all slots."""
        return sum(slot.nbytes for slot in self.slots.values())

    def range_of(self, entry: int) -> Range:
        """One entry's elements."""
        return Range(entry, entry + 1, self.offsets[entry], self.offsets[entry + 1])

    def view(self, entry: int, slot: str = "") -> Array:
        """One entry's value or slot, in its shape. Memory of the block, not a copy."""
        memory = self.slots[slot] if slot else self.value
        return memory[self.offsets[entry] : self.offsets[entry + 1]].reshape(
            self.shards[entry].shape
        )

    def bind(self, entry: int, rule: UpdateRule) -> None:
        """Give an entry its update rule and its slots their first values."""
        self.rules[entry] = rule
        for slot, start in rule.slot_start().items():
            if slot not in self.slots:
                self.slots[slot] = np.zeros(self.value.size, self.compute_dtype)
            self.view(entry, slot)[...] = start

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock, and show readers of shared memory that the values are changing."""
        sequence = self.memory.sequence
        with self.lock:
            sequence[0] += 1
            try:
                yield
            finally:
                sequence[0] += 1

    def has_applied(self, info: StepInfo) -> bool:
        """Whether this push is in the values already.

        Raises:
            FencedError: A newer life of the task has pushed here.
        """
        generation, sequence = self.applied.get(info.who.task, (0, 0))
        if generation > info.who.generation:
            raise FencedError(
                f"{info.who} was superseded by generation {generation} while its push arrived",
                task=info.who.task,
                generation=info.who.generation,
                current=generation,
            )
        return generation == info.who.generation and sequence >= info.sequence

    def mark_applied(self, info: StepInfo) -> None:
        """Remember that this push is in the values."""
        self.applied[info.who.task] = (info.who.generation, info.sequence)

    def assign(self, where: Range, gradient: Gradient) -> None:
        """Overwrite a range, or rows of its shard."""
        if gradient.rows is None:
            self.value[where.start : where.stop] = gradient.values
            self.initialized[where.first : where.last] = True
        else:
            table = self._table(where, self.value)
            table[gradient.rows] = gradient.values.reshape(gradient.rows.size, table.shape[1])
        self.versions[where.first : where.last] += 1

    def assign_add(self, where: Range, gradient: Gradient) -> None:
        """Add to a range, or to rows of its shard."""
        if gradient.rows is None:
            value = self.value[where.start : where.stop]
            value += gradient.values
        else:
            table = self._table(where, self.value)
            table[gradient.rows] += gradient.values.reshape(gradient.rows.size, table.shape[1])
        self.versions[where.first : where.last] += 1

    def apply(self, where: Range, gradient: Gradient, rule: UpdateRule, info: StepInfo) -> None:
        """Run an update rule, which all entries of the range are bound to."""
        if isinstance(rule, Ftrl) and not rule.rate(info.global_step):
            return  # FTRL divides by the rate; a rate of zero means no change
        self.updates[where.first : where.last] += 1
        self.versions[where.first : where.last] += 1
        # Adam's correction depends on the number of updates, which may differ between entries.
        for part in self._runs(where) if isinstance(rule, Adam | AdamW) else (where,):
            values = gradient.values[part.start - where.start : part.stop - where.start]
            piece = gradient if gradient.rows is not None else Gradient(values)
            scalars = hyperparameters(
                rule,
                updates=int(self.updates[part.first]),
                global_step=info.global_step,
                gradient_scale=info.gradient_scale,
            ).astype(self.compute_dtype)
            self._run(rule, part, piece, scalars)

    def _runs(self, where: Range) -> list[Range]:
        """Cut a range where the number of updates differs."""
        counts = self.updates[where.first : where.last]
        if where.last - where.first == 1 or bool((counts == counts[0]).all()):
            return [where]
        cuts = (np.flatnonzero(np.diff(counts)) + 1 + where.first).tolist()
        ends = [where.first, *cuts, where.last]
        return [
            Range(first, last, self.offsets[first], self.offsets[last])
            for first, last in pairwise(ends)
        ]

    def _run(self, rule: UpdateRule, where: Range, gradient: Gradient, scalars: Array) -> None:
        kernel, names = _KERNELS[type(rule)]
        if isinstance(rule, SGD) and rule.momentum:
            kernel = "momentum"
        value = self.value[where.start : where.stop]
        none = _EMPTY[self.compute_dtype]
        slots = [
            self.slots[name][where.start : where.stop] if name in self.slots else none
            for name in names
        ]
        slots += [none] * (3 - len(slots))
        rows, width = self._rows(where, gradient)
        if self.dtype == self.compute_dtype and gradient.rows is None:
            self._run_parts(kernel, value, slots, gradient.values, scalars)
        elif self.dtype == self.compute_dtype:
            _call(kernel, value, slots, gradient.values, rows, width, scalars)
        elif gradient.rows is None:
            self._run_tiles(kernel, value, slots, gradient.values, scalars)
        else:
            self._run_gathered(kernel, value, slots, gradient, width, scalars)

    @staticmethod
    def _run_parts(kernel: str, value: Array, slots: list[Array], g: Array, scalars: Array) -> None:
        """Element-wise, so parts of a large range may go to several cores."""

        def part(start: int, stop: int) -> None:
            cut = slice(start, stop)
            _call(
                kernel, value[cut], [s[cut] for s in slots], g[cut], _ONE_ROW, stop - start, scalars
            )

        split(part, value.size, itemsize=value.itemsize * (2 + len(slots)))

    def _run_tiles(
        self, kernel: str, value: Array, slots: list[Array], g: Array, scalars: Array
    ) -> None:
        for start in range(0, value.size, _TILE):
            tile = slice(start, start + _TILE)
            wide = value[tile].astype(self.compute_dtype)
            parts = [slot[tile] for slot in slots]
            gradient = g[tile].astype(self.compute_dtype)
            _call(kernel, wide, parts, gradient, _ONE_ROW, wide.size, scalars)
            value[tile] = wide

    def _run_gathered(
        self,
        kernel: str,
        value: Array,
        slots: list[Array],
        gradient: Gradient,
        width: int,
        scalars: Array,
    ) -> None:
        rows = gradient.rows
        if value.size == 0:
            return
        wide = value.reshape(-1, width)[rows].astype(self.compute_dtype).reshape(-1)
        parts = [slot.reshape(-1, width)[rows].reshape(-1) if slot.size else slot for slot in slots]
        g = gradient.values.astype(self.compute_dtype)
        _call(kernel, wide, parts, g, _ONE_ROW, wide.size, scalars)
        value.reshape(-1, width)[rows] = wide.reshape(-1, width)
        for slot, part in zip(slots, parts, strict=True):
            if slot.size:
                slot.reshape(-1, width)[rows] = part.reshape(-1, width)

    def _table(self, where: Range, memory: Array) -> Array:
        shard = self.shards[where.first]
        return memory[where.start : where.stop].reshape(shard.rows, size_of(row_shape(shard.shape)))

    def _rows(self, where: Range, gradient: Gradient) -> tuple[Array, int]:
        if gradient.rows is None:
            return _ONE_ROW, where.stop - where.start
        return gradient.rows, size_of(row_shape(self.shards[where.first].shape))


_ONE_ROW: Array = np.zeros(1, np.int64)


def _call(
    kernel: str,
    value: Array,
    slots: list[Array],
    gradient: Array,
    rows: Array,
    width: int,
    scalars: Array,
) -> None:
    # Gradients come from received frames, too: anywhere in them, and read-only. If Numba itself runs the
    # kernel, it compiles anew for a writable argument; one form for all halves the compiling.
    flags = gradient.flags
    if not flags.aligned or not flags.c_contiguous:
        gradient = gradient.copy()
        gradient.flags.writeable = False
    elif flags.writeable:
        gradient = gradient.view()
        gradient.flags.writeable = False
    find_kernel(kernel, value.dtype)(
        value, slots[0], slots[1], slots[2], gradient, rows, width, scalars
    )


def warm_up(rule: UpdateRule, dtype: DType) -> None:
    """Compile or load the rule's kernel, so that no step waits for it."""
    definition = VariableDefinition("warm-up", (1,), dtype)
    block = Block([ShardDefinition(definition)])
    block.bind(0, rule)
    nobody = StepInfo(Incarnation(TaskId("ps", 0), 0), 0, 0)
    block.apply(block.range_of(0), Gradient(np.zeros(1, dtype)), rule, nobody)


# Rule → kernel and the slots it takes, in order.
_KERNELS: dict[type[object], tuple[str, tuple[str, ...]]] = {
    SGD: ("sgd", ("momentum",)),
    Adagrad: ("adagrad", ("accumulator",)),
    RMSprop: ("rmsprop", ("velocity", "momentum", "average_gradient")),
    Adam: ("adam", ("momentum", "velocity")),
    AdamW: ("adam", ("momentum", "velocity")),
    Ftrl: ("ftrl", ("accumulator", "linear")),
}


def hyperparameters(
    rule: UpdateRule, *, updates: int, global_step: int, gradient_scale: float
) -> Array:
    """The scalars a rule's kernel reads, as float64; ``kernels`` says in which order.

    Args:
        rule: The rule.
        updates: How often it was applied to the variable, this time included.
        global_step: For the learning-rate schedule.
        gradient_scale: Multiplies the gradient before clipping by value.
    """
    rate = rule.rate(global_step)
    head = [gradient_scale, rule.clipvalue if rule.clipvalue is not None else np.inf, rate]
    tail: list[float] = []
    if isinstance(rule, SGD):
        tail = [rule.momentum, rule.nesterov]
    elif isinstance(rule, Adagrad):
        tail = [rule.epsilon]
    elif isinstance(rule, RMSprop):
        tail = [rule.rho, 1 - rule.rho, rule.epsilon, rule.momentum, rule.centered]
    elif isinstance(rule, Adam | AdamW):
        head[2] = rate * np.sqrt(1 - rule.beta_2**updates) / (1 - rule.beta_1**updates)
        decay = rate * rule.weight_decay if isinstance(rule, AdamW) else 0.0
        tail = [rule.beta_1, 1 - rule.beta_1, rule.beta_2, 1 - rule.beta_2, rule.epsilon, decay]
    else:
        l2 = 2 * rule.l2_regularization_strength + (rule.beta / rate if rule.beta else 0.0)
        power = -rule.learning_rate_power
        shrinkage = 2 * rule.l2_shrinkage_regularization_strength
        tail = [power, rule.l1_regularization_strength, l2, shrinkage, power == 0.5]
    return np.array([*head, *tail], np.float64)
