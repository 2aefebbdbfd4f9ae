"""The variables of a program on parameter servers: noted when they are created, defined together.

One exchange makes all known that were created in a scope; a variable that is read or trained before
is defined then, with all before it.
"""

import logging
from collections.abc import Sequence
from threading import RLock
from typing import Any

from ...cluster.placement import PartitionFunction, Placement, parts_of
from ...core.rules.definitions import VariableDefinition
from ...core.terminal import counted
from ..runtime import ClusterRuntime
from ..variables.parameter_server import PsShard, PsVariable
from ..variables.ps_table import PsTable
from ..variables.spec import VariableSpec
from ..variables.variable import Variable

log = logging.getLogger(__name__)

_SMALL_BYTES = 64 * 1024  # a read that has to go out fetches every variable up to this size with it


class CreatedVariables:
    """The variables that a program has created, and which of them the servers know. Thread-safe.

    Args:
        runtime: Runtime of the task.
        partitioner: Cuts variables; None: none is cut.
        placement: Function that chooses a ps for each shard.
        lock: Lock of the strategy, whose calls come one after the other.

    Attributes:
        restore_from: The checkpoint that variables have their first values from; empty: none.
    """

    def __init__(
        self,
        runtime: ClusterRuntime,
        partitioner: PartitionFunction | None,
        placement: Placement,
        lock: RLock,
    ) -> None:
        self._runtime = runtime
        self._partitioner = partitioner
        self._placement = placement
        self._lock = lock
        self.restore_from = runtime.restore_from
        self._variables: dict[str, VariableDefinition] = {}
        self._undefined: list[PsVariable | PsTable] = []
        self._beside_others = 0  # variables created near another
        self._bound: dict[str, object] = {}

    @property
    def names(self) -> list[str]:
        """Names of all variables except tables."""
        return list(self._variables)

    def small(self) -> list[str]:
        """List the names of variables that a read fetches whatever it is for."""
        known = self._variables.items()
        return [name for name, definition in known if definition.num_bytes <= _SMALL_BYTES]

    def parts_of(self, spec: VariableSpec) -> int:
        """Count the parts into which a variable is cut."""
        return parts_of(self._partitioner, spec.shape, spec.dtype)

    def note(self, created: PsVariable | PsTable, near: Variable | None = None) -> None:
        """Note a variable or table; one that goes ``near`` another one is defined at once."""
        if isinstance(created, PsVariable):
            self._variables[created.name] = created.definition
        if near is None:
            self._undefined.append(created)
            return
        self.define()  # what it goes to has to have a place
        self._undefined.append(created)
        self._define(near)
        self._beside_others += 1

    def define(self) -> None:
        """Make known what was created."""
        if self._undefined:
            self._define(None)

    def bind(self, optimizer: Any, variables: Sequence[Variable]) -> None:
        """Bind the optimizer's rule to variables that have none."""
        bound, rule = self._bound, optimizer.rule
        unbound = [v.name for v in variables if bound.get(v.name) is not rule]
        if unbound:
            self._runtime.session.bind(list(dict.fromkeys(unbound)), rule)
            bound |= dict.fromkeys(unbound, rule)
            optimizer.note(variables)

    def _define(self, near: Variable | None) -> None:
        """Make known what was created; ``near`` is the variable to whose ps it goes."""
        with self._lock:
            if not self._undefined:
                return
            new, self._undefined = self._undefined, []
            runtime = self._runtime
            restored = runtime.session.define(
                [variable.definition for variable in new],
                {v.name: v.first_value for v in new if v.first_value is not None},
                create=runtime.task.is_chief,
                partitioner=None if near is not None else self._partitioner,
                placement=self._in_turn if near is None else self._beside(near),
                restore_from=self.restore_from,
                still_wanted=runtime.job.check,
                chief_has_ended=runtime.job.chief_has_ended,
            )
            for variable in new:
                variable.first_value = None
            if restored:
                log.info(
                    "restored %s from %s", counted(len(restored), "variable"), self.restore_from
                )

    def _in_turn(self, sizes: Sequence[int], loads: Sequence[int], placed: int) -> list[int]:
        """Place as the placement says, which does not count variables placed near others."""
        return self._placement(sizes, loads, placed - self._beside_others)

    def _beside(self, near: Variable) -> Placement:
        """Make a placement of everything on the ps that holds the variable or its first shard."""
        ps = (
            near.ps
            if isinstance(near, PsShard)
            else self._runtime.session.variables.shards(near.name)[0][0]
        )
        return lambda sizes, loads, placed: [ps] * len(sizes)  # noqa: ARG005
