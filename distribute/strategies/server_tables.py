"""Rows of embeddings' tables on parameter servers: variables, and tables that grow."""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from threading import RLock

from ...client.ps.row_lookups import PushWatcher
from ...client.ps.step import Write
from ...cluster.spec import EVALUATOR
from ...core.arrays.dtypes import Array, DType
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import RopewalkError
from ...core.rules.definitions import VariableDefinition
from ...core.wire.steps import Operation
from ...telemetry.catalogue import Sample
from ..base.worker_index import current_worker
from ..runtime import ClusterRuntime
from ..variables.parameter_server import PsVariable
from ..variables.ps_table import PsTable
from ..variables.variable import Variable
from .created_variables import CreatedVariables
from .server_step import ServerStep
from .table_rows import FoundRows, TableRows

log = logging.getLogger(__name__)

TINY_TABLE_BYTES = 16 * 1024
"""Tables with a vocabulary_size up to this come whole with a step's variables. Unit: bytes."""


class ServerTables(TableRows):
    """Tables of a program on parameter servers. Thread-safe over a step's replicas.

    Args:
        runtime: Runtime of the task.
        num_devices: Number of devices on which this task computes.
        step: The step that is under way.
        created: The program's variables.
        lock: Lock of the strategy, whose calls come one after the other.
        unique_name: Makes a name that no variable of the strategy has.
        prefetch: Whether a step begins with values from before its last push.
    """

    def __init__(
        self,
        runtime: ClusterRuntime,
        num_devices: int,
        step: ServerStep,
        created: CreatedVariables,
        lock: RLock,
        unique_name: Callable[[str], str],
        *,
        prefetch: bool,
    ) -> None:
        super().__init__("ParameterServerStrategy", num_devices)
        self._runtime = runtime
        self._step = step
        self._created = created
        self._lock = lock
        self._unique_name = unique_name
        self._prefetch = prefetch
        self._delays = False  # gradients of some tables

    def create_table(self, definition: VariableDefinition) -> PsTable:
        """Note a growing table; the servers hear of it with its neighbours.

        Raises:
            ValueError: A closure creates it.
        """
        if current_worker.get() is not None:
            raise ValueError(
                f"a closure creates table {definition.name!r}; create it in the coordinator's "
                "program, in `with strategy.scope():`, before the closure is scheduled"
            )
        with self._lock:
            name = self._unique_name(definition.name)
            table = PsTable(replace(definition, name=name))
            self._created.note(table)
            return table

    def find_table(self, definition: VariableDefinition) -> PsTable:
        """Find a growing table that another task created, as that task describes it."""
        with self._lock:
            table = PsTable(definition)
            self._created.note(table)
            return table

    def lookup_rows(self, wanted: Sequence[tuple[Variable | PsTable, Array]]) -> list[FoundRows]:
        """Look up rows of variables and tables as they are now, in one exchange."""
        return self.lookup_states(wanted, ())[0]

    def lookup_states(
        self,
        wanted: Sequence[tuple[Variable | PsTable, Array]],
        states: Sequence[tuple[PsTable, Array]],
    ) -> tuple[list[FoundRows], list[FoundRows]]:
        """Look up rows as :meth:`lookup_rows` does, and rows of tables with slots and counts, in
        one exchange.

        In a step variables of up to ``TINY_TABLE_BYTES`` are read whole, as others that it reads,
        unless the values that it reads were asked for before its last push (``prefetch``).
        """
        with self._lock:
            self._created.define()
            found: dict[str, FoundRows] = {}
            if self._step.is_active and not self._prefetch:
                found = {v.name: (self._whole(v), i) for v, i in wanted if _comes_whole(v, i)}
            ids = {variable.name: own for variable, own in wanted if variable.name not in found}
            for name in ids:
                self._step.settle(name)
            whole: dict[str, FoundRows] = {}
            if ids:
                keys = {table.name: own for table, own in states}
                rows, whole = self._runtime.session.rows.lookup_states(ids, keys)
                found |= rows
            return (
                [found[variable.name] for variable, _ in wanted],
                [whole[table.name] for table, _ in states],
            )

    def _whole(self, variable: Variable | PsTable) -> Array:
        value = self._step.read(variable.name, self._created.small)
        return value.reshape(value.shape[0], -1)

    def look_up_ahead(
        self, wanted: Sequence[tuple[Variable | PsTable, Array]]
    ) -> Callable[[], list[FoundRows]]:
        """Look up rows for a later step, beside the one that is under way."""
        with self._lock:
            self._created.define()
        session = self._runtime.session
        ahead = session.rows.look_up_ahead({variable.name: ids for variable, ids in wanted})

        def rows() -> list[FoundRows]:
            with self._lock:
                for variable, _ in wanted:
                    self._step.settle(variable.name)
                found = session.rows.catch_up(ahead)
                return [found[variable.name] for variable, _ in wanted]

        return rows

    def set_row_dtype(self, table: Variable | PsTable, dtype: DType) -> None:
        """Have rows of a table travel in a narrower dtype between this worker and the servers."""
        if self._runtime.task.task.type != EVALUATOR:
            self._runtime.session.set_row_dtype(table.name, dtype)

    def begin_look_ahead(self, count: int) -> None:
        """Prepare for lookups by :meth:`look_up_ahead`."""
        super().begin_look_ahead(count)
        self._runtime.session.rows.keep_lookups(count + 1)

    def push_rows(self, gradients: Sequence[tuple[PsTable, IndexedSlices]]) -> None:
        """Put gradients of rows into this step's push; outside ``run``, push them now."""
        with self._lock:
            self._created.define()
            self._step.add_writes(
                [Write(Operation.APPLY, {table.name: rows}) for table, rows in gradients]
            )

    def watch_pushes(self, table: PsTable, watcher: PushWatcher) -> None:
        """Show gradients that this worker pushes to a growing table to a watcher."""
        if self._runtime.task.task.type != EVALUATOR:
            self._runtime.session.rows.watch_pushes(table.name, watcher)

    def delay_rows(self, table: PsTable, steps: int, max_bytes: int) -> None:
        """Have gradients of a growing table wait for some steps, and travel summed.

        Args:
            table: Table whose gradients are then pushed by every so many steps of this worker, when
                more waits than ``max_bytes``, in :meth:`barrier`, and at the end of the program.
            steps: Number of steps to wait, at least 1.
            max_bytes: Unit: bytes.
        """
        with self._lock:
            if not self._delays:
                self._runtime.at_end.append(self._push_delayed_at_end)
            self._delays = True
            self._step.delayed.delay(table.name, steps, max_bytes)

    def push_delayed(self) -> None:
        """Push gradients of rows that wait for a later step."""
        with self._lock:
            self._step.push_delayed()

    def _push_delayed_at_end(self) -> None:
        try:
            self.push_delayed()
        except RopewalkError as error:
            log.warning(
                "%s ends, and gradients of rows that waited (staleness_writes) are lost: %s",
                self._runtime.task.task,
                error,
            )

    def show_samples(self, collect: Callable[[], Iterable[Sample]]) -> None:
        """Show samples among this task's metrics."""
        self._runtime.measures.append(collect)


def _comes_whole(variable: Variable | PsTable, ids: Array) -> bool:
    """Return whether a step reads the whole variable for these rows.

    Not if it has not all of them: the session says which.
    """
    if not isinstance(variable, PsVariable) or variable.definition.num_bytes > TINY_TABLE_BYTES:
        return False
    return not ids.size or bool(ids.min() >= 0 and ids.max() < variable.definition.shape[0])
