"""What a public module says of a name that it does not have: which of its own is nearest.

::

    >>> wl.distribute.MirrorStrategy
    AttributeError: module ... has no attribute 'MirrorStrategy'; did you mean 'MirroredStrategy'?
"""

from collections.abc import Callable, Iterable
from typing import NoReturn

_LIKENESS = 0.6  # that difflib takes for a misspelling


def missing_name(module: str, name: str, names: Iterable[str]) -> AttributeError:
    """The error for a name that a module does not have.

    Args:
        module: As users write it.
        name: That was asked for.
        names: What it has.
    """
    message = f"module {module!r} has no attribute {name!r}"
    if not name.startswith("_"):  # Python and its tools ask for such names
        from difflib import get_close_matches

        known = {each.lower(): each for each in names}
        near = get_close_matches(name.lower(), known, 1, _LIKENESS)
        if near:
            message += f"; did you mean {known[near[0]]!r}?"
    return AttributeError(message, name=name)


def refuse_others(module: str, names: Iterable[str]) -> Callable[[str], NoReturn]:
    """The ``__getattr__`` of a module that has these names and no others.

    Define it ``if not TYPE_CHECKING``: a type checker takes a module that has one for a module of
    any names.

    Args:
        module: As users write it.
        names: What it has.
    """

    def refuse(name: str) -> NoReturn:
        raise missing_name(module, name, names)

    return refuse
