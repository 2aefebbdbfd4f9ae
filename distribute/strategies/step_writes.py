"""The writes of a worker's step, in the program's order, until they are pushed."""

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np

from ...client.ps.step import Value, Write, fits, gradients_first
from ...cluster.spec import WORKER
from ...core.arrays.dtypes import Array, is_float
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import RopewalkError
from ...core.rules.definitions import VariableDefinition
from ...core.wire.steps import Operation
from ..runtime import ClusterRuntime

log = logging.getLogger(__name__)

# Writes wait in copies of their own for the end of a step, up to this; what is larger takes longer
# on its way than a round trip.
_MAX_WAITING_BYTES = 4 * 1024 * 1024


class StepWrites:
    """The writes of one step that no push has taken yet. Not thread-safe, but for :meth:`assign`.

    Attributes:
        assigned: Values of whole variables, as they travel, after the gradients. All writes of one
            variable are here or among the others.
        beside: Writes to moving averages, and gradients of rows of growing tables: the step reads
            none of them, and their order is of no account.
        unsettled: Names of variables that were written, with a result that only the servers know.
        thread: Thread that runs the step, if all of it is one replica's; 0: it is not.
    """

    def __init__(self) -> None:
        self.assigned: dict[str, bytes] = {}
        self.beside: list[Write] = []
        self.unsettled: dict[str, None] = {}
        self.thread = 0
        self._ordered: list[Write] = []
        self._names: set[str] = set()  # of what is assigned or added among these
        self._waiting_bytes = 0

    @property
    def has_writes(self) -> bool:
        """Whether anything waits to be pushed."""
        return bool(self._ordered or self.assigned or self.beside)

    @property
    def changes_values(self) -> bool:
        """Whether variables were assigned or added to."""
        return bool(self.assigned or self._names)

    def changes(self, name: str) -> bool:
        """Return whether a variable was assigned or added to."""
        return name in self.assigned or name in self._names

    def fits(self, gradients: Write) -> bool:
        """Return whether gradients may travel in one push with what waits."""
        after = self.assigned.keys().isdisjoint(gradients.values.keys())
        return after and fits(self._ordered, gradients)

    def add(self, write: Write) -> None:
        """Add gradients that fit, or writes that are the last of the step."""
        self._ordered.append(write)

    def assign(self, name: str, value: Array) -> bool:
        """Assign a value of the variable's shape and dtype, if this thread runs the step.

        Without the lock, since a step may have hundreds of them: another thread may only
        :meth:`take` what waits, one by one.

        Returns:
            Whether it waits for the end of the step; False: it is for :meth:`write`.
        """
        if threading.get_ident() != self.thread or name in self._names:
            return False
        waiting = self._waiting_bytes + value.nbytes
        if waiting > _MAX_WAITING_BYTES:
            return False
        self._waiting_bytes = waiting
        if self.unsettled:
            self.unsettled.pop(name, None)
        self.assigned[name] = value.tobytes()
        return True

    def write(
        self, name: str, operation: Operation, value: Array | IndexedSlices
    ) -> tuple[bool, Array | IndexedSlices]:
        """Assign or add.

        Returns:
            Whether it may wait for the end of the step; and the value, which nobody changes if so.
        """
        self._waiting_bytes += value.nbytes
        waits = self._waiting_bytes <= _MAX_WAITING_BYTES
        if waits:
            value = value.copy()  # the caller may change its own
        assigned = self.assigned.pop(name, None)
        if assigned is not None:
            self._ordered.append(Write(Operation.ASSIGN, {name: assigned}))
        self._ordered.append(Write(operation, {name: value}))
        self._names.add(name)
        return waits, value

    def take(self, *, goes_on: bool) -> tuple[list[Write], Mapping[str, bytes], list[Write]]:
        """Take everything.

        Args:
            goes_on: Whether the step does: its thread may go on assigning meanwhile.

        Returns:
            Writes of a push, the gradients first; the values that they assign whole, as they
            travel; writes beside them.
        """
        if goes_on:
            assigned = {name: self.assigned.pop(name) for name in list(self.assigned)}
        else:
            assigned, self.assigned = self.assigned, {}
        ordered, self._ordered, self._names, self._waiting_bytes = self._ordered, [], set(), 0
        beside, self.beside = self.beside, []
        if assigned:
            ordered = [Write(Operation.ASSIGN, assigned), *ordered]
        return gradients_first(ordered), assigned, beside


def values_of(writes: Sequence[Write]) -> Mapping[str, Value]:
    """Index the values of writes by variable; one that is written again has a number behind its
    name.
    """
    if len(writes) == 1:
        return writes[0].values
    values: dict[str, Value] = {}
    for number, write in enumerate(writes):
        for name, value in write.values.items():
            values[f"{name} ({number})" if name in values else name] = value
    return values


