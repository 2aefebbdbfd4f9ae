"""The base of all update rules: a worker chooses one, and a ps runs it.

Each rule is a class in ``built_in``: hyperparameters and slots, its formula in array operations,
for GPUs and tests, a kernel for the host, and the optimizers of frameworks that do the same. What
travels is its name and its hyperparameters; ``known_rules.py`` finds the class of a name. Formulas,
names and defaults are those of Keras 3 unless a docstring says otherwise; where Keras, optax and
PyTorch differ it says how.

A rule is bound to a variable for good, and so are its slots. The hyperparameters of a single push
may be others (:meth:`UpdateRule.changed`).

Below, ``g`` is the gradient (after clipping), ``w`` the variable, ``t`` the number of times the
rule was applied to this variable, this time included (or what :meth:`UpdateRule.count` says),
``lr`` the rate at the ps's global step.

A kernel is a plain Python function: any process may import it, and tests run it as it is.
``engine/jit.py`` compiles it, and says what the functions below become there. All kernels have one
signature, for dense gradients and for rows::

    kernel(w, s0, s1, s2, g, rows, width, h)

``w``, ``s0`` …: 1-D float arrays, the variable and its slots; unused slots are empty. ``g``: 1-D,
the gradient of ``rows.size`` rows of ``width`` elements. ``rows``: int64 row numbers, ascending; a
dense gradient is one row, number 0, as wide as the variable. ``h``: scalars in the arrays' dtype:
``h[0]`` the gradient scale, ``h[1]`` the clip value (infinity: none), ``h[2]`` the learning rate,
then what the rule needs.

Kernels check no bounds: they are called through ``engine/update_kernel.py``, which checks every
argument.

Scalars come in an array of the compute dtype because one float64 among float32 operands would turn
the loop into a float64 one, three times slower. Rows that come later are prefetched: a table is
larger than the caches, and each of its rows would be waited for. ``width`` is an argument: known to
the compiler, it made Adagrad four times slower.

Every kernel has its own loop over rows: with the prefetching in a function that all share, inlined
as it is, rows took 1.3 to 1.7 times as long.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..arguments import argument_error, check_types
from .schedules import Schedule

AHEAD = 12
"""Rows between the one that is updated and the one whose memory is asked for."""


@dataclass(frozen=True, slots=True)
class UpdateFunction:
    """A kernel before it is compiled, and what the check of its arguments needs.

    Attributes:
        function: Plain Python.
        num_scalars: Elements of ``h``.
        num_slots: Slots that it always reads, the first ones.
        optional_slots: Slot -> index in ``h`` of the scalar that is positive if the slot is read.
    """

    function: Callable[..., None]
    num_scalars: int
    num_slots: int
    optional_slots: Mapping[int, int] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The function's name, which no other kernel has."""
        return self.function.__name__


def kernel(
    *, scalars: int, slots: int, optional: Mapping[int, int] | None = None
) -> Callable[[Callable[..., None]], UpdateFunction]:
    """Decorate a kernel; the arguments are the fields of :class:`UpdateFunction`."""
    return lambda function: UpdateFunction(function, scalars, slots, optional or {})


def clip(x: Any, limit: Any) -> Any:
    """Limit ``x`` to ``[-limit, limit]``; NaN stays, as with ``np.clip``."""
    if x > limit:
        return limit
    if x < -limit:
        return -limit
    return x


def prefetch_row(array: Any, start: Any, width: Any) -> None:
    """Begin to load a row of ``width`` elements. Compiled code does; Python does nothing."""


# -- Optimizers of PyTorch, Keras and optax that have the formula of an update rule ------------
# Pure: frameworks describe their optimizers by a name and hyperparameters, as plain numbers. Each
# rule has a :class:`Counterparts`; ``training/rule_table.py`` looks optimizers up in those of all
# rules.

Hyperparameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OnServer:
    """An optimizer that has a rule.

    Attributes:
        rule: The rule's name.
        arguments: Fields of the rule; ``learning_rate`` may be a callable of the step.
        decay: The worker adds so much of each value to its gradient first: coupled weight decay,
            of which the rules have none.
    """

    rule: str
    arguments: Mapping[str, Any]
    decay: float = 0.0


@dataclass(frozen=True, slots=True)
class OnWorker:
    """An optimizer that has none.

    Attributes:
        reason: Why, as the rest of a sentence that begins with its name.
    """

    reason: str


Place = OnServer | OnWorker
Entry = Callable[[Hyperparameters], Place]


