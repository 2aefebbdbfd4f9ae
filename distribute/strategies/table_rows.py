"""Rows of embeddings' tables under a strategy that has no parameter servers."""

from collections.abc import Callable, Iterable, Sequence

from ...core.arrays.any_framework import to_host
from ...core.arrays.dtypes import Array, DType
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.errors import ConfigurationError
from ...core.rules.definitions import VariableDefinition
from ...telemetry.catalogue import Sample
from ..variables.ps_table import PsTable
from ..variables.variable import Variable

FoundRows = tuple[Array, Array | None]
"""(the distinct rows; which of them belongs to each id, None: one after the other)"""


class TableRows:
    """Tables as variables of this process, none of which grows.

    Args:
        strategy: Kind of the strategy, for messages.
        num_devices: Number of devices on which this task computes.
    """

    def __init__(self, strategy: str, num_devices: int) -> None:
        self._strategy = strategy
        self._num_devices = num_devices

    def create_table(self, definition: VariableDefinition) -> PsTable:
        """Make a growing table.

        Raises:
            ConfigurationError: This strategy has no parameter servers, where tables grow.
        """
        raise self._has_no_servers(definition.name)

    def _has_no_servers(self, table: str) -> ConfigurationError:
        return ConfigurationError(
            f"table {table!r} grows, which tables do on parameter servers, and this is "
            f"{self._strategy}: make it in the scope of a ParameterServerStrategy, "
            "or give it a vocabulary_size",
            table=table,
        )

    def lookup_rows(self, wanted: Sequence[tuple[Variable | PsTable, Array]]) -> list[FoundRows]:
        """Look up rows of variables and tables as they are now; from parameter servers in one
        exchange.

        Args:
            wanted: Pairs of a variable and numbers of its rows, or a table and keys: int64, shape
                ``(n,)``. May repeat.

        Returns:
            Rows of each pair: (rows, shape ``(count, elements of a row)``; int64, shape ``(n,)``:
            which of them belongs to each id, None: one after the other)
            them belongs to each id, None: one after the other)

        Raises:
            ShapeMismatchError: The number of a row is out of range.
        """
        found = [v.sparse_read(ids) for v, ids in wanted if isinstance(v, Variable)]
        return [(to_host(rows).reshape(len(rows), -1), None) for rows in found]

    def lookup_states(
        self,
        wanted: Sequence[tuple[Variable | PsTable, Array]],
        states: Sequence[tuple[PsTable, Array]],  # noqa: ARG002 - of growing tables, on servers
    ) -> tuple[list[FoundRows], list[FoundRows]]:
        """Look up rows as :meth:`lookup_rows` does, and rows of growing tables with slots and
        counts.

        Args:
            wanted: Pairs of variable or table and ids, as for :meth:`lookup_rows`.
            states: Pairs of a growing table and keys: int64, shape ``(n,)``.

        Returns:
            (what :meth:`lookup_rows` returns; the same for ``states``, whose rows are those of
            ``RowsByKey.read_states``)
        """
        return self.lookup_rows(wanted), []

    def look_up_ahead(
        self, wanted: Sequence[tuple[Variable | PsTable, Array]]
    ) -> Callable[[], list[FoundRows]]:
        """Look up rows for a later step: from another thread, while this one computes.

        Args:
            wanted: Pairs of variable or table and ids, as for :meth:`lookup_rows`.

        Returns:
            Function that gives what :meth:`lookup_rows` would: rows that this task has changed
            since as they are when it is called, and others as they were.
        """
        return lambda: self.lookup_rows(wanted)

    def set_row_dtype(self, table: Variable | PsTable, dtype: DType) -> None:
        """Have rows of a table travel in a narrower dtype, where they travel.

        Args:
            table: The table.
            dtype: int8, bfloat16, float16 or float32.
        """

    def begin_look_ahead(self, count: int) -> None:  # noqa: ARG002 - for servers
        """Prepare for lookups by :meth:`look_up_ahead`.

        Args:
            count: Number of lookups before the gradients of the first come.

        Raises:
            ConfigurationError: This task has several devices.
        """
        if self._num_devices > 1:
            raise ConfigurationError(
                f"look_ahead with {self._num_devices} devices, each of which looks up its own "
                "ids; have a worker for each device instead"
            )

    def push_rows(self, gradients: Sequence[tuple[PsTable, IndexedSlices]]) -> None:
        """Apply gradients of rows of growing tables, with the push of the step.

        Raises:
            ConfigurationError: This strategy has no parameter servers.
        """
        raise self._has_no_servers(gradients[0][0].name)

    def push_delayed(self) -> None:
        """Push gradients of rows that wait for a later step; nothing where none do."""

    def show_samples(self, collect: Callable[[], Iterable[Sample]]) -> None:
        """Show samples among the task's metrics; nothing where no task shows any.

        Args:
            collect: Called at each request for metrics, from another thread.
        """
