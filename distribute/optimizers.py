"""Optimizers: update rules with ``apply_gradients``. They run where the variables live.

Arguments and formulas are those of Keras 3; see ``core/update_rules.py`` for the mathematics.

::

    optimizer = wl.optimizers.Adam(1e-3, global_clipnorm=1.0)
    optimizer.apply_gradients(zip(grads, variables))
    optimizer.learning_rate = 1e-4  # for what is applied from here on

A variable is bound to the rule that its optimizer was constructed with. What is assigned later, and
what a callable returns, travels with each push: it counts for the pushes of this worker, in their
order, and for nobody else's.
"""

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict, Unpack

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
from .base.contexts import get_replica_context, get_strategy, require_own
from .base.reductions import ReduceOp
from .base.values import DistributedValues, PerReplica, on_every_replica
from .strategies.strategy import Strategy
from .variables.variable import Variable

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "CosineDecay",
    "ExponentialDecay",
    "Ftrl",
    "InverseTimeDecay",
    "Lamb",
    "Lion",
    "Nadam",
    "Optimizer",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "RMSprop",
    "register_rule",
]

Rate = float | Schedule | Callable[..., Any]
"""A number, one of our schedules (evaluated by the ps), or a callable (evaluated by the worker)."""


class Clipping(TypedDict, total=False):
    """How gradients are clipped; None: not at all.

    Attributes:
        clipnorm: Largest norm of each variable's gradient.
        clipvalue: Largest absolute value of each element.
        global_clipnorm: Largest joint norm of all gradients of a call.
    """

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None


@dataclass(frozen=True, slots=True)
class _Given:
    """One replica's value, wrapped so that it is not taken apart as a structure."""

    rule: rules.UpdateRule
    hyperparameters: Mapping[str, Any] | None
    pairs: list[tuple[Any, Variable]]


