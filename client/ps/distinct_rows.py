"""Distinct rows of a table that a step touches: worked out once, for the lookup and for the push.

The ids of a batch repeat. A lookup asks for each row once and spreads the rows to all ids; the
gradient of the same ids is summed to one row each. Both need the distinct ids and where each id
went. The distinct ids of one ps stand beside each other: numbers of rows because they ascend, keys
because they are sorted by ps.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...core import annexes
from ...core.arrays.buffers import BufferPools
from ...core.arrays.dtypes import Array, as_bytes, total_bytes
from ...core.arrays.gather_buffer import GatherBuffer, copy_into
from ...core.errors import ShapeMismatchError
from ...core.rules.definitions import ShardDefinition, VariableDefinition
from ...core.task import Incarnation
from ...core.wire.steps import PullTarget, StepRequest, WireLayout
from ...engine.rows import deduplicate, sum_duplicates
from .definer import PlacedVariable

_KEPT_TABLES = 512
_FIRST = 64  # ids looked at before all of them: they mostly tell


@dataclass(frozen=True, slots=True)
class DistinctRows:
    """Ids without their repetitions.

    Attributes:
        ids: int64, shape ``(n,)``: as they were given; a copy.
        unique: int64, each of them once: ascending, or keys by the part that they belong to.
        inverse: int64, shape ``(n,)``: ``unique[inverse]`` is ``ids``; None if they are the same.
        bounds: Position in ``unique`` of the first key of each part, and the end of the last. None:
            the ids are numbers of rows. None: the ids are numbers of rows.
    """

    ids: Array
    unique: Array
    inverse: Array | None
    bounds: tuple[int, ...] | None = None

    def between(self, start: int, stop: int) -> tuple[int, int]:
        """Find the distinct ids in ``[start, stop)``: position of the first, and one after the
        last.
        """
        low, high = np.searchsorted(self.unique, (start, stop)).tolist()
        return low, high

    def of_shard(self, shard: ShardDefinition) -> tuple[int, int, Array]:
        """Return the distinct ids of one shard: the first, one after the last, and how it knows
        them.
        """
        if self.bounds is not None:
            low, high = self.bounds[shard.part], self.bounds[shard.part + 1]
            return low, high, self.unique[low:high]
        if shard.num_parts == 1:
            return 0, self.unique.size, self.unique
        low, high = self.between(shard.row_offset, shard.row_offset + shard.rows)
        return low, high, self.unique[low:high] - shard.row_offset

    def sums(self, values: Array, memory: BufferPools) -> "RowSums":
        """Sum a gradient of these ids to one row each, ascending; repeated rows are added in order.

        Args:
            values: Contiguous, shape ``(n, width)``.
            memory: Buffers for sums that are not written where they travel.
        """
        return RowSums(values, self.inverse, 0, self.unique.size, memory)


@dataclass(frozen=True, slots=True)
class RowSums:
    """Sums of rows, worked out where they go.

    See :class:`~ropewalk.core.arrays.gather_buffer.PayloadPart`.

    Attributes:
        values: shape ``(n, width)``.
        inverse: int64, shape ``(n,)``: the sum that each row is part of; None: each is one.
        first: The first sum of this part.
        last: The one after the last.
        memory: Buffers for sums that are not written where they travel.
        num_bytes: Size in the payload. Unit: bytes.
    """

    values: Array
    inverse: Array | None
    first: int
    last: int
    memory: BufferPools
    num_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        row_bytes = self.values.shape[1] * self.values.itemsize
        object.__setattr__(self, "num_bytes", (self.last - self.first) * row_bytes)

    @property
    def is_plain(self) -> bool:
        """Not if rows are summed: a ps has more to do than to wait for that."""
        return self.inverse is None

    def part(self, first: int, last: int) -> "RowSums":
        """Return the sums ``[first, last)`` of these."""
        first, last = self.first + first, self.first + last
        return RowSums(self.values, self.inverse, first, last, self.memory)

    def write(self, out: Array) -> None:
        """Sum into ``out``."""
        if self.inverse is None:
            copy_into(out, self.array().reshape(-1).view(np.uint8))
            return
        rows = out.view(self.values.dtype).reshape(self.last - self.first, self.values.shape[1])
        sum_duplicates(self.values, self.inverse, rows, self.first)

    def array(self) -> Array:
        """Return the sums, shape ``(last - first, width)``; the program's rows if each is one."""
        if self.inverse is None:
            return self.values[self.first : self.last]
        shape = (self.last - self.first, self.values.shape[1])
        out = self.memory.take_array(shape, self.values.dtype)
        return sum_duplicates(self.values, self.inverse, out, self.first)

    def buffer(self) -> memoryview:
        """Return the memory of :meth:`array`."""
        return as_bytes(self.array())

    def detached(self) -> GatherBuffer:
        """Copy the sums into memory of their own."""
        own = np.empty(self.num_bytes, np.uint8)
        self.write(own)
        return GatherBuffer([own], own.dtype, own.size)


