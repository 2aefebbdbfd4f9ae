"""Finds update rules by name: those of ``built_in``, and a program's own.

A built-in rule is a class in the module of its name, in small letters, or of the one that it was
made after; it is loaded when it is asked for, since a task needs one or two of them.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from pydantic import create_model

from .. import annexes
from ..errors import ConfigurationError, RefusedError
from .update_rules import UpdateRule, make_rule

_FOLDER = f"{__package__}.built_in"
_MADE_AFTER = {
    "Adadelta": "adagrad",
    "AdamW": "adam",
    "Adamax": "adam",
    "Ftrl": "adagrad",
    "Lamb": "adam",
    "Lion": "sgd",
    "Nadam": "adam",
    "RMSprop": "adagrad",
}
"""Modules of the rules that have none of their own."""
_own: dict[str, type[UpdateRule]] = {}


def built_in(name: str) -> type[UpdateRule]:
    """Find the class of a built-in rule.

    Raises:
        KeyError: There is none of this name.
    """
    place = f"{_FOLDER}.{_MADE_AFTER.get(name, name.lower())}"
    if not name.isidentifier() or find_spec(place) is None:
        raise KeyError(name)
    kind = getattr(import_module(place), name, None)
    if not (isinstance(kind, type) and issubclass(kind, UpdateRule)):
        raise KeyError(name)
    return kind


def is_built_in(name: str) -> bool:
    """Return whether a built-in rule has this name."""
    try:
        built_in(name)
    except KeyError:
        return False
    return True


def built_in_rules() -> tuple[type[UpdateRule], ...]:
    """Return the classes of all built-in rules, in the order of their names."""
    modules = [module.name for module in pkgutil.iter_modules(import_module(_FOLDER).__path__)]
    loaded = [import_module(f"{_FOLDER}.{module}") for module in modules]
    kinds = {
        name: kind
        for module in loaded
        for name, kind in vars(module).items()
        if isinstance(kind, type)
        and issubclass(kind, UpdateRule)
        and kind.model_fields["name"].default == name
    }
    return tuple(kind for _, kind in sorted(kinds.items()))


def add_rule(kind: type[UpdateRule]) -> None:
    """Make a program's own rule known by its name."""
    _own[kind.__name__] = kind


def _find(name: str) -> type[UpdateRule]:
    if name in _own:
        return _own[name]
    try:
        return built_in(name)
    except KeyError:
        brought = (kind for module in annexes.at("update_rules") for kind in module.RULES)
        kinds: dict[str, type[UpdateRule]] = {kind.__name__: kind for kind in brought}
        return kinds[name]


def rule_from_dict(fields: Mapping[str, Any]) -> UpdateRule:
    """Make the rule whose ``model_dump`` this is.

    Raises:
        ValueError: This process knows no such rule, or it has other fields.
    """
    name = str(fields.get("name", ""))
    try:
        kind = _find(name)
    except KeyError:
        names = [kind.__name__ for kind in built_in_rules()] + list(_own)
        raise ValueError(
            f"this process knows no update rule {fields.get('name')!r}, only {', '.join(names)}; "
            "a rule of a program's own is registered in a module that the ps imports too, named by "
            "ROPEWALK_RULE_MODULES"
        ) from None
    return make_rule(kind, fields)


# -- Update rules of a program's own: a Python function over arrays, as the formula of a rule --
# What travels is the rule's name and hyperparameters. The function is called in the process that
# holds the variables, which knows it because the same module registered it there.

Update = Callable[[Any, Any, dict[str, Any], SimpleNamespace], Any]
"""``update(w, g, slots, h) -> new w``; see ``distribute/optimizers.py:register_rule``."""

_known: dict[str, tuple[type["OwnRule"], tuple[Any, ...]]] = {}
_TAKEN = {*UpdateRule.model_fields, *vars(UpdateRule), "t", "xp"}


class OwnRule(UpdateRule):
    """The rule of a function; :func:`register_own_rule` derives a class for each.

    Attributes:
        function: Function that the program registered.
        own: Names of the hyperparameters that it takes.
    """

    function: ClassVar[Update]
    own: ClassVar[tuple[str, ...]]

    def array_update(
        self, xp: Any, w: Any, slots: dict[str, Any], g: Any, rate: float, t: int
    ) -> Any:
        """Call the function, and check what it returns.

        Raises:
            RefusedError: It failed, or its arrays have other shapes or names than before.
        """
        numbers = {field: getattr(self, field) for field in self.own}
        step = SimpleNamespace(learning_rate=rate, t=t, xp=xp, **numbers)
        after = dict(slots)
        new = _call(self.name, type(self).function, w, g, after, step)
        for what, array in (("the variable", new), *after.items()):
            if getattr(array, "shape", None) != w.shape or after.keys() != slots.keys():
                raise RefusedError(
                    f"the update rule {self.name!r} returned {what} with shape "
                    f"{getattr(array, 'shape', type(array).__name__)} and the slots "
                    f"{', '.join(after)}; it must keep the shape {w.shape} and the slots "
                    f"{', '.join(slots)}"
                )
        slots.update(after)
        return new


def register_own_rule(
    name: str,
    update: Update,
    slots: Mapping[str, float],
    learning_rate: float,
    hyperparameters: Mapping[str, float],
) -> type[UpdateRule]:
    """Make a rule known in this process. Repeating the same registration changes nothing.

    Raises:
        ValueError: The name stands for another rule, or is no name; or a hyperparameter has the
            name of something that all rules have.
    """
    if not name.isidentifier() or is_built_in(name):
        raise ValueError(f"{name!r} cannot name a rule: it must be an identifier that is not taken")
    if taken := hyperparameters.keys() & _TAKEN:
        raise ValueError(f"{name}: the hyperparameter {min(taken)!r} has the name of another thing")
    code = getattr(update, "__code__", update)
    same = (code, dict(slots), learning_rate, dict(hyperparameters))
    if name in _known:
        kind, before = _known[name]
        if before != same:
            raise ValueError(f"another update rule {name!r} is registered in this process already")
        return kind
    fields: dict[str, Any] = {
        "name": (Literal[name], name),
        "learning_rate": (UpdateRule.model_fields["learning_rate"].annotation, learning_rate),
        **{field: (float, float(default)) for field, default in hyperparameters.items()},
    }
    kind = create_model(name, __base__=OwnRule, **fields)
    kind.slots, kind.own = dict(slots), tuple(hyperparameters)
    kind.function = staticmethod(update)
    add_rule(kind)
    _known[name] = kind, same
    return kind


def _call(
    name: str, update: Update, w: Any, g: Any, slots: dict[str, Any], step: SimpleNamespace
) -> Any:
    try:
        return update(w, g, slots, step)
    except Exception as error:
        raise RefusedError(
            f"the update rule {name!r} failed: {type(error).__name__}: {error}"
        ) from error


def import_rules(modules: str) -> None:
    """Import the modules that register a program's rules, in a ps.

    Args:
        modules: Names of the modules, separated by commas.

    Raises:
        ConfigurationError: One cannot be imported.
    """
    for module in filter(None, (name.strip() for name in modules.split(","))):
        try:
            importlib.import_module(module)
        except Exception as error:
            raise ConfigurationError(
                f"rule_modules: {module} cannot be imported ({type(error).__name__}: {error}); is "
                "it on the PYTHONPATH of the ps?"
            ) from error
