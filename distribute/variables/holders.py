"""Which variables of this process's memory hold a variable's value and slots."""

from collections.abc import Sequence

from .aggregating import AggregatingVariable
from .local import LocalVariable
from .mirrored import DistributedVariable
from .variable import Variable


def holders_of(variable: Variable) -> Sequence[LocalVariable]:
    """One per copy, in device order; none if the value is not in this process's memory."""
    if isinstance(variable, LocalVariable):
        return (variable,)
    if isinstance(variable, AggregatingVariable):
        return (variable.component(),)
    return variable.values if isinstance(variable, DistributedVariable) else ()
