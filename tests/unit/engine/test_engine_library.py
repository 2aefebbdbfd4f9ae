"""Kernels are compiled once per machine, loaded when asked for, and never from a damaged file.

Processes of their own: what counts is what a fresh one does. What a process loads and how it ends,
one that is started for real shows.
"""

import errno
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import processes
from helpers.clock import ManualClock
from helpers.slow_compile import compiling_for_ever
from helpers.waiting import scaled
from ropewalk.core.arrays.dtypes import DType
from ropewalk.core.rules.built_in.adagrad import adagrad
from ropewalk.core.rules.built_in.sgd import momentum, sgd
from ropewalk.core.rules.update_rules import UpdateFunction
from ropewalk.engine import jit
from ropewalk.engine.library import COMPILE_TIMEOUT_S, ROW_KERNELS, KernelLibrary
from ropewalk.engine.machine_code import processor

F32, F64 = np.dtype(np.float32), np.dtype(np.float64)
Starts = Callable[..., tuple[int, str, str]]
SOURCES = Path(__file__).resolve().parents[3] / "src"

# Prints "from the cache", "compiled" for the kernels named, and the result of a step.
PROGRAM = """
import sys
import numpy as np
from ropewalk.core.rules.built_in.sgd import sgd
from ropewalk.core.rules.known_rules import built_in_rules
from ropewalk.engine.library import library
kernels = {each.name: each for rule in built_in_rules() for each in rule.kernels}
for kernel in kernels.values():
    if kernel.name in sys.argv[1:]:
        library.update_kernel(kernel, np.dtype(np.float32))
value, ones = np.zeros(3, np.float32), np.ones(3, np.float32)
library.update_kernel(sgd, np.dtype(np.float32))(
    value, [], ones, None, 0, np.array([1, np.inf, 0.5], np.float32)
)
assert value.tolist() == [-0.5] * 3
hits = sum(kernel.from_cache for kernel in library.loaded)
print(hits, len(library.loaded) - hits)
"""