@dataclass(slots=True)
class _DelayedTable:
    """The gradients that wait for one table. ``since``: the step of the oldest of it."""

    name: str
    steps: int
    max_bytes: int
    waiting: list[IndexedSlices] = field(default_factory=list)
    num_bytes: int = 0
    since: int = 0

    def add(self, rows: IndexedSlices, step: int) -> None:
        if not self.waiting:
            self.since = step
        self.waiting.append(rows.copy())  # the program may change its array
        self.num_bytes += rows.nbytes

    def is_due(self, step: int) -> bool:
        late = step - self.since >= self.steps or self.num_bytes > self.max_bytes
        return bool(self.waiting) and late

    def take(self) -> Write:
        """Take all of it as one gradient, in order: its rows are added up where it is sent."""
        waiting, self.waiting, self.num_bytes = self.waiting, [], 0
        values = np.concatenate([rows.values for rows in waiting])
        indices = np.concatenate([rows.indices for rows in waiting])
        return Write(Operation.APPLY, {self.name: IndexedSlices(values, indices)})


class DelayedRows:
    """Gradients of one worker that wait. Not thread-safe."""

    def __init__(self) -> None:
        self._tables: dict[str, _DelayedTable] = {}
        self._step = 0

    def delay(self, table: str, steps: int, max_bytes: int) -> None:
        """Have gradients of a table wait.

        Args:
            table: Name of the table.
            steps: Number of this worker's steps to wait, at least 1.
            max_bytes: Most bytes to wait; when more waits, all of it travels.
        """
        self._tables[table] = _DelayedTable(table, steps, max_bytes)

    @contextmanager
    def due(self, writes: Sequence[Write], *, is_new_step: bool) -> Iterator[list[Write]]:
        """Lend what travels with a push: writes to other tables, and what has waited long enough.

        If the push is refused before it is sent, what waited goes on waiting.

        Args:
            writes: Writes of the push.
            is_new_step: Whether the push is the first one of a step.
        """
        self._step += is_new_step
        with self._unless_refused():
            yield [*self._put_aside(writes), *self._due()]

    def _put_aside(self, writes: Sequence[Write]) -> list[Write]:
        now = []
        for write in writes:
            delayed = self._tables.keys() & write.values.keys()
            if not delayed:
                now.append(write)
            for name in delayed:
                rows = write.values[name]
                assert isinstance(rows, IndexedSlices)  # noqa: S101 - of a growing table
                self._tables[name].add(rows, self._step)
        return now

    def _due(self) -> list[Write]:
        return [each.take() for each in self._tables.values() if each.is_due(self._step)]

    @contextmanager
    def everything(self) -> Iterator[list[Write]]:
        """Lend all that waits; see :meth:`due`."""
        with self._unless_refused():
            yield [each.take() for each in self._tables.values() if each.waiting]

    @contextmanager
    def _unless_refused(self) -> Iterator[None]:
        before = {
            name: replace(each, waiting=each.waiting.copy()) for name, each in self._tables.items()
        }
        try:
            yield
        except RopewalkError:
            self._tables = before
            raise


# -- Writes that asynchronous workers take back from each other: whole values that each assigns -
# An assigned value is of the values that its worker read as the step began. Between these and its
# arrival lie the steps of all others, and where a worker came late, or compiled in its first step,
# their whole training: averages of batch norm are back at where they began. A write that is added
# keeps what the others have written meanwhile; so does an assignment by one worker alone.


class LostWrites:
    """Warns once of a variable that this worker, one of several, assigns in two steps in turn.

    The chief is not warned: it may be the only one that assigns. Neither are others of scalars and
    integers, such as a rate, which all workers may compute alike.

    Args:
        runtime: Runtime of this task.
    """

    def __init__(self, runtime: ClusterRuntime) -> None:
        self._runtime = runtime
        self._may_warn = not runtime.task.is_chief
        self._before: frozenset[str] = frozenset()
        self._expected: set[str] = set()

    def expect(self, names: Iterable[str]) -> None:
        """Keep silent about writes to some variables: none of them is made of others' values."""
        self._expected.update(names)

    def note(self, writes: Iterable[Write]) -> None:
        """Note what a step writes."""
        if not self._may_warn:
            return
        whole = {
            name
            for write in writes
            if write.operation is Operation.ASSIGN
            for name, value in write.values.items()
            if not isinstance(value, IndexedSlices)
        }
        whole -= self._expected
        definition = self._runtime.session.variables.definition
        now = frozenset(name for name in whole if _is_array_of_floats(definition(name)))
        again, self._before = now & self._before, now
        if again and self._has_others():
            self._may_warn = False
            self._warn(min(again))

    def _has_others(self) -> bool:
        """Return whether others than this worker train; a chief that schedules closures does
        not.
        """
        spec = self._runtime.task.spec
        return not self._runtime.session.pushes_for_closure or spec.num_tasks(WORKER) > 1

    def _warn(self, name: str) -> None:
        log.warning(
            "%s assigns %r as a whole in each of its steps, as other workers may: what they have "
            "written to it since a step began is lost, and where this worker came late, or took "
            "long, all of it. To a moving average add what a step changes, "
            "v.assign_add(after - before), where before is v.read_value() in that step; what one "
            "worker decides assign there alone: if strategy.is_chief",
            self._runtime.task.task.short, name,
        )  # fmt: skip


def _is_array_of_floats(definition: VariableDefinition) -> bool:
    return is_float(definition.dtype) and bool(definition.shape)
