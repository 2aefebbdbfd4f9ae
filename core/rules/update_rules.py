"""Update rules as data: what a worker chooses and a ps runs.

A rule says its name, its hyperparameters and its slot variables; ``engine/rules.py`` says what
carries it out. Formulas, names and defaults are those of Keras 3 unless a docstring says otherwise;
where Keras, optax and PyTorch differ it says how.

A rule is bound to a variable for good, and so are its slots. The hyperparameters of a single push
may be others (:meth:`UpdateRule.changed`).

Below, ``g`` is the gradient (after clipping), ``w`` the variable, ``t`` the number of times the
rule was applied to this variable, this time included, ``lr`` the rate at the ps's global step.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..argument_errors import argument_error, check_types
from .schedules import Schedule

Rate = Annotated[float, Field(ge=0)] | Schedule
_R = TypeVar("_R", bound="UpdateRule")


class UpdateRule(BaseModel):
    """The fields that all rules have.

    Attributes:
        name: Name of the class.
        learning_rate: A number, or a schedule of the ps's global step.
        clipnorm: Scale the gradient of a variable so that its norm is at most this; None: do not.
            Done by the worker, which alone sees all of it.
        clipvalue: Clip every element of ``g`` to ``[-clipvalue, clipvalue]``; None: do not.
        global_clipnorm: Scale all gradients of a step so that their joint norm is at most this;
            None: do not. Computed by the worker, which alone sees all of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Slot name -> value it starts with, as a field of the rule or a number.
    slots: ClassVar[dict[str, str | float]] = {}

    name: str
    learning_rate: Rate
    clipnorm: float | None = Field(default=None, gt=0)
    clipvalue: float | None = Field(default=None, gt=0)
    global_clipnorm: float | None = Field(default=None, gt=0)

    def rate(self, step: int) -> float:
        """The learning rate at global step ``step``."""
        rate = self.learning_rate
        return rate if isinstance(rate, float) else rate(step)

    def slot_start(self) -> dict[str, float]:
        """Slot name -> the number its elements start with."""
        return {
            slot: getattr(self, start) if isinstance(start, str) else start
            for slot, start in self.active_slots().items()
        }

    def active_slots(self) -> dict[str, str | float]:
        """The slots these hyperparameters need."""
        return self.slots

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """This rule with other values of some hyperparameters, for some of its updates.

        Raises:
            ValueError: There is no such hyperparameter, its value is not allowed, or the slots that
                were made when the rule was bound depend on it.
        """
        starts = {start for start in self.slots.values() if isinstance(start, str)}
        for name in changes:
            if name == "name" or name not in type(self).model_fields:
                raise ValueError(f"{self.name} has no hyperparameter {name!r}")
            if name in starts and changes[name] != getattr(self, name):
                raise ValueError(
                    f"{self.name}.{name} says how slot variables begin; it is given to the "
                    "constructor and does not change"
                )
        rule = make_rule(type(self), dict(self) | dict(changes))
        if rule.active_slots().keys() != self.active_slots().keys():
            shown = ", ".join(f"{name}={value!r}" for name, value in changes.items())
            raise ValueError(
                f"{self.name} with {shown} needs other slot variables than it began with; "
                "construct it with a value that needs the same ones"
            )
        return rule


def make_rule(kind: type[_R], fields: Mapping[str, Any]) -> _R:
    """A rule of these fields.

    Raises:
        ValueError: One is not allowed; says which, and what is. It is a TypeError, too, if it is of
            a type that is not allowed, as text.
    """
    check_types(kind, fields, {"learning_rate": ", a schedule or a callable"})
    try:
        return kind.model_validate(dict(fields))
    except ValidationError as error:
        also = {"learning_rate": ", or be a schedule or a callable"}
        raise argument_error(kind, fields, error, also) from None


class SGD(UpdateRule):
    """``w -= lr * g``; with momentum ``m = momentum * m - lr * g; w += m``.

    Nesterov: ``w += momentum * m - lr * g``. As Keras. PyTorch and optax keep the velocity without
    the rate, which differs once the rate changes; so does this rule with
    ``rate_in_velocity=False``: ``m = momentum * m - g; w += lr * m`` (Nesterov: ``w += lr *
    (momentum * m - g)``). Sutskever et al., ICML 2013.
    """

    slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0}

    name: Literal["SGD"] = "SGD"
    learning_rate: Rate = 0.01
    momentum: float = Field(default=0.0, ge=0, le=1)
    nesterov: bool = False
    rate_in_velocity: bool = True

    def active_slots(self) -> dict[str, str | float]:
        """Momentum needs its slot only if there is some."""
        return self.slots if self.momentum else {}


