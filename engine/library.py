"""The compiled kernels of this process: loaded when they are asked for, or in the background.

No step and no definition waits for one: until a kernel is there, NumPy does the same to the bit,
more slowly (``rows.py``, ``update_kernel.py``). To compile one takes half a second, and two
minutes on a machine that has more to do; to load one that is kept, some milliseconds. Only the
first is done by Numba, which takes 0.3 s and 100 MB.
"""

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..core import annexes
from ..core.arrays.dtypes import DType
from ..core.clock import Clock, SystemClock
from ..core.process.events import event
from ..core.process.frameworks import quick_loading
from ..core.process.threads import new_thread, nobody_waits
from ..core.process.waiting import WaitLog
from ..core.rules.known_rules import built_in_rules
from ..core.rules.update_rules import UpdateFunction
from ..core.settings import load_settings
from .kernel_cache import CacheFolder, candidates, choose_folder, compiling
from .machine_code import Kernel, processor, read_kernel, write_kernel
from .update_kernel import UpdateKernel

log = logging.getLogger(__name__)

COMPILE_TIMEOUT_S = 60.0  # nobody stands still meanwhile; a process may have been stopped
_POLL_S = 0.1
_Key = tuple[str, DType]
_importing = threading.Lock()
_BYTES, _INTEGERS = np.dtype(np.uint8), np.dtype(np.int64)
_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
# Row kernel -> dtypes it is compiled for.
ROW_KERNELS: dict[str, tuple[DType, ...]] = {
    "gather": (_BYTES,),
    "sum_rows": _FLOATS,
    "deduplicate_bitmap": (_INTEGERS,),
    "deduplicate_radix": (_INTEGERS,),
}


@dataclass(frozen=True, slots=True)
class Loaded:
    """A kernel that was compiled, or loaded from the cache.

    Attributes:
        from_cache: Whether it was there.
        took_s: Time that it took, without loading Numba.
    """

    name: str
    dtype: DType
    from_cache: bool
    took_s: float


