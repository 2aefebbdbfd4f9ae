"""Compiles one update kernel to a file: ``python -m windlass.engine.compile_kernel adam float32 FILE``.

A process of its own, since Numba with what it needs to compile takes 120 MB and half a second, and a ps
needs only the few hundred instructions that come out. The kernel is the one of ``kernels.py``, compiled by
Numba as it would be in place; its object code is then laid out here as one image, with the few places that
the loader must fill in. There is no linker: users may not have one, and this object has a few relocations,
all of one kind.

``machine_code.py`` reads the file: a digest, a line of JSON, the image.
"""

import hashlib
import json
import os
import struct
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

from . import kernels
from .machine_code import DIGEST_BYTES, load

_numba: Any = numba  # its type information is partial

LIBRARY_FUNCTIONS = ("pow", "powf")
_ALLOCATED, _EXECUTABLE = 2, 4
_PROGBITS, _RELA = 1, 4
_FUNCTION, _R_X86_64_64 = 2, 1


class _Section(NamedTuple):
    name: int
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_size: int


class _Symbol(NamedTuple):
    name: str
    type: int
    section: int
    value: int
    size: int


class _Relocation(NamedTuple):
    section: int
    offset: int
    symbol: int
    type: int
    addend: int


def compile_kernel(name: str, dtype: str) -> bytes:
    """The file's content.

    Raises:
        ValueError: The object code is not of the expected form.
    """
    kernel = getattr(kernels, name)
    types, carray = _numba.types, _numba.carray
    number = types.CPointer(_numba.from_dtype(np.dtype(dtype)))
    size, rows = types.int64, types.CPointer(types.int64)

    def entry(w, nw, s0, n0, s1, n1, s2, n2, g, ng, r, nr, width, h, nh):  # type: ignore[no-untyped-def]
        kernel(
            carray(w, nw), carray(s0, n0), carray(s1, n1), carray(s2, n2),
            carray(g, ng), carray(r, nr), width, carray(h, nh),
        )  # fmt: skip

    signature = types.void(*[number, size] * 5, rows, size, size, number, size)
    compiled = _numba.cfunc(signature, nopython=True, error_model="numpy")(entry)
    library = compiled._library
    code = library._codegen._tm.emit_object(library._final_module)
    # Not the C callback, which takes the GIL to report errors, but the function inside.
    image, start, patches = lay_out(code, compiled.native_name.removeprefix("cfunc."))
    head = json.dumps({"entry": start, "patches": patches}).encode() + b"\n"
    return hashlib.sha256(head + image).digest() + head + image


def lay_out(code: bytes, entry: str) -> tuple[bytes, int, list[tuple[int, str, int]]]:
    """An ELF object as one image.

    Returns:
        (image, offset of ``entry``, patches: write the address of a library function, or of the image if
        the name is empty, plus a number, as 8 bytes at an offset)

    Raises:
        ValueError: Something else than such patches would be needed to run it.
    """
    sections, symbols, relocations = _read(code)
    base: dict[int, int] = {}
    image = bytearray()
    for number, section in enumerate(sections):
        if section.type == _PROGBITS and section.flags & _ALLOCATED:
            image += bytes(-len(image) % max(section.align, 1))
            base[number] = len(image)
            image += code[section.offset : section.offset + section.size]
    first = next(symbol for symbol in symbols if symbol.name == entry)
    reached, left = {first}, [first]
    patches: list[tuple[int, str, int]] = []
    if any(item.section in base and not _is_code(sections[item.section]) for item in relocations):
        raise ValueError("the constants have relocations")
    while left:
        function = left.pop()
        stop = function.value + function.size
        for item in relocations:
            if item.section != function.section or not function.value <= item.offset < stop:
                continue
            target = symbols[item.symbol]
            if item.type != _R_X86_64_64:
                raise ValueError(f"relocation of type {item.type} to {target.name}")
            place = base[item.section] + item.offset
            if target.section in base:
                patches.append((place, "", base[target.section] + target.value + item.addend))
                if target.type == _FUNCTION and target not in reached:
                    reached.add(target)
                    left.append(target)
                elif target.type != _FUNCTION and _is_code(sections[target.section]):
                    raise ValueError(f"relocation into code, to {target}")
            elif target.name in LIBRARY_FUNCTIONS:
                patches.append((place, target.name, item.addend))
            else:
                raise ValueError(f"it calls {target.name}")
    return bytes(image), base[first.section] + first.value, patches


def _is_code(section: _Section) -> bool:
    return bool(section.flags & _EXECUTABLE)


def _read(code: bytes) -> tuple[list[_Section], list[_Symbol], list[_Relocation]]:
    if code[:6] != b"\x7fELF\2\1":
        raise ValueError("not a 64-bit little-endian ELF object")
    (at,) = struct.unpack_from("<Q", code, 40)
    step, count = struct.unpack_from("<HH", code, 58)
    sections = [
        _Section._make(struct.unpack_from("<IIQQQQIIQQ", code, at + step * i)) for i in range(count)
    ]
    symbols: list[_Symbol] = []
    for table in (section for section in sections if section.type == 2):
        names = sections[table.link].offset
        for i in range(table.size // 24):
            name, kind, _, section, value, size = struct.unpack_from(
                "<IBBHQQ", code, table.offset + 24 * i
            )
            text = code[names + name : code.index(0, names + name)].decode()
            symbols.append(_Symbol(text, kind & 15, section, value, size))
    relocations = []
    for table in (section for section in sections if section.type == _RELA):
        for i in range(table.size // 24):
            offset, info, addend = struct.unpack_from("<QQq", code, table.offset + 24 * i)
            relocations.append(
                _Relocation(table.info, offset, info >> 32, info & 0xFFFFFFFF, addend)
            )
    return sections, symbols, relocations


def _end_with_parent() -> None:
    """Our standard input is a pipe that whoever started us holds open."""
    # Not sys.stdin: at the end the interpreter would find its lock held.
    while os.read(0, 1):
        pass
    os._exit(1)


def try_out(name: str, dtype: str, code: bytes) -> None:
    """Run the file's code beside the kernel it came from: what would crash a ps ends this process.

    Raises:
        ValueError: They do not agree to the bit.
    """
    rng = np.random.default_rng(0)
    rows, width = np.array([0, 2, 3], np.int64), 37
    memory = [rng.random(5 * width).astype(dtype) for _ in range(4)]
    gradient = rng.standard_normal(rows.size * width).astype(dtype)
    scalars = np.array([1, np.inf, 0.1, 0.9, 0.1, 0.99, 0.01, 1e-7, 0.01], dtype)
    results = []
    for kernel in (load(code[DIGEST_BYTES:], np.dtype(dtype)), getattr(kernels, name)):
        own = [array.copy() for array in memory]
        kernel(own[0], own[1], own[2], own[3], gradient, rows, width, scalars)
        results.append([array.tobytes() for array in own])
    if results[0] != results[1]:
        raise ValueError(f"the code of {name} does something else than Numba's")


def main(name: str, dtype: str, path: str) -> None:
    """Write the file; whoever looks sees all of it or none."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    code = compile_kernel(name, dtype)
    try_out(name, dtype, code)
    part = Path(f"{path}.{os.getpid()}")
    part.write_bytes(code)
    part.replace(path)


if __name__ == "__main__":
    main(*sys.argv[1:])
