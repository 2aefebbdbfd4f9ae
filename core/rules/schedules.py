"""Learning-rate schedules: data, evaluated on the ps from its own global step.

A schedule travels as its fields and means the same on every ps; a worker with an old step cannot
apply an old rate. Names, arguments and formulas are Keras' (``keras.optimizers.schedules``).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ..arguments import argument_error, check_types
from ..terminal import counted


class LearningRateSchedule(ABC):
    """A rate of the program's own: a class whose call with the step returns it.

    As ``keras.optimizers.schedules.LearningRateSchedule``; a plain function does as well. The
    worker evaluates it, not the ps.
    """

    @abstractmethod
    def __call__(self, step: int) -> float:
        """Compute the rate at ``step`` updates of the model."""


@LearningRateSchedule.register
class ServerSchedule(BaseModel):
    """A schedule that the ps evaluates: a call with the global step gives the rate.

    Arguments by position stand in Keras' order. A ``name`` of the program's own is left out: the
    field says which schedule it is.

    Raises:
        ValueError: An argument is missing, unknown or not allowed; says which.
        TypeError: There are too many, one is given twice, or one is text where a number belongs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    # Keras' order, where it is another one than that of the fields.
    positional: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: Any, **fields: Any) -> None:
        kind = type(self).__name__
        names = self.positional or (*(f for f in type(self).model_fields if f != "name"), "name")
        if len(args) > len(names):
            raise TypeError(
                f"{kind} takes {', '.join(names)}, got {counted(len(args), 'argument')}"
            )
        merged = dict(zip(names, args, strict=False))
        if twice := merged.keys() & fields.keys():
            raise TypeError(f"{kind} got {', '.join(sorted(twice))} twice")
        merged |= fields
        check_types(type(self), merged)
        try:
            super().__init__(**merged | {"name": kind})
        except ValidationError as error:
            raise argument_error(type(self), merged, error) from None

    def get_config(self) -> dict[str, Any]:
        """Return the schedule's arguments, by name."""
        return self.model_dump()


class _DecayOverTime(ServerSchedule):
    """The part that exponential decay and that by inverse time share: arguments, and how they count
    time.
    """

    name: str
    initial_learning_rate: float
    decay_steps: float = Field(gt=0)
    decay_rate: float
    staircase: bool = False

    if TYPE_CHECKING:  # type checkers make one of the fields of every class that has none itself

        def __init__(
            self,
            initial_learning_rate: float,
            decay_steps: float,
            decay_rate: float,
            staircase: bool = False,
            name: str = "",
        ) -> None: ...

    def _time(self, step: int) -> float:
        time = step / self.decay_steps
        return math.floor(time) if self.staircase else time


class ExponentialDecay(_DecayOverTime):
    """``initial * decay_rate ** (step / decay_steps)``; ``staircase`` floors the exponent."""

    name: Literal["ExponentialDecay"] = "ExponentialDecay"
    decay_rate: float = Field(gt=0)

    if TYPE_CHECKING:
        __init__ = _DecayOverTime.__init__

    def __call__(self, step: int) -> float:
        """Compute the rate at ``step`` updates of the model."""
        return self.initial_learning_rate * math.pow(self.decay_rate, self._time(step))


class InverseTimeDecay(_DecayOverTime):
    """``initial / (1 + decay_rate * step / decay_steps)``; ``staircase`` floors the quotient."""

    name: Literal["InverseTimeDecay"] = "InverseTimeDecay"

    if TYPE_CHECKING:
        __init__ = _DecayOverTime.__init__

    def __call__(self, step: int) -> float:
        """Compute the rate at ``step`` updates of the model."""
        return self.initial_learning_rate / (1 + self.decay_rate * self._time(step))


class PolynomialDecay(ServerSchedule):
    """``(initial - end) * (1 - step/decay_steps) ** power + end``, held or cycled at the end."""

    name: Literal["PolynomialDecay"] = "PolynomialDecay"
    initial_learning_rate: float
    decay_steps: float = Field(gt=0)
    end_learning_rate: float = 0.0001
    power: float = 1.0
    cycle: bool = False

    if TYPE_CHECKING:

        def __init__(
            self,
            initial_learning_rate: float,
            decay_steps: float,
            end_learning_rate: float = 0.0001,
            power: float = 1.0,
            cycle: bool = False,
            name: str = "",
        ) -> None: ...

    def __call__(self, step: int) -> float:
        """Compute the rate at ``step`` updates of the model."""
        span = self.decay_steps
        if self.cycle:
            span *= max(1.0, math.ceil(step / span))
        done = min(step, span) / span
        start, end = self.initial_learning_rate, self.end_learning_rate
        return (start - end) * math.pow(1 - done, self.power) + end


