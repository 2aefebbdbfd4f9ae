"""Frameworks are imported when a bridge to them is used; one that is missing is named."""

from importlib import import_module
from types import ModuleType

from ..core.errors import MissingExtraError


def require(module: str, extra: str, what: str | None = None) -> ModuleType:
    """Import a framework's module.

    Args:
        module: Module to import, e.g. ``torch``.
        extra: Extra of Ropewalk that installs it.
        what: Feature that needs it, for the message; None: the bridge of the extra's name.

    Raises:
        MissingExtraError: It is not installed; says which extra to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        top = module.partition(".")[0]
        if error.name is not None and error.name.partition(".")[0] != top:
            raise  # it is there, and lacks something of its own
        raise MissingExtraError(
            f"{what or f'ropewalk.training.{extra}'} needs {top}, which is not installed: "
            f"pip install 'ropewalk[{extra}]'",
            module=top,
            extra=extra,
        ) from error
