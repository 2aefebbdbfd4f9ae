"""Compiled kernels in files and in memory, which run without Numba.

A kernel is object code with one function, :data:`ENTRY`, which ``jit.py`` writes around what Numba
has compiled; LLVM's own loader (llvmlite) puts it into memory. So a process that finds the kernels
it needs never imports Numba.

The function is given the tuple of arguments, and takes the arrays out of it by the layout of
CPython's and NumPy's objects: ctypes would convert each for 0.1 us. It checks class, axes, dtype,
order of bytes and flags of each.
"""

import ctypes
import hashlib
import sys
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ..core.files.new_path import new_path
from ..core.settings import read_environment

ENTRY = "ropewalk_kernel"
NOT_RIGHT = -(2**63)
"""Returned, with the position added, for an argument that is not what the kernel expects."""

# Places in objects, in bytes: the headers differ between builds of Python, what follows does not.
TUPLE_ITEMS, ARRAY_DATA = tuple.__basicsize__, object.__basicsize__
ARRAY_CLASS = object.__basicsize__ - ctypes.sizeof(ctypes.c_void_p)
ARRAY_AXES, ARRAY_SHAPE, ARRAY_DTYPE, ARRAY_FLAGS = (ARRAY_DATA + n for n in (8, 16, 40, 48))
DTYPE_ORDER, DTYPE_NUMBER = object.__basicsize__ + 10, object.__basicsize__ + 12
SWAPPED = ord(">" if sys.byteorder == "little" else "<")
CONTIGUOUS, ALIGNED, WRITEABLE = 0x1, 0x100, 0x400

_NDARRAY = id(np.ndarray)


class Kernel:
    """A kernel that is loaded. Thread-safe; runs without the interpreter's lock.

    Args:
        name: Name of the kernel, for messages.
        arguments: A letter for each argument: ``a`` an array, ``i`` an integer.
        code: Object code with the function :data:`ENTRY`.
    """

    def __init__(self, name: str, arguments: str, code: bytes) -> None:
        self.name = name
        self._count, self._least = len(arguments), NOT_RIGHT + len(arguments)
        self._integers = tuple(i for i, kind in enumerate(arguments) if kind == "i")
        self._engine, address = _load(code)  # which keeps the code in memory
        kinds: Any = (ctypes.c_void_p, ctypes.py_object, *[ctypes.c_int64] * len(self._integers))
        self._run = ctypes.CFUNCTYPE(ctypes.c_int64, *kinds)(address)

    def __call__(self, *arguments: Any) -> int:
        """Run the kernel.

        Returns:
            The integer that it returns; 0 if it returns none.

        Raises:
            TypeError: An argument is of another kind than the kernel was compiled for. Nothing was
                changed.
        """
        if len(arguments) != self._count:
            raise TypeError(f"kernel {self.name} has {self._count} arguments, not {len(arguments)}")
        integers = map(arguments.__getitem__, self._integers)
        returned: int = self._run(_NDARRAY, arguments, *integers)
        return returned if returned >= self._least else self._call_with_views(arguments)

    def _call_with_views(self, arguments: tuple[Any, ...]) -> int:
        """Call it with views of memmaps and the like, which are plain arrays."""
        plain = tuple(
            value.view(np.ndarray) if isinstance(value, np.ndarray) else value
            for value in arguments
        )
        integers = map(arguments.__getitem__, self._integers)
        returned: int = self._run(_NDARRAY, plain, *integers)
        if returned < self._least:
            position = returned - NOT_RIGHT
            raise TypeError(
                f"kernel {self.name}: argument {position} cannot be {_shown(arguments[position])}"
            )
        return returned


def _shown(value: Any) -> str:
    if not isinstance(value, np.ndarray):
        return f"a {type(value).__name__}"
    flags = ", ".join(
        word for word, is_so in (
            ("not contiguous", not value.flags.c_contiguous),
            ("not aligned", not value.flags.aligned),
            ("read-only", not value.flags.writeable),
        ) if is_so
    )  # fmt: skip
    return f"a {value.dtype} array of {value.ndim} axes" + (f" ({flags})" if flags else "")


@cache
def _llvm() -> Any:
    """Load LLVM, and tell it for which processor."""
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding


def _load(code: bytes) -> tuple[Any, int]:
    llvm = _llvm()
    target = llvm.Target.from_triple(llvm.get_process_triple())
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target.create_target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, engine.get_function_address(ENTRY)


@cache
def processor() -> str:
    """Name the kind of processor that kernels are compiled for, and by what: for a folder.

    That is this one, or what Numba's variables say: an image's kernels are for many machines.
    """
    llvm = _llvm()
    name, features = read_environment("NUMBA_CPU_NAME"), read_environment("NUMBA_CPU_FEATURES")
    if name in ("", "host"):
        name = llvm.get_host_cpu_name()
        features = features or llvm.get_host_cpu_features().flatten()
    facts = (
        llvm.get_process_triple(), name, features, version("numba"), version("llvmlite"),
        object.__basicsize__, tuple.__basicsize__,
    )  # fmt: skip
    return f"{name or 'generic'}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:12]}"


# -- Files: a digest of the name and the rest, the kinds of the arguments, the object code -----


def write_kernel(path: Path, arguments: str, code: bytes) -> None:
    """Write a kernel; other processes see all of it, or nothing.

    Args:
        path: File; its name says which kernel it is.
        arguments: The kinds, as in :class:`Kernel`.
        code: Object code.

    Raises:
        OSError: It cannot be written.
    """
    content = arguments.encode() + b"\n" + code
    with new_path(path, overwrite=True) as temporary:
        temporary.write_bytes(_digest(path, content) + content)


def read_kernel(path: Path) -> Kernel | None:
    """Load a kernel; None: it is not there.

    Raises:
        ValueError: The file is damaged, or another kernel's.
        OSError: It cannot be read.
    """
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, content = content[:_DIGEST_BYTES], content[_DIGEST_BYTES:]
    if digest != _digest(path, content):
        raise ValueError("its digest is wrong")
    arguments, _, code = content.partition(b"\n")
    return Kernel(path.stem, arguments.decode(), code)


_DIGEST_BYTES = hashlib.sha256().digest_size


def _digest(path: Path, content: bytes) -> bytes:
    return hashlib.sha256(path.name.encode() + b"\n" + content).digest()
