"""Optimizers: update rules with ``apply_gradients``. They run where the variables live.

Arguments and formulas are those of Keras 3; see ``core/update_rules.py`` for the mathematics.

::

    optimizer = wl.optimizers.Adam(1e-3, global_clipnorm=1.0)
    optimizer.apply_gradients(zip(grads, variables))
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ..core import update_rules as rules
from ..core.indexed_slices import IndexedSlices
from ..core.schedules import (
    CosineDecay,
    ExponentialDecay,
    InverseTimeDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
    Schedule,
)
from .base.arrays import as_array
from .base.contexts import get_replica_context, require_own
from .base.reductions import ReduceOp
from .base.values import DistributedValues, PerReplica, on_every_replica
from .strategies.strategy import Strategy
from .variables.variable import Variable

__all__ = [
    "SGD",
    "Adagrad",
    "Adam",
    "AdamW",
    "CosineDecay",
    "ExponentialDecay",
    "Ftrl",
    "InverseTimeDecay",
    "Optimizer",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "RMSprop",
]

Rate = float | Schedule


@dataclass(frozen=True, slots=True)
class _Given:
    """One replica's value, wrapped so that it is not taken apart as a structure."""

    rule: rules.UpdateRule
    pairs: list[tuple[Any, Variable]]


class Optimizer:
    """An update rule, and the way gradients get to it."""

    def __init__(self, rule: rules.UpdateRule) -> None:
        self.rule = rule

    def apply_gradients(self, grads_and_vars: Iterable[tuple[Any, Variable]]) -> None:
        """Apply gradients: summed over the replicas in sync, then applied once.

        With parameter servers they are pushed with the step.

        The servers' values change when the step ends; reads in this step do not. With several
        replicas scale the loss by the global batch, as with TensorFlow.

        Args:
            grads_and_vars: Pairs of array or IndexedSlices and variable; None gradients are left
                out.

        Raises:
            ValueError: No gradient at all, or a variable of another strategy.
            RuntimeError: The variables belong to another strategy than the one that runs.
        """
        pairs = _gradients_of(grads_and_vars)
        owner = pairs[0][1].strategy
        require_own(owner, repr(pairs[0][1].name))
        context = get_replica_context()
        if context is None or context.strategy is not owner or owner.num_replicas_in_sync == 1:
            owner.extended.apply_gradients(self, [(_summed(g, v), v) for g, v in pairs])
            return
        context.merge_call(self._apply_sum, (_Given(self.rule, pairs),))

    def _apply_sum(self, strategy: Strategy, given: Any) -> None:
        extended = strategy.extended
        parts = on_every_replica(given, 1).values
        if any(part.rule is not self.rule and part.rule != self.rule for part in parts):
            shown = "; ".join(f"replica {i}: {part.rule!r}" for i, part in enumerate(parts))
            raise ValueError(f"replicas used different optimizers ({shown})")
        everyones = [part.pairs for part in parts]
        names = [[variable.name for _, variable in pairs] for pairs in everyones]
        if any(other != names[0] for other in names):
            # Added up by position they would mix: None gradients are left out by each replica for
            # itself.
            shown = "; ".join(f"replica {i}: {', '.join(own)}" for i, own in enumerate(names))
            raise ValueError(f"replicas gave gradients for different variables ({shown})")
        columns = list(zip(*everyones, strict=True))
        variables = [column[0][1] for column in columns]
        gradients = [PerReplica(gradient for gradient, _ in column) for column in columns]
        totals = extended.batch_reduce_to(
            ReduceOp.SUM, list(zip(gradients, variables, strict=True))
        )
        extended.apply_gradients(self, list(zip(totals, variables, strict=True)))

    def __repr__(self) -> str:
        return repr(self.rule)


class SGD(Optimizer):
    """Gradient descent, with momentum."""

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        *,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            rules.SGD(
                learning_rate=learning_rate,
                momentum=momentum,
                nesterov=nesterov,
                clipvalue=clipvalue,
                global_clipnorm=global_clipnorm,
            )
        )


class Adagrad(Optimizer):
    """Adagrad."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        *,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            rules.Adagrad(
                learning_rate=learning_rate,
                initial_accumulator_value=initial_accumulator_value,
                epsilon=epsilon,
                clipvalue=clipvalue,
                global_clipnorm=global_clipnorm,
            )
        )


class RMSprop(Optimizer):
    """RMSprop, plain, with momentum, or centred."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.9,
        momentum: float = 0.0,
        epsilon: float = 1e-7,
        centered: bool = False,
        *,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            rules.RMSprop(
                learning_rate=learning_rate,
                rho=rho,
                momentum=momentum,
                epsilon=epsilon,
                centered=centered,
                clipvalue=clipvalue,
                global_clipnorm=global_clipnorm,
            )
        )


class Adam(Optimizer):
    """Adam."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            rules.Adam(
                learning_rate=learning_rate,
                beta_1=beta_1,
                beta_2=beta_2,
                epsilon=epsilon,
                clipvalue=clipvalue,
                global_clipnorm=global_clipnorm,
            )
        )


class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            rules.AdamW(
                learning_rate=learning_rate,
                weight_decay=weight_decay,
                beta_1=beta_1,
                beta_2=beta_2,
                epsilon=epsilon,
                clipvalue=clipvalue,
                global_clipnorm=global_clipnorm,
            )
        )


class Ftrl(Optimizer):
    """Follow the regularized leader, proximal."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        learning_rate_power: float = -0.5,
        initial_accumulator_value: float = 0.1,
        l1_regularization_strength: float = 0.0,
        l2_regularization_strength: float = 0.0,
        l2_shrinkage_regularization_strength: float = 0.0,
        beta: float = 0.0,
        *,
        clipvalue: float | None = None,
        global_clipnorm: float | None = None,
    ) -> None:
        super().__init__(
            rules.Ftrl(
                learning_rate=learning_rate,
                learning_rate_power=learning_rate_power,
                initial_accumulator_value=initial_accumulator_value,
                l1_regularization_strength=l1_regularization_strength,
                l2_regularization_strength=l2_regularization_strength,
                l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength,
                beta=beta,
                clipvalue=clipvalue,
                global_clipnorm=global_clipnorm,
            )
        )


def _summed(gradient: Any, variable: Variable) -> Any:
    """Outside of ``run`` a gradient per replica is summed as in it."""
    if not isinstance(gradient, PerReplica):
        return gradient
    return variable.strategy.extended.reduce_to(ReduceOp.SUM, gradient, variable)


def _gradients_of(pairs: Iterable[tuple[Any, Variable]]) -> list[tuple[Any, Variable]]:
    kept: list[tuple[Any, Variable]] = []
    for gradient, variable in pairs:
        if gradient is None:
            continue
        distributed = isinstance(gradient, IndexedSlices | DistributedValues)
        whole = gradient if distributed else as_array(gradient)
        kept.append((whole, variable))
    if not kept:
        raise ValueError("No gradients provided for any variable.")
    return kept
