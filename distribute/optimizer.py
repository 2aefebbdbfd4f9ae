"""The base of optimizers: hyperparameters that can be assigned, and gradients to their rule.

A variable is bound to the rule that its optimizer was constructed with. What is assigned later, and
what a callable returns, travels with each push: it counts for the pushes of this worker, in their
order, and for nobody else's.
"""

import inspect
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import numpy as np

from ..core.arrays.any_framework import as_array
from ..core.arrays.indexed_slices import IndexedSlices
from ..core.rules import update_rules as rules
from ..core.rules.schedules import Schedule, ServerSchedule
from .base.contexts import get_replica_context, get_strategy, require_own
from .base.reductions import ReduceOp
from .base.values import DistributedValues, PerReplica, on_every_replica
from .strategies.strategy import Strategy
from .variables.variable import Variable


class CountNow(int):
    """A count as of now, with ``numpy`` and ``read_value``."""

    def numpy(self) -> Any:
        """Read the number, as int64."""
        return np.int64(self)

    def read_value(self) -> Self:
        """Return the number."""
        return self

    value = read_value


class RateNow(float):
    """A learning rate as of now, with ``assign``, ``numpy`` and ``read_value``."""

    _assign: Callable[[Any], None]

    @classmethod
    def of(cls, rate: float, assign: Callable[[Any], None]) -> Self:
        """Make a rate.

        Args:
            rate: The number.
            assign: Sets the rate that counts from then on.
        """
        number = cls(rate)
        number._assign = assign
        return number

    def assign(self, rate: Any) -> None:
        """Set the optimizer's rate; this number stays as it is."""
        self._assign(rate)

    def numpy(self) -> Any:
        """Read the number, as float64."""
        return np.float64(self)

    def read_value(self) -> Self:
        """Return the number."""
        return self

    value = read_value

    def __reduce__(self) -> tuple[type[float], tuple[float]]:
        return float, (float(self),)


Rate = float | Schedule | Callable[..., Any]
"""A number, one of our schedules (evaluated by the ps), or a callable (evaluated by the worker)."""


@dataclass(frozen=True, slots=True)
class _Given:
    """The gradients of one replica, wrapped so that they are not taken apart as a structure."""

    rule: rules.UpdateRule
    hyperparameters: Mapping[str, Any] | None
    pairs: list[tuple[Any, Variable]]


