"""Holders of a variable's value and slots in this process's memory."""

from collections.abc import Sequence

from .aggregating import AggregatingVariable
from .local import LocalVariable
from .mirrored import DistributedVariable
from .variable import Variable


def holders_of(variable: Variable) -> Sequence[LocalVariable]:
    """List the holders, one per copy, in device order; none if the value is not in this process's
    memory.
    """
    if isinstance(variable, LocalVariable):
        return (variable,)
    if isinstance(variable, AggregatingVariable):
        return (variable.component(),)
    return variable.values if isinstance(variable, DistributedVariable) else ()