def run_program(
    *arguments: str, start: Starts = processes.run, **environment: str
) -> tuple[str, str]:
    """What a fresh process printed, and what it logged."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
    }
    code, output, errors = start(
        [sys.executable, *arguments],
        timeout_s=scaled(100),
        env={**kept, "PYTHONPATH": str(SOURCES), **environment},
    )
    assert code == 0, output + errors
    return output.strip(), errors


def run_for_real(command: Sequence[str | Path], **options: Any) -> tuple[int, str, str]:
    """``processes.run``, by executing python."""
    done = subprocess.run(
        command,
        env=options["env"],
        capture_output=True,
        text=True,
        check=False,
        timeout=options["timeout_s"],
    )
    return done.returncode, done.stdout, done.stderr


def test_a_kernel_is_compiled_once_and_then_loaded(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache")
    assert run_program("-c", PROGRAM, "sgd", ROPEWALK_KERNEL_CACHE=cache)[0] == "0 1"
    assert run_program("-c", PROGRAM, "sgd", ROPEWALK_KERNEL_CACHE=cache)[0] == "1 0"
    assert run_program("-c", PROGRAM, "sgd", "momentum", ROPEWALK_KERNEL_CACHE=cache)[0] == "1 1"


@pytest.mark.scenario
def test_kernels_that_were_warmed_are_not_compiled_again(tmp_path: Path) -> None:
    """Two are missing from a copy of what this run keeps; to compile all takes half a minute."""
    for _ in KernelLibrary().load_all():
        pass
    kept, cache = KernelLibrary().folder.path, tmp_path / "cache"
    assert kept is not None
    shutil.copytree(kept, cache / kept.name)
    cache.chmod(0o700)
    missing = [*cache.rglob("adam-*.kernel"), *cache.rglob("sgd-*.kernel")]
    assert len(missing) == 4, "of each, for both dtypes"
    for file in missing:
        file.unlink()
    warm = ("-m", "ropewalk.launch.cli", "warm-kernels", "--kernel-cache", str(cache))
    first = run_program(*warm)[0].splitlines()
    count = len(first) - 1
    compiled = [line.partition(":")[0] for line in first if ": compiled in " in line]
    assert sorted(compiled) == ["adam float32", "adam float64", "sgd float32", "sgd float64"]
    assert first[-1].startswith(f"{count} kernels, 4 compiled, in {cache}/kernels-")
    again = run_program(*warm)[0].splitlines()
    assert again[-1].startswith(f"{count} kernels, 0 compiled, in {cache}/kernels-")
    names = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "ftrl")
    assert run_program("-c", PROGRAM, *names, ROPEWALK_KERNEL_CACHE=str(cache))[0] == "6 0"


def test_a_process_without_any_place_to_write_compiles_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    library = KernelLibrary("")
    kernel = library.update_kernel(sgd, F32)
    assert library.folder.path is None
    assert kernel.name == "sgd"
    assert [loaded.from_cache for loaded in library.loaded] == [False]


def test_warming_without_a_folder_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk.launch.cli", "warm-kernels"],
        env={
            **os.environ,
            "PYTHONPATH": str(SOURCES),
            "XDG_CACHE_HOME": str(tmp_path / "file"),
            "NUMBA_CACHE_DIR": "",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode != 0
    assert f"not used: {tmp_path / 'file' / 'ropewalk'}: Not a directory" in done.stderr
    assert "name one with --kernel-cache" in done.stderr


@pytest.mark.parametrize("harm", ["cut", "emptied", "something else"])
def test_a_damaged_file_is_made_anew(
    tmp_path: Path, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F32)
    data, *others = tmp_path.rglob("sgd-*.kernel")
    assert others == []
    whole = data.read_bytes()
    data.write_bytes({"cut": whole[:-100], "emptied": b"", "something else": b"x" * 500}[harm])
    with caplog.at_level(logging.WARNING):
        KernelLibrary(str(tmp_path)).update_kernel(sgd, F32)
    assert f"the kept kernel {data} cannot be used: its digest is wrong" in caplog.text
    library = KernelLibrary(str(tmp_path))
    library.update_kernel(sgd, F32)
    assert [kernel.from_cache for kernel in library.loaded] == [True]


def test_a_file_of_another_dtype_is_not_run(tmp_path: Path) -> None:
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F32)
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F64)
    first, second = sorted(tmp_path.rglob("sgd-*.kernel"))
    second.write_bytes(first.read_bytes())
    value = np.zeros(2)
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F64)(
        value, [], np.ones(2), None, 0, np.array([1, np.inf, 0.5])
    )
    assert value.tolist() == [-0.5, -0.5]


def test_processes_that_start_at_once_compile_a_kernel_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor() as pool:
        started = [
            pool.submit(run_program, "-c", PROGRAM, "sgd", ROPEWALK_KERNEL_CACHE=str(tmp_path))
            for _ in range(3)
        ]
        printed = sorted(process.result()[0] for process in started)
    assert printed == ["0 1", "1 0", "1 0"]


def test_a_kernel_that_is_there_is_loaded_while_another_process_compiles_one(
    tmp_path: Path,
) -> None:
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F32)
    with compiling_for_ever(tmp_path, "momentum"):
        library = KernelLibrary(str(tmp_path))
        library.update_kernel(sgd, F32)
    assert [each.from_cache for each in library.loaded] == [True]


@pytest.mark.parametrize(("kernel", "dtype"), [(adagrad, F32), (sgd, F64)], ids=["rule", "dtype"])
def test_two_kernels_are_compiled_at_once(
    tmp_path: Path, kernel: UpdateFunction, dtype: DType
) -> None:
    with compiling_for_ever(tmp_path, "sgd"):
        library = KernelLibrary(str(tmp_path))
        library.update_kernel(kernel, dtype)
    assert [each.from_cache for each in library.loaded] == [False]
    again = KernelLibrary(str(tmp_path))
    again.update_kernel(kernel, dtype)
    assert [each.from_cache for each in again.loaded] == [True]


def test_a_kernel_that_another_process_compiles_for_ever_is_compiled_here_after_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    library = KernelLibrary(str(tmp_path), clock)
    with caplog.at_level(logging.WARNING), compiling_for_ever(tmp_path, "sgd"):
        library.update_kernel(sgd, F32)
    assert [each.from_cache for each in library.loaded] == [False]
    assert clock.now() == pytest.approx(COMPILE_TIMEOUT_S, abs=0.5)
    assert len(caplog.messages) == 3, "after 3, 10 and 30 seconds"
    start = "the kernel sgd waits for another process, which compiles it since"
    assert caplog.messages[0].startswith(start)
    again = KernelLibrary(str(tmp_path))
    again.update_kernel(sgd, F32)
    assert [each.from_cache for each in again.loaded] == [True], "it is kept for all"


def test_what_is_compiled_is_told_once_with_how_much_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F32)
    library = KernelLibrary(str(tmp_path))
    with caplog.at_level(logging.INFO), jit._compiling:
        for kernel in (sgd, adagrad, momentum):
            assert library.update_kernel_if_ready(kernel, F32) is None
    with caplog.at_level(logging.INFO):
        library.wait(time.monotonic() + scaled(60))
    told = [line for line in caplog.messages if line.startswith("compiling ")]
    assert told == [
        "compiling 2 kernels, once for this machine (adagrad float32, momentum float32); until "
        "then NumPy does their work, more slowly"
    ]


def test_a_refused_folder_that_was_asked_for_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    (tmp_path / "file").write_text("")
    library = KernelLibrary(str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        folder = library.folder
    assert folder.path is not None
    assert folder.path.parent == tmp_path / "xdg" / "ropewalk"
    assert f"no kernels are kept in {tmp_path / 'file'}: File exists" in caplog.text


def test_arguments_of_another_kind_are_refused_and_views_of_files_are_taken(tmp_path: Path) -> None:
    kernel = KernelLibrary().update_kernel(sgd, F32)._run
    none, rows, scalars = np.empty(0, F32), np.zeros(1, np.int64), np.array([1, np.inf, 0.5], F32)
    value, ones = np.zeros(3, F32), np.ones(3, F32)
    arguments: list[Any] = [value, none, none, none, ones, rows, 3, scalars]
    read_only = ones.copy()
    read_only.flags.writeable = False
    wrong = {
        "argument 0 cannot be a float64 array of 1 axes": (0, np.zeros(3)),
        "argument 0 cannot be a float32 array of 1 axes .read-only.": (0, read_only),
        "argument 0 cannot be a list": (0, [0.0] * 3),
        "argument 1 cannot be a NoneType": (1, None),
        "argument 5 cannot be a int": (5, 7),
        "argument 4 cannot be a float32 array of 2 axes": (4, np.ones((1, 3), F32)),
        "argument 4 cannot be a float32 array of 1 axes .not contiguous.": (
            4,
            np.ones(6, F32)[::2],
        ),
        "argument 4 cannot be a >f4 array of 1 axes": (4, np.ones(3, ">f4")),
        "argument 5 cannot be a uint64 array": (5, np.zeros(1, np.uint64)),
    }
    for message, (position, bad) in wrong.items():
        given = [*arguments[:position], bad, *arguments[position + 1 :]]
        with pytest.raises(TypeError, match=message):
            kernel(*given)
    with pytest.raises(TypeError, match="has 8 arguments, not 7"):
        kernel(*arguments[:-1])
    assert value.tolist() == [0] * 3
    arguments[4] = np.memmap(tmp_path / "rows", F32, "w+", shape=(3,))
    arguments[4][:] = read_only
    kernel(*arguments)
    assert value.tolist() == [-0.5] * 3


def test_no_kernel_needs_anything_of_numba_when_it_runs(tmp_path: Path) -> None:
    """One loader for all looks up every symbol at once, and ends the process if one is missing."""
    code = (
        "import sys, pathlib, llvmlite.binding as llvm\n"
        "from ropewalk.engine import machine_code\n"
        "target = machine_code._llvm().Target.from_triple(llvm.get_process_triple())\n"
        "engine = llvm.create_mcjit_compiler(\n"
        "    llvm.parse_assembly(''), target.create_target_machine())\n"
        "for count, path in enumerate(map(pathlib.Path, sys.argv[1:]), 1):\n"
        "    code = path.read_bytes()[machine_code._DIGEST_BYTES:].partition(b'\\n')[2]\n"
        "    engine.add_object_file(llvm.ObjectFileRef.from_data(code))\n"
        "    engine.finalize_object()\n"
        "    assert engine.get_function_address(machine_code.ENTRY)\n"
        "print(count, 'numba' in sys.modules)"
    )
    library = KernelLibrary()
    count = len([*library.load_all()])
    assert library.folder.path is not None
    files = list(map(str, library.folder.path.glob(f"{processor()}/*.kernel")))
    assert len(files) >= count  # programs of other tests keep kernels of their own there
    assert run_program("-c", code, *files, start=run_for_real)[0] == f"{len(files)} False"


def test_a_folder_that_cannot_be_written_to_is_read_and_the_rest_compiled_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F32)
    kept = sorted(tmp_path.rglob("*.kernel"))
    opened = Path.open

    def read_only(self: Path, mode: str = "r", **options: Any) -> Any:
        if tmp_path in self.parents and mode != "r" and mode != "rb":
            raise OSError(errno.EROFS, "Read-only file system")
        return opened(self, mode, **options)

    monkeypatch.setattr(Path, "open", read_only)
    library = KernelLibrary(str(tmp_path))
    for kernel in (sgd, momentum):
        library.update_kernel(kernel, F32)
    assert [each.from_cache for each in library.loaded] == [True, False]
    assert "momentum-float32.kernel cannot be kept: Read-only file system" in caplog.text
    assert sorted(tmp_path.rglob("*.kernel")) == kept


def test_threads_that_ask_at_once_get_the_same_kernel(tmp_path: Path) -> None:
    library = KernelLibrary(str(tmp_path))
    library.load_in_background("gather", np.dtype(np.uint8))
    got: list[object] = []
    threads = [
        threading.Thread(target=lambda: got.append(library.update_kernel(sgd, F32)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(kernel) for kernel in got}) == 1
    assert [kernel.name for kernel in library.loaded].count("sgd") == 1


def test_what_is_loaded_in_the_background_is_waited_for_so_long(tmp_path: Path) -> None:
    library = KernelLibrary(str(tmp_path))
    library.wait(time.monotonic())
    library.load_in_background("gather", np.dtype(np.uint8))
    library.wait(time.monotonic())
    assert library.loaded == []
    library.wait(time.monotonic() + 60)
    assert [each.name for each in library.loaded] == ["gather"]


def test_no_rule_waits_for_its_kernel(tmp_path: Path) -> None:
    library = KernelLibrary(str(tmp_path))
    with jit._compiling:  # so that nothing is compiled
        assert library.update_kernel_if_ready(sgd, F32) is None
        assert library.update_kernel_if_ready(sgd, F32) is None
    library.wait(time.monotonic() + scaled(60))
    assert library.update_kernel_if_ready(sgd, F32) is not None
    assert [each.name for each in library.loaded] == ["sgd"]


def test_an_error_in_the_background_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    library = KernelLibrary(str(tmp_path))
    library._try_load("no-such-kernel", F32)
    assert "the kernel no-such-kernel for float32 cannot be loaded" in caplog.text


@pytest.mark.annex("embedding")
def test_every_row_kernel_is_named_in_the_list() -> None:
    from ropewalk.annexes.embedding.kernels import KERNELS
    from ropewalk.annexes.embedding.keyed import index_kernels, value_kernels
    from ropewalk.engine.row_kernels import ROW_FUNCTIONS

    assert set(ROW_KERNELS) == set(ROW_FUNCTIONS)
    kernels = index_kernels.FUNCTIONS | value_kernels.FUNCTIONS
    assert set(KERNELS) == set(kernels)


def test_blocks_are_made_without_the_compiler() -> None:
    code = (
        "import sys, ropewalk.engine.block, ropewalk.engine.rows, ropewalk.engine.update_kernel\n"
        "print(sorted({'numba', 'llvmlite'} & set(sys.modules)))"
    )
    assert run_program("-c", code, start=run_for_real)[0] == "[]"


@pytest.mark.parametrize("delay_s", [0.0, 0.1, 0.3])
def test_a_process_may_end_while_kernels_are_loaded(tmp_path: Path, delay_s: float) -> None:
    code = (
        "import time, numpy; from ropewalk.engine.library import library\n"
        "library.load_in_background('gather', numpy.dtype(numpy.uint8))\n"
        f"time.sleep({delay_s})"
    )
    cache = str(tmp_path / "cache")
    _, logged = run_program("-c", code, start=run_for_real, ROPEWALK_KERNEL_CACHE=cache)
    assert logged == ""
