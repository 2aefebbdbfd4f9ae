"""Optimizers: update rules with ``apply_gradients``. They run where the variables live.

Arguments and formulas are those of Keras 3; see the files of ``core/rules/built_in`` for the
mathematics.

::

    optimizer = rw.optimizers.Adam(1e-3, global_clipnorm=1.0)
    optimizer.apply_gradients(zip(grads, variables))
    optimizer.learning_rate = 1e-4  # for what is applied from here on

What they have in common, and for whose pushes an assigned value counts: ``optimizer.py``.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from ..core.public_face import public_getattr
from ..core.rules.known_rules import built_in
from ..core.rules.schedules import (
    CosineDecay,
    CosineDecayRestarts,
    ExponentialDecay,
    InverseTimeDecay,
    LearningRateSchedule,
    PiecewiseConstantDecay,
    PolynomialDecay,
)
from ..core.rules.update_rules import UpdateRule
from .optimizer import Optimizer, Rate

__all__ = [
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "CosineDecay",
    "CosineDecayRestarts",
    "ExponentialDecay",
    "Ftrl",
    "InverseTimeDecay",
    "Lamb",
    "LearningRateSchedule",
    "Lion",
    "Nadam",
    "Optimizer",
    "PiecewiseConstantDecay",
    "PolynomialDecay",
    "RMSprop",
    "register_rule",
]


class Clipping(TypedDict, total=False):
    """Clipping of gradients, and the optimizer's name; None: not at all.

    Attributes:
        name: Name of the optimizer; None: that of its class.
        clipnorm: Largest norm of each variable's gradient.
        clipvalue: Largest absolute value of each element.
        global_clipnorm: Largest joint norm of all gradients of a call.
    """

    name: str | None
    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None


class SGD(Optimizer):
    """Gradient descent, with momentum."""

    def __init__(
        self,
        learning_rate: Rate = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        *,
        rate_in_velocity: bool = True,
        **clipping: Unpack[Clipping],
    ) -> None:
        self._begin(built_in("SGD"), locals())


class Adagrad(Optimizer):
    """Adagrad; with ``epsilon_in_root=False`` as PyTorch has it."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        epsilon_in_root: bool = True,
        **clipping: Unpack[Clipping],
    ) -> None:
        self._begin(built_in("Adagrad"), locals())


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
        self._begin(built_in("RMSprop"), locals())


class _AdamFamily(Optimizer):
    """The constructor of Adam, Adamax and Nadam."""

    _rule_name: str

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        by_iterations: bool = False,
        **clipping: Unpack[Clipping],
    ) -> None:
        self._begin(built_in(self._rule_name), locals())


class Adam(Optimizer):
    """Adam."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        *,
        corrected_epsilon: bool = False,
        float32_correction: bool = False,
        by_iterations: bool = False,
        **clipping: Unpack[Clipping],
    ) -> None:
        self._begin(built_in("Adam"), locals())


class Adamax(_AdamFamily):
    """Adam with the maximum norm."""

    _rule_name = "Adamax"


class Nadam(_AdamFamily):
    """Adam with Nesterov's momentum."""

    _rule_name = "Nadam"


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
        corrected_epsilon: bool = False,
        float32_correction: bool = False,
        by_iterations: bool = False,
        **clipping: Unpack[Clipping],
    ) -> None:
        self._begin(built_in("AdamW"), locals())


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
        self._begin(built_in("Ftrl"), locals())


class Adadelta(Optimizer):
    """Adadelta."""

    def __init__(
        self,
        learning_rate: Rate = 0.001,
        rho: float = 0.95,
        epsilon: float = 1e-7,
        **clipping: Unpack[Clipping],
    ) -> None:
        self._begin(built_in("Adadelta"), locals())


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
        self._begin(built_in("Lion"), locals())


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
        by_iterations: bool = False,
        **clipping: Unpack[Clipping],
    ) -> None:
        self._begin(built_in("Lamb"), locals())


class OwnOptimizer(Optimizer):
    """The base of the classes that :func:`register_rule` makes."""

    _kind: type[UpdateRule]

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
    name it for the ps in ``ROPEWALK_RULE_MODULES``. Code does not travel.

    Args:
        name: Name of the rule and of the returned class.
        update: The formula.
        slots: Initial number of each slot variable, by name.
        learning_rate: The default learning rate.
        hyperparameters: Other hyperparameters, with their defaults.

    Returns:
        A class of optimizers: ``Mine(learning_rate=0.1, …)``.

    Raises:
        ValueError: The name belongs to another rule, or is not a valid name.
    """
    from ..core.rules.known_rules import register_own_rule

    kind = register_own_rule(name, update, slots or {}, learning_rate, hyperparameters)

    return type(name, (OwnOptimizer,), {"_kind": kind, "__doc__": update.__doc__})


if not TYPE_CHECKING:
    __getattr__ = public_getattr("ropewalk.optimizers", globals())
