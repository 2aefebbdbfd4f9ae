"""The writes of a worker's step, in the program's order, until they are pushed."""

from collections.abc import Mapping, Sequence

from ...client.ps.step import Value, Write, fits, gradients_first
from ...core.arrays.dtypes import Array
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.wire.steps import Operation

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
    """

    def __init__(self) -> None:
        self.assigned: dict[str, bytes] = {}
        self.beside: list[Write] = []
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
        """Assign a value of the variable's shape and dtype.

        Another thread may :meth:`take` what waits at the same time.

        Returns:
            Whether it waits; False: it is for :meth:`write`.
        """
        if name in self._names:
            return False
        waiting = self._waiting_bytes + value.nbytes
        if waiting > _MAX_WAITING_BYTES:
            return False
        self._waiting_bytes = waiting
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
