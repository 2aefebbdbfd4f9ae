"""Access of the rooms below to the public face on top: public names, and functions of rooms above.

Public names are listed in ``api``, the room on top, and in ``ropewalk`` itself. A name that is
loaded when it is first used has its place there, and :func:`public_getattr` loads it. A package of
a room that programs import by name (``ropewalk.distribute``) lists nothing itself: it asks for each
name by :func:`shown`, and ``ropewalk`` has registered where its names are.

Imports go down only, so what a room needs of one above is handed to it: a strategy of
``distribute`` joins a cluster by a function of ``worker``, which ``ropewalk`` has registered with
:func:`provide`.

A name that a public module does not have is answered with the nearest:

::

    >>> rw.distribute.MirrorStrategy
    AttributeError: module ... has no attribute 'MirrorStrategy'; did you mean 'MirroredStrategy'?
"""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_LIKENESS = 0.6  # that difflib takes for a misspelling
_shown: dict[str, str] = {}
_provided: dict[str, Callable[..., Any]] = {}


def missing_name(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """Make the error for a name that a module does not have.

    Args:
        module: Name of the module as users write it.
        name: The attribute that was looked up.
        names: Names that the module has.
    """
    message = f"module {module!r} has no attribute {name!r}"
    if not name.startswith("_"):  # Python and its tools ask for such names
        from difflib import get_close_matches

        by_lower = {name.lower(): name for name in names}
        near = get_close_matches(name.lower(), by_lower, 1, _LIKENESS)
        if near:
            message += f"; did you mean {by_lower[near[0]]!r}?"
    return AttributeError(message, name=name)


def public_getattr(
    module: str,
    namespace: dict[str, Any],
    *,
    later: Mapping[str, str] | None = None,
    instead: Mapping[str, str] | None = None,
) -> Callable[[str], Any]:
    """Make the ``__getattr__`` of a public module.

    Define it ``if not TYPE_CHECKING``: a type checker takes a module that has one for a module of
    any names.

    Args:
        module: Name of the module as users write it.
        namespace: The module's ``globals()``; without ``__all__`` all of them are its names.
        later: Names that are loaded when they are first used, each with its place below
            ``ropewalk``: ``"module.path:attribute"``, or ``"module.path"`` for a module.
        instead: Names of TensorFlow that do not exist here, each with what to write instead.
    """
    places, advice = later or {}, instead or {}

    def get(name: str) -> Any:
        if name in places:
            value = namespace[name] = load_place(places[name])
            return value
        elsewhere = advice if name.startswith("_") else {**_names_elsewhere(module), **advice}
        if name in elsewhere:
            raise AttributeError(f"{module} has no {name!r}: {elsewhere[name]}", name=name)
        raise missing_name(module, name, (*namespace.get("__all__", namespace), *places))

    return get


class Instead:
    """A name of TensorFlow that a class does not have: an AttributeError that says what to write.

    Args:
        advice: Sentence that says what to use instead.
    """

    def __init__(self, advice: str) -> None:
        self._advice = advice

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Any:
        message = f"{owner.__name__} has no {self._name!r}: {self._advice}"
        raise AttributeError(message, name=self._name)


def _names_elsewhere(module: str) -> Mapping[str, str]:
    """List names of TensorFlow that no module has, as ``ropewalk`` has registered them."""
    advice: Mapping[str, str] = _provided["instead"](module) if "instead" in _provided else {}
    return advice


def load_place(place: str) -> Any:
    """Load what a place below ``ropewalk`` has: ``"module.path:attribute"`` or ``"module.path"``.

    Raises:
        MissingExtraError: It is of an annex that is not installed.
    """
    path, _, attribute = place.partition(":")
    room, _, below = path.partition(".")
    if room == "annexes":
        _provided["require_annex"](below.partition(".")[0], path)
    module = import_module(f"{_PACKAGE}.{path}")
    return getattr(module, attribute) if attribute else module


def show(modules: Mapping[str, str]) -> None:
    """Register where the public names of packages and modules are.

    Args:
        modules: Module that lists the names of each package, by the package's name below
            ``ropewalk``.
    """
    _shown.update({f"{_PACKAGE}.{name}": f"{_PACKAGE}.{place}" for name, place in modules.items()})


def load_public_names(package: str) -> ModuleType:
    """Load the module that lists the public names of a package, with most of what it names."""
    return import_module(_shown[package])


def shown(
    package: str, namespace: dict[str, Any]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package whose public names are listed above it.

    Args:
        package: The package's ``__name__``.
        namespace: The package's ``globals()``.
    """

    def get(name: str) -> Any:
        if name.startswith("__") and name != "__all__":  # Python and its tools ask for such names
            raise missing_name(package, name, ())
        names = load_public_names(package)
        if name not in namespace:  # it is there if it is a module of the package that was loaded
            namespace[name] = getattr(names, name)
        return namespace[name]

    def names() -> list[str]:
        return sorted({*namespace, *dir(load_public_names(package))})

    return get, names


def provide(name: str, function: Callable[..., Any]) -> None:
    """Register a function for rooms below that of the function; it replaces one of that name."""
    _provided[name] = function


def provided(name: str) -> Callable[..., Any]:
    """Find the function that is registered under a name.

    Raises:
        LookupError: None is.
    """
    if name not in _provided:
        raise LookupError(f"no function is registered as {name!r}: ropewalk/__init__.py does it")
    return _provided[name]
