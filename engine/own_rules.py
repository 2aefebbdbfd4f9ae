"""Update rules of a program's own: a Python function over arrays, as the formula of a rule.

What travels is the rule's name and hyperparameters. The function is called in the process that
holds the variables, which knows it because the same module registered it there.
"""

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from pydantic import create_model

from ..core.errors import ConfigurationError, RefusedError
from ..core.rules.known_rules import add_rule, is_built_in
from ..core.rules.update_rules import UpdateRule

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
