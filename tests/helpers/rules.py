"""The built-in update rules, for tests of several."""

from typing import Any

from ropewalk.core.rules.built_in.adagrad import Adadelta, Adagrad, Ftrl, RMSprop
from ropewalk.core.rules.built_in.adam import Adam, Adamax, AdamW, Lamb, Nadam
from ropewalk.core.rules.built_in.sgd import SGD, Lion
from ropewalk.core.rules.known_rules import built_in_rules
from ropewalk.core.rules.update_rules import UpdateRule

__all__ = [
    "COMMON_RULES",
    "KERNELS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Ftrl",
    "Lamb",
    "Lion",
    "Nadam",
    "RMSprop",
    "variants",
]

KERNELS = {kernel.name: kernel for rule in built_in_rules() for kernel in rule.kernels}

COMMON_RULES: dict[str, UpdateRule] = {
    "sgd": SGD(learning_rate=0.1),
    "sgd-clipvalue": SGD(learning_rate=0.1, clipvalue=0.5),
    "momentum": SGD(learning_rate=0.1, momentum=0.9),
    "nesterov": SGD(learning_rate=0.1, momentum=0.9, nesterov=True),
    "adagrad": Adagrad(learning_rate=0.1),
    "rmsprop-momentum": RMSprop(learning_rate=0.05, momentum=0.9),
    "rmsprop-centered": RMSprop(learning_rate=0.05, centered=True, epsilon=1e-3),
    "adam": Adam(learning_rate=0.05),
    "adamw": AdamW(learning_rate=0.05, weight_decay=0.1),
    "adamax": Adamax(learning_rate=0.05),
    "nadam": Nadam(learning_rate=0.05),
    "adadelta": Adadelta(learning_rate=0.5),
    "lion": Lion(learning_rate=0.05),
    "lion-decay": Lion(learning_rate=0.05, weight_decay=0.1),
}
"""Rules with the options that every test of formulas tries."""


def variants(kind: type[Any], **given: Any) -> list[UpdateRule]:
    """The rule as it is by default, and with what it has of flags and further numbers."""
    more: dict[str, Any] = {"clipvalue": 0.5} | given
    for name, field in kind.model_fields.items():
        if field.annotation is bool:
            more[name] = True
        elif field.annotation is float and field.default == 0.0:
            more[name] = 0.25
    return [kind(**given), kind(**more)]
