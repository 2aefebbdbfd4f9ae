"""Optimizers of PyTorch, Keras and optax that have the formula of an update rule.

Pure: frameworks describe their optimizers by a name and hyperparameters, as plain numbers. Each
rule has a :class:`Counterparts`; ``training/rule_table.py`` looks optimizers up in those of all
rules.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