class CosineDecay(ServerSchedule):
    """Half a cosine from ``initial`` to ``alpha * initial``, after an optional linear warm-up.

    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.
    """

    positional: ClassVar[tuple[str, ...]] = (
        "initial_learning_rate", "decay_steps", "alpha", "name", "warmup_target", "warmup_steps",
    )  # fmt: skip

    name: Literal["CosineDecay"] = "CosineDecay"
    initial_learning_rate: float
    decay_steps: float = Field(gt=0)
    alpha: float = 0.0
    warmup_target: float | None = None
    warmup_steps: float = Field(default=0, ge=0)

    if TYPE_CHECKING:

        def __init__(
            self,
            initial_learning_rate: float,
            decay_steps: float,
            alpha: float = 0.0,
            name: str = "",
            warmup_target: float | None = None,
            warmup_steps: float = 0,
        ) -> None: ...

    def __call__(self, step: int) -> float:
        """Compute the rate at ``step`` updates of the model."""
        start = self.initial_learning_rate
        done = float(step)
        if self.warmup_target is not None:
            if step < self.warmup_steps:
                return start + (self.warmup_target - start) * step / self.warmup_steps
            start = self.warmup_target
            done = step - self.warmup_steps
        cosine = 0.5 * (1 + math.cos(math.pi * min(done, self.decay_steps) / self.decay_steps))
        return start * ((1 - self.alpha) * cosine + self.alpha)


class CosineDecayRestarts(ServerSchedule):
    """Half cosines one after another, each ``t_mul`` times as long and ``m_mul`` times as high.

    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.
    """

    positional: ClassVar[tuple[str, ...]] = (
        "initial_learning_rate", "first_decay_steps", "t_mul", "m_mul", "alpha", "name",
    )  # fmt: skip

    name: Literal["CosineDecayRestarts"] = "CosineDecayRestarts"
    initial_learning_rate: float
    first_decay_steps: float = Field(gt=0)
    t_mul: float = Field(default=2.0, ge=1)
    m_mul: float = 1.0
    alpha: float = 0.0

    if TYPE_CHECKING:

        def __init__(
            self,
            initial_learning_rate: float,
            first_decay_steps: float,
            t_mul: float = 2.0,
            m_mul: float = 1.0,
            alpha: float = 0.0,
            name: str = "",
        ) -> None: ...

    def __call__(self, step: int) -> float:
        """Compute the rate at ``step`` updates of the model."""
        done, period = step / self.first_decay_steps, 0
        if self.t_mul == 1:
            period, done = int(done), done % 1
        else:
            period = int(math.log(1 - done * (1 - self.t_mul)) / math.log(self.t_mul))
            before = (1 - self.t_mul**period) / (1 - self.t_mul)
            done = (done - before) / self.t_mul**period
        cosine = 0.5 * self.m_mul**period * (1 + math.cos(math.pi * done))
        return self.initial_learning_rate * ((1 - self.alpha) * cosine + self.alpha)


class PiecewiseConstantDecay(ServerSchedule):
    """``values[i]`` up to and including ``boundaries[i]``, the last value after that."""

    name: Literal["PiecewiseConstantDecay"] = "PiecewiseConstantDecay"
    boundaries: tuple[float, ...]
    values: tuple[float, ...]

    if TYPE_CHECKING:

        def __init__(
            self,
            boundaries: Sequence[float],
            values: Sequence[float],
            name: str = "",
        ) -> None: ...

    @model_validator(mode="after")
    def _check(self) -> "PiecewiseConstantDecay":
        if len(self.values) != len(self.boundaries) + 1:
            raise ValueError(
                f"{counted(len(self.boundaries), 'boundary', 'boundaries')} need "
                f"{len(self.boundaries) + 1} values, got {len(self.values)}"
            )
        if list(self.boundaries) != sorted(self.boundaries):
            raise ValueError(f"boundaries must ascend, got {self.boundaries}")
        return self

    def __call__(self, step: int) -> float:
        """Compute the rate at ``step`` updates of the model."""
        for boundary, value in zip(self.boundaries, self.values, strict=False):
            if step <= boundary:
                return value
        return self.values[-1]


Schedule = Annotated[
    ExponentialDecay
    | InverseTimeDecay
    | PolynomialDecay
    | CosineDecay
    | CosineDecayRestarts
    | PiecewiseConstantDecay,
    Field(discriminator="name"),
]
