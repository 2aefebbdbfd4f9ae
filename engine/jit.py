"""Numba, and what the kernels are written with. The one module of the engine that imports it.

Importing Numba takes 0.2 s and 100 MB with its first kernel, so nothing imports this module at
start: ``library.py`` does when the first kernel is asked for, or in a background thread.

``error_model="numpy"`` because Python's checks for division by zero keep LLVM from vectorising.
Fast-math stays off: neither reassociation nor contraction is allowed, so SGD equals the same NumPy
expression to the bit.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import extending
from numba.core import cgutils, compiler, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np import numpy_support

from ..core.arrays.dtypes import DType
from ..core.rules.update_rules import clip, prefetch_row
from . import machine_code as code

# Their type information is partial.
_numba: Any = numba
_cgutils: Any = cgutils
_compile: Any = compiler.compile_extra
_Flags: Any = compiler.Flags

INT64 = types.int64


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


def stack_array(count: int, dtype: DType | type[np.generic]) -> Any:
    """Make a function for kernels that returns a 1-D array in their own stack, of any content.

    Kernels allocate nothing: so they cannot fail, and need nothing of Numba when they run.

    Args:
        count: Number of elements; a few KB at most.
        dtype: Dtype of the array.
    """
    array_type = types.Array(_numba.from_dtype(np.dtype(dtype)), 1, "C")

    @intrinsic
    def allocate(typing: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
            element = context.get_data_type(array_type.dtype)
            data = _cgutils.alloca_once(builder, element, size=count)
            return _array_value(context, builder, array_type, data, _WORD(count))

        return array_type(), generate

    return allocate


# -- Machine code: a kernel as it is kept in a file, which is run without Numba ----------------
# ``machine_code.py`` loads it, and says how it is called.

_WORD, _NUMBER = ir.IntType(64), ir.IntType(32)
_compiling = threading.Lock()  # Numba compiles one function at a time, in all its threads


def compile_function(function: Callable[..., Any], arguments: Sequence[Any]) -> tuple[str, bytes]:
    """Compile a function for one list of argument types.

    Args:
        function: A Python function that allocates nothing and raises nothing; it returns an int64,
            or None.
        arguments: Numba types: 1-D arrays, and int64.

    Returns:
        (its arguments, its object code), as :class:`machine_code.Kernel` takes them

    Raises:
        NumbaError: It cannot be compiled.
    """
    flags = _Flags()
    flags.error_model, flags.nrt = "numpy", False
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    typing, context = cpu_target.typing_context, cpu_target.target_context
    with _compiling, global_compiler_lock:
        typing.refresh()
        context.refresh()
        compiled = _compile(typing, context, function, arguments, None, flags, {})
        library = context.codegen().create_library(function.__name__)
        library.add_ir_module(_entry_of(compiled, library))
        library.add_linking_library(compiled.library)
        library.enable_object_caching()
        library.finalize()
        compiled_code: bytes = library._get_compiled_object()
    kinds = "".join("a" if isinstance(each, types.Array) else "i" for each in arguments)
    return kinds, compiled_code


def _entry_of(compiled: Any, library: Any) -> Any:
    """Write the function that is called from outside: it takes the arrays out of the tuple of
    arguments, checks them, and calls what was compiled.
    """
    module = library.create_ir_module(code.ENTRY)
    kinds, context = compiled.signature.args, compiled.target_context
    count = sum(not isinstance(kind, types.Array) for kind in kinds)
    entry = ir.Function(module, ir.FunctionType(_WORD, [_WORD] * (2 + count)), name=code.ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    array_class, arguments, *integers = entry.args
    values = []
    for position, each in enumerate(kinds):
        if not isinstance(each, types.Array):
            values.append(integers.pop(0))
            continue
        array = _load(builder, arguments, code.TUPLE_ITEMS + 8 * position, _WORD)
        is_other = builder.icmp_unsigned(
            "!=", _load(builder, array, code.ARRAY_CLASS, _WORD), array_class
        )
        with builder.if_then(is_other, likely=False):  # before a field of an array is read
            builder.ret(_WORD(code.NOT_RIGHT + position))
        with builder.if_then(builder.not_(_has_layout(builder, array, each)), likely=False):
            builder.ret(_WORD(code.NOT_RIGHT + position))
        element = context.get_data_type(each.dtype).as_pointer()
        data = _load(builder, array, code.ARRAY_DATA, element)
        size = _load(builder, _load(builder, array, code.ARRAY_SHAPE, _WORD), 0, _WORD)
        values.append(_array_value(context, builder, each, data, size))
    function = context.declare_function(module, compiled.fndesc)
    returned = compiled.signature.return_type
    _, result = context.call_conv.call_function(builder, function, returned, kinds, values)
    builder.ret(_WORD(0) if returned == types.none else result)
    return module


def _load(builder: Any, address: Any, offset: int, kind: Any) -> Any:
    """Read what lies ``offset`` bytes behind an address."""
    return builder.load(builder.inttoptr(builder.add(address, _WORD(offset)), kind.as_pointer()))


def _has_layout(builder: Any, array: Any, kind: Any) -> Any:
    """Compare an array with what a kernel expects: axes, dtype, order of bytes, flags."""
    dtype = _load(builder, array, code.ARRAY_DTYPE, _WORD)
    flags = _load(builder, array, code.ARRAY_FLAGS, _NUMBER)
    needed = _NUMBER(code.CONTIGUOUS | code.ALIGNED | (code.WRITEABLE if kind.mutable else 0))
    number = _NUMBER(numpy_support.as_dtype(kind.dtype).num)
    byte = ir.IntType(8)
    facts = (
        ("==", _load(builder, array, code.ARRAY_AXES, _NUMBER), _NUMBER(1)),
        ("==", _load(builder, dtype, code.DTYPE_NUMBER, _NUMBER), number),
        ("!=", _load(builder, dtype, code.DTYPE_ORDER, byte), byte(code.SWAPPED)),
        ("==", builder.and_(flags, needed), needed),
    )
    return functools.reduce(builder.and_, [builder.icmp_unsigned(*fact) for fact in facts])


def _array_value(context: Any, builder: Any, kind: Any, data: Any, size: Any) -> Any:
    """Make Numba's value of a contiguous 1-D array."""
    array = context.make_array(kind)(context, builder)
    itemsize = _WORD(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    context.populate_array(
        array, data=data, shape=[size], strides=[itemsize], itemsize=itemsize, meminfo=None
    )
    return array._getvalue()


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


def _reinterpreted(source: Any, target: Any) -> Any:
    """Make a function for kernels that takes the bits of a scalar as another type."""

    @intrinsic
    def reinterpret(typing: Any, value: Any) -> Any:  # noqa: ARG001
        def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:  # noqa: ARG001
            return builder.bitcast(values[0], context.get_value_type(target))

        return target(source), generate

    return reinterpret


bits_of = _reinterpreted(types.float64, types.uint64)
"""The bits of a float64, as a uint64."""
of_bits = _reinterpreted(types.uint64, types.float64)
"""The float64 of these bits, which are a uint64."""
