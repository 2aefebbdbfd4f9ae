"""The update kernels as machine code, without Numba in the ps.

Numba and LLVM take 67 MB, and running one kernel from Numba's own cache 57 MB and 0.45 s more, in every ps at
every start. So a child process compiles a kernel once per machine (``compile_kernel.py``), and a ps maps what
it wrote: a few kilobytes of the same instructions. Where that cannot be done (another processor than x86-64,
no memory that may be executed, a Numba that works differently) Numba is loaded here after all.
"""

import ctypes
import hashlib
import json
import logging
import mmap
import os
import platform
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from importlib import metadata
from pathlib import Path

import numpy as np

from ..core.arrays import Array, DType
from ..core.settings import child_environment, read_environment

log = logging.getLogger(__name__)

Kernel = Callable[[Array, Array, Array, Array, Array, Array, int, Array], None]

DIGEST_BYTES = 32  # in front of the file
_COMPILE_TIMEOUT_S = 120.0
_HERE = Path(__file__).parent
_ROOT = Path(__file__).parents[2]  # where `import windlass` looks


@cache
def find_kernel(name: str, dtype: DType) -> Kernel:
    """The kernel ``name`` of ``kernels.py`` for arrays of ``dtype``; compiled or loaded at the first call."""
    try:
        with tempfile.TemporaryDirectory(prefix="windlass-") as temporary:
            for folder in (_cache_folder(), Path(temporary)):
                if folder is not None and (code := _compiled(folder, name, dtype)) is not None:
                    return load(code, dtype)
        reason = "no folder to write to"
    except (OSError, ValueError, subprocess.SubprocessError, NotImplementedError) as error:
        reason = str(error)
    log.info("Numba compiles the kernel %s in this process: %s", name, reason)
    from . import kernels

    kernel: Kernel = getattr(kernels, name)
    return kernel


def _compiled(folder: Path, name: str, dtype: DType) -> bytes | None:
    """The checked content of the kernel's file, which is made if need be; None: the folder is not usable."""
    path = folder / f"{name}-{dtype.name}-{_fingerprint()}.bin"
    code = _read(path)
    if code is None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        except OSError:
            return None
        _compile(path, name, dtype)
        code = _read(path)
    return code


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            owner = os.fstat(file.fileno())
            content = file.read()
    except OSError:
        return None
    # It will be executed: nobody else may have written it.
    if owner.st_uid != os.geteuid() or owner.st_mode & 0o022:
        return None
    return (
        content[DIGEST_BYTES:]
        if hashlib.sha256(content[DIGEST_BYTES:]).digest() == content[:DIGEST_BYTES]
        else None
    )


def _compile(path: Path, name: str, dtype: DType) -> None:
    log.info("compiling the kernel %s for %s, once on this machine", name, dtype.name)
    search = os.pathsep.join(filter(None, (str(_ROOT), read_environment("PYTHONPATH"))))
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "windlass.engine.compile_kernel",
                name,
                dtype.name,
                str(path),
            ],
            stdin=subprocess.PIPE,  # closes when we end, however, and ends it
            stdout=said,
            stderr=said,
            env=child_environment(PYTHONPATH=search),
            umask=0o077,
        )
        try:
            process.wait(_COMPILE_TIMEOUT_S)
        finally:
            process.kill()
            process.communicate()
        if process.returncode:
            said.seek(0)
            lines = said.read().decode(errors="replace").strip().splitlines()
            raise OSError(lines[-1] if lines else f"the compiler ended with {process.returncode}")


def load(code: bytes, dtype: DType) -> Kernel:
    """The kernel in a file's content without its digest.

    Raises:
        OSError: Memory may not be executed here.
    """
    head, _, image = code.partition(b"\n")
    facts = json.loads(head)
    memory = mmap.mmap(-1, len(image), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(image)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    library = ctypes.CDLL(None, use_errno=True)
    for place, function, plus in facts["patches"]:
        target = base
        if function:
            target = ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
        struct.pack_into("<Q", memory, place, target + plus)
    if library.mprotect(ctypes.c_void_p(base), len(image), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError(ctypes.get_errno(), "memory may not be executed here")
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    arrays = [pointer, size] * 6
    # Numba's convention: where the result goes (None does not need it) and where an error would, first.
    kind = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, *arrays, size, pointer, size)
    function = kind(base + facts["entry"])
    unused = (pointer * 2)()
    result = ctypes.addressof(unused)

    rows_dtype = np.dtype(np.int64)

    def address(array: Array, wanted: DType = dtype) -> int:
        if not array.size:
            return 0  # an unused slot
        if array.dtype != wanted or not array.flags.c_contiguous:
            raise ValueError(f"a kernel for {wanted} was given {array.dtype}, or not contiguous")
        return array.ctypes.data

    def kernel(
        w: Array, s0: Array, s1: Array, s2: Array, g: Array, rows: Array, width: int, h: Array
    ) -> None:
        function(
            result, result + 8, address(w), w.size, address(s0), s0.size, address(s1), s1.size,
            address(s2), s2.size, address(g), g.size, address(rows, rows_dtype), rows.size, width,
            address(h), h.size,
        )  # fmt: skip

    kernel.__dict__["memory"] = (memory, unused)  # they live as long as the code may run
    return kernel


def _cache_folder() -> Path | None:
    """``windlass`` in the user's cache; None without a home."""
    chosen = read_environment("XDG_CACHE_HOME")
    try:
        return Path(chosen or Path.home() / ".cache") / "windlass"
    except RuntimeError:
        return None


@cache
def _fingerprint() -> str:
    """Everything the code depends on: the source, the compiler, the processor.

    Raises:
        NotImplementedError: The loader does not know this machine.
    """
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        raise NotImplementedError(f"{platform.system()} on {platform.machine()}")
    processor: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        processor[name.strip()] = value
    parts = [
        *[(_HERE / name).read_text() for name in ("kernels.py", "compile_kernel.py")],
        *[metadata.version(name) for name in ("numba", "llvmlite")],
        *[processor.get(name, "") for name in ("model name", "flags")],
        *[read_environment(name) for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_OPT")],
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