class Optimizer:
    """An update rule, and the way gradients get to it.

    Its hyperparameters are attributes. Assigning one counts from the next ``apply_gradients`` on.

    Args:
        rule: What variables are bound to; or its class, and ``arguments`` for it.
        arguments: Its fields. ``learning_rate`` may be a callable: of the step (``iterations``), as
            schedules of Keras and optax are, or of nothing.

    Attributes:
        rule: What variables are bound to.
        current: The same with what was assigned since.

    Raises:
        ValueError: An argument is not allowed; says what is.
    """

    rule: rules.UpdateRule
    current: rules.UpdateRule

    def __init__(
        self, rule: rules.UpdateRule | type[rules.UpdateRule], /, **arguments: Any
    ) -> None:
        own: dict[str, Any] = {}
        if isinstance(rule, type):
            rate = arguments.get("learning_rate")
            if callable(rate) and not _is_schedule(rate):
                own["_rate"] = _of_step(rate)
                del arguments["learning_rate"]
            rule = rules.make_rule(rule, {k: _number(v) for k, v in arguments.items()})
        owner = get_strategy()
        own |= {
            "rule": rule,
            "current": rule,
            "_changes": {},  # in what they differ
            "_owner": weakref.ref(owner) if hasattr(owner, "global_step") else None,
            "_variables": {},
        }
        own.setdefault("_rate", None)
        self.__dict__.update(own)

    # -- hyperparameters ---------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        # Only what is no attribute otherwise. Copying and pickling ask before anything is there.
        current = self.__dict__.get("current")
        if current is None or name not in type(current).model_fields or name == "name":
            raise AttributeError(self._unknown(name))
        return getattr(current, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "name" and name in type(self.rule).model_fields:
            self._assign(name, value)
        elif name.startswith("_") or hasattr(type(self), name):
            super().__setattr__(name, value)
        else:
            raise AttributeError(self._unknown(name))

    def _assign(self, name: str, value: Any) -> None:
        rate = self._rate
        if name == "learning_rate":
            if callable(value) and not _is_schedule(value):
                self.__dict__["_rate"] = _of_step(value)
                return
            rate = None
        changed = self.current.changed({name: _number(value)})
        # All at once: replicas in other threads read it.
        self.__dict__.update(current=changed, _changes=_to_send(self.rule, changed), _rate=rate)

    def _unknown(self, name: str) -> str:
        kind = type(self).__name__
        rule = self.__dict__.get("rule")
        fields = [field for field in type(rule).model_fields if field != "name"] if rule else []
        return f"{kind} has no attribute {name!r}; its hyperparameters are {', '.join(fields)}"

    @property
    def learning_rate(self) -> float:
        """The rate as of now: of ``iterations``, if it follows the step. Can be assigned."""
        if self._rate is not None:
            return self._rate_now(self.iterations)
        return self.current.rate(self.iterations)

    @learning_rate.setter
    def learning_rate(self, rate: Rate) -> None:
        self._assign("learning_rate", rate)

    @property
    def iterations(self) -> int:
        """With parameter servers the global step, else how often the variables were updated."""
        variables = self.variables
        if variables:
            return int(variables[0].strategy.extended.iterations(variables))
        owner = self._owner() if self._owner is not None else None
        return int(owner.global_step) if owner is not None else 0

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables it has updated, in the order of their first update.

        Their slot variables live beside them and travel in checkpoints.
        """
        found = (reference() for reference in self._variables.values())
        return tuple(variable for variable in found if variable is not None)

    def note(self, variables: Iterable[Variable]) -> None:
        """Remember variables it updates. Strategies call this."""
        known = self._variables
        for variable in variables:
            if id(variable) not in known:
                known[id(variable)] = weakref.ref(variable, partial(_forget, known, id(variable)))

    def hyperparameters(self, iterations: Callable[[], int]) -> Mapping[str, Any] | None:
        """What differs from the rule that variables are bound to, now; None: nothing.

        Args:
            iterations: Asked if the rate is a callable.

        Raises:
            ValueError: The callable's rate is not allowed.
        """
        changes: Mapping[str, Any] = self._changes
        if self._rate is not None:
            changes = {**changes, "learning_rate": self._rate_now(iterations())}
        return changes or None

    def changed_rule(self, iterations: Callable[[], int]) -> rules.UpdateRule:
        """The rule with the hyperparameters of now."""
        if self._rate is None:
            return self.current
        return self.current.changed({"learning_rate": self._rate_now(iterations())})

    def _rate_now(self, step: int) -> float:
        rate = float(self._rate(step))
        if not 0 <= rate < float("inf"):
            raise ValueError(
                f"{type(self).__name__}: the callable for learning_rate returned {rate} at step "
                f"{step}; a rate is a finite number and at least 0"
            )
        return rate

    # -- gradients ---------------------------------------------------------------------------

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
        given = _Given(self.rule, self._changes, pairs)
        context.merge_call(self._apply_sum, (given,))

    def _apply_sum(self, strategy: Strategy, given: Any) -> None:
        extended = strategy.extended
        parts = on_every_replica(given, 1).values
        if any(part.rule is not self.rule and part.rule != self.rule for part in parts) or any(
            part.hyperparameters != self._changes for part in parts
        ):
            shown = "; ".join(
                f"replica {i}: {part.rule!r} {part.hyperparameters or ''}"
                for i, part in enumerate(parts)
            )
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
        return repr(self.current)


class SGD(Optimizer):
    """Gradient descent, with momentum."""

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        **clipping: Unpack[Clipping],
    ) -> None:
        super().__init__(
            rules.SGD,
            learning_rate=learning_rate,
            momentum=momentum,
            nesterov=nesterov,
            **clipping,
        )


class Adagrad(Optimizer):
    """Adagrad."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        **clipping: Unpack[Clipping],
    ) -> None:
        super().__init__(
            rules.Adagrad,
            learning_rate=learning_rate,
            initial_accumulator_value=initial_accumulator_value,
            epsilon=epsilon,
            **clipping,
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
        **clipping: Unpack[Clipping],
    ) -> None:
        super().__init__(
            rules.RMSprop,
            learning_rate=learning_rate,
            rho=rho,
            momentum=momentum,
            epsilon=epsilon,
            centered=centered,
            **clipping,
        )


class _AdamLike(Optimizer):
    """What Adam, Adamax and Nadam are constructed with."""

    _kind: type[rules.UpdateRule]

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **clipping: Unpack[Clipping],
    ) -> None:
        super().__init__(
            self._kind,
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            **clipping,
        )


class Adam(_AdamLike):
    """Adam."""

    _kind = rules.Adam


class Adamax(_AdamLike):
    """Adam with the maximum norm."""

    _kind = rules.Adamax


class Nadam(_AdamLike):
    """Adam with Nesterov's momentum."""

    _kind = rules.Nadam


