"""Calls of functions once a framework has been imported, by whomever and whenever.

A program that uses a framework imports it before or after it makes what the bridge to it has to
know of. Nothing here imports a framework: a function is called at once if its module is there, else
when the program imports it. Until :func:`watch` is called, the import system is left alone.

A function that fails is called again at the next import or :func:`watch`, so that a program which
goes on after the error does not go on without it.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

_lock = threading.Condition()
_waiting: dict[str, Callable[[], None]] = {}
_running: dict[str, int] = {}  # module -> the thread that calls its function
_watching = False


def register(module: str, then: Callable[[], None]) -> None:
    """Call ``then`` after :func:`watch`, once, when a top-level module has been imported."""
    with _lock:
        _waiting[module] = then


def watch() -> None:
    """Look at what is imported, now and from now on. Cheap when there is nothing new.

    A module that another thread is importing is waited for, and so is a function that it calls.
    """
    global _watching  # noqa: PLW0603
    if not _waiting and not _running:
        return
    with _lock:
        if not _watching:
            _watching = True
            sys.meta_path.insert(0, _Finder())
        names = [*_waiting, *_running]
    for module in filter(sys.modules.get, names):
        if _is_imported(import_module(module)):
            _call(module)


def _is_imported(module: ModuleType) -> bool:
    """Return whether the module is complete; what imports it may be what called us."""
    return not getattr(module.__spec__, "_initializing", False)


def _call(module: str) -> None:
    me = threading.get_ident()
    with _lock:
        _lock.wait_for(lambda: _running.get(module, me) == me)
        then = _waiting.pop(module, None)
        if then is None:
            return
        _running[module] = me
    try:
        then()
    except BaseException:
        with _lock:
            _waiting.setdefault(module, then)
        raise
    finally:
        with _lock:
            _running.pop(module, None)
            _lock.notify_all()


class _Finder(MetaPathFinder):
    """Finds nothing itself; of the modules waited for, it has the loader report."""

    def __init__(self) -> None:
        self._asking = threading.local()

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the import system's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Find what the other finders find, to be told when it has been loaded."""
        if name not in _waiting or getattr(self._asking, "name", None) == name:
            return None
        self._asking.name = name
        try:
            spec = find_spec(name)
        finally:
            self._asking.name = None
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def then(module: ModuleType) -> None:
            del loader.exec_module  # it may be the loader of other modules, too
            execute(module)
            _call(name)

        loader.exec_module = then  # type: ignore[method-assign]
        return spec
