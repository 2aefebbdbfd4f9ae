"""The PATH of a bare Debian: what its packages bring, and nothing that somebody has put beside."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.processes import ROOT
from helpers.waiting import scaled

TOOL = ROOT / "tools" / "bare_path.sh"
if not TOOL.exists():
    pytest.skip("needs a checkout: tools/ is not in an sdist", allow_module_level=True)
pytestmark = pytest.mark.needs("bash")


def bare_path(folder: Path, path: str) -> tuple[str, str]:
    done = subprocess.run(
        ["bash", str(TOOL), str(folder)],  # noqa: S607
        env={"PATH": path}, capture_output=True, text=True, check=True, timeout=scaled(60),
    )  # fmt: skip
    return done.stdout, done.stderr


@pytest.mark.needs("dpkg-query", "git", "make")
def test_it_has_a_debians_own_programs_and_no_others(tmp_path: Path) -> None:
    links, added = tmp_path / "links", tmp_path / "added"
    links.mkdir()
    added.mkdir()
    (added / "podman").touch(mode=0o755)
    (added / "python3").write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
    (added / "python3").chmod(0o755)
    said, _ = bare_path(links, f"{added}:{os.environ['PATH']}")
    assert said == f"{links}\n"
    there = {path.name for path in links.iterdir()}
    assert {"sh", "bash", "ls", "awk", "grep", "mount", "python3", "git", "make"} <= there
    assert "podman" not in there
    assert all(path.exists() for path in links.iterdir())
    assert (links / "python3").samefile(sys.executable)  # and no script that looks for one


def test_where_no_package_tells_the_path_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    bash = next(path for each in os.get_exec_path() if (path := Path(each) / "bash").exists())
    (tmp_path / "bin" / "bash").symlink_to(bash)
    said, warned = bare_path(tmp_path, f"{tmp_path}/bin")
    assert said == f"{tmp_path}/bin\n"
    assert "no dpkg-query" in warned