class AdamW(Optimizer):
    """Adam with decoupled weight decay."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        weight_decay: float = 0.004,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        **clipping: Unpack[Clipping],
    ) -> None:
        super().__init__(
            rules.AdamW,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            **clipping,
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
        **clipping: Unpack[Clipping],
    ) -> None:
        super().__init__(
            rules.Ftrl,
            learning_rate=learning_rate,
            learning_rate_power=learning_rate_power,
            initial_accumulator_value=initial_accumulator_value,
            l1_regularization_strength=l1_regularization_strength,
            l2_regularization_strength=l2_regularization_strength,
            l2_shrinkage_regularization_strength=l2_shrinkage_regularization_strength,
            beta=beta,
            **clipping,
        )


class Adadelta(Optimizer):
    """Adadelta."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        **clipping: Unpack[Clipping],
    ) -> None:
        super().__init__(
            rules.Adadelta, learning_rate=learning_rate, rho=rho, epsilon=epsilon, **clipping
        )


class Lion(Optimizer):
    """Lion: the sign of an interpolated momentum."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.99,
        *,
        weight_decay: float = 0.0,
        **clipping: Unpack[Clipping],
    ) -> None:
        super().__init__(
            rules.Lion,
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            weight_decay=weight_decay,
            **clipping,
        )


class Lamb(Optimizer):
    """LAMB: Adam with a rate for each variable, for large batches."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        weight_decay: float = 0.0,
        **clipping: Unpack[Clipping],
    ) -> None:
        super().__init__(
            rules.Lamb,
            learning_rate=learning_rate,
            beta_1=beta_1,
            beta_2=beta_2,
            epsilon=epsilon,
            weight_decay=weight_decay,
            **clipping,
        )


class OwnOptimizer(Optimizer):
    """What :func:`register_rule` derives its classes from."""

    _kind: type[rules.UpdateRule]

    def __init__(self, learning_rate: Rate | None = None, **arguments: Any) -> None:
        if learning_rate is not None:
            arguments["learning_rate"] = learning_rate
        super().__init__(self._kind, **arguments)


def register_rule(
    name: str,
    update: Callable[..., Any],
    *,
    slots: Mapping[str, float] | None = None,
    learning_rate: float = 0.01,
    **hyperparameters: float,
) -> type[OwnOptimizer]:
    """Register an update rule of one's own; it runs wherever it is registered.

    ``update(w, g, slots, h)`` returns the new ``w``. ``w`` and ``g`` (after clipping) are arrays of
    one shape: a shard, or some rows of it; float32 or wider. ``slots`` has an array of that shape
    for each slot variable, to be replaced by its new one. ``h`` has ``learning_rate`` and the other
    hyperparameters as numbers, ``t`` (updates of the variable, this one included) and ``xp``, the
    array module: numpy, or cupy for a variable on a GPU. It is called for each variable for itself,
    on one core.

    On a cluster a ps process runs it: put this call into a module, which the program imports, and
    name it for the ps in ``WINDLASS_RULE_MODULES``. Code does not travel.

    Args:
        name: Of the rule; of the returned class, too.
        update: The formula.
        slots: Slot variable -> the number it starts with.
        learning_rate: The default.
        hyperparameters: Others, with their defaults.

    Returns:
        A class of optimizers: ``Mine(learning_rate=0.1, …)``.

    Raises:
        ValueError: The name stands for another rule, or is no name.
    """
    from ..engine.own_rules import register_own_rule

    kind = register_own_rule(name, update, slots or {}, learning_rate, hyperparameters)

    return type(name, (OwnOptimizer,), {"_kind": kind, "__doc__": update.__doc__})


def _forget(known: dict[int, Any], key: int, reference: Any) -> None:  # noqa: ARG001
    known.pop(key, None)


def _is_schedule(rate: Any) -> bool:
    return type(rate).__module__ == CosineDecay.__module__


def _of_step(rate: Callable[..., Any]) -> Callable[[int], Any]:
    """A callable of the step, for one that takes it and for one that takes nothing."""
    try:
        inspect.signature(rate).bind(0)
    except TypeError:
        return lambda _: rate()
    except ValueError:  # it does not say: a builtin
        pass
    return rate


def _number(value: Any) -> Any:
    """NumPy's scalars, and tensors of one element, as Python numbers."""
    if isinstance(value, bool | int | float | str) or value is None or not hasattr(value, "dtype"):
        return value
    return as_array(value).item()


def _to_send(bound: rules.UpdateRule, changed: rules.UpdateRule) -> dict[str, Any]:
    """The fields in which two rules differ, as they travel; norms are the worker's own matter."""
    fields = changed.model_dump(mode="json", exclude={"clipnorm", "global_clipnorm"})
    return {
        name: value
        for name, value in fields.items()
        if getattr(bound, name) != getattr(changed, name)
    }


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