class Adagrad(UpdateRule):
    """``a += g²; w -= lr * g / sqrt(a + epsilon)``. Duchi et al., JMLR 2011.

    As Keras and optax' ``scale_by_rss`` but for where epsilon stands; PyTorch adds it outside the
    root.
    """

    slots: ClassVar[dict[str, str | float]] = {"accumulator": "initial_accumulator_value"}

    name: Literal["Adagrad"] = "Adagrad"
    learning_rate: Rate = 0.001
    initial_accumulator_value: float = Field(default=0.1, ge=0)
    epsilon: float = Field(default=1e-7, ge=0)


class RMSprop(UpdateRule):
    """``v = rho*v + (1-rho)*g²; w -= lr * g / sqrt(v + epsilon)``, optionally centred, with
    momentum.

    Centred: ``a = rho*a + (1-rho)*g`` and ``v - a²`` in the root. With momentum
    ``m = momentum*m + lr*g/sqrt(…); w -= m``. As Keras. Tieleman and Hinton, 2012.
    """

    slots: ClassVar[dict[str, str | float]] = {
        "velocity": 0.0, "momentum": 0.0, "average_gradient": 0.0,
    }  # fmt: skip

    name: Literal["RMSprop"] = "RMSprop"
    learning_rate: Rate = 0.001
    rho: float = Field(default=0.9, ge=0, le=1)
    momentum: float = Field(default=0.0, ge=0, le=1)
    epsilon: float = Field(default=1e-7, ge=0)
    centered: bool = False

    def active_slots(self) -> dict[str, str | float]:
        """The velocity, and what momentum and centring need."""
        wanted = {
            "velocity": True,
            "momentum": self.momentum > 0,
            "average_gradient": self.centered,
        }
        return {slot: start for slot, start in self.slots.items() if wanted[slot]}


class _AdamLike(UpdateRule):
    slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0, "velocity": 0.0}

    learning_rate: Rate = 0.001
    beta_1: float = Field(default=0.9, ge=0, lt=1)
    beta_2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-7, ge=0)


class Adam(_AdamLike):
    """``m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g²; w -= a * m / (sqrt(v) + epsilon)``.

    ``a = lr * sqrt(1 - b2^t) / (1 - b1^t)``, as Keras: epsilon is added to the root of the
    uncorrected ``v``; optax and PyTorch add it after the correction, as this rule does with
    ``corrected_epsilon=True``: then it stands for ``epsilon * sqrt(1 - b2^t)``. Kingma and Ba, ICLR
    2015. Sparse gradients touch only their rows ("lazy"); ``t`` still counts steps of the variable.

    With ``float32_correction=True`` ``1 - b^t`` is computed in float32, as optax does: for ``b2 =
    0.999`` that differs by 2e-5 in the first steps.
    """

    name: Literal["Adam"] = "Adam"
    corrected_epsilon: bool = False
    float32_correction: bool = False


class AdamW(UpdateRule):
    """Adam with decoupled decay: first ``w -= lr * weight_decay * w``, then Adam's step.

    Loshchilov and Hutter, ICLR 2019. As Keras; ``corrected_epsilon`` and ``float32_correction`` as
    Adam's.
    """

    slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0, "velocity": 0.0}

    name: Literal["AdamW"] = "AdamW"
    learning_rate: Rate = 0.001
    weight_decay: float = Field(default=0.004, ge=0)
    beta_1: float = Field(default=0.9, ge=0, lt=1)
    beta_2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-7, ge=0)
    corrected_epsilon: bool = False
    float32_correction: bool = False


class Ftrl(UpdateRule):
    """Follow the regularized leader, proximal: McMahan et al., "Ad Click Prediction", KDD 2013.

    ``n' = n + g²; s = (n'^-p - n^-p) / lr; z += g - s*w`` with ``p = learning_rate_power``; ``w =
    (clip(z, -l1, l1) - z) / (n'^-p / lr + 2*(l2 + beta/(2*lr)))``. As Keras; ``g`` in ``z`` carries
    ``2 * l2_shrinkage * w``.
    """

    slots: ClassVar[dict[str, str | float]] = {
        "accumulator": "initial_accumulator_value", "linear": 0.0,
    }  # fmt: skip

    name: Literal["Ftrl"] = "Ftrl"
    learning_rate: Rate = 0.001
    learning_rate_power: float = Field(default=-0.5, le=0)
    initial_accumulator_value: float = Field(default=0.1, ge=0)
    l1_regularization_strength: float = Field(default=0.0, ge=0)
    l2_regularization_strength: float = Field(default=0.0, ge=0)
    l2_shrinkage_regularization_strength: float = Field(default=0.0, ge=0)
    beta: float = Field(default=0.0, ge=0)


