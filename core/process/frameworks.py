"""Frameworks in this process: when they are imported, and steps that share nothing."""

import contextlib
import gc
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

# -- Calls of functions once a framework has been imported, by whomever and whenever -----------
# A program that uses a framework imports it before or after it makes what the bridge to it has to
# know of. Nothing here imports a framework: a function is called at once if its module is there,
# else when the program imports it. Until :func:`watch` is called, the import system is left alone.
#
# A function that fails is called again at the next import or :func:`watch`, so that a program
# which goes on after the error does not go on without it.


_lock = threading.Condition()
_waiting: dict[str, Callable[[], None]] = {}
_running: dict[str, int] = {}  # module -> the thread that calls its function
_watching = False


def call_on_import(module: str, then: Callable[[], None]) -> None:
    """Call ``then`` after :func:`watch`, once, when a top-level module has been imported."""
    with _lock:
        _waiting[module] = then


def watch_imports() -> None:
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


# -- Loading many modules at once, without looking for garbage among them ----------------------


@contextlib.contextmanager
def quick_loading() -> Iterator[None]:
    """Import what a task needs: nothing of it is garbage, and collections would look at all of it
    again and again, a tenth of the time that importing takes.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


# -- Steps of frameworks' optimizers that share nothing, noted to explain a job whose step stays 0
# A program may make a strategy and then train beside it: with an optimizer that was not handed to
# a bridge, or of a model that was made outside of a scope. Its numbers are right for one process,
# and nobody learns from anybody. The names of such optimizers are noted here, and whether this
# process has made a step that the job counts; a program that ends with the one and without the
# other says so.

_MOST = 8
_names: dict[str, None] = {}  # in order
_shared: list[bool] = []  # at most one


def note_unshared_step(optimizer: str) -> None:
    """Note that an optimizer of this name has made a step of its own."""
    if len(_names) < _MOST:
        _names[optimizer] = None


def note_shared_step() -> None:
    """Note that this process has made a step under a strategy."""
    if not _shared:
        _shared.append(True)


def forget_steps() -> None:
    """Begin anew: another program runs in this process."""
    _names.clear()
    _shared.clear()


def unshared_steps_warning() -> str:
    """Return the warning to show when the program has ended; empty: there is none."""
    if not _names or _shared:
        return ""
    return (
        f"{', '.join(_names)} made steps, and none of them was shared: this process has trained "
        "alone, and the job's global step counts nothing of it. An optimizer of Keras shares what "
        "it trains if it or the model is made in strategy.scope(); one of PyTorch or optax if it "
        "is handed to rw.training.torch.DistributedOptimizer or rw.training.jax (docs/bridges.md)"
    )
