"""The variables of a program's objects, each with a key out of the attributes that lead to it.

``{"model": model}`` with ``model.layers[0].kernel`` gives ``model/layers/0/kernel``, as the keys of
``tf.train.Checkpoint`` begin: they do not depend on what else was created in the process, or when.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ..core.errors import ConfigurationError
from .saved_variables import Stateful
from .variables.variable import Variable

_OURS = "ropewalk."

_SHARED_BY = ("_ropewalk", "_ropewalk_loop")
"""Attributes that a bridge gives an object of a framework that it shares. What one holds has
``checkpointed``: what is saved in the object's place, or None while nothing is shared.
"""


@dataclass(frozen=True, slots=True)
class ObjectTree:
    """Variables and other state of a tree of objects, each under its nearest key.

    Attributes:
        variables: Variables of the objects.
        places: Objects that have ``state_dict`` and ``load_state_dict``.
        refresh: Called after the variables are restored: bridges keep a copy of their values.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    places: dict[str, Stateful] = field(default_factory=dict)
    refresh: list[Callable[[], object]] = field(default_factory=list)


def walk_objects(roots: Mapping[str, Any]) -> ObjectTree:
    """Find the variables, and what has ``state_dict`` and ``load_state_dict``, below some objects.

    Looked into are dictionaries, lists, tuples, and the attributes of the program's objects, in the
    order of their names and nearest first, so that every process finds the same keys. A variable
    that several attributes lead to has one key. A model of Keras under a strategy, and an optimizer
    of Keras that trains in a loop, give what they share. Of ropewalk's own objects metrics are
    looked into, and an ``ArrayStore`` or a bridge that has one gives its arrays by their names;
    optimizers keep their slots with the variables.

    Raises:
        ConfigurationError: There are tables that grow, which are not saved by a program.
    """
    tree = ObjectTree()
    seen: set[int] = set()
    waiting: deque[tuple[str, Any]] = deque(_by_name(roots))
    while waiting:
        key, value = waiting.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        value = _instead_of(value)
        if isinstance(value, Variable):
            tree.variables[key] = value
        elif (arrays := _shared_arrays(value)) is not None:
            _check_has_none_that_grow(key, value)
            waiting.extend((f"{key}/{name}" if key else name, v) for name, v in _by_name(arrays))
            if callable(refresh := getattr(value, "refresh", None)):
                tree.refresh.append(refresh)
        elif not isinstance(value, type) and _has_place(value):
            tree.places[key] = value
        else:
            waiting.extend((f"{key}/{name}" if key else name, v) for name, v in _children(value))
    return tree


def _instead_of(value: Any) -> Any:
    """Find what a bridge shares of an object; the object itself if it is none of a bridge's."""
    attributes = getattr(value, "__dict__", {})
    holders = (attributes.get(name) for name in _SHARED_BY)
    shared = (getattr(holder, "checkpointed", None) for holder in holders)
    return next((shared_object for shared_object in shared if shared_object is not None), value)


def _shared_arrays(value: Any) -> Mapping[str, Variable] | None:
    """Find the variables of an ``ArrayStore``, or of a bridge that has one; None: it is something
    else.
    """
    if isinstance(value, type) or not type(value).__module__.startswith(_OURS):
        return None
    variables = getattr(getattr(value, "store", value), "variables", None)
    return variables if isinstance(variables, Mapping) else None


def _check_has_none_that_grow(key: str, value: Any) -> None:
    if growing := getattr(value, "growing", ()):
        raise ConfigurationError(
            f"{key!r} has the growing table {growing[0]!r}: such tables are in the checkpoints "
            "that a job writes to its model_dir (`ropewalk run`), and not in rw.train.Checkpoint; "
            "leave it out, or save the other variables by name",
            table=growing[0],
        )


def _has_place(value: Any) -> bool:
    return callable(getattr(type(value), "state_dict", None)) and callable(
        getattr(type(value), "load_state_dict", None)
    )


def _children(container: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(container, Mapping):
        return _by_name(container)
    if isinstance(container, list | tuple):
        return [(str(number), value) for number, value in enumerate(container)]
    ours = type(container).__module__.startswith(_OURS)
    checkpointed = getattr(container, "checkpointed", None) if ours else None
    if isinstance(checkpointed, Mapping):  # another checkpoint
        return _by_name(checkpointed)
    if isinstance(container, type) or (ours and not hasattr(container, "reset_state")):
        return []
    return _by_name(getattr(container, "__dict__", {}))


def _by_name(named: Mapping[Any, Any]) -> list[tuple[str, Any]]:
    return sorted(((str(name), value) for name, value in named.items()), key=itemgetter(0))
