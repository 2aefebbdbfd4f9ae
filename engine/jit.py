"""Numba, and what the kernels are written with. The one module of the engine that imports it.

Importing Numba takes 0.2 s and 100 MB with its first kernel, so nothing imports this module at
start: ``library.py`` does when the first kernel is asked for, or in a background thread.

``error_model="numpy"`` because Python's checks for division by zero keep LLVM from vectorising.
Fast-math stays off: neither reassociation nor contraction is allowed, so SGD equals the same NumPy
expression to the bit.
"""

import contextlib
import hashlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import cgutils, types
from numba.core.registry import cpu_target

from ..core.arrays.dtypes import DType
from ..core.clock import Clock, SystemClock
from ..core.process.waiting import WaitLog
from ..core.rules.update_rules import clip, prefetch_row
from .kernel_cache import compiling_in, is_kept

log = logging.getLogger(__name__)

# Their type information is partial.
_numba: Any = numba
_cgutils: Any = cgutils

INT64 = types.int64
COMPILE_TIMEOUT_S = 60.0  # nobody stands still meanwhile; a process may have been stopped
_POLL_S = 0.1
_one_at_a_time = threading.Lock()  # Numba compiles one function at a time, in all its threads


def changed(dtype: DType) -> Any:
    """Return the type of an argument: a contiguous, aligned 1-D array that the kernel writes."""
    return types.Array(_numba.from_dtype(np.dtype(dtype)), 1, "C")


def read(dtype: DType | type[np.generic]) -> Any:
    """Return the type of an array argument that the kernel only reads; accepts read-only arrays
    too.
    """
    return types.Array(_numba.from_dtype(np.dtype(dtype)), 1, "C", readonly=True)


def update_arguments(dtype: DType) -> tuple[Any, ...]:
    """Return the types of the arguments of every kernel of an update rule; see
    ``core/rules/update_rules.py``.
    """
    slots = [changed(dtype)] * 3
    return (changed(dtype), *slots, read(dtype), read(np.int64), INT64, read(dtype))


def inlined(function: Any) -> Any:
    """Make a helper that is copied into the kernels which call it."""
    return _numba.njit(function, nogil=True, error_model="numpy", inline="always")


def processor() -> str:
    """Name the kind of processor that kernels are compiled for, and by what: for a folder."""
    target = cpu_target.target_context.codegen().magic_tuple()
    digest = hashlib.sha256(repr((target, _numba.__version__)).encode()).hexdigest()
    return f"{target[1] or 'generic'}-{digest[:12]}"


def compile_function(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    place: Path | None,
    *,
    begins: Callable[[], object] = lambda: None,
    clock: Clock | None = None,
) -> tuple[Any, bool]:
    """Compile a function for one list of argument types, or load it from the cache.

    While another process compiles it, this one waits, for ``COMPILE_TIMEOUT_S`` at most.

    Args:
        function: A Python function.
        arguments: Numba types. Calls with others raise TypeError; nothing is compiled at a call.
        place: Folder for this function and these types alone, in one that was checked
            (``kernel_cache.py``); None: no cache.
        begins: Called before it is compiled here.
        clock: Clock, replaced in tests.

    Returns:
        (the compiled function, which releases the GIL; whether it came from the cache)
    """
    if place is not None:
        for _ in range(2):
            try:
                return _compile_cached(function, arguments, place, begins, clock or SystemClock())
            except Exception as error:  # noqa: BLE001 - a damaged file fails in any way that unpickling can
                name = function.__qualname__
                log.warning("the cached kernel %s in %s cannot be used: %r", name, place, error)
                with contextlib.suppress(OSError):
                    for path in place.glob("*/*.nb?"):
                        path.unlink(missing_ok=True)
    begins()
    with _one_at_a_time:
        dispatcher = _numba.njit(function, nogil=True, error_model="numpy")
        return _compile(dispatcher, arguments), False


def _compile_cached(
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    place: Path,
    begins: Callable[[], object],
    clock: Clock,
) -> tuple[Any, bool]:
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _one_at_a_time:
        dispatcher = _cached_dispatcher(function, place)
    files, name = Path(dispatcher.stats.cache_path), function.__qualname__
    waits = WaitLog(f"the kernel {name}", limit_s=COMPILE_TIMEOUT_S, clock=clock)
    pause, began = threading.Event(), clock.now()
    while True:
        # The lock of this process first: nobody waits for a kernel that nobody is compiling.
        with _one_at_a_time, compiling_in(files) as is_ours:
            is_late = clock.now() - began > COMPILE_TIMEOUT_S
            if is_ours or is_late or is_kept(files):
                if not is_kept(files):
                    begins()
                compiled = _compile(dispatcher, arguments)
                break
        waits.tick("another process, which compiles it", files)
        clock.wait(pause, _POLL_S)
    waits.done()
    if dispatcher.signatures != [arguments]:
        raise ValueError(f"the file holds a kernel for {dispatcher.signatures}")
    return compiled, bool(dispatcher.stats.cache_hits)


