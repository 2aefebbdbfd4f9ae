"""A program's own arrays as the memory of variables, where the only ps is in its process.

A framework that updates parameters in place needs no copies of values that go back and forth: the
update rules run on the program's memory, or on a copy of small arrays, which share blocks and so
calls of kernels. What the program changes between steps by itself (clamping, loading, batch norm)
is therefore in the variables, as it would be without a strategy.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..core.arrays.dtypes import Array
from ..engine.block import Block
from .in_process import HeldVariable, InProcessSteps


class OwnArrays:
    """Arrays of the program, each the value of a variable. The caller holds the strategy's lock.

    Args:
        steps: Steps on the ps.
        trained: Arrays that update rules change, each with its variable: on the host, writable, of
            the variable's shape and dtype. Large ones become the memory of the ps.
        others: Arrays that the program alone changes, such as averages of batch norm, in the form
            of ``trained``.
        adopt: False: large arrays are copied, too, so that :meth:`load` can undo a step.

    Attributes:
        trained: The trained arrays by the names of their variables.
        paused: Whether the variables keep what they have, whatever the program changes.

    Raises:
        ValueError: A variable is cut into parts.
    """

    def __init__(
        self,
        steps: InProcessSteps,
        trained: Sequence[tuple[HeldVariable, Array]],
        others: Sequence[tuple[HeldVariable, Array]] = (),
        *,
        adopt: bool = True,
    ) -> None:
        self._steps = steps
        self.trained = {variable.name: array for variable, array in trained}
        self._variables = [variable for variable, _ in (*trained, *others)]
        self._trained = _copies(steps, trained, adopt=adopt)
        self._others = _copies(steps, others, adopt=adopt)
        self._blocks = _Blocks((*self._trained, *self._others))
        self.paused = False
        steps.add_own(self)

    @property
    def are_current(self) -> bool:
        """Whether the variables are unchanged since :meth:`mark`."""
        return self._blocks.are_as_marked

    def mark(self) -> None:
        """Note that arrays and variables are equal."""
        self._blocks.mark()

    def take(self) -> None:
        """Copy all arrays to the variables, unless others have changed these since :meth:`mark`."""
        if not self.paused and self.are_current:
            self.keep()
            _copy_to_views(self._others)

    def keep(self) -> None:
        """Copy the trained arrays to the variables."""
        _copy_to_views(self._trained)

    def load(self) -> None:
        """Copy the variables to the trained arrays."""
        for block, pairs in self._trained.items():
            with block.lock:
                for array, view in pairs:
                    array[...] = view
        self.mark()

    def values(self) -> dict[str, Array]:
        """Copy the variables by name, as they are without :meth:`take`."""
        self.paused, before = True, self.paused
        try:
            copies = self._steps.read(self._variables)
        finally:
            self.paused = before
        return {v.name: copy for v, copy in zip(self._variables, copies, strict=True)}


_Copies = Mapping[Block, Sequence[tuple[Array, Array]]]
"""Arrays of the program, each with where its block has the values."""


def _copies(
    steps: InProcessSteps, arrays: Sequence[tuple[HeldVariable, Array]], *, adopt: bool
) -> _Copies:
    """Plan how arrays are copied, but for those that become the memory of their blocks."""
    by_block: dict[Block, list[tuple[Array, Array]]] = {}
    for variable, array in arrays:
        block, view = steps.memory(variable)
        if not (adopt and len(block.shards) == 1 and block.adopt(array)):
            by_block.setdefault(block, []).append((array, view))
    return by_block


def _copy_to_views(arrays: _Copies) -> None:
    for block, pairs in arrays.items():
        with block.lock:
            for array, view in pairs:
                view[...] = array


class _Blocks:
    """Blocks, and whether they were changed.

    Args:
        blocks: Any of them may come several times.
    """

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._sequences = [block.memory.sequence for block in dict.fromkeys(blocks)]
        self.mark()

    @property
    def are_as_marked(self) -> bool:
        """Whether none was changed since :meth:`mark`."""
        return self._marks == self._now()

    def mark(self) -> None:
        """Remember them as they are."""
        self._marks = self._now()

    def _now(self) -> list[int]:
        return [sequence.item() for sequence in self._sequences]


class OwnValues:
    """Values of variables that the program has elsewhere, and the ps only when it is asked.

    Args:
        steps: Steps on the ps.
        variables: Variables by name.
        values: Gives what they are now: arrays of the host by name, of some or all variables.

    Attributes:
        commit: Has the program take the values of the step that is being made. A step may set it.

    Raises:
        ValueError: A variable is cut into parts.
    """

    def __init__(
        self,
        steps: InProcessSteps,
        variables: Mapping[str, HeldVariable],
        values: Callable[[], Mapping[str, Array]],
    ) -> None:
        self.commit: Callable[[], None] = _nothing
        self._values = values
        self._memory = {name: steps.memory(variable) for name, variable in variables.items()}
        self._blocks = _Blocks(block for block, _ in self._memory.values())
        self._changed = False
        steps.add_own(self)

    @property
    def are_current(self) -> bool:
        """Whether the variables are unchanged since :meth:`mark`."""
        return self._blocks.are_as_marked

    def mark(self) -> None:
        """Note that the program has the values of the variables."""
        self._changed = False
        self._blocks.mark()

    def keep(self) -> None:
        """Have the program take the step's values, and the variables when they are asked for."""
        commit, self.commit = self.commit, _nothing  # it refers to all arrays of the step
        commit()
        self.mark()
        self._changed = True

    def load(self) -> None:
        """Do nothing: the program has not taken what it was not to keep."""

    def take(self) -> None:
        """Copy what has changed to the variables, unless others have changed these."""
        if not self._changed or not self.are_current:
            return
        self._changed = False
        for name, value in self._values().items():
            block, view = self._memory[name]
            with block.lock:
                np.copyto(view, value)


def _nothing() -> None:
    """Do nothing: no more has to be done."""