class DistinctRowsCache:
    """The ids each table was asked for last, of a bounded number of tables. The caller locks.

    Args:
        who: Incarnation of the calling task, for messages.

    Attributes:
        memory: Buffers for rows, used again once they are no longer referenced.
        per_table: Number of lookups of each table that are remembered.
    """

    def __init__(self, who: Incarnation) -> None:
        self._who = who
        self._last: OrderedDict[str, list[DistinctRows]] = OrderedDict()
        self.per_table = 1
        # Rows on their way: fresh memory costs a page fault per 4 KiB, more than filling it.
        self.memory = BufferPools()

    def of(self, placed: PlacedVariable, ids: Array) -> DistinctRows:
        """Find the distinct ids of a variable, or keys of a table. See :meth:`of_all`."""
        return self.of_all([(placed, ids)])[0]

    def of_all(self, wanted: Sequence[tuple[PlacedVariable, Array]]) -> list[DistinctRows]:
        """Find the distinct ids of several variables, or keys of tables.

        Args:
            wanted: Variables, and int64, shape ``(n,)``: numbers of rows, or keys of a table.

        Raises:
            ShapeMismatchError: The number of a row is out of range, or keys are no vector of int64.
        """
        distinct = [self._known(placed.definition.name, ids) for placed, ids in wanted]
        # By number of ps: places of the tables whose keys are worked out together.
        keys: dict[int, list[int]] = {}
        for place, (placed, ids) in enumerate(wanted):
            definition = placed.definition
            if distinct[place] is None:
                self._make_room(definition.name)
                if definition.table is not None:
                    keys.setdefault(len(placed.shards), []).append(place)
                else:
                    distinct[place] = self._of_rows(definition, ids)
        for num_ps, places in keys.items():
            some = [(wanted[place][0].definition.name, wanted[place][1]) for place in places]
            for place, rows in zip(places, _distinct_keys(some, num_ps, self.memory), strict=True):
                distinct[place] = rows
        return [
            self._keep(placed.definition.name, part)
            for (placed, _), part in zip(wanted, distinct, strict=True)
            if part is not None
        ]

    def _of_rows(self, definition: VariableDefinition, ids: Array) -> DistinctRows:
        table, num_rows = definition.name, definition.shape[0] if definition.shape else 0
        try:
            return _distinct(ids, num_rows, self.memory)
        except ValueError as error:
            wrong = ids.min() if ids.min() < 0 else ids.max()
            raise ShapeMismatchError(
                f"{self._who.task}: row {wrong} of {table!r} is out of range: it has "
                f"{num_rows} rows",
                task=self._who.task,
                variable=table,
            ) from error

    def _known(self, table: str, ids: Array) -> DistinctRows | None:
        last = self._last.get(table, ())
        # Comparing costs a tenth of sorting out; the caller may have changed its array in place.
        return next((recent for recent in last if _same(recent.ids, ids)), None)

    def _make_room(self, table: str) -> None:
        """Forget the oldest of a table: its memory is used again."""
        last = self._last.get(table, [])
        del last[: max(0, len(last) + 1 - self.per_table)]

    def _keep(self, table: str, rows: DistinctRows) -> DistinctRows:
        last = self._last.setdefault(table, [])
        if not any(recent is rows for recent in last):
            self._make_room(table)
            last.append(rows)
            self._last.move_to_end(table)
            if len(self._last) > _KEPT_TABLES:
                self._last.popitem(last=False)
        return rows


