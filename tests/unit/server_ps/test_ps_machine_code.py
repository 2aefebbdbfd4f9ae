"""Kernels as machine code: the same bits as Numba, never somebody else's file, Numba where it cannot be."""

import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from windlass.core.arrays import Array
from windlass.engine import compile_kernel, kernels, machine_code

pytestmark = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"),
    reason="Numba runs the kernels in place on other machines",
)

RULES = ("sgd", "momentum", "adagrad", "rmsprop", "adam", "ftrl")
F32 = np.dtype(np.float32)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of kernels, and a process that has loaded none."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    machine_code.find_kernel.cache_clear()
    return tmp_path / "windlass"


def is_numba(kernel: object) -> bool:
    return hasattr(kernel, "py_func")


def arguments(dtype: type[np.floating], *, sparse: bool) -> tuple[list[Array], Array, int]:
    """(w, three slots, gradient), rows, width: enough elements for the vectorised part and the rest."""
    rng = np.random.default_rng(3)
    rows = np.array([0, 2, 5], np.int64) if sparse else np.zeros(1, np.int64)
    width = 37 if sparse else 7 * 37
    whole = [np.abs(rng.normal(size=7 * 37)).astype(dtype) for _ in range(4)]
    return [*whole, rng.normal(size=rows.size * width).astype(dtype)], rows, width


@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "rows"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", RULES)
def test_it_computes_the_bits_that_numba_computes(
    name: str, dtype: type[np.floating], sparse: bool
) -> None:
    kernel = machine_code.find_kernel(name, np.dtype(dtype))
    assert not is_numba(kernel)
    # A power that is no root, so that FTRL calls pow; momentum, centring and Nesterov are on.
    scalars = np.array([0.5, 1.5, 0.1, 0.3, 0.2, 0.1, 0.05, 0.0, 0.01], dtype)
    (w, s0, s1, s2, g), rows, width = arguments(dtype, sparse=sparse)
    kernel(w, s0, s1, s2, g, rows, width, scalars)
    (w_, s0_, s1_, s2_, g_), rows_, width_ = arguments(dtype, sparse=sparse)
    getattr(kernels, name)(w_, s0_, s1_, s2_, g_, rows_, width_, scalars)
    for ours, theirs in ((w, w_), (s0, s0_), (s1, s1_), (s2, s2_)):
        np.testing.assert_array_equal(ours, theirs)


def test_a_kernel_refuses_arrays_that_it_would_read_wrongly() -> None:
    kernel = machine_code.find_kernel("sgd", F32)
    w, rows = np.ones(8, np.float32), np.zeros(1, np.int64)
    none, scalars = w[:0], np.ones(3, np.float32)
    with pytest.raises(ValueError, match="float32 was given float64"):
        kernel(w, none, none, none, np.ones(8), rows, 8, scalars)
    with pytest.raises(ValueError, match="not contiguous"):
        kernel(np.ones(16, np.float32)[::2], none, none, none, w, rows, 8, scalars)
    with pytest.raises(ValueError, match="int64 was given int32"):
        kernel(w, none, none, none, w, rows.astype(np.int32), 8, scalars)


def test_a_kernel_is_compiled_once_and_then_read(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_numba(machine_code.find_kernel("sgd", F32))
    (file,) = cache.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    machine_code.find_kernel.cache_clear()
    monkeypatch.delattr(subprocess, "Popen")
    assert not is_numba(machine_code.find_kernel("sgd", F32))


@pytest.mark.parametrize("harm", ["damaged", "writable by others"])
def test_a_file_that_is_not_ours_or_not_whole_is_not_run(cache: Path, harm: str) -> None:
    machine_code.find_kernel("sgd", F32)
    (file,) = cache.iterdir()
    whole = file.read_bytes()
    if harm == "damaged":
        file.write_bytes(whole[:-8])
    else:
        file.chmod(0o622)
    assert machine_code._read(file) is None
    machine_code.find_kernel.cache_clear()
    assert not is_numba(machine_code.find_kernel("sgd", F32))
    assert machine_code._read(file) is not None  # made anew
    assert [path.name for path in cache.iterdir()] == [file.name]


def test_without_a_folder_to_keep_it_a_kernel_is_compiled_all_the_same(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("a file is in the way")
    assert not is_numba(machine_code.find_kernel("sgd", F32))


def test_numba_runs_a_kernel_that_cannot_be_compiled_apart(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert machine_code.find_kernel("sgd", F32) is kernels.sgd
    machine_code.find_kernel.cache_clear()


def test_numba_runs_the_kernels_of_a_machine_that_the_loader_does_not_know(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    machine_code._fingerprint.cache_clear()
    assert machine_code.find_kernel("adam", F32) is kernels.adam
    machine_code.find_kernel.cache_clear()


def test_what_is_no_object_file_is_refused() -> None:
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF object"):
        compile_kernel.lay_out(b"MZ" + bytes(100), "entry")
