"""Kernels are compiled once per machine, loaded when asked for, and never from a damaged file.

Processes of their own: what counts is what a fresh one does. One that is forked has Numba, and no
kernel; what a process loads and how it ends, one that is started for real shows.
"""

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
from ropewalk.engine.library import ROW_KERNELS, KernelLibrary

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
hits = [kernel._run.stats.cache_hits for kernel in library._kernels.values()]
misses = [kernel._run.stats.cache_misses for kernel in library._kernels.values()]
print(sum(sum(each.values()) for each in hits), sum(sum(each.values()) for each in misses))
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
    missing = [*cache.rglob("*.adam-*.nbi"), *cache.rglob("*.sgd-*.nbi")]
    assert len(missing) >= 2, "an index of each, for both dtypes, in a folder of each checkout"
    for index in missing:
        index.unlink()
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
    assert kernel._run.stats.cache_path is None  # type: ignore[attr-defined]
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
    data, *others = tmp_path.rglob("*.sgd-*.nbc")
    assert others == []
    whole = data.read_bytes()
    data.write_bytes({"cut": whole[:-100], "emptied": b"", "something else": b"x" * 500}[harm])
    with caplog.at_level(logging.WARNING):
        KernelLibrary(str(tmp_path)).update_kernel(sgd, F32)
    assert "the cached kernel sgd in" in caplog.text
    library = KernelLibrary(str(tmp_path))
    library.update_kernel(sgd, F32)
    assert [kernel.from_cache for kernel in library.loaded] == [True]


def test_a_file_of_another_dtype_is_not_run(tmp_path: Path) -> None:
    """What two processes that save at once could leave, if nothing kept them apart."""
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F32)
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F64)
    first, second = sorted(tmp_path.rglob("*.sgd-*.nbc"))
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
    (begun := KernelLibrary(str(tmp_path))).row_kernel("gather", np.dtype(np.uint8))
    place = begun._place(("sgd", F32))
    clock, compiled = ManualClock(), []
    with caplog.at_level(logging.WARNING), compiling_for_ever(tmp_path, "sgd"):
        _, from_cache = jit.compile_function(
            sgd.function,
            jit.update_arguments(F32),
            place,
            begins=lambda: compiled.append(clock.now()),
            clock=clock,
        )
    assert not from_cache
    assert compiled == [pytest.approx(jit.COMPILE_TIMEOUT_S, abs=0.5)]
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
    with caplog.at_level(logging.INFO), jit._one_at_a_time:
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


def test_numbas_own_setting_is_left_as_it_was(tmp_path: Path) -> None:
    import numba

    before = numba.config.CACHE_DIR  # type: ignore[attr-defined]
    KernelLibrary(str(tmp_path)).update_kernel(sgd, F32)
    assert before == numba.config.CACHE_DIR  # type: ignore[attr-defined]


def test_a_call_never_compiles() -> None:
    kernel = KernelLibrary().update_kernel(sgd, F32)
    none, rows = np.empty(0, np.float64), np.zeros(1, np.int64)
    with pytest.raises(TypeError, match="No matching definition"):
        kernel._run(none, none, none, none, none, rows, 0, none)


def test_threads_that_ask_at_once_get_the_same_kernel(tmp_path: Path) -> None:
    library = KernelLibrary(str(tmp_path))
    library.load_in_background()
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
    library.load_in_background()
    library.wait(time.monotonic())
    assert library.loaded == []
    library.wait(time.monotonic() + 60)
    assert [each.name for each in library.loaded] == ["gather"]


def test_no_rule_waits_for_its_kernel(tmp_path: Path) -> None:
    library = KernelLibrary(str(tmp_path))
    with jit._one_at_a_time:  # so that nothing is compiled
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
        "import time; from ropewalk.engine.library import library\n"
        f"library.load_in_background(); time.sleep({delay_s})"
    )
    cache = str(tmp_path / "cache")
    _, logged = run_program("-c", code, start=run_for_real, ROPEWALK_KERNEL_CACHE=cache)
    assert logged == ""