def _same(left: Array, right: Array) -> bool:
    if left.size != right.size or not (left[:_FIRST] == right[:_FIRST]).all():
        return False
    return bool((left == right).all())


def _ascend(ids: Array) -> bool:
    return bool((ids[1:] > ids[:-1]).all())


def _distinct(ids: Array, num_rows: int, memory: BufferPools) -> DistinctRows:
    own = memory.take_array(ids.shape, ids.dtype)
    own[:] = ids
    if _ascend(own[:_FIRST]) and _ascend(own):
        if own.size and (own[0] < 0 or own[-1] >= num_rows):
            raise ValueError("an id is out of range")
        return DistinctRows(own, own, None)
    unique, inverse = deduplicate(own, num_rows, memory)
    return DistinctRows(own, unique, inverse)


def _distinct_keys(
    wanted: Sequence[tuple[str, Array]], num_ps: int, memory: BufferPools
) -> list[DistinctRows]:
    """Find the distinct keys of tables that are cut over as many ps, all tables together."""
    keyed = annexes.the("keyed.distinct", "embedding", f"table {wanted[0][0]!r}")
    keys = [keyed.as_keys(name, ids) for name, ids in wanted]
    sizes = [part.size for part in keys]
    own = memory.take_array((sum(sizes),), np.dtype(np.int64))
    np.concatenate(keys, out=own)
    rows, start = [], 0
    for part in keyed.distinct_by_ps(own, sizes, num_ps, memory):
        ids = own[start : start + part.inverse.size]
        # Of one part they stand in the order in which they came.
        same = num_ps == 1 and part.unique.size == ids.size
        rows.append(DistinctRows(ids, part.unique, None if same else part.inverse, part.bounds))
        start += ids.size
    return rows


# -- Requests for rows of variables and tables: the ps to ask, and the place of each row -------

Rows = tuple[Array, Array | None]
"""(the distinct rows, shape ``(count, elements of a row)``; int64, shape ``(n,)``: which of them
belongs to each id. None: one after the other)
"""


@dataclass(frozen=True, slots=True)
class WantedRows:
    """Rows of one variable that a pull asks for.

    Attributes:
        placed: The variable, or table.
        distinct: Numbers of the rows, each once.
        out: Array of shape ``(distinct rows, elements of a row)``, to be filled.
        with_state: Whether each row comes with its slots and count, of a table.
    """

    placed: PlacedVariable
    distinct: DistinctRows
    out: Array
    with_state: bool = False

    @property
    def name(self) -> str:
        """Name of the variable."""
        return self.placed.definition.name


@dataclass(slots=True)
class _Pull:
    numbers: list[Array]
    into: list[memoryview]


def row_pulls(
    wanted: tuple[WantedRows, ...], layouts: Mapping[int, WireLayout], global_step: int
) -> tuple[dict[int, StepRequest], dict[int, PullTarget]]:
    """Make one request per ps, for the rows of all variables; a ps without any of them is not
    asked.

    Args:
        wanted: Rows to pull, in the order of the layouts.
        layouts: Layouts of a pull of rows of these variables, by ps.
        global_step: Last global step seen.
    """
    pulls: dict[int, _Pull] = {ps: _Pull([], []) for ps in layouts}
    for table in wanted:
        for ps, shard in table.placed.shards:
            low, high, numbers = table.distinct.of_shard(shard)
            pulls[ps].numbers.append(numbers)
            pulls[ps].into.append(as_bytes(table.out[low:high]))
    asked = {
        ps: pull for ps, pull in pulls.items() if any(numbers.size for numbers in pull.numbers)
    }
    requests = {
        ps: StepRequest(
            pull=layouts[ps],
            pull_rows=pull.numbers,
            answer_bytes=total_bytes(pull.into),
            global_step=global_step,
        )
        for ps, pull in asked.items()
    }
    return requests, {ps: PullTarget(pull.into) for ps, pull in asked.items()}