def _cached_dispatcher(function: Callable[..., Any], place: Path) -> Any:
    before = _numba.config.CACHE_DIR  # of the whole process, and programs have functions of theirs
    _numba.config.CACHE_DIR = str(place)
    try:
        dispatcher = _numba.njit(function, cache=True, nogil=True, error_model="numpy")
    finally:
        _numba.config.CACHE_DIR = before
    # Numba takes the next place it knows if it cannot write to this one, and we did not check that.
    if place not in Path(dispatcher.stats.cache_path).parents:
        raise OSError(f"Numba chose {dispatcher.stats.cache_path} instead")
    return dispatcher


def _compile(dispatcher: Any, arguments: tuple[Any, ...]) -> Any:
    dispatcher.compile(arguments)
    dispatcher.disable_compile()
    return dispatcher


def intrinsic(function: Callable[..., Any]) -> Any:
    """Make a function of a kernel that is written in LLVM's instructions."""
    build: Any = extending.intrinsic
    return build(function)


def _generate_prefetch(builder: Any, pointer: Any) -> None:
    number = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [_cgutils.voidptr_t, number, number, number])
    function = builder.module.declare_intrinsic("llvm.prefetch", [_cgutils.voidptr_t], kind)
    # For writing, to stay in every cache, data.
    builder.call(function, [pointer, number(1), number(3), number(1)])


@intrinsic
def prefetch(typing: Any, array: Any, index: Any) -> Any:  # noqa: ARG001
    """Start loading an element's cache line, for writing: ``prefetch(array, index)``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, values[0]).data
        pointer = builder.bitcast(builder.gep(data, [values[1]]), _cgutils.voidptr_t)
        _generate_prefetch(builder, pointer)
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


_PREFETCHED = 512  # elements of a row; what follows is found by the processor's own prefetching
_LINE = 16  # elements of float32 in a cache line


def _compiles(function: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorate what returns, for the types of arguments, what kernels have as ``function``."""
    overload: Any = extending.overload
    register: Callable[..., Any] = overload(
        function, inline="always", jit_options={"error_model": "numpy"}
    )
    return register


@_compiles(clip)
def _compiled_clip(x: Any, limit: Any) -> Any:  # noqa: ARG001
    return clip


@_compiles(prefetch_row)
def _compiled_prefetch_row(array: Any, start: Any, width: Any) -> Any:  # noqa: ARG001
    def prefetch_lines(array: Any, start: Any, width: Any) -> None:
        # The first line before the loop, which most rows then skip: with a loop for it, too, rows
        # that no cache had took up to 1.6 times as long.
        prefetch(array, start)
        for i in range(_LINE, min(width, _PREFETCHED), _LINE):
            prefetch(array, start + i)

    return prefetch_lines


@intrinsic
def copy_elements(typing: Any, target: Any, start: Any, source: Any, first: Any, count: Any) -> Any:  # noqa: ARG001
    """Do ``target[start:start+count] = source[first:first+count]`` by memcpy; one dtype, no
    overlap.

    A loop would run element by element for rows shorter than LLVM's unrolled vectors.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        kinds = signature.args
        to = context.make_array(kinds[0])(context, builder, values[0]).data
        source_data = context.make_array(kinds[2])(context, builder, values[2]).data
        size = context.get_abi_sizeof(context.get_data_type(kinds[0].dtype))
        _cgutils.raw_memcpy(
            builder,
            builder.gep(to, [values[1]]),
            builder.gep(source_data, [values[3]]),
            values[4],
            size,
        )
        return context.get_dummy_value()

    return types.void(target, types.intp, source, types.intp, types.intp), generate


@intrinsic
def load_word(typing: Any, address: Any) -> Any:  # noqa: ARG001
    """Read the int64 in memory at an address, which is an int64 itself: ``load_word(address)``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        return builder.load(builder.inttoptr(values[0], ir.IntType(64).as_pointer()))

    return types.int64(types.int64), generate


@intrinsic
def store_word(typing: Any, address: Any, word: Any) -> Any:  # noqa: ARG001
    """Write an int64 to memory at an address: ``store_word(address, word)``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        builder.store(values[1], builder.inttoptr(values[0], ir.IntType(64).as_pointer()))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic
def prefetch_word(typing: Any, address: Any) -> Any:  # noqa: ARG001
    """Start loading the cache line at an address: ``prefetch_word(address)``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        _generate_prefetch(builder, builder.inttoptr(values[0], _cgutils.voidptr_t))
        return context.get_dummy_value()

    return types.void(types.int64), generate


@intrinsic
def count_bits(typing: Any, word: Any) -> Any:  # noqa: ARG001
    """Count the bits of a uint64 that are set, as int64: ``count_bits(word)``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        return builder.ctpop(values[0])

    return types.int64(types.uint64), generate


@intrinsic
def lowest_bit(typing: Any, word: Any) -> Any:  # noqa: ARG001
    """Find the number of the lowest bit set in a nonzero uint64, as int64: ``lowest_bit(word)``."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
        return builder.cttz(values[0], ir.IntType(1)(1))

    return types.int64(types.uint64), generate
