"""Update rules on variables in this process's memory."""

from collections.abc import Sequence
from typing import Any

from ...core.rules.update_rules import UpdateRule
from ..base.reductions import clip_norm, clip_scale
from ..base.values import DistributedValues
from ..variables.holders import holders_of
from ..variables.local import LocalVariable
from ..variables.mirrored import SyncOnReadVariable
from ..variables.sharded import ShardedVariable
from ..variables.variable import Variable


def apply_locally(optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> None:
    """Update every copy of variables with reduced gradients; see ``apply_gradients``."""
    holders = [_copies(variable) for _, variable in pairs]
    bound: UpdateRule = optimizer.rule
    rule: UpdateRule = optimizer.changed_rule(lambda: max(each[0].updates for each in holders))
    if rule.clipnorm is not None:
        pairs = [(_clipped(gradient, rule.clipnorm), variable) for gradient, variable in pairs]
    updates = [
        (holder, _part(gradient, number))
        for (gradient, _), copies in zip(pairs, holders, strict=True)
        for number, holder in enumerate(copies)
    ]
    whole = [_part(gradient, 0) for gradient, _ in pairs]
    scale = 1.0 if rule.global_clipnorm is None else clip_scale(whole, rule.global_clipnorm)
    for holder, gradient in updates:
        holder.check_update(gradient, bound)  # applied as a whole, or not at all
    step = _updates_of(optimizer, pairs) if rule.goes_by_step else None
    for holder, gradient in updates:
        holder.apply(gradient, bound, gradient_scale=scale, changed=rule, step=step)
    optimizer.note(variable for _, variable in pairs)


def _updates_of(optimizer: Any, pairs: Sequence[tuple[Any, Variable]]) -> int:
    """Return how often an optimizer has updated any of its variables, and of these."""
    variables = [*optimizer.variables, *(variable for _, variable in pairs)]
    return max(_copies(variable)[0].updates for variable in variables)


def _clipped(gradient: Any, limit: float) -> Any:
    if isinstance(gradient, DistributedValues):
        return type(gradient)(clip_norm(each, limit) for each in gradient.values)
    return clip_norm(gradient, limit)


def _part(gradient: Any, number: int) -> Any:
    return gradient.values[number] if isinstance(gradient, DistributedValues) else gradient


def _copies(variable: Variable) -> Sequence[LocalVariable]:
    """Find what holds a variable's value in this process."""
    if isinstance(variable, SyncOnReadVariable):
        raise ValueError(
            f"{variable.name!r} has synchronization ON_READ: each replica writes its own copy, "
            "optimizers do not"
        )
    if isinstance(variable, ShardedVariable):
        raise ValueError(
            f"{variable.name!r} is made of {len(variable.variables)} variables; give the optimizer "
            "those (`.variables`), each with its part of the gradient"
        )
    return holders_of(variable)