class Adamax(_AdamLike):
    """``m = b1*m + (1-b1)*g; u = max(b2*u, |g|); w -= lr * m / ((1 - b1^t) * (u + epsilon))``.

    As Keras; optax and PyTorch add epsilon to ``|g|`` before the maximum. Kingma and Ba, ICLR 2015,
    section 7.1.
    """

    slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0, "norm": 0.0}

    name: Literal["Adamax"] = "Adamax"


class Nadam(_AdamLike):
    """Adam with Nesterov's momentum; ``m`` and ``v`` as Adam's, and a momentum that warms up.

    ``u_t = b1 * (1 - 0.96^t / 2)``, ``U_t = u_1 * … * u_t``; ``w -= lr * (u_{t+1} * m / (1 -
    U_{t+1}) + (1 - u_t) * g / (1 - U_t)) / (sqrt(v / (1 - b2^t)) + epsilon)``. As Keras and
    PyTorch; optax leaves the warm-up out. Dozat, "Incorporating Nesterov Momentum into Adam", 2016.
    """

    name: Literal["Nadam"] = "Nadam"


class Adadelta(UpdateRule):
    """``a = rho*a + (1-rho)*g²; d = g * sqrt(s + epsilon) / sqrt(a + epsilon); w -= lr * d``.

    Then ``s = rho*s + (1-rho)*d²``. As Keras, optax and PyTorch. Zeiler, arXiv:1212.5701, whose
    rate is 1.
    """

    slots: ClassVar[dict[str, str | float]] = {
        "accumulated_gradient": 0.0, "accumulated_delta": 0.0,
    }  # fmt: skip

    name: Literal["Adadelta"] = "Adadelta"
    learning_rate: Rate = 0.001
    rho: float = Field(default=0.95, ge=0, le=1)
    epsilon: float = Field(default=1e-7, ge=0)


class Lion(UpdateRule):
    """``w -= lr * weight_decay * w; w -= lr * sign(b1*m + (1-b1)*g); m = b2*m + (1-b2)*g``.

    As Keras and optax. Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023.
    """

    slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0}

    name: Literal["Lion"] = "Lion"
    learning_rate: Rate = 0.001
    beta_1: float = Field(default=0.9, ge=0, le=1)
    beta_2: float = Field(default=0.99, ge=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)


class Lamb(_AdamLike):
    """LAMB: Adam's step with a rate for each variable: its norm over that of the step.

    ``d = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + epsilon) + weight_decay * w``, ``w -= lr * |w| /
    |d| * d``; a norm of zero makes the ratio 1. As the paper and optax; Keras without the decay. Of
    a variable that is cut into shards each shard has a ratio of its own, and of a sparse gradient
    the norms are those of its rows. You et al., "Large Batch Optimization for Deep Learning", ICLR
    2020.
    """

    name: Literal["Lamb"] = "Lamb"
    weight_decay: float = Field(default=0.0, ge=0)


BUILT_IN: tuple[type[UpdateRule], ...] = (
    SGD, Adagrad, RMSprop, Adam, AdamW, Ftrl, Adamax, Nadam, Adadelta, Lion, Lamb,
)  # fmt: skip

_known: dict[str, type[UpdateRule]] = {kind.__name__: kind for kind in BUILT_IN}


def add_rule(kind: type[UpdateRule]) -> None:
    """Make a program's own rule known by its name."""
    _known[kind.__name__] = kind


def rule_from_dict(fields: Mapping[str, Any]) -> UpdateRule:
    """The rule whose ``model_dump`` this is.

    Raises:
        ValueError: This process knows no such rule, or it has other fields.
    """
    kind = _known.get(fields.get("name", ""))
    if kind is None:
        raise ValueError(
            f"this process knows no update rule {fields.get('name')!r}, only {', '.join(_known)}; "
            "a rule of a program's own is registered in a module that the ps imports too, named by "
            "WINDLASS_RULE_MODULES"
        )
    return make_rule(kind, fields)
