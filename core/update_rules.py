"""Update rules as data: what a worker chooses and a ps runs.

A rule says its name, its hyperparameters and its slot variables. The kernels that carry it out are
in ``engine/kernels.py``. Formulas, names and defaults are those of Keras 3 unless a docstring says
otherwise; where Keras, optax and PyTorch differ it says how.

Below, ``g`` is the gradient (after clipping), ``w`` the variable, ``t`` the number of times the
rule was applied to this variable, this time included, ``lr`` the rate at the ps's global step.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .schedules import Schedule


class _Rule(BaseModel):
    """What all rules have.

    Attributes:
        learning_rate: A number, or a schedule of the ps's global step.
        clipvalue: Clip every element of ``g`` to ``[-clipvalue, clipvalue]``; None: do not.
        global_clipnorm: Scale all gradients of a step so that their joint norm is at most this;
            None: do not. Computed by the worker, which alone sees all of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Slot name -> value it starts with, as a field of the rule or a number.
    slots: ClassVar[dict[str, str | float]] = {}

    learning_rate: float | Schedule
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


class SGD(_Rule):
    """``w -= lr * g``; with momentum ``m = momentum * m - lr * g; w += m``.

    Nesterov: ``w += momentum * m - lr * g``. As Keras. PyTorch and optax keep the velocity without
    the rate, which differs once the rate changes. Sutskever et al., ICML 2013.
    """

    slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0}

    name: Literal["SGD"] = "SGD"
    learning_rate: float | Schedule = 0.01
    momentum: float = Field(default=0.0, ge=0, le=1)
    nesterov: bool = False

    def active_slots(self) -> dict[str, str | float]:
        """Momentum needs its slot only if there is some."""
        return self.slots if self.momentum else {}


class Adagrad(_Rule):
    """``a += g²; w -= lr * g / sqrt(a + epsilon)``. Duchi et al., JMLR 2011.

    As Keras and optax' ``scale_by_rss`` but for where epsilon stands; PyTorch adds it outside the
    root.
    """

    slots: ClassVar[dict[str, str | float]] = {"accumulator": "initial_accumulator_value"}

    name: Literal["Adagrad"] = "Adagrad"
    learning_rate: float | Schedule = 0.001
    initial_accumulator_value: float = Field(default=0.1, ge=0)
    epsilon: float = Field(default=1e-7, ge=0)


class RMSprop(_Rule):
    """``v = rho*v + (1-rho)*g²; w -= lr * g / sqrt(v + epsilon)``, optionally centred, with
    momentum.

    Centred: ``a = rho*a + (1-rho)*g`` and ``v - a²`` in the root. With momentum
    ``m = momentum*m + lr*g/sqrt(…); w -= m``. As Keras. Tieleman and Hinton, 2012.
    """

    slots: ClassVar[dict[str, str | float]] = {
        "velocity": 0.0, "momentum": 0.0, "average_gradient": 0.0,
    }  # fmt: skip

    name: Literal["RMSprop"] = "RMSprop"
    learning_rate: float | Schedule = 0.001
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


class Adam(_Rule):
    """``m = b1*m + (1-b1)*g; v = b2*v + (1-b2)*g²; w -= a * m / (sqrt(v) + epsilon)``.

    ``a = lr * sqrt(1 - b2^t) / (1 - b1^t)``, as Keras: epsilon is added to the root of the
    uncorrected ``v``; optax and PyTorch add it after the correction. Kingma and Ba, ICLR 2015.
    Sparse gradients touch only their rows ("lazy"); ``t`` still counts steps of the variable.
    """

    slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0, "velocity": 0.0}

    name: Literal["Adam"] = "Adam"
    learning_rate: float | Schedule = 0.001
    beta_1: float = Field(default=0.9, ge=0, lt=1)
    beta_2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-7, ge=0)


class AdamW(_Rule):
    """Adam with decoupled decay: first ``w -= lr * weight_decay * w``, then Adam's step.

    Loshchilov and Hutter, ICLR 2019. As Keras.
    """

    slots: ClassVar[dict[str, str | float]] = {"momentum": 0.0, "velocity": 0.0}

    name: Literal["AdamW"] = "AdamW"
    learning_rate: float | Schedule = 0.001
    weight_decay: float = Field(default=0.004, ge=0)
    beta_1: float = Field(default=0.9, ge=0, lt=1)
    beta_2: float = Field(default=0.999, ge=0, lt=1)
    epsilon: float = Field(default=1e-7, ge=0)


class Ftrl(_Rule):
    """Follow the regularized leader, proximal: McMahan et al., "Ad Click Prediction", KDD 2013.

    ``n' = n + g²; s = (n'^-p - n^-p) / lr; z += g - s*w`` with ``p = learning_rate_power``; ``w =
    (clip(z, -l1, l1) - z) / (n'^-p / lr + 2*(l2 + beta/(2*lr)))``. As Keras; ``g`` in ``z`` carries
    ``2 * l2_shrinkage * w``.
    """

    slots: ClassVar[dict[str, str | float]] = {
        "accumulator": "initial_accumulator_value", "linear": 0.0,
    }  # fmt: skip

    name: Literal["Ftrl"] = "Ftrl"
    learning_rate: float | Schedule = 0.001
    learning_rate_power: float = Field(default=-0.5, le=0)
    initial_accumulator_value: float = Field(default=0.1, ge=0)
    l1_regularization_strength: float = Field(default=0.0, ge=0)
    l2_regularization_strength: float = Field(default=0.0, ge=0)
    l2_shrinkage_regularization_strength: float = Field(default=0.0, ge=0)
    beta: float = Field(default=0.0, ge=0)


UpdateRule = SGD | Adagrad | RMSprop | Adam | AdamW | Ftrl

_ADAPTER: TypeAdapter[UpdateRule] = TypeAdapter(Annotated[UpdateRule, Field(discriminator="name")])


def rule_from_dict(fields: dict[str, Any]) -> UpdateRule:
    """The rule whose ``model_dump`` this is.

    Raises:
        pydantic.ValidationError: No rule has these fields.
    """
    return _ADAPTER.validate_python(fields)
