"""The progress of a ledger on the ps: a variable with a part on each of them.

A part is the numbers of the plan, for whoever goes on with it, and a mark for each range
(``plan.py``), which the pushes of the range's steps advance (ADR 114).
"""

import logging
import os
from collections.abc import Sequence

import numpy as np

from ...client.ps.step import Advance, Step
from ...core.arrays.dtypes import Array
from ...core.checkpoint import CheckpointReader
from ...core.errors import ConfigurationError
from ...core.rules.definitions import VariableDefinition
from ...distribute.runtime import ClusterRuntime
from .plan import Plan, RangePlace, RangesProgress, progress_of, start_of

log = logging.getLogger(__name__)

_HEAD = 3  # numbers of the plan
_DTYPE = np.dtype(np.int64)


class PsProgress:
    """The progress of one ledger, as one task reads and makes it.

    Args:
        runtime: Runtime of the task.
        name: Name of the ledger.
        plan: The plan.

    Raises:
        ConfigurationError: The data was begun by another plan.
    """

    def __init__(self, runtime: ClusterRuntime, name: str, plan: Plan) -> None:
        self._session, self._plan, self._name = runtime.session, plan, name
        self._parts = len(self._session.peers)
        self._rows = _HEAD + plan.ranges
        self.variable = _variable(name, self._parts)
        self._define(runtime)

    def _define(self, runtime: ClusterRuntime) -> None:
        first = np.zeros((self._parts, self._rows), np.int64)
        creates = runtime.task.is_chief
        if creates:
            first[:, _HEAD:] = self._marks_of_checkpoint(runtime)
            first[:, :_HEAD] = self._plan.numbers()
        self._session.define(
            [VariableDefinition(self.variable, (first.size,), _DTYPE)],
            {self.variable: first.reshape(-1)},
            create=creates,
            partitioner=lambda _, __: [self._parts],
            placement=_one_each,
            restore_from=runtime.restore_from if creates else "",
            still_wanted=runtime.job.check,
            chief_has_ended=runtime.job.chief_has_ended,
        )
        self._check_plan(self._read()[0, :_HEAD])

    def _check_plan(self, numbers: Array) -> None:
        if tuple(numbers.tolist()) != self._plan.numbers():
            examples, batch, order = numbers.tolist()
            raise ConfigurationError(
                f"the ledger {self._name!r} was begun with {examples} examples in batches of "
                f"{batch}, seed {order >> 1}, and this program has {self._plan.examples} in "
                f"batches of {self._plan.batch}, seed {self._plan.numbers()[2] >> 1}; go on with "
                "the same data, or give it another name"
            )

    def _marks_of_checkpoint(self, runtime: ClusterRuntime) -> Array | int:
        """Read the marks of a checkpoint, if another number of ps has written them.

        Of a step that only some of those had, a part may be trained twice: it was theirs.

        Returns:
            int64, shape ``(ranges,)``; 0: there is none.
        """
        if not runtime.restore_from:
            return 0
        reader = CheckpointReader(os.path.join(runtime.settings.model_dir, runtime.restore_from))
        if reader.manifest.cut is None and self._parts > 1:
            log.warning(
                "%s is not of one moment of all ps: the last examples before it may be trained "
                "twice, or not at all",
                runtime.restore_from,
            )
        prefix = _variable(self._name, 0).removesuffix("0")
        for variable in reader.manifest.variables:
            parts = variable.removeprefix(prefix)
            if variable in (self.variable, parts) or not parts.isdecimal():
                continue
            marks = reader.read(variable).reshape(int(parts), -1)
            self._check_plan(marks[0, :_HEAD])
            log.info("the ledger %r goes on from one of %s ps", self._name, parts)
            return np.asarray(marks[:, _HEAD:].min(axis=0))
        return 0

    def _read(self) -> Array:
        values = self._session.step(Step(reads=[self.variable])).values[self.variable]
        return values.reshape(self._parts, self._rows)

    def read(self) -> RangesProgress:
        """Read the progress of all ranges."""
        return progress_of(self._plan, self._read()[:, _HEAD:])

    def start_of(self, epoch: int, number: int) -> int:
        """Read how many examples of a range all ps have trained in an epoch."""
        return start_of(self._plan, epoch, self._read()[:, _HEAD + number])

    def advance(
        self, number: int, place: RangePlace, pushes: int, settled: "Leased | None"
    ) -> Advance:
        """Make what a push advances.

        Args:
            number: Number of the range.
            place: Place at which the step of the push begins.
            pushes: Number of the push in the step, from 1.
            settled: A range that this worker has trained to its end before; None: none.
        """
        to = self._plan.mark(place, pushes)
        if settled is None:
            return Advance(self.variable, _HEAD + number, to)
        epoch, other = settled
        return Advance(self.variable, _HEAD + number, to, _HEAD + other, self._plan.settled(epoch))


def _one_each(sizes: Sequence[int], loads: Sequence[int], placed: int) -> list[int]:  # noqa: ARG001
    """Place each part on a ps of its own; none are left to place if another chief has."""
    return list(range(len(sizes)))


Leased = tuple[int, int]
"""(epoch, number) of a range."""


def _variable(name: str, parts: int) -> str:
    return f"ledger/{name}/{parts}"
