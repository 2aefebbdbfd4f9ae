"""Finds update rules by name: those of ``built_in``, one file each, and a program's own.

A built-in rule is the class of its name in the module of its name, in small letters; it is loaded
when it is asked for, since a task needs one or two of them.
"""

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .update_rules import UpdateRule, make_rule

_FOLDER = f"{__package__}.built_in"
_own: dict[str, type[UpdateRule]] = {}


def built_in(name: str) -> type[UpdateRule]:
    """Find the class of a built-in rule.

    Raises:
        KeyError: There is none of this name.
    """
    place = f"{_FOLDER}.{name.lower()}"
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
    modules = {module.name for module in pkgutil.iter_modules(import_module(_FOLDER).__path__)}
    loaded = [import_module(f"{_FOLDER}.{module}") for module in sorted(modules)]
    return tuple(
        kind
        for module in loaded
        for name, kind in vars(module).items()
        if name.lower() == module.__name__.rpartition(".")[2] and isinstance(kind, type)
    )


def add_rule(kind: type[UpdateRule]) -> None:
    """Make a program's own rule known by its name."""
    _own[kind.__name__] = kind


def rule_from_dict(fields: Mapping[str, Any]) -> UpdateRule:
    """Make the rule whose ``model_dump`` this is.

    Raises:
        ValueError: This process knows no such rule, or it has other fields.
    """
    name = str(fields.get("name", ""))
    try:
        kind = _own.get(name) or built_in(name)
    except KeyError:
        names = [kind.__name__ for kind in built_in_rules()] + list(_own)
        raise ValueError(
            f"this process knows no update rule {fields.get('name')!r}, only {', '.join(names)}; "
            "a rule of a program's own is registered in a module that the ps imports too, named by "
            "ROPEWALK_RULE_MODULES"
        ) from None
    return make_rule(kind, fields)