@dataclass(frozen=True, slots=True)
class Counterparts:
    """The optimizers of the frameworks that do what a rule does, or seem to.

    Attributes:
        torch: Name of a class of ``torch.optim`` → where it runs with one of its ``param_groups``.
        optax: Names of the transformations of a chain, with ``rate`` for the one of the rate →
            where it runs with the hyperparameters of each transformation, by name.
        keras: Returns the rule that the Keras optimizer of the rule's name has with a
            configuration: the rule's name, or the reason why there is none. None: this rule,
            always.
    """

    torch: Mapping[str, Entry] = field(default_factory=dict)
    optax: Mapping[tuple[str, ...], Entry] = field(default_factory=dict)
    keras: Callable[[Hyperparameters], str | OnWorker] | None = None


def torch_place(rule: str, group: Hyperparameters, **arguments: Any) -> OnServer:
    """Make a rule for a parameter group of PyTorch, whose weight decay is a part of the
    gradient.
    """
    rate = {"learning_rate": float(group["lr"])}
    return OnServer(rule, rate | arguments, float(group.get("weight_decay", 0.0)))


def torch_moments(group: Hyperparameters) -> dict[str, Any]:
    """Translate ``betas`` and ``eps`` of a parameter group into a rule's fields."""
    beta_1, beta_2 = map(float, group["betas"])
    return {"beta_1": beta_1, "beta_2": beta_2, "epsilon": float(group["eps"])}


Rate = Annotated[float, Field(ge=0)] | Schedule
Slots = dict[str, str | float]
"""Slot name -> value it starts with, as a field of the rule or a number."""
_R = TypeVar("_R", bound="UpdateRule")


class UpdateRule(BaseModel):
    """The base of all rules. A rule adds its fields, and overrides what is its own.

    Attributes:
        slots: Slot variables of the rule, all that it may have, in the order of its kernels'
            arguments.
        kernels: The kernels that it may take; none: its formula runs on the host, too, on each
            variable for itself, by one core.
        counts_updates: Whether its steps depend on how often a variable was updated.
        needs_rows: Whether it looks at whole rows, and runs on tables by key alone.
        skips_rate_zero: Whether a learning rate of zero means no update at all: the formula divides
            by it.
        counterparts: The optimizers of frameworks that do the same.
        name: Name of the class.
        learning_rate: A number, or a schedule of the ps's global step.
        clipnorm: Scale the gradient of a variable so that its norm is at most this; None: do not.
            Done by the worker, which alone sees all of it.
        clipvalue: Clip every element of ``g`` to ``[-clipvalue, clipvalue]``; None: do not.
        global_clipnorm: Scale all gradients of a step so that their joint norm is at most this;
            None: do not. Computed by the worker, which alone sees all of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    slots: ClassVar[Slots] = {}
    kernels: ClassVar[tuple[UpdateFunction, ...]] = ()
    counts_updates: ClassVar[bool] = False
    needs_rows: ClassVar[bool] = False
    skips_rate_zero: ClassVar[bool] = False
    counterparts: ClassVar[Counterparts] = Counterparts()

    name: str
    learning_rate: Rate
    clipnorm: float | None = Field(default=None, gt=0)
    clipvalue: float | None = Field(default=None, gt=0)
    global_clipnorm: float | None = Field(default=None, gt=0)

    @abstractmethod
    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Compute the formula in array operations: on a GPU, and on the host for rules without a
        kernel.

        Args:
            xp: ``numpy`` or ``cupy``.
            w: The values, in the dtype that is computed in.
            slots: Arrays of the slots in use, by name. Replaced by their new ones.
            g: The gradient, after scaling and clipping.
            rate: The learning rate; a Python number, as hyperparameters are, which do not widen
                float32.
            t: Result of :meth:`count`.

        Returns:
            The new values.
        """

    def chosen_kernel(self) -> UpdateFunction | None:
        """Choose the kernel that these hyperparameters take; None: there is none."""
        return self.kernels[0] if self.kernels else None

    def scalars(self, rate: float, t: int) -> Sequence[float]:  # noqa: ARG002
        """Return the numbers that the kernel reads from ``h[2]`` on, in its order."""
        return (rate,)

    @property
    def goes_by_step(self) -> bool:
        """Whether ``t`` is the step of the optimizer, and not the updates of the variable."""
        return False

    def count(self, updates: int, step: int) -> int:
        """Return the ``t`` of an update.

        Args:
            updates: Number of updates of the variable, this one included.
            step: Global step before it.
        """
        return step + 1 if self.goes_by_step else updates

    def rate(self, step: int) -> float:
        """Compute the learning rate at global step ``step``."""
        rate = self.learning_rate
        return rate if isinstance(rate, float) else rate(step)

    def slot_start(self) -> dict[str, float]:
        """Return the number with which the elements of each slot start, by name."""
        return {
            slot: getattr(self, start) if isinstance(start, str) else start
            for slot, start in self.active_slots().items()
        }

    def active_slots(self) -> dict[str, str | float]:
        """List the slots that these hyperparameters need."""
        return self.slots

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """Copy the rule with other values of some hyperparameters, for some of its updates.

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
    """Make a rule of these fields.

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