class Optimizer:
    """An update rule, and the way gradients get to it.

    Its hyperparameters are attributes. Assigning one counts from the next ``apply_gradients`` on.

    Args:
        rule: Rule that variables are bound to; or its class, and ``arguments`` for it.
        arguments: Fields of the rule. ``learning_rate`` may be a callable: of the step
            (``iterations``), as schedules of Keras and optax are, or of nothing.

    Attributes:
        rule: Rule that variables are bound to.
        current: Rule with what was assigned since.

    Raises:
        ValueError: An argument is not allowed; says what is.
        TypeError: An argument is text, or a bool, where a number belongs.
    """

    rule: rules.UpdateRule
    current: rules.UpdateRule

    def __init__(
        self, rule: rules.UpdateRule | type[rules.UpdateRule], /, **arguments: Any
    ) -> None:
        own: dict[str, Any] = {}
        if isinstance(rule, type):
            own["_name"] = arguments.pop("name", None)
            arguments = _offered(rule, arguments)
            rate = arguments.get("learning_rate")
            if callable(rate) and not isinstance(rate, ServerSchedule):
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

    def _begin(self, rule: type[rules.UpdateRule], given: Mapping[str, Any]) -> None:
        """Make the rule of what a constructor was given, whose arguments are the rule's fields.

        Args:
            rule: Class of the rule.
            given: The ``locals()`` of the constructor; ``clipping`` has further fields, by name.
        """
        own = {name: value for name, value in given.items() if name not in ("self", "clipping")}
        Optimizer.__init__(self, rule, **own, **given.get("clipping", {}))

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
            if callable(value) and not isinstance(value, ServerSchedule):
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
        if name in _ELSEWHERE:
            return f"{kind} has no {name!r}: {_ELSEWHERE[name]}"
        return f"{kind} has no attribute {name!r}; its hyperparameters are {', '.join(fields)}"

    @property
    def learning_rate(self) -> RateNow:
        """The rate as of now: of ``iterations``, if it follows the step. Can be assigned."""
        step = self.iterations
        rate = self.current.rate(step) if self._rate is None else self._rate_now(step)
        return RateNow.of(rate, partial(self._assign, "learning_rate"))

    @learning_rate.setter
    def learning_rate(self, rate: Rate) -> None:
        self._assign("learning_rate", rate)

    @property
    def iterations(self) -> CountNow:
        """Number of updates of the variables; the global step with parameter servers."""
        variables = self.variables
        if variables:
            return CountNow(variables[0].strategy.extended.iterations(variables))
        owner = self._owner() if self._owner is not None else None
        return CountNow(owner.global_step) if owner is not None else CountNow(0)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables it has updated, in the order of their first update.

        Their slot variables live beside them and travel in checkpoints.
        """
        alive = (reference() for reference in self._variables.values())
        return tuple(variable for variable in alive if variable is not None)

    @property
    def name(self) -> str:
        """Name that it was given, or that of its class."""
        return self.__dict__.get("_name") or type(self).__name__

    def get_config(self) -> dict[str, Any]:
        """Return the hyperparameters of now, and the name; a schedule is its own configuration."""
        config = self.current.model_dump() | {"name": self.name}
        return config if self._rate is None else config | {"learning_rate": self._rate}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make an optimizer with the hyperparameters that :meth:`get_config` returned."""
        return cls(**config)  # type: ignore[call-arg]  # of a subclass, which names its rule

    def build(self, variables: Iterable[Variable]) -> None:
        """Remember variables. Their slot variables are made with their first update."""
        self.note(variables)

    def note(self, variables: Iterable[Variable]) -> None:
        """Remember variables it updates. Strategies call this."""
        references = self._variables
        for variable in variables:
            if id(variable) not in references:
                references[id(variable)] = weakref.ref(
                    variable, partial(_forget, references, id(variable))
                )

    def hyperparameters(self, iterations: Callable[[], int]) -> Mapping[str, Any] | None:
        """Collect what differs from the rule that variables are bound to, now; None: nothing.

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
        """Make the rule with the hyperparameters of now."""
        if self._rate is None:
            return self.current
        return self.current.changed({"learning_rate": self._rate_now(iterations())})

    def _rate_now(self, step: int) -> float:
        returned = self._rate(step)
        if isinstance(returned, str | bool):
            raise TypeError(
                f"{type(self).__name__}: the callable for learning_rate returned {returned!r}, a "
                f"{type(returned).__name__}, at step {step}; let it return a number"
            )
        rate = float(returned)
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
            TypeError: Something else than pairs of a gradient and a variable.
            RuntimeError: The variables belong to another strategy than the one that runs.
        """
        pairs = _gradients_of(grads_and_vars)
        owner = pairs[0][1].strategy
        require_own(owner, repr(pairs[0][1].name))
        context = get_replica_context()
        if (
            context is None
            or context.strategy is not owner
            or owner.extended.num_replicas_in_sync == 1
        ):
            owner.extended.apply_gradients(self, [(_summed(g, v), v) for g, v in pairs])
            return
        gradients = _Given(self.rule, self._changes, pairs)
        context.merge_call(self._apply_sum, (gradients,))

    def apply(self, grads: Iterable[Any], trainable_variables: Iterable[Variable] = ()) -> None:
        """Apply gradients to their variables as :meth:`apply_gradients` does, with Keras 3's
        arguments.

        Args:
            grads: An array or IndexedSlices for each variable; None leaves one out.
            trainable_variables: The variables; none: those of :meth:`build`.
        """
        variables = tuple(trainable_variables) or self.variables
        self.apply_gradients(zip(grads, variables, strict=True))

    def _apply_sum(self, strategy: Strategy, replica_gradients: Any) -> None:
        extended = strategy.extended
        parts = on_every_replica(replica_gradients, 1).values
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
        return repr(self.changed_rule(lambda: self.iterations))


