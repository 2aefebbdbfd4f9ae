"""The kernels of the image are used by its tasks: nothing is compiled when a container starts."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from helpers.processes import ROOT
from helpers.waiting import scaled

SCRIPT = ROOT / "deploy" / "docker" / "whole-seconds.sh"
DOCKERFILE = ROOT / "deploy" / "docker" / "Dockerfile"
# The image's Numba (requirements-cpu.lock) tells by its time and size whether a source has changed;
# newer ones read it.
OLDER_NUMBA = """\
import os
from numba.core import caching

def stamp(self):
    found = os.stat(self._py_file)
    return found.st_mtime, found.st_size

caching._SourceFileBackedLocatorMixin.get_source_stamp = stamp
import numpy as np
from ropewalk.engine.library import KernelLibrary

library = KernelLibrary(os.environ["ROPEWALK_KERNEL_CACHE"])
library.row_kernel("gather", np.dtype(np.uint8))
print(library.loaded[-1].from_cache)
"""


def kernel_is_there(tree: Path) -> bool:
    """Whether a kernel is in the cache of an image's tree; it is afterwards."""
    said = subprocess.run(
        [sys.executable, "-c", OLDER_NUMBA],
        env={
            **os.environ,
            "PYTHONPATH": str(tree),
            "PYTHONDONTWRITEBYTECODE": "1",  # none in the tree; Numba's own is read where it is
            "ROPEWALK_KERNEL_CACHE": str(tree / "kernels"),
        },
        capture_output=True, text=True, timeout=scaled(60), check=True,
    )  # fmt: skip
    return said.stdout == "True\n"


def as_layer(tree: Path) -> None:
    """Pack a tree as a layer of an image is packed, and unpack it in its place."""
    layer = tree.with_suffix(".tar")
    with tarfile.open(layer, "w", format=tarfile.USTAR_FORMAT) as archive:
        archive.add(tree, tree.name)
    shutil.rmtree(tree)
    with tarfile.open(layer) as archive:
        # An attribute: Python before 3.11.4 knows no such argument.
        archive.extraction_filter = lambda member, _: member
        archive.extractall(tree.parent)  # noqa: S202 - of our own making


@pytest.mark.parametrize("prepared", [True, pytest.param(False, marks=pytest.mark.soak)])
def test_a_kernel_of_the_image_is_used_if_sources_have_times_of_whole_seconds(
    tmp_path: Path, *, prepared: bool
) -> None:
    tree = tmp_path / "image"
    shutil.copytree(ROOT / "src" / "ropewalk", tree / "ropewalk")
    for path in (tree / "ropewalk" / "engine").glob("*.py"):
        os.utime(path, ns=(1, 1_700_000_000_123_456_789))
    if prepared:
        command = ["sh", str(SCRIPT), str(tree / "ropewalk")]
        subprocess.run(command, check=True, timeout=scaled(60))
    assert not kernel_is_there(tree)
    if not prepared:
        assert kernel_is_there(tree)
    as_layer(tree)
    assert kernel_is_there(tree) == prepared


def test_the_image_prepares_its_sources_before_it_compiles_kernels() -> None:
    text = DOCKERFILE.read_text()
    assert 0 < text.index("RUN sh /whole-seconds.sh") < text.index("ropewalk warm-kernels")
