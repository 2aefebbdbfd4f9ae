"""The built-in update rules, for tests of several."""

from windlass.core.rules.built_in.adadelta import Adadelta
from windlass.core.rules.built_in.adagrad import Adagrad
from windlass.core.rules.built_in.adam import Adam
from windlass.core.rules.built_in.adamax import Adamax
from windlass.core.rules.built_in.adamw import AdamW
from windlass.core.rules.built_in.ftrl import Ftrl
from windlass.core.rules.built_in.lamb import Lamb
from windlass.core.rules.built_in.lion import Lion
from windlass.core.rules.built_in.nadam import Nadam
from windlass.core.rules.built_in.rmsprop import RMSprop
from windlass.core.rules.built_in.sgd import SGD
from windlass.core.rules.known_rules import built_in_rules

__all__ = [
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
]

KERNELS = {kernel.name: kernel for rule in built_in_rules() for kernel in rule.kernels}