class KernelLibrary:
    """Kernels by name and dtype. Thread-safe.

    Args:
        folder: The setting ``kernel_cache``; None: as the environment says.
        clock: Clock, replaced in tests.
    """

    def __init__(self, folder: str | None = None, clock: Clock | None = None) -> None:
        self._chosen = folder
        self._clock = clock or SystemClock()
        self._folder: CacheFolder | None = None
        self._lock = threading.Lock()
        self._loading: defaultdict[_Key, threading.Lock] = defaultdict(threading.Lock)
        self._kernels: dict[_Key, Any] = {}
        self._background: dict[_Key, threading.Thread] = {}
        self._told: set[_Key] = set()  # that they are compiled
        self.loaded: list[Loaded] = []

    def use_folder(self, folder: str) -> None:
        """Take the setting ``kernel_cache``. Once a kernel was loaded, too late for the process."""
        if self._folder is None:
            self._chosen = folder

    @property
    def folder(self) -> CacheFolder:
        """Folder of the compiled kernels; chosen, and logged, at the first use."""
        if self._folder is None:
            chosen = load_settings().kernel_cache if self._chosen is None else self._chosen
            self._folder = choose_folder(candidates(chosen))
            for refusal in self._folder.refused:
                # The one that was asked for by name; the others are only where we look by
                # ourselves.
                asked = bool(chosen) and refusal.folder == Path(chosen).absolute()
                log.log(
                    logging.WARNING if asked else logging.INFO, "no kernels are kept in %s", refusal
                )
            if self._folder.path is None:
                log.info("kernels are compiled in memory: there is no folder to keep them in")
        return self._folder

    def update_kernel(self, update: UpdateFunction, dtype: DType) -> UpdateKernel:
        """Find the compiled kernel of an update rule; loads or compiles it, and waits for that."""
        kernel: UpdateKernel | None = self._kernels.get((update.name, dtype))
        return kernel if kernel is not None else self._load(update, dtype)

    def update_kernel_if_ready(self, update: UpdateFunction, dtype: DType) -> UpdateKernel | None:
        """Find the kernel of an update rule if it is there; otherwise None, and loading it
        begins.
        """
        kernel: UpdateKernel | None = self._kernels.get((update.name, dtype))
        if kernel is None:
            self.load_in_background(update, dtype)
        return kernel

    def row_kernel(self, name: str, dtype: DType) -> Callable[..., Any]:
        """Find a row kernel; loads or compiles it, and waits for that."""
        kernel: Callable[..., Any] | None = self._kernels.get((name, dtype))
        return kernel if kernel is not None else self._load(name, dtype)

    def row_kernel_if_ready(self, name: str, dtype: DType) -> Callable[..., Any] | None:
        """Find a row kernel if it is there; otherwise None, and it is loaded in the background."""
        kernel: Callable[..., Any] | None = self._kernels.get((name, dtype))
        if kernel is None:
            self.load_in_background(name, dtype)
        return kernel

    def load_in_background(self, wanted: UpdateFunction | str, dtype: DType) -> None:
        """Begin to load a kernel. Returns at once; errors are logged.

        Args:
            wanted: The kernel of an update rule, or the name of a row kernel.
            dtype: Dtype of the arrays that it works on.
        """
        key = (_name(wanted), dtype)
        load = partial(self._try_load, wanted, dtype)
        with self._lock:
            if key in self._kernels or key in self._background:
                return
            self._background[key] = new_thread("kernel-loader", load, failed=nobody_waits)
            self._background[key].start()

    def wait(self, until: float) -> None:
        """Wait until what is loaded in the background is there: that slows all threads down.

        Args:
            until: Wait no longer than this, by the clock of ``time.monotonic``.
        """
        for thread in tuple(self._background.values()):
            thread.join(min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX))

    def load_all(self) -> Iterator[Loaded]:
        """Load or compile every kernel there is; yields each."""
        updates = {kernel.name: kernel for rule in built_in_rules() for kernel in rule.kernels}
        rows = dict(ROW_KERNELS)
        for brought in annexes.at("kernels"):
            rows |= brought.KERNELS
        wanted: list[tuple[UpdateFunction | str, DType]] = [
            *((kernel, dtype) for kernel in updates.values() for dtype in _FLOATS),
            *((name, dtype) for name, dtypes in rows.items() for dtype in dtypes),
        ]
        for kernel, dtype in wanted:
            if (_name(kernel), dtype) not in self._kernels:
                self._load(kernel, dtype)
                yield self.loaded[-1]

    def _try_load(self, wanted: UpdateFunction | str, dtype: DType) -> None:
        try:
            self._load(wanted, dtype)
        except Exception:
            log.exception(
                "the kernel %s for %s cannot be loaded; NumPy does its work, which takes several "
                "times as long", _name(wanted), dtype,
            )  # fmt: skip

    def _load(self, wanted: UpdateFunction | str, dtype: DType) -> Any:
        key = (_name(wanted), dtype)
        with self._lock:
            loading = self._loading[key]
            self.folder  # noqa: B018 - chosen once
        with loading:
            if key in self._kernels:
                return self._kernels[key]
            began = time.perf_counter()
            place = self._place(key)
            kernel: Any = None if place is None else _kept(place)
            from_cache = kernel is not None
            if kernel is None:
                kernel, from_cache = self._compile(wanted, dtype, place)
            took_s = time.perf_counter() - began
            self.loaded.append(Loaded(*key, from_cache, took_s))
            if not from_cache:
                made = event(
                    "kernel.compiled", kernel=key[0], dtype=key[1], took_s=round(took_s, 2)
                )
                log.info("compiled the kernel %s for %s in %.1f s", *key, took_s, extra=made)
            if not isinstance(wanted, str):
                kernel = UpdateKernel(wanted, dtype, kernel)
            self._kernels[key] = kernel
            return kernel

    def _compile(
        self, wanted: UpdateFunction | str, dtype: DType, place: Path | None
    ) -> tuple[Kernel, bool]:
        """Compile a kernel and keep it.

        While another process compiles it, this one waits, for ``COMPILE_TIMEOUT_S`` at most.

        Args:
            wanted: The kernel of an update rule, or the name of a row kernel.
            dtype: Dtype of the arrays that it works on.
            place: File to keep it in; None: it is not kept.

        Returns:
            (the kernel, whether the other process has compiled it)
        """
        name = _name(wanted)

        def compile_function() -> tuple[str, bytes]:
            function, arguments = _source(wanted, dtype)  # which loads Numba
            from . import jit

            self._tell((name, dtype))
            return jit.compile_function(function, arguments)

        if place is None:
            return Kernel(name, *compile_function()), False
        waits = WaitLog(f"the kernel {name}", limit_s=COMPILE_TIMEOUT_S, clock=self._clock)
        pause, began = threading.Event(), self._clock.now()
        while True:
            with compiling(place) as is_ours:
                is_late = self._clock.now() - began > COMPILE_TIMEOUT_S
                if (kernel := _kept(place)) is not None:
                    waits.done()
                    return kernel, True
                if is_ours or is_late:
                    waits.done()
                    compiled = compile_function()
                    _keep(place, *compiled)
                    return Kernel(name, *compiled), False
            waits.tick("another process, which compiles it", place)
            self._clock.wait(pause, _POLL_S)

    def _place(self, key: _Key) -> Path | None:
        """Find the file of one kernel, for this kind of processor."""
        folder = self.folder.path
        return folder / processor() / f"{'-'.join(map(str, key))}.kernel" if folder else None

    def _tell(self, key: _Key) -> None:
        """Say that a kernel is compiled, and those beside it that are asked for and not kept."""
        with self._lock:
            if key in self._told:
                return
            asked = self._background.keys() - self._kernels.keys() - self._told
            places = ((other, self._place(other)) for other in asked)
            missing = {key, *(other for other, place in places if not (place and place.exists()))}
            self._told |= missing
        log.info(
            "compiling %d %s, %s (%s); until then NumPy does their work, more slowly",
            len(missing),
            "kernel" if len(missing) == 1 else "kernels",
            "once for this machine" if self.folder.path else "in memory, at each start",
            ", ".join(sorted(f"{name} {dtype}" for name, dtype in missing)),
        )


def _kept(place: Path) -> Kernel | None:
    """Load a kernel from its file; None: it is not there, or cannot be used."""
    try:
        return read_kernel(place)
    except (OSError, ValueError, RuntimeError) as error:
        log.warning("the kept kernel %s cannot be used: %s", place, error)
        return None


def _keep(place: Path, arguments: str, code: bytes) -> None:
    try:
        write_kernel(place, arguments, code)
    except OSError as error:
        log.warning("the kernel %s cannot be kept: %s", place, error.strerror or error)


def _name(wanted: UpdateFunction | str) -> str:
    return wanted if isinstance(wanted, str) else wanted.name


def _source(wanted: UpdateFunction | str, dtype: DType) -> tuple[Callable[..., Any], Any]:
    """Find a kernel before it is compiled, and the types of its arguments."""
    with _importing, quick_loading():  # not at the top: these import Numba
        from . import jit, row_kernels

        if not isinstance(wanted, str):
            return wanted.function, jit.update_arguments(dtype)
        kernels = dict(row_kernels.ROW_FUNCTIONS)
        for brought in annexes.at("kernels") if wanted not in kernels else ():
            kernels |= brought.functions()
    function, arguments = kernels[wanted]
    return function, arguments(dtype)


library = KernelLibrary()
