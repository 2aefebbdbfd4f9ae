"""Annexes: features in folders below ``ropewalk/annexes``, which the kernel does not import.

An annex attaches to the kernel at *points*. A point is the name of a module: each annex that has a
module of that name takes part, and whoever asks for the point says what it reads there::

    for module in annexes.at("commands"):
        commands.update(module.COMMANDS)

So a folder that is removed takes its feature with it, and no list has to be changed. Removing one
is no error; using what it brought is one, which says so.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType

from .errors import MissingExtraError

_ROOM = f"{__name__.partition('.')[0]}.annexes"
_EXTRAS = {
    "certificates": "security",
    "dashboard": "dashboard",
    "jax_bridge": "jax",
    "keras_bridge": "keras",
    "kubernetes": "k8s",
    "tensorboard": "tensorboard",
    "torch_bridge": "torch",
    "traces": "otel",
}
"""Extra with the packages that an annex needs, for messages; others need none."""


@cache
def installed() -> tuple[str, ...]:
    """List the names of the annexes that are installed, in order."""
    return tuple(sorted(path.parent.name for path in _folder().glob("*/__init__.py")))


@cache
def _folder() -> Path:
    return Path(__file__).absolute().parent.parent / "annexes"


def at(point: str) -> Iterator[ModuleType]:
    """Load the modules of a point, in the order of their annexes.

    Args:
        point: Name of the modules.
    """
    for name in installed():
        if (_folder() / name / f"{point}.py").exists():
            yield import_module(f"{_ROOM}.{name}.{point}")


def require(annex: str, use: str) -> None:
    """Check that an annex is installed which a user's request needs.

    Args:
        annex: Name of the annex.
        use: Feature that was asked for, for the message.

    Raises:
        MissingExtraError: It is not; says which extra brings it.
    """
    if annex in installed():
        return
    extra = _EXTRAS.get(annex, "")
    raise MissingExtraError(
        f"{use} needs the annex {annex}, which was taken out of this installation"
        + (f"; the extra {extra} brings what it needs" if extra else "")
        + ": install Ropewalk again",
        module=annex,
        extra=extra,
    )


def the(point: str, annex: str, use: str) -> ModuleType:
    """Load the module of a point at which one annex attaches, for what a user has asked for.

    Args:
        point: Name of the module.
        annex: Name of the annex.
        use: Feature that was asked for, for the message.

    Raises:
        MissingExtraError: The annex is not installed; says which extra brings it.
    """
    require(annex, use)
    return import_module(f"{_ROOM}.{annex}.{point}")