_AVERAGES = "keep averages in variables that are not trainable: docs/training.md"
_ELSEWHERE = {
    "amsgrad": "use optax or PyTorch with it, whose updates travel: docs/bridges.md",
    "decay": "give a schedule as learning_rate, for example rw.optimizers.InverseTimeDecay",
    "gradient_accumulation_steps": "add the gradients of several batches up before apply_gradients",
    "loss_scale_factor": "divide the gradients by the factor before apply_gradients",
    "minimize": "compute gradients yourself (JAX, PyTorch, by hand), then apply_gradients",
    "compute_gradients": "compute gradients yourself (JAX, PyTorch, by hand)",
    "get_weights": "slots are kept and saved with the variables: docs/checkpoints.md",
    "set_weights": "slots are kept and saved with the variables: docs/checkpoints.md",
    "use_ema": _AVERAGES,
    "weight_decay": "use AdamW, Lion or Lamb, which have one, or add it to the gradients",
}
"""Arguments of Keras' optimizers that these do not have: what to write instead."""
_WITH_USE_EMA = {"ema_momentum", "ema_overwrite_frequency"}


def _offered(rule: type[rules.UpdateRule], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Drop what Keras' optimizers take beside from the arguments, where that is switched off.

    Raises:
        ValueError: One is switched on; says what to write instead.
    """
    beside = arguments.keys() & (_ELSEWHERE.keys() | _WITH_USE_EMA) - rule.model_fields.keys()
    for name in sorted(beside - _WITH_USE_EMA):
        if arguments[name] not in (None, False):
            raise ValueError(f"{rule.__name__} has no argument {name!r}: {_ELSEWHERE[name]}")
    return {name: value for name, value in arguments.items() if name not in beside}


def _forget(references: dict[int, Any], key: int, reference: Any) -> None:  # noqa: ARG001
    references.pop(key, None)


def _of_step(rate: Callable[..., Any]) -> Callable[[int], Any]:
    """Make a callable of the step, for one that takes it and for one that takes nothing."""
    try:
        inspect.signature(rate).bind(0)
    except TypeError:
        return lambda _: rate()
    except ValueError:  # it does not say: a builtin
        pass
    return rate


def _number(value: Any) -> Any:
    """Convert NumPy's scalars, and tensors of one element, to Python numbers."""
    if isinstance(value, bool | int | float | str) or value is None or not hasattr(value, "dtype"):
        return value
    return as_array(value).item()


def _to_send(bound: rules.UpdateRule, changed: rules.UpdateRule) -> dict[str, Any]:
    """Find the fields in which two rules differ, as they travel; norms are the worker's own
    matter.
    """
    fields = changed.model_dump(mode="json", exclude={"clipnorm", "global_clipnorm"})
    return {
        name: value
        for name, value in fields.items()
        if getattr(bound, name) != getattr(changed, name)
    }


def _summed(gradient: Any, variable: Variable) -> Any:
    """Sum a gradient per replica, outside of ``run``, as it is summed there."""
    if not isinstance(gradient, PerReplica):
        return gradient
    return variable.strategy.extended.reduce_to(ReduceOp.SUM, gradient, variable)


def _gradients_of(pairs: Iterable[Any]) -> list[tuple[Any, Variable]]:
    kept: list[tuple[Any, Variable]] = []
    for pair in pairs:
        if not (
            isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[1], Variable)
        ):
            kinds = ", ".join(type(item).__name__ for item in pair) if type(pair) is tuple else ""
            raise TypeError(
                "apply_gradients takes pairs of a gradient and its variable, in this order; got "
                + (f"({kinds})" if kinds else type(pair).__name__)
            )
        gradient, variable = pair
        if gradient is None:
            continue
        distributed = isinstance(gradient, IndexedSlices | DistributedValues)
        whole = gradient if distributed else as_array(gradient)
        kept.append((whole, variable))
    if not kept:
        raise ValueError("No gradients provided for any variable.")
    return kept
