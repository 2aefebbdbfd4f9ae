"""Writes that asynchronous workers take back from each other: whole values that each of them
assigns.

An assigned value is of the values that its worker read as the step began. Between these and its
arrival lie the steps of all others, and where a worker came late, or compiled in its first step,
their whole training: averages of batch norm are back at where they began. A write that is added
keeps what the others have written meanwhile; so does an assignment by one worker alone.
"""

import logging
from collections.abc import Iterable

from ...client.ps.step import Write
from ...cluster.spec import WORKER
from ...core.arrays.dtypes import is_float
from ...core.arrays.indexed_slices import IndexedSlices
from ...core.rules.definitions import VariableDefinition
from ...core.wire.steps import Operation
from ..runtime import ClusterRuntime

log = logging.getLogger(__name__)


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
