"""The plans used last, and the numbers of their layouts."""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ...core.arrays.dtypes import DType
from ...core.wire.steps import Encoding, LayoutEntry, Operation, WireFormat, WireLayout
from .definer import PlacedVariable
from .distinct_rows import WantedRows
from .pull_plans import PullPlan, plan_pull
from .push_plans import PushedVariable, PushPlan, plan_push
from .step import PsPeer, Write

_KEPT_PLANS = 64
_KEPT_BUFFERS = 16  # each pull plan has memory for its values
_Plan = TypeVar("_Plan")

NO_PULL = plan_pull((), (), lambda _: WireLayout(0, ()))


@dataclass(frozen=True, slots=True)
class RowPlan:
    """A plan for pulling rows of some variables.

    Attributes:
        layouts: Layout of the pull, by ps.
        dtypes: Dtype in which each variable's rows travel; None: their own.
    """

    layouts: dict[int, WireLayout]
    dtypes: tuple[DType | None, ...]


class Recent(Generic[_Plan]):
    """The plans used last, a bounded number.

    Args:
        size: Number of plans that are kept.
        drop: Told of each plan that is thrown away.
    """

    def __init__(self, size: int, drop: Callable[[_Plan], None]) -> None:
        self._size = size
        self._drop = drop
        self._plans: OrderedDict[Hashable, _Plan] = OrderedDict()
        self._latest: tuple[Hashable, _Plan] | None = None

    def get(self, key: Hashable, make: Callable[[], _Plan]) -> _Plan:
        """Find the plan for ``key``, or make it."""
        # The one from the last step, mostly; comparing ten thousand names is cheaper than hashing
        # them.
        if self._latest is not None and self._latest[0] == key:
            return self._latest[1]
        plan = self._plans.get(key)
        if plan is None:
            plan = make()
            if len(self._plans) >= self._size:
                self._drop(self._plans.popitem(last=False)[1])
            self._plans[key] = plan
        else:
            self._plans.move_to_end(key)
        self._latest = (key, plan)
        return plan

    def clear(self) -> None:
        """Forget all."""
        for plan in self._plans.values():
            self._drop(plan)
        self._plans.clear()
        self._latest = None


class PlanCache:
    """Makes plans for sets of variables, and keeps a bounded number. The caller locks.

    A program that pulls other sets of variables all the time does not keep them all: numbers of
    layouts are used again.

    Args:
        peers: Peers, one per ps.
        place: Finds a variable by name.
    """

    def __init__(self, peers: Sequence[PsPeer], place: Callable[[str], PlacedVariable]) -> None:
        self._peers = peers
        self._place = place
        self._push_plans: Recent[PushPlan] = Recent(_KEPT_PLANS, self._drop)
        self._pull_plans: Recent[PullPlan] = Recent(_KEPT_BUFFERS, self._drop)
        self._row_plans: Recent[RowPlan] = Recent(_KEPT_PLANS, self._drop)
        self._free_layouts: list[int] = []
        self._next_layout = 0
        self._wire_format = WireFormat()
        self._row_dtypes: dict[str, DType] = {}

    def set_row_dtype(self, variable: str, dtype: DType) -> None:
        """Have rows of a variable or table, and gradients of them, travel in this dtype."""
        self._row_dtypes[variable] = dtype
        self._push_plans.clear()
        self._row_plans.clear()

    def row_dtype(self, placed: PlacedVariable) -> DType | None:
        """Return the dtype in which rows travel; None: their own.

        A variable on near and far ps travels as it is: shared memory carries everything so.
        """
        dtype = self._row_dtypes.get(placed.definition.name)
        near = dtype is None or any(self._peers[ps].shares_memory for ps, _ in placed.shards)
        return None if near else dtype

    @property
    def wire_format(self) -> WireFormat:
        """Format in which values travel over the network."""
        return self._wire_format

    @wire_format.setter
    def wire_format(self, wire_format: WireFormat) -> None:
        self._wire_format = wire_format
        self._push_plans.clear()
        self._pull_plans.clear()

    def push_plan(self, writes: Sequence[Write], advanced: str = "") -> PushPlan | None:
        """Find or make the plan by which the values of a push travel; None: there are none.

        Args:
            writes: Writes of the push.
            advanced: Variable of which the push advances a row; empty: none.
        """
        key = tuple(
            (write.operation, tuple(write.values), _kinds(write), write.decay)
            for write in writes
            if write.values
        )
        if not (key or advanced):
            return None

        def make() -> PushPlan:
            pushed = [
                PushedVariable(self._place(name), write.operation, type(value), write.decay)
                for write in writes
                for name, value in write.values.items()
            ]
            gate = self._place(advanced) if advanced else None
            formats = self._wire_formats()
            return plan_push(pushed, formats, self._new_layout, self.row_dtype, gate)

        return self._push_plans.get((key, advanced), make)

    def pull_plan(self, names: Sequence[str]) -> PullPlan:
        """Find or make the plan of where the values of these variables go."""
        if not names:
            return NO_PULL
        key = tuple(names)
        return self._pull_plans.get(
            key,
            lambda: plan_pull(
                [self._place(name) for name in dict.fromkeys(key)],
                self._wire_formats(),
                self._new_layout,
            ),
        )

    def row_plan(self, rows: Sequence[WantedRows]) -> RowPlan:
        """Find or make the plan by which rows of variables and tables are asked for, all in one
        pull.
        """
        # A ps may come to share memory, or cease to, while a program runs.
        dtypes = tuple(
            None if wanted.with_state else self.row_dtype(wanted.placed) for wanted in rows
        )

        def make() -> RowPlan:
            entries: dict[int, list[LayoutEntry]] = {}
            for wanted, dtype in zip(rows, dtypes, strict=True):
                name, encoding = wanted.name, _encoding(wanted)
                for ps, shard in wanted.placed.shards:
                    entry = LayoutEntry(name, shard.part, Operation.PULL, encoding, dtype)
                    entries.setdefault(ps, []).append(entry)
            layouts = {ps: self._new_layout(items) for ps, items in entries.items()}
            return RowPlan(layouts, dtypes)

        return self._row_plans.get(
            (*((wanted.name, wanted.with_state) for wanted in rows), dtypes), make
        )

    def _wire_formats(self) -> list[WireFormat]:
        """List the format of each ps: memory that is shared carries everything as it is."""
        plain = WireFormat()
        return [plain if peer.shares_memory else self._wire_format for peer in self._peers]

    def _new_layout(self, entries: Sequence[LayoutEntry]) -> WireLayout:
        if self._free_layouts:
            return WireLayout(self._free_layouts.pop(), tuple(entries))
        self._next_layout += 1
        return WireLayout(self._next_layout, tuple(entries))

    def _drop(self, plan: PushPlan | PullPlan | RowPlan) -> None:
        """Free the numbers of a plan's layouts for other plans."""
        self._free_layouts += [layout.layout_id for layout in plan.layouts.values()]


def _kinds(write: Write) -> Hashable:
    """Return the type of a write's values, or the types where they differ."""
    kinds = set(map(type, write.values.values()))
    return kinds.pop() if len(kinds) == 1 else tuple(map(type, write.values.values()))


def _encoding(rows: WantedRows) -> Encoding:
    if rows.with_state:
        return Encoding.STATES
    return Encoding.KEYS if rows.placed.definition.table is not None else Encoding.ROWS
